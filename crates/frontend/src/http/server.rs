//! The rim: the accept loop, one task per connection, and the timers that protect both.
//!
//! A panic in a connection's task ends that connection alone (tokio catches it). Every wait here has a limit:
//! head, body, idle time and write progress; see `timed_stream` and [`crate::limits`].

use crate::answers::errors::{HttpError, Refusal};
use crate::http::access_log::Access;
use crate::http::app::App;
use crate::http::body::AnswerBody;
use crate::http::connections::{Activity, Bounds, Doing, Room};
use crate::http::framing;
use crate::http::routes;
use crate::http::timed_stream::{Limits, TimedStream};
use crate::limits::{
    ACCEPT_BACKOFF, ACCEPT_WARNING_PERIOD, HEADER_BYTES_MAX, HEADERS_MAX, LAST_ANSWER_TIME_MAX,
    LAST_ANSWERS_MAX, TCP_USER_TIMEOUT, TRIM_DELAY,
};
use crate::route::Route;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pinion_protocol::Fault;
use std::convert::Infallible;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// A connection's write buffer in hyper: what a slow reader can make us hold besides its stream's own bound.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// Accepts until the task is dropped. When `closing` turns true, idle connections are closed and the others
/// after their current answer.
pub async fn accept(app: Rc<App>, listener: TcpListener, closing: watch::Receiver<bool>) {
    let bounds = Bounds::of_process();
    let connections = app.connections.clone();
    let refusals = Arc::new(Semaphore::new(LAST_ANSWERS_MAX));
    let mut quiet_until = Instant::now();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = connections.fall() => {
                tokio::task::spawn_local(give_memory_back());
                continue;
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                app.metrics.accept_errors.add(1);
                if Instant::now() >= quiet_until {
                    quiet_until = Instant::now() + ACCEPT_WARNING_PERIOD;
                    tracing::warn!(%error, "cannot accept; trying again");
                }
                connections.close_longest_idle();
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        match connections.room(&bounds, stream.as_raw_fd()) {
            Room::Free => {}
            Room::Tight if connections.close_longest_idle() => {
                app.metrics.connections_displaced.add(1);
                // The one that was told looks for bytes, then gives its descriptor back, before the next one is taken.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
            }
            Room::Tight | Room::None => {
                connections.close_longest_idle();
                app.metrics.connections_refused.add(1);
                let Ok(place) = refusals.clone().acquire_owned().await else { return };
                tokio::task::spawn_local(async move {
                    // Some clients take no answer to a request that they have not sent yet.
                    let _ = tokio::time::timeout(LAST_ANSWER_TIME_MAX, stream.readable()).await;
                    say_last(stream, &Refusal::NoRoom.into()).await;
                    drop(place);
                });
                continue;
            }
        }
        // Before the task runs: of many that come at once, the first make room for the last.
        let activity = Rc::new(Activity::new(connections.clone()));
        let (app, closing) = (app.clone(), closing.clone());
        tokio::task::spawn_local(async move {
            let _counted = Counted::new(&app);
            connection(app, stream, activity, closing).await;
        });
    }
}

/// What many connections have left in the heap goes back to the system.
async fn give_memory_back() {
    tokio::time::sleep(TRIM_DELAY).await;
    let begin = Instant::now();
    let any = pinion_os::heap::trim();
    tracing::debug!(any, took = ?begin.elapsed(), "heap trimmed after many connections ended");
}

/// Gives a connection an answer from outside hyper and ends it. What the client still sends is read: a close with
/// unread bytes is a reset, which can overtake the answer.
async fn say_last(mut stream: TcpStream, error: &HttpError) {
    let answer = framing::last_answer(error);
    let mut unread = vec![0; 4 << 10];
    let _ = tokio::time::timeout(LAST_ANSWER_TIME_MAX, async {
        stream.write_all(&answer).await?;
        stream.shutdown().await?;
        while stream.read(&mut unread).await? > 0 {}
        std::io::Result::Ok(())
    })
    .await;
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
async fn connection(app: Rc<App>, stream: TcpStream, activity: Rc<Activity>, closing: watch::Receiver<bool>) {
    tune(&stream);
    let settings = &app.settings;
    let mut timed = TimedStream::new(
        stream,
        activity.clone(),
        Limits { idle: settings.idle_timeout, head: settings.header_timeout, write: settings.write_timeout },
        app.metrics.clone(),
        app.recorder.clone(),
    );
    serve(&app, &mut timed, &activity, closing).await;
    if let Some((stream, status)) = timed.into_refused() {
        app.metrics.response(Route::Unknown, status);
        say_last(stream, &Refusal::Head { status }.into()).await;
    }
}

/// Hands a connection to hyper until it is over.
async fn serve(
    app: &Rc<App>,
    timed: &mut TimedStream<TcpStream>,
    activity: &Rc<Activity>,
    mut closing: watch::Receiver<bool>,
) {
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None)
        .max_buf_size(CONNECTION_BUFFER_BYTES)
        .max_header_size(HEADER_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let service = service_fn(|request| {
        activity.set(Doing::Serving);
        let (app, serving) = (app.clone(), Serving(activity.clone()));
        let mut access = app.settings.access_log.then(|| Access::begin(&request));
        async move {
            let response = routes::handle(app, request).await?;
            serving.0.begin_answer();
            access.iter_mut().for_each(|access| access.answered(&response));
            Ok::<_, Infallible>(response.map(|body| Tracked { body, access, _serving: serving }))
        }
    });
    let mut served = pin!(builder.serve_connection(TokioIo::new(timed), service));
    let was_closing = *closing.borrow_and_update();
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = activity.told_to_close() => {
            // What has arrived and was not read yet is no idle client: it is read first, and then answered.
            tokio::select! {
                biased;
                result = served.as_mut() => result,
                () = tokio::task::yield_now() => {
                    served.as_mut().graceful_shutdown();
                    served.await
                }
            }
        }
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
struct Serving(Rc<Activity>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.set(Doing::Waiting);
    }
}

/// A body that holds its connection in [`Doing::Serving`].
struct Tracked {
    /// Goes first, so that the log knows that a client has left.
    body: AnswerBody,
    access: Option<Access>,
    _serving: Serving,
}

impl Body for Tracked {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let (Poll::Ready(Some(Ok(frame))), Some(access)) = (&polled, &mut self.access) {
            access.sent(frame.data_ref().map_or(0, Bytes::len));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
