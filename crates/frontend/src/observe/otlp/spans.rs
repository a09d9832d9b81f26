//! What the spans of one request are made from. It is gathered while the request is served, without its text, and goes
//! to the exporter when the last of those that know the request lets it go.

use super::Exporter;
use super::context::Parent;
use crate::limits::TRACE_SEQUENCES_MAX;
use crate::observe::metrics::EndReason;
use crate::observe::timeline::Stamps;
use crate::route::Route;
use pinion_os::clock;
use pinion_protocol::Sampling;
use pinion_protocol::names::{Part, Stage};
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

/// How a request wants its tokens drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) max_tokens: Option<u32>,
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    /// Answers for each prompt.
    pub(crate) choices: u32,
}

/// One text of a request, on its way through the service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    /// Its place among those of the request.
    pub(crate) number: u32,
    pub(crate) stamps: Stamps,
    /// CLOCK_MONOTONIC ns of its last bytes, or of its end without them.
    pub(crate) until_ns: u64,
    /// From the arrival to its first bytes, text or token.
    pub(crate) first_ns: Option<u64>,
    pub(crate) prompt_tokens: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) generated_tokens: u32,
    pub(crate) preemptions: u64,
    pub(crate) resumptions: u32,
    /// How a text that is complete ended, as the client was told.
    pub(crate) finish: Option<&'static str>,
    pub(crate) reason: EndReason,
}

/// The sums over all sequences of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) sequences: u32,
    /// Those of each prompt once.
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) preemptions: u64,
    pub(crate) resumptions: u64,
    pub(crate) first_ns: Option<u64>,
    /// Why one of them has failed.
    pub(crate) failed: Option<EndReason>,
}

/// Everything of one request.
#[derive(Debug)]
pub(crate) struct RequestSpans {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    /// The span that it was sent from.
    pub(crate) parent: Option<u64>,
    pub(crate) state: String,
    pub(crate) route: Route,
    /// What it asks for; `/invocations` says that in its body.
    pub(crate) operation: &'static str,
    /// `X-Request-Id`.
    pub(crate) label: String,
    /// CLOCK_MONOTONIC ns at which its head was parsed ...
    pub(crate) received_ns: u64,
    /// ... and at which its answer was over.
    pub(crate) ended_ns: u64,
    /// Time of day less CLOCK_MONOTONIC, in ns.
    pub(crate) unix_ahead_ns: u64,
    pub(crate) asked: Option<Asked>,
    /// Of the answer, if there was one.
    pub(crate) status: Option<u16>,
    /// The first that ended, at most [`TRACE_SEQUENCES_MAX`].
    pub(crate) sequences: Vec<Sequence>,
    /// The one that ended last.
    pub(crate) slowest: Option<Sequence>,
    pub(crate) totals: Totals,
}

impl RequestSpans {
    /// Of a request that has arrived.
    pub(crate) fn new(
        route: Route,
        label: &str,
        received_ns: u64,
        parent: Option<Parent>,
        (trace_id, span_id): (u128, u64),
    ) -> RequestSpans {
        let span_of_parent = parent.as_ref().map(|parent| parent.span_id);
        RequestSpans {
            trace_id: parent.as_ref().map_or(trace_id, |parent| parent.trace_id),
            span_id,
            parent: span_of_parent,
            state: parent.map(|parent| parent.state).unwrap_or_default(),
            route,
            operation: operation(route),
            label: label.to_owned(),
            received_ns,
            ended_ns: received_ns,
            unix_ahead_ns: 0,
            asked: None,
            status: None,
            sequences: Vec::new(),
            slowest: None,
            totals: Totals::default(),
        }
    }

    /// One of its sequences is over.
    pub(crate) fn add(&mut self, sequence: Sequence) {
        let (totals, choices) = (&mut self.totals, self.asked.map_or(1, |asked| asked.choices.max(1)));
        totals.sequences += 1;
        if sequence.number.is_multiple_of(choices) {
            totals.prompt_tokens += u64::from(sequence.prompt_tokens);
            totals.cached_tokens += u64::from(sequence.cached_tokens);
        }
        totals.generated_tokens += u64::from(sequence.generated_tokens);
        totals.preemptions += sequence.preemptions;
        totals.resumptions += u64::from(sequence.resumptions);
        totals.first_ns = [totals.first_ns, sequence.first_ns].into_iter().flatten().min();
        totals.failed = totals.failed.or(Some(sequence.reason).filter(|reason| failed(*reason)));
        self.ended_ns = self.ended_ns.max(sequence.until_ns);
        if self.slowest.is_none_or(|slowest| slowest.until_ns <= sequence.until_ns) {
            self.slowest = Some(sequence);
        }
        if self.sequences.len() < TRACE_SEQUENCES_MAX {
            self.sequences.push(sequence);
        }
    }

