//! `POST /debug/trace`: what every process did, as a trace that Perfetto and chrome://tracing read.
//!
//! The rings of spans of all processes are read here and written out as JSON in pieces of bounded size, so that a long
//! trace neither fills memory nor keeps the thread from its streams. A process is a process there and its threads
//! are threads; a request is a track of its own with its parts, joined by arrows to what the processes did for it.
//! All times are CLOCK_MONOTONIC. [`events`] is the rendering, [`Trace`] the body.

mod events;

use bytes::Bytes;
use events::Events;
use pinion_protocol::{Fault, Peer};
use pinion_shm::region::Region;
use pinion_shm::spans::SpanReader;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Longest trace in seconds.
pub(crate) const TRACE_SECONDS_MAX: u64 = 60;
/// Time between two looks at the rings. A thread that writes fewer than 16 384 spans in it loses none.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// Spans rendered before the thread does something else.
const SPANS_PER_PIECE: usize = 512;

struct Source {
    reader: SpanReader<Region>,
    /// Which process and which of its threads, as in the trace.
    place: events::Place,
}

/// The body of the answer.
pub struct Trace {
    sources: Vec<Source>,
    events: Events,
    until: Instant,
    sleep: Pin<Box<Sleep>>,
    stage: Stage,
}

#[derive(PartialEq)]
enum Stage {
    Begin,
    Spans,
    Over,
}

impl Trace {
    /// The next `seconds`; without any, what the rings still hold.
    pub(crate) fn new(spans: &[(Peer, u16, Region)], seconds: u64) -> Trace {
        let open = if seconds == 0 { SpanReader::from_oldest } else { SpanReader::from_now };
        let source = |(peer, track, ring): &(_, u16, Region)| {
            let reader = open(ring.clone())?;
            Some(Source { reader, place: events::Place::new(*peer, *track) })
        };
        Trace {
            sources: spans.iter().filter_map(source).collect(),
            events: Events::default(),
            until: Instant::now() + Duration::from_secs(seconds),
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            stage: Stage::Begin,
        }
    }

    /// Whether everything was handed over.
    pub(crate) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// The next piece.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            match self.stage {
                Stage::Over => return Poll::Ready(None),
                Stage::Begin => {
                    self.events.begin(self.sources.iter().map(|source| source.place));
                    self.stage = Stage::Spans;
                }
                Stage::Spans => {}
            }
            // Before the last look, so that what was there at the end is in the trace.
            let over = Instant::now() >= self.until;
            let taken = self.look();
            if over && taken == 0 {
                self.events.end(self.sources.iter().map(|source| source.reader.lost()).sum());
                self.stage = Stage::Over;
            }
            let piece = self.events.take();
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(piece)));
            }
            self.sleep.as_mut().reset(Instant::now() + LOOK_PERIOD);
            if self.sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Renders a bounded number of spans; gives how many.
    fn look(&mut self) -> usize {
        let mut taken = 0;
        for Source { reader, place } in &mut self.sources {
            for _ in 0..SPANS_PER_PIECE {
                let Some(span) = reader.next_span() else { break };
                self.events.span(*place, &span);
                taken += 1;
            }
        }
        taken
    }
}
