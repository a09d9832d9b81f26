//! The thread that sends: takes requests from the queue, makes batches by size and time, and gives up what a collector
//! does not take. What it loses is counted, and told by one line in a while.

use super::SpanCounts;
use super::connection::{Connection, Retry};
use super::encoding::{Service, export};
use super::ids::Ids;
use super::spans::RequestSpans;
use crate::limits::{
    TRACE_ATTEMPTS_MAX, TRACE_BACKOFF, TRACE_BATCH_SPANS, TRACE_BATCH_TIME, TRACE_END_LOOK,
    TRACE_RETRY_AFTER_MAX, TRACE_WARNING_PERIOD,
};
use bytes::Bytes;
use pinion_config::OtlpTraces;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep, timeout_at};

/// Everything that the thread has.
pub(super) struct Sender {
    service: Service,
    url: String,
    ids: Ids,
    requests: Receiver<RequestSpans>,
    /// Those of the next batch, and their spans.
    batch: Vec<RequestSpans>,
    batch_spans: usize,
    connection: Connection,
    counts: Arc<SpanCounts>,
    warnings: Warnings,
}

/// Lines about what was lost.
struct Warnings {
    /// Spans that they have told of.
    told: u64,
    quiet_until: Option<Instant>,
}

impl Sender {
    pub(super) fn new(
        service: Service,
        otlp: &OtlpTraces,
        requests: Receiver<RequestSpans>,
        counts: Arc<SpanCounts>,
    ) -> Sender {
        Sender {
            service,
            url: otlp.url(),
            ids: Ids::default(),
            requests,
            batch: Vec::new(),
            batch_spans: 0,
            connection: Connection::new(otlp),
            counts,
            warnings: Warnings { told: 0, quiet_until: None },
        }
    }

    /// Runs until the queue is closed and empty.
    pub(super) async fn run(mut self) {
        while let Some(first) = self.requests.recv().await {
            self.put(first);
            let ends = Instant::now() + TRACE_BATCH_TIME;
            while self.batch_spans < TRACE_BATCH_SPANS {
                let Ok(Some(next)) = timeout_at(ends, self.requests.recv()).await else { break };
                self.put(next);
            }
            self.send().await;
        }
    }

    fn put(&mut self, spans: RequestSpans) {
        self.batch_spans += spans.span_count();
        self.batch.push(spans);
    }

    /// Sends the batch, or gives it up.
    async fn send(&mut self) {
        let body = Bytes::from(export(&self.service, &self.batch, || self.ids.span_id()));
        let count = std::mem::take(&mut self.batch_spans) as u64;
        self.batch.clear();
        match self.deliver(body).await {
            Ok(rejected) => {
                let rejected = rejected.min(count);
                self.counts.add_sent(count - rejected);
                self.counts.add_dropped(rejected);
                self.warn("the collector was slow, or rejected them");
            }
            Err(reason) => {
                self.counts.add_dropped(count);
                self.warn(&reason);
            }
        }
    }

    /// The spans that the collector has rejected of those that it took. Errors: why it took none, after some attempts;
    /// at the end of the process there is one.
    async fn deliver(&mut self, body: Bytes) -> Result<u64, String> {
        let (mut pause, mut attempt) = (TRACE_BACKOFF, 0);
        loop {
            attempt += 1;
            let refusal = match self.connection.post(body.clone()).await {
                Ok(rejected) => return Ok(rejected),
                Err(refusal) => refusal,
            };
            let time = match refusal.retry {
                Retry::Later => pause,
                Retry::After(time) => time.min(TRACE_RETRY_AFTER_MAX),
                Retry::Never => return Err(refusal.reason),
            };
            if attempt == TRACE_ATTEMPTS_MAX || self.requests.is_closed() {
                return Err(refusal.reason);
            }
            self.pause(time).await;
            pause *= 2;
        }
    }

    /// Waits, but not beyond the end of the process.
    async fn pause(&self, time: Duration) {
        let ends = Instant::now() + time;
        while !self.requests.is_closed() && Instant::now() < ends {
            sleep(TRACE_END_LOOK.min(ends - Instant::now())).await;
        }
    }

    /// Tells what was lost since the last line, if that was some time ago.
    fn warn(&mut self, reason: &str) {
        let (dropped, now) = (self.counts.dropped(), Instant::now());
        if dropped == self.warnings.told || self.warnings.quiet_until.is_some_and(|until| now < until) {
            return;
        }
        tracing::warn!(
            collector = self.url,
            spans = dropped - self.warnings.told,
            reason,
            "spans were dropped; requests are served as ever"
        );
        self.warnings = Warnings { told: dropped, quiet_until: Some(now + TRACE_WARNING_PERIOD) };
    }
}