    /// Spans that it becomes.
    pub(crate) fn span_count(&self) -> usize {
        1 + self.sequences.iter().map(|sequence| sequence.stages(self.received_ns).len()).sum::<usize>()
    }

    /// Why it failed: not through the fault of the client that was told so by its status.
    pub(crate) fn error(&self) -> Option<Cow<'static, str>> {
        match (self.status, self.totals.failed) {
            (Some(400..500), _) => None,
            (None, None) => Some(EndReason::Disconnected.name().into()),
            (_, Some(reason)) => Some(reason.name().into()),
            (Some(status @ 500..), None) => Some(status.to_string().into()),
            (Some(_), None) => None,
        }
    }
}

/// Whether a sequence with this end was not answered. One that was withdrawn had a sibling that failed.
pub(crate) fn failed(reason: EndReason) -> bool {
    match reason {
        EndReason::Stop | EndReason::Length | EndReason::Answered | EndReason::Withdrawn => false,
        EndReason::Disconnected
        | EndReason::Rejected
        | EndReason::Overload
        | EndReason::Engine
        | EndReason::Internal
        | EndReason::SlowReader => true,
    }
}

/// A part of a sequence's time, between two instants that were stamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StageSpan {
    pub(crate) part: Part,
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
}

impl Sequence {
    /// Its parts one after another. Where a boundary was not stamped, the time up to the next one is the part's that
    /// had begun; so is the time up to the end, of a sequence that ended within a part. Without stamps
    /// (`--no-timeline`) there are none.
    pub(crate) fn stages(&self, received_ns: u64) -> Vec<StageSpan> {
        let mut stages = Vec::with_capacity(Part::ALL.len());
        let (mut begin_ns, mut under_way) = (received_ns, None);
        if self.stamps.of(Stage::Submitted) == 0 {
            return stages;
        }
        // Engine and detokenizer stamp the end of what was given up, too, and the detokenizer that of a vector.
        let given_up = failed(self.reason);
        let is_text = !given_up && self.stamps.of(Stage::FirstToken) > 0;
        for part in Part::ALL {
            let part_begun = *under_way.get_or_insert(part);
            let stamp_ns = match part {
                Part::Decode if given_up => 0,
                Part::Detokenize if !is_text => 0,
                _ => self.stamps.of(part.ends_at()),
            };
            if stamp_ns > 0 {
                let end_ns = stamp_ns.min(self.until_ns).max(begin_ns);
                // What becomes a vector has no text.
                let part = if part_begun == Part::Detokenize { part } else { part_begun };
                stages.push(StageSpan { part, begin_ns, end_ns });
                (begin_ns, under_way) = (end_ns, None);
            }
        }
        if let Some(part) = under_way
            && self.until_ns > begin_ns
        {
            stages.push(StageSpan { part, begin_ns, end_ns: self.until_ns });
        }
        stages
    }

    /// Nanoseconds from one stage to another, if it reached both.
    pub(crate) fn between(&self, from: Stage, to: Stage) -> Option<u64> {
        let from_ns = self.stamps.of(from);
        self.stamps.of(to).checked_sub(from_ns).filter(|_| from_ns > 0)
    }
}

/// What a request is for, in the words of OpenTelemetry's conventions where these have one.
fn operation(route: Route) -> &'static str {
    match route {
        Route::Chat | Route::Messages | Route::Responses => "chat",
        Route::Embeddings => "embeddings",
        Route::Rerank => "rerank",
        Route::Score => "score",
        _ => "text_completion",
    }
}

/// A request that is traced, held by all who can say something of it.
pub struct RequestTrace {
    exporter: Rc<Exporter>,
    /// Taken when this is dropped.
    gathered: RefCell<Option<RequestSpans>>,
}

