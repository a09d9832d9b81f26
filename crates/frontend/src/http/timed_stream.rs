//! A socket with deadlines: a head that is begun must be completed, and a write must make progress.
//!
//! hyper has one timer, for the time from idle to a complete head; it serves as the idle timeout here. The
//! rest is ours. Every deadline ends in [`ErrorKind::TimedOut`], on which hyper drops the connection, its
//! response body, and with it the request.

use crate::http::connections::{Activity, Doing};
use crate::http::framing;
use crate::observe::metrics::Metrics;
use pinion_protocol::spans::SpanName;
use pinion_worker::Recorder;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A timer that is set when waiting begins and cleared by progress.
struct Deadline {
    sleep: Pin<Box<Sleep>>,
    limit: Duration,
    running: bool,
}

impl Deadline {
    fn new(limit: Duration) -> Deadline {
        Deadline { sleep: Box::pin(tokio::time::sleep(limit)), limit, running: false }
    }

    fn start(&mut self) {
        if !self.running {
            self.running = true;
            self.sleep.as_mut().reset(Instant::now() + self.limit);
        }
    }

    fn stop(&mut self) {
        self.running = false;
    }

    fn passed(&mut self, context: &mut Context<'_>) -> bool {
        self.running && self.sleep.as_mut().poll(context).is_ready()
    }
}

/// A socket with deadlines.
pub(crate) struct TimedStream<S> {
    inner: S,
    activity: Rc<Activity>,
    head: Deadline,
    write: Deadline,
    metrics: Rc<Metrics>,
    recorder: Rc<Recorder>,
    /// The status of a head that could not be read, or not in time. hyper's answer to it has no body and is held back.
    refused: Option<u16>,
}

impl<S> TimedStream<S> {
    /// Wraps a connected socket.
    pub(crate) fn new(
        inner: S,
        activity: Rc<Activity>,
        head_limit: Duration,
        write_limit: Duration,
        metrics: Rc<Metrics>,
        recorder: Rc<Recorder>,
    ) -> TimedStream<S> {
        let (head, write) = (Deadline::new(head_limit), Deadline::new(write_limit));
        TimedStream { inner, activity, head, write, metrics, recorder, refused: None }
    }

    /// The socket, if its client is to hear this status as the last.
    pub(crate) fn into_refused(self) -> Option<(S, u16)> {
        let status = self.refused?;
        Some((self.inner, status))
    }

    /// Whether these bytes are hyper's own answer to a head, which is not written.
    fn holds_back(&mut self, bytes: &[u8]) -> bool {
        if self.activity.doing() == Doing::Serving {
            return false;
        }
        let status = framing::status_of_bare_refusal(bytes);
        self.refused = status.or(self.refused);
        status.is_some()
    }

    fn timed_out<T>(&self, what: &str) -> Poll<io::Result<T>> {
        self.metrics.timeouts.add(1);
        tracing::debug!(what, "connection timed out");
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }

    fn wrote(&self, begin_ns: u64, result: &Poll<io::Result<usize>>) {
        let bytes = match result {
            Poll::Ready(Ok(bytes)) => *bytes as u64,
            Poll::Ready(Err(_)) | Poll::Pending => 0,
        };
        self.recorder.end(SpanName::FrontendWrite, begin_ns, [bytes, 0]);
    }

    /// Passes on what a write gave, watching that it does not stay pending for too long.
    fn watch_write<T>(
        &mut self,
        result: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.write.stop();
            return result;
        }
        self.write.start();
        if self.write.passed(context) { self.timed_out("write") } else { Poll::Pending }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.activity.doing() == Doing::Serving {
            this.head.stop();
        }
        let before = buffer.filled().len();
        if let Poll::Ready(result) = Pin::new(&mut this.inner).poll_read(context, buffer) {
            if this.activity.doing() == Doing::Waiting && buffer.filled().len() > before {
                this.activity.set(Doing::Head);
                this.head.stop();
                this.head.start();
            }
            return Poll::Ready(result);
        }
        if this.activity.doing() == Doing::Head && this.head.passed(context) {
            this.refused = Some(408);
            return this.timed_out("head");
        }
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.holds_back(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let begin_ns = self.recorder.begin(SpanName::FrontendWrite);
        let result = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.wrote(begin_ns, &result);
        self.watch_write(result, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = slices
            && self.holds_back(only)
        {
            return Poll::Ready(Ok(only.len()));
        }
        let begin_ns = self.recorder.begin(SpanName::FrontendWrite);
        let result = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.wrote(begin_ns, &result);
        self.watch_write(result, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_flush(context))?;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What hyper held back is still to be said.
        if self.refused.is_some() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
