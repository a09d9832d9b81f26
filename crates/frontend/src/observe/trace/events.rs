//! Spans as events of the Trace Event Format. Written by hand: a trace has hundreds of thousands of them.
//!
//! A span of a thread is a complete event (`X`). The parts of a request are nestable asynchronous events (`b`, `e`)
//! with the request as their id, and flow events (`s`, `t`, `f`) lead from the frontend through the processes that
//! had it and back. Times are microseconds with three decimals, so nothing is rounded.

use bytes::{Bytes, BytesMut};
use pinion_protocol::names::Part;
use pinion_protocol::spans::{SpanName, request_of, track_name};
use pinion_protocol::{Peer, RequestId, Role};
use pinion_shm::spans::Span;
use std::fmt::Write;

/// A thread of a process, by the numbers that stand in the trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    peer: Peer,
    track: u16,
}

impl Place {
    pub(super) fn new(peer: Peer, track: u16) -> Place {
        Place { peer, track }
    }

    /// Processes stand in the order of a request's way.
    fn process(self) -> u32 {
        let role = match self.peer.role {
            Role::Launcher => 0,
            Role::Frontend => 1,
            Role::Tokenizer => 2,
            Role::Engine => 3,
            Role::Detokenizer => 4,
            Role::Events => 5,
        };
        role * 100 + u32::from(self.peer.index)
    }

    fn thread(self) -> u32 {
        self.process() * 10 + u32::from(self.track)
    }

    /// Pauses have a line of their own: a turn that took long may end in the middle of another span.
    fn pauses(self) -> u32 {
        self.process() * 10 + 9
    }
}

/// Microseconds of nanoseconds.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// The document in the making.
#[derive(Default)]
pub(super) struct Events {
    out: BytesMut,
    any: bool,
}

impl Events {
    /// What has been written since the last call.
    pub(super) fn take(&mut self) -> Bytes {
        self.out.split().freeze()
    }

    fn write(&mut self, event: std::fmt::Arguments<'_>) {
        let before = if std::mem::replace(&mut self.any, true) { ",\n" } else { "" };
        // A buffer that grows takes everything.
        let _ = write!(self.out, "{before}{event}");
    }

    /// The head, and the names of processes and threads.
    pub(super) fn begin(&mut self, places: impl Iterator<Item = Place>) {
        let _ = self.out.write_str("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
        for place in places {
            let (pid, tid, peer) = (place.process(), place.thread(), place.peer);
            if place.track == 0 {
                self.write(format_args!(
                    r#"{{"ph":"M","pid":{pid},"name":"process_name","args":{{"name":"pinion-{peer}"}}}}"#
                ));
                self.write(format_args!(
                    r#"{{"ph":"M","pid":{pid},"name":"process_sort_index","args":{{"sort_index":{pid}}}}}"#
                ));
                let pauses = place.pauses();
                self.write(format_args!(
                    r#"{{"ph":"M","pid":{pid},"tid":{pauses},"name":"thread_name","args":{{"name":"pauses"}}}}"#
                ));
            }
            let track = track_name(place.track);
            self.write(format_args!(
                r#"{{"ph":"M","pid":{pid},"tid":{tid},"name":"thread_name","args":{{"name":"{track}"}}}}"#
            ));
        }
    }

    /// The end of the document; `lost` spans were overwritten before they could be read.
    pub(super) fn end(&mut self, lost: u64) {
        let _ =
            write!(self.out, "\n],\"otherData\":{{\"clock\":\"CLOCK_MONOTONIC\",\"lost_spans\":{lost}}}}}\n");
    }

    /// One span. A name that this build does not know is passed over.
    pub(super) fn span(&mut self, place: Place, span: &Span) {
        match SpanName::from_word(span.name) {
            Some(SpanName::Request(part)) => self.part(place, part, span),
            Some(name) => self.slice(place, name, span),
            None => {}
        }
    }

    fn slice(&mut self, place: Place, name: SpanName, span: &Span) {
        let (begin, duration) = (Micros(span.begin_ns), Micros(span.duration_ns));
        let tid = if name == SpanName::Pause { place.pauses() } else { place.thread() };
        let (pid, text) = (place.process(), name.name());
        let arguments = Arguments { names: name.arguments(), values: span.arguments };
        self.write(format_args!(
            r#"{{"ph":"X","pid":{pid},"tid":{tid},"name":"{text}","ts":{begin},"dur":{duration},"args":{{{arguments}}}}}"#
        ));
    }

    fn part(&mut self, place: Place, part: Part, span: &Span) {
        let id = request_of(span.arguments[0]);
        let (begin_ns, end_ns) = (span.begin_ns, span.begin_ns.saturating_add(span.duration_ns));
        self.asynchronous(place, id, part.name(), begin_ns, end_ns);
        let detail = u16::try_from(span.arguments[1]).unwrap_or(0);
        let on = |role, index| Place::new(Peer::new(role, index), 0);
        match part {
            Part::Admission => self.flow("s", place, id, end_ns),
            Part::Tokenize => self.flow("t", on(Role::Tokenizer, detail), id, begin_ns),
            Part::Prefill => self.flow("t", on(Role::Engine, 0), id, begin_ns),
            Part::Detokenize => self.flow("t", on(Role::Detokenizer, detail), id, end_ns),
            Part::Write => {
                self.flow("f", place, id, end_ns);
                // The whole holds its parts: it begins a nanosecond earlier, so that none begins with it.
                let begin_ns = end_ns.saturating_sub(span.arguments[1]).saturating_sub(1);
                self.asynchronous(place, id, "request", begin_ns, end_ns.saturating_add(1));
            }
            Part::TokenizerQueue | Part::EngineInbox | Part::Queue | Part::Decode => {}
        }
    }

    fn asynchronous(&mut self, place: Place, id: RequestId, name: &str, begin_ns: u64, end_ns: u64) {
        let (pid, tid) = (place.process(), place.thread());
        for (kind, ns) in [("b", begin_ns), ("e", end_ns)] {
            let ts = Micros(ns);
            self.write(format_args!(
                r#"{{"ph":"{kind}","cat":"request","id":"{id}","pid":{pid},"tid":{tid},"name":"{name}","ts":{ts}}}"#
            ));
        }
    }

    fn flow(&mut self, kind: &str, place: Place, id: RequestId, ns: u64) {
        let (pid, tid, ts) = (place.process(), place.thread(), Micros(ns));
        // The last arrow ends at the write that follows; the others at the span that is under way.
        let binding = if kind == "t" { r#","bp":"e""# } else { "" };
        self.write(format_args!(
            r#"{{"ph":"{kind}","cat":"request","id":"{id}","pid":{pid},"tid":{tid},"name":"request","ts":{ts}{binding}}}"#
        ));
    }
}

struct Arguments {
    names: [&'static str; 2],
    values: [u64; 2],
}

impl std::fmt::Display for Arguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut separator = "";
        for (name, value) in self.names.iter().zip(self.values).filter(|(name, _)| !name.is_empty()) {
            match *name {
                "request" => write!(f, r#"{separator}"{name}":"{}""#, request_of(value))?,
                _ => write!(f, r#"{separator}"{name}":{value}"#)?,
            }
            separator = ",";
        }
        Ok(())
    }
}