impl RequestTrace {
    pub(super) fn new(exporter: Rc<Exporter>, spans: RequestSpans) -> Rc<RequestTrace> {
        Rc::new(RequestTrace { exporter, gathered: RefCell::new(Some(spans)) })
    }

    fn note(&self, note: impl FnOnce(&mut RequestSpans)) {
        if let Some(spans) = self.gathered.borrow_mut().as_mut() {
            note(spans);
        }
    }

    /// Its body says that it is for another route.
    pub(crate) fn is_for(&self, route: Route) {
        self.note(|spans| spans.operation = operation(route));
    }

    /// It was admitted.
    pub(crate) fn asks(&self, sampling: &Sampling, choices: u32) {
        let Sampling { max_tokens, temperature, top_p, .. } = *sampling;
        self.note(|spans| spans.asked = Some(Asked { max_tokens, temperature, top_p, choices }));
    }

    /// Its answer begins.
    pub(crate) fn answered(&self, status: u16) {
        self.note(|spans| {
            spans.status = Some(status);
            spans.ended_ns = spans.ended_ns.max(clock::now_ns());
        });
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let Some(mut spans) = self.gathered.take() else { return };
        let now_ns = clock::now_ns();
        // Its client left before there was anything to answer.
        if spans.status.is_none() && spans.totals.sequences == 0 {
            spans.ended_ns = now_ns;
        }
        spans.unix_ahead_ns = clock::unix_ns().saturating_sub(now_ns);
        self.exporter.send(spans);
    }
}

/// One sequence's part in a traced request.
pub struct TracedSequence {
    trace: Rc<RequestTrace>,
    number: u32,
}

impl TracedSequence {
    /// The one of this number.
    pub(crate) fn new(trace: &Rc<RequestTrace>, number: u32) -> TracedSequence {
        TracedSequence { trace: trace.clone(), number }
    }

