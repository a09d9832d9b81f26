//! Traces for OpenTelemetry (`--otlp-traces-endpoint`): one span for each request to the model, with one for each of
//! its stages, sent to a collector. docs/design/0019-otlp-traces.md.
//!
//! A request gathers what its spans say ([`RequestTrace`]) and leaves it in a bounded queue at its end. A thread of its
//! own encodes and sends it (`sender`), so that neither a slow collector nor the work of encoding reaches a stream.

mod connection;
mod context;
mod encoding;
mod ids;
mod sender;
mod spans;

pub use spans::{RequestTrace, TracedSequence};

pub(crate) use spans::Sequence;

use crate::limits::{LAST_SPANS_TIME_MAX, TRACE_QUEUE_REQUESTS_MAX};
use crate::route::Route;
use context::Parent;
use encoding::Service;
use hyper::HeaderMap;
use ids::Ids;
use pinion_config::OtlpTraces;
use pinion_os::clock;
use sender::Sender;
use spans::RequestSpans;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;
use tokio::sync::mpsc;

/// Spans by what became of them.
#[derive(Default)]
pub struct SpanCounts {
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl SpanCounts {
    fn add_sent(&self, count: u64) {
        self.sent.fetch_add(count, Ordering::Relaxed);
    }

    fn add_dropped(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }

    /// A collector has taken them.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// None has.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The frontend's side of the export.
pub struct Exporter {
    ids: Ids,
    counts: Arc<SpanCounts>,
    /// Closed by [`Exporter::finish`].
    queue: RefCell<Option<mpsc::Sender<RequestSpans>>>,
    /// Closed when the thread has sent its last.
    ended: Receiver<()>,
    /// CLOCK_MONOTONIC ns by which the process has to leave, if it has.
    leaves_ns: Cell<Option<u64>>,
}

impl Exporter {
    /// Starts the thread that sends what the requests of `frontend` say of themselves. Errors: the system grants no
    /// thread, or nothing to wait with.
    pub fn start(
        otlp: &OtlpTraces,
        model: &str,
        frontend: u16,
        counts: Arc<SpanCounts>,
    ) -> io::Result<Rc<Exporter>> {
        let (queue, requests) = mpsc::channel(TRACE_QUEUE_REQUESTS_MAX);
        let (end, ended) = sync_channel(0);
        let service = Service { resource: otlp.resource.clone(), model: model.to_owned(), frontend };
        let sender = Sender::new(service, otlp, requests, counts.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("otlp".to_owned()).spawn(move || {
            pinion_worker::telemetry::unpin_thread();
            runtime.block_on(sender.run());
            drop(end);
        })?;
        Ok(Rc::new(Exporter {
            ids: Ids::default(),
            counts,
            queue: RefCell::new(Some(queue)),
            ended,
            leaves_ns: Cell::new(None),
        }))
    }

    /// The trace of a request that has arrived; `None` if its caller does not record it.
    pub(crate) fn begin(
        self: &Rc<Exporter>,
        route: Route,
        headers: &HeaderMap,
        label: &str,
        received_ns: u64,
    ) -> Option<Rc<RequestTrace>> {
        let parent = Parent::of(headers);
        if parent.as_ref().is_some_and(|parent| !parent.sampled) {
            return None;
        }
        let ids = (self.ids.trace_id(), self.ids.span_id());
        Some(RequestTrace::new(self.clone(), RequestSpans::new(route, label, received_ns, parent, ids)))
    }

    /// Never waits: what finds no room is dropped and counted.
    fn send(&self, spans: RequestSpans) {
        match self.queue.borrow().as_ref().map(mpsc::Sender::try_reserve) {
            Some(Ok(place)) => place.send(spans),
            Some(Err(_)) | None => self.counts.add_dropped(spans.span_count() as u64),
        }
    }

    /// The process has to leave by this time, or is late for it already.
    pub(crate) fn leave_by(&self, deadline_ns: Option<u64>) {
        self.leaves_ns.set(deadline_ns);
    }

    /// Nothing follows: gives the last spans a moment to be sent. A process that is late has it, too.
    pub(crate) fn finish(&self) {
        self.queue.take();
        let left_ns = self.leaves_ns.get().and_then(|deadline_ns| deadline_ns.checked_sub(clock::now_ns()));
        let left = left_ns.map_or(LAST_SPANS_TIME_MAX, Duration::from_nanos).min(LAST_SPANS_TIME_MAX);
        if self.ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the last spans were not sent: the collector did not take them in time");
        }
    }
}
