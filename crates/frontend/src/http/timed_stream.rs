//! A socket with deadlines: a request must begin, a head that is begun must be completed, and a write must make
//! progress.
//!
//! hyper's one timer spans idle time and head together, so it is off and all deadlines are ours. An idle connection
//! ends as if its client had closed it; one with a write that is pending is not idle. The other deadlines end in
//! [`ErrorKind::TimedOut`], on which hyper drops the connection, its response body, and with it the request.

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
    running: bool,
}

impl Deadline {
    fn new() -> Deadline {
        Deadline { sleep: Box::pin(tokio::time::sleep(Duration::ZERO)), running: false }
    }

    fn start(&mut self, limit: Duration) {
        if !self.running {
            self.running = true;
            self.sleep.as_mut().reset(Instant::now() + limit);
        }
    }

    fn stop(&mut self) {
        self.running = false;
    }

    fn passed(&mut self, context: &mut Context<'_>) -> bool {
        self.running && self.sleep.as_mut().poll(context).is_ready()
    }
}

/// How long a client may take.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// To begin a request.
    pub(crate) idle: Duration,
    /// From the first byte of a head to its last.
    pub(crate) head: Duration,
    /// To take some of what is written.
    pub(crate) write: Duration,
}

/// A socket with deadlines.
pub(crate) struct TimedStream<S> {
    inner: S,
    activity: Rc<Activity>,
    limits: Limits,
    /// For the next request to begin, or for the rest of its head.
    read: Deadline,
    /// What the deadline of reads was started for.
    read_for: Doing,
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
        limits: Limits,
        metrics: Rc<Metrics>,
        recorder: Rc<Recorder>,
    ) -> TimedStream<S> {
        let (read, write) = (Deadline::new(), Deadline::new());
        let read_for = Doing::Waiting;
        TimedStream { inner, activity, limits, read, read_for, write, metrics, recorder, refused: None }
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

    /// Whether the client has been at this for longer than the limit of it.
    fn read_takes_too_long(&mut self, doing: Doing, limit: Duration, context: &mut Context<'_>) -> bool {
        if self.read_for != doing {
            self.read_for = doing;
            self.read.stop();
        }
        self.read.start(limit);
        self.read.passed(context)
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
            if self.write.running && self.activity.doing() != Doing::Serving {
                // If this was the last of the answer, the connection is idle from here on. Only a read sees that and
                // starts the deadline, so hyper is woken to read.
                context.waker().wake_by_ref();
            }
            self.write.stop();
            return result;
        }
        self.write.start(self.limits.write);
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
        // hyper writes what it has before it reads on.
        if this.activity.doing() != Doing::Serving && !this.write.running {
            this.activity.end_answer();
        }
        let before = buffer.filled().len();
        if let Poll::Ready(result) = Pin::new(&mut this.inner).poll_read(context, buffer) {
            if this.activity.doing() == Doing::Waiting && buffer.filled().len() > before {
                this.activity.set(Doing::Head);
                this.read.stop();
            }
            return Poll::Ready(result);
        }
        let Limits { idle, head, .. } = this.limits;
        let doing = this.activity.doing();
        match doing {
            // hyper has sent the whole answer into its buffer, and the client has not read it yet: not idle.
            Doing::Waiting if this.write.running => {
                this.read.stop();
                Poll::Pending
            }
            Doing::Waiting if this.read_takes_too_long(doing, idle, context) => Poll::Ready(Ok(())),
            Doing::Head if this.read_takes_too_long(doing, head, context) => {
                this.refused = Some(408);
                this.timed_out("head")
            }
            Doing::Waiting | Doing::Head => Poll::Pending,
            Doing::Serving => {
                this.read.stop();
                this.activity.wake_when_waiting(context);
                Poll::Pending
            }
        }
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