    /// It is over.
    pub(crate) fn end(&self, sequence: Sequence) {
        let sequence = Sequence { number: self.number, ..sequence };
        self.trace.note(|spans| spans.add(sequence));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_random::nth;

    const SEQUENCE: Sequence = Sequence {
        number: 0,
        stamps: Stamps::NONE,
        until_ns: 2000,
        first_ns: None,
        prompt_tokens: 7,
        cached_tokens: 3,
        generated_tokens: 2,
        preemptions: 1,
        resumptions: 1,
        finish: Some("stop"),
        reason: EndReason::Stop,
    };

    fn spans(route: Route) -> RequestSpans {
        RequestSpans::new(route, "label", 1000, None, (1, 2))
    }

    /// Stages by name, with their ends.
    fn stages(stamped: &[(Stage, u64)]) -> Vec<(&'static str, u64)> {
        let mut stamps = [0; 12];
        stamped.iter().for_each(|(stage, ns)| stamps[*stage as usize] = *ns);
        let sequence = Sequence { stamps: Stamps::of_list(stamps), ..SEQUENCE };
        sequence.stages(1000).into_iter().map(|stage| (stage.part.name(), stage.end_ns)).collect()
    }

    #[test]
    fn a_stage_ends_where_it_was_stamped_or_with_its_request() {
        use Stage::*;
        assert_eq!(stages(&[]), [], "without a timeline");
        assert_eq!(stages(&[(Received, 1000)]), []);
        assert_eq!(stages(&[(Submitted, 1100)]), [("admission", 1100), ("tokenizer_queue", 2000)]);
        let queued = [(Submitted, 1100), (TokenizeBegin, 1200), (TokenizeEnd, 1300), (EngineReceived, 1400)];
        let names = ["admission", "tokenizer_queue", "tokenize", "engine_inbox", "queue"];
        let ends = [1100, 1200, 1300, 1400, 2000];
        assert_eq!(stages(&queued), names.into_iter().zip(ends).collect::<Vec<_>>());
        // What becomes a vector has no first token and no text.
        let pooled = [(FirstScheduled, 1500), (LastToken, 1600), (LastText, 1650), (LastWrite, 1700)];
        let all = stages(&[&queued[..], &pooled].concat());
        assert_eq!(all[4..], [("queue", 1500), ("prefill", 1600), ("write", 1700)]);
        // The engine gave it up while it was in the queue.
        let mut stamps = [1100, 1100, 1100, 1200, 1300, 0, 0, 1400, 0, 0, 0, 0];
        let left = Sequence { reason: EndReason::Disconnected, stamps: Stamps::of_list(stamps), ..SEQUENCE };
        let last = left.stages(1000).pop().unwrap();
        assert_eq!((last.part, last.begin_ns, last.end_ns), (Part::Queue, 1300, 2000));
        stamps[Stage::LastText as usize] = 1500;
        let left = Sequence { stamps: Stamps::of_list(stamps), ..left };
        assert_eq!(left.stages(1000).pop(), Some(last));
        // A stamp of after the end, or of before the stage, is cut.
        let late = [(Submitted, 1100), (TokenizeBegin, 1050), (TokenizeEnd, 9000)];
        let cut = [("admission", 1100), ("tokenizer_queue", 1100), ("tokenize", 2000)];
        assert_eq!(stages(&late), cut);
    }

    #[test]
    fn stages_follow_one_another_within_their_request_whatever_the_stamps_say() {
        let seed = 20_261_123;
        println!("seed {seed}");
        for round in 0..2000 {
            let random = |place: u64, below: u64| nth(seed + round, place) % below;
            let mut stamps = [0; 12];
            for (place, stamp) in stamps.iter_mut().enumerate() {
                let place = place as u64;
                *stamp = if random(place, 4) == 0 { 0 } else { 500 + random(place + 20, 2000) };
            }
            let sequence = Sequence { stamps: Stamps::of_list(stamps), ..SEQUENCE };
            let mut before_ns = 1000;
            for stage in sequence.stages(1000) {
                assert_eq!(stage.begin_ns, before_ns, "{stamps:?}");
                assert!(stage.begin_ns <= stage.end_ns && stage.end_ns <= 2000, "{stamps:?}");
                before_ns = stage.end_ns;
            }
        }
    }

    #[test]
    fn a_prompt_counts_once_and_a_request_shows_some_of_its_sequences() {
        let mut spans = spans(Route::Completions);
        spans.asked = Some(Asked { max_tokens: None, temperature: 1.0, top_p: 1.0, choices: 2 });
        // Two prompts with two choices each, and the second of the first ends last.
        for (number, until_ns, first_ns) in
            [(0, 1500, None), (2, 1600, Some(30)), (3, 1700, Some(20)), (1, 1800, None)]
        {
            spans.add(Sequence { number, until_ns, first_ns, ..SEQUENCE });
        }
        let totals = spans.totals;
        assert_eq!((totals.sequences, totals.prompt_tokens, totals.cached_tokens), (4, 14, 6));
        assert_eq!((totals.generated_tokens, totals.preemptions, totals.resumptions), (8, 4, 4));
        assert_eq!((totals.first_ns, spans.ended_ns), (Some(20), 1800));
        assert_eq!(spans.slowest.map(|slowest| slowest.number), Some(1));
        for number in 4..100 {
            spans.add(Sequence { number, ..SEQUENCE });
        }
        assert_eq!((spans.totals.sequences, spans.sequences.len()), (100, TRACE_SEQUENCES_MAX));
    }

    #[test]
    fn a_request_failed_unless_it_was_answered_or_refused_for_its_own_fault() {
        let error = |status, reasons: &[EndReason]| {
            let mut spans = RequestSpans { status, ..spans(Route::Chat) };
            reasons.iter().for_each(|reason| spans.add(Sequence { reason: *reason, ..SEQUENCE }));
            spans.error().map(Cow::into_owned)
        };
        use EndReason::*;
        for (status, reasons, expected) in [
            (Some(200), &[Stop, Length, Answered][..], None),
            (Some(400), &[], None),
            (Some(429), &[Overload, Withdrawn], None),
            (Some(503), &[], Some("503")),
            (Some(500), &[Withdrawn, Internal], Some("internal")),
            (Some(200), &[Disconnected], Some("disconnected")),
            (Some(200), &[Stop, Engine], Some("engine")),
            (None, &[], Some("disconnected")),
            (None, &[Disconnected], Some("disconnected")),
        ] {
            assert_eq!(error(status, reasons).as_deref(), expected, "{status:?} {reasons:?}");
        }
    }
}
