//! The rim: the accept loop, one task per connection, and the timers that protect both.
//!
//! A panic in a connection's task ends that connection alone (tokio catches it). Every wait here has a limit:
//! head, body, idle time and write progress; see [`crate::timed_stream`] and [`crate::limits`].

use crate::app::App;
use crate::body::AnswerBody;
use crate::limits::{
    ACCEPT_BACKOFF, ACCEPT_WARNING_PERIOD, CONNECTIONS_MAX, HEADER_BYTES_MAX, HEADERS_MAX, TCP_USER_TIMEOUT,
};
use crate::routes;
use crate::timed_stream::{Doing, TimedStream};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use pinion_protocol::Fault;
use std::cell::Cell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// A connection's write buffer in hyper: what a slow reader can make us hold besides its stream's own bound.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// Accepts until the task is dropped. When `closing` turns true, idle connections are closed and the others
/// after their current answer.
pub async fn accept(app: Rc<App>, listener: TcpListener, closing: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut quiet_until = Instant::now();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                app.metrics.accept_errors.add(1);
                if Instant::now() >= quiet_until {
                    quiet_until = Instant::now() + ACCEPT_WARNING_PERIOD;
                    tracing::warn!(%error, "cannot accept; trying again");
                }
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        let (app, closing) = (app.clone(), closing.clone());
        tokio::task::spawn_local(async move {
            let _counted = Counted::new(&app);
            connection(app, stream, closing).await;
            drop(place);
        });
    }
}

/// Counts a connection as open while it lives.
struct Counted(Rc<App>);

impl Counted {
    fn new(app: &Rc<App>) -> Counted {
        app.metrics.connections.add(1);
        Counted(app.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.metrics.connections_closed.add(1);
    }
}

fn tune(stream: &TcpStream) {
    let user_timeout = u32::try_from(TCP_USER_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    if let Err(error) =
        nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::TcpUserTimeout, &user_timeout)
    {
        tracing::debug!(%error, "cannot set TCP_USER_TIMEOUT");
    }
}

/// Serves one connection to its end.
pub async fn connection(app: Rc<App>, stream: TcpStream, mut closing: watch::Receiver<bool>) {
    tune(&stream);
    let settings = &app.settings;
    let doing = Rc::new(Cell::new(Doing::Waiting));
    let timed = TimedStream::new(
        stream,
        doing.clone(),
        settings.header_timeout,
        settings.write_timeout,
        app.metrics.clone(),
        app.recorder.clone(),
    );
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(settings.idle_timeout.max(settings.header_timeout))
        .max_buf_size(CONNECTION_BUFFER_BYTES)
        .max_header_size(HEADER_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let service = service_fn(|request| {
        doing.set(Doing::Serving);
        let (app, serving) = (app.clone(), Serving(doing.clone()));
        async move {
            routes::handle(app, request)
                .await
                .map(|response| response.map(|body| Tracked { body, _serving: serving }))
        }
    });
    let mut served = pin!(builder.serve_connection(TokioIo::new(timed), service));
    let was_closing = *closing.borrow_and_update();
    let result = tokio::select! {
        result = served.as_mut() => result,
        Ok(()) = closing.changed(), if !was_closing => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// Marks the connection as waiting again when a request's answer is over.
struct Serving(Rc<Cell<Doing>>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.set(Doing::Waiting);
    }
}

/// A body that holds its connection in [`Doing::Serving`].
struct Tracked {
    body: AnswerBody,
    _serving: Serving,
}

impl Body for Tracked {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
