//! What this frontend counts by itself: requests, outcomes, tokens, latencies. Plain cells, one thread.
//!
//! The text page of `/metrics`, with what the other processes' status pages say, is made in
//! `exposition`. Labels are closed enums, so no client can make a new series.

use crate::observe::incidents::Incidents;
use crate::observe::otlp::SpanCounts;
use crate::route::Route;
use pinion_protocol::FaultCode;
use pinion_protocol::names::Part;
use std::cell::Cell;
use std::sync::Arc;

/// Upper bounds of the time-to-first-token buckets in seconds; vLLM's, so that dashboards fit.
pub const FIRST_TOKEN_BOUNDS_S: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
/// Upper bounds of the buckets of whole requests and their phases, in seconds: vLLM's and, below 0.3, finer ones.
pub const REQUEST_BOUNDS_S: &[f64] = &[
    0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
];

/// Upper bounds of the buckets between two tokens, in seconds: vLLM's and, below 0.01, finer ones.
pub const TOKEN_GAP_BOUNDS_S: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0,
];
/// Upper bounds of the buckets of a request's parts, in seconds: hops take microseconds, decodes minutes.
pub const PART_BOUNDS_S: &[f64] = &[
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
];
/// Upper bounds of the buckets of lengths, in tokens; they end above `CONTEXT_MAX`.
pub const TOKENS_BOUNDS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6,
    2e6,
];

/// Upper bounds of the buckets of choices for a prompt: vLLM's, and on to the highest that is taken.
pub const CHOICES_BOUNDS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 128.0];

/// A number that only grows.
#[derive(Default)]
pub struct Counter(Cell<u64>);

impl Counter {
    /// Adds `by`.
    pub fn add(&self, by: u64) {
        self.0.set(self.0.get().wrapping_add(by));
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// Counts of durations or lengths by bucket.
pub struct Histogram {
    bounds: &'static [f64],
    buckets: Vec<Counter>,
    sum: Cell<f64>,
    count: Counter,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        let buckets = bounds.iter().map(|_| Counter::default()).collect();
        Histogram { bounds, buckets, sum: Cell::new(0.0), count: Counter::default() }
    }

    /// Adds one duration, in nanoseconds.
    pub fn observe_ns(&self, ns: u64) {
        self.observe_many(ns as f64 / 1e9, 1);
    }

    /// Adds `times` observations of the same value.
    pub fn observe_many(&self, value: f64, times: u64) {
        self.sum.set(self.sum.get() + value * times as f64);
        self.count.add(times);
        let place = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(place) {
            bucket.add(times);
        }
    }

    /// Each bound with the number of observations at or below it.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut total = 0;
        self.bounds.iter().zip(&self.buckets).map(move |(bound, bucket)| {
            total += bucket.get();
            (*bound, total)
        })
    }

    /// Sum of all observations, and their number.
    pub fn sum_and_count(&self) -> (f64, u64) {
        (self.sum.get(), self.count.get())
    }
}

/// How an accepted request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum EndReason {
    /// End of sequence or stop string.
    Stop = 0,
    /// `max_tokens` or the context.
    Length = 1,
    /// The client went away.
    Disconnected = 2,
    /// The request itself could not be served (too long, bad value).
    Rejected = 3,
    /// Overload.
    Overload = 4,
    /// A role died, or the service drained.
    Engine = 5,
    /// Our fault.
    Internal = 6,
    /// The client read too slowly.
    SlowReader = 7,
    /// `/tokenize` or `/detokenize` was answered, or a text became a vector.
    Answered = 8,
    /// Another choice of the same answer failed.
    Withdrawn = 9,
}

impl EndReason {
    /// All, in the order of their numbers.
    pub const ALL: [EndReason; 10] = [
        EndReason::Stop,
        EndReason::Length,
        EndReason::Disconnected,
        EndReason::Rejected,
        EndReason::Overload,
        EndReason::Engine,
        EndReason::Internal,
        EndReason::SlowReader,
        EndReason::Answered,
        EndReason::Withdrawn,
    ];

    /// Label value.
    pub fn name(self) -> &'static str {
        match self {
            EndReason::Stop => "stop",
            EndReason::Length => "length",
            EndReason::Disconnected => "disconnected",
            EndReason::Rejected => "rejected",
            EndReason::Overload => "overload",
            EndReason::Engine => "engine",
            EndReason::Internal => "internal",
            EndReason::SlowReader => "slow_reader",
            EndReason::Answered => "answered",
            EndReason::Withdrawn => "withdrawn",
        }
    }

    /// The reason that stands for a fault.
    pub fn of_fault(code: FaultCode) -> EndReason {
        match code {
            FaultCode::InvalidValue
            | FaultCode::ContextLengthExceeded
            | FaultCode::ModelNotFound
            | FaultCode::BodyTooLarge
            | FaultCode::GrammarFailed => EndReason::Rejected,
            FaultCode::TooManyRequests => EndReason::Overload,
            FaultCode::RoleRestarted | FaultCode::Unavailable => EndReason::Engine,
            FaultCode::NonFinite | FaultCode::Internal => EndReason::Internal,
            FaultCode::SlowReader => EndReason::SlowReader,
        }
    }
}

/// When a generation passed the boundaries of its life, in nanoseconds; 0 where it did not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Life {
    /// The engine took it.
    pub queued_ns: u64,
    /// It was first planned into a step.
    pub scheduled_ns: u64,
    /// Its first token.
    pub first_token_ns: u64,
    /// Its last token.
    pub last_token_ns: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub generated_tokens: u32,
}

/// Where the time of completed generations went.
pub struct Phases {
    /// Waiting in the engine for the first step.
    pub queue: Histogram,
    /// From the first step to the first token.
    pub prefill: Histogram,
    /// From the first token to the last.
    pub decode: Histogram,
    /// From the first step to the last token.
    pub inference: Histogram,
    /// Mean time per token after the first.
    pub time_per_token: Histogram,
    /// Lengths of prompts.
    pub prompt_tokens: Histogram,
    /// Lengths of answers.
    pub generated_tokens: Histogram,
}

impl Default for Phases {
    fn default() -> Self {
        let time = || Histogram::new(REQUEST_BOUNDS_S);
        Phases {
            queue: time(),
            prefill: time(),
            decode: time(),
            inference: time(),
            time_per_token: Histogram::new(TOKEN_GAP_BOUNDS_S),
            prompt_tokens: Histogram::new(TOKENS_BOUNDS),
            generated_tokens: Histogram::new(TOKENS_BOUNDS),
        }
    }
}

impl Phases {
    /// Adds one completed generation. A boundary that was not stamped leaves its phases out.
    pub fn observe(&self, life: &Life) {
        let between = |from_ns: u64, to_ns: u64| to_ns.checked_sub(from_ns).filter(|_| from_ns > 0);
        for (phase, from_ns, to_ns) in [
            (&self.queue, life.queued_ns, life.scheduled_ns),
            (&self.prefill, life.scheduled_ns, life.first_token_ns),
            (&self.decode, life.first_token_ns, life.last_token_ns),
            (&self.inference, life.scheduled_ns, life.last_token_ns),
        ] {
            between(from_ns, to_ns).inspect(|ns| phase.observe_ns(*ns));
        }
        let gaps = u64::from(life.generated_tokens.saturating_sub(1));
        if let Some(ns) = between(life.first_token_ns, life.last_token_ns).filter(|_| gaps > 0) {
            self.time_per_token.observe_ns(ns / gaps);
        }
        self.prompt_tokens.observe_many(f64::from(life.prompt_tokens), 1);
        self.generated_tokens.observe_many(f64::from(life.generated_tokens), 1);
    }
}

/// Status classes 1xx to 5xx.
const CLASSES: usize = 5;

/// Everything this process counts.
pub struct Metrics {
    responses: [[Counter; CLASSES]; Route::ALL.len()],
    ends: [Counter; EndReason::ALL.len()],
    engine_ends: [Counter; EndReason::ALL.len()],
    /// Prompt tokens of ended requests.
    pub prompt_tokens: Counter,
    /// Generated tokens of ended requests.
    pub generated_tokens: Counter,
    /// Prompt tokens of ended requests that came from the prefix cache.
    pub cached_tokens: Counter,
    /// Answers that requests ask for, for each prompt.
    pub choices_asked: Histogram,
    /// `max_tokens` of requests that give it.
    pub tokens_asked: Histogram,
    /// Tokens of the longest choice of each prompt.
    pub longest_choices: Histogram,
    /// Prompt tokens of requests that have their first token, or their end without one.
    pub live_prompt_tokens: Counter,
    /// Generated tokens, counted as they come.
    pub live_generated_tokens: Counter,
    /// From the parsed head to the first token here.
    pub first_token: Histogram,
    /// Between two tokens of one request, as they come here.
    pub token_gap: Histogram,
    /// From the death of a role to the next token of a request that it held.
    pub interruption: Histogram,
    /// Fields of requests that nothing knew.
    pub ignored_fields: Counter,
    /// Requests that went on after a role's death.
    pub resumptions: Counter,
    /// Requests that were given up because roles died while they worked on them.
    pub quarantined: Counter,
    /// The last deaths and returns of roles.
    pub incidents: Incidents,
    /// From the parsed head to the last bytes of the answer.
    pub end_to_end: Histogram,
    /// Where the time between went.
    pub phases: Phases,
    /// The same without gaps, by [`Part`].
    pub parts: [Histogram; Part::ALL.len()],
    /// Spans of requests by what became of them, with `--otlp-traces-endpoint`.
    pub spans: Arc<SpanCounts>,
    /// Connections accepted.
    pub connections: Counter,
    /// Connections that ended.
    pub connections_closed: Counter,
    /// Idle ones that were closed to make room.
    pub connections_displaced: Counter,
    /// New ones that were refused because there was no room.
    pub connections_refused: Counter,
    /// Failures of accept.
    pub accept_errors: Counter,
    /// Connections dropped because a head, a body, an idle time or a write took too long.
    pub timeouts: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            responses: std::array::from_fn(|_| Default::default()),
            ends: Default::default(),
            engine_ends: Default::default(),
            prompt_tokens: Counter::default(),
            generated_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            choices_asked: Histogram::new(CHOICES_BOUNDS),
            tokens_asked: Histogram::new(TOKENS_BOUNDS),
            longest_choices: Histogram::new(TOKENS_BOUNDS),
            live_prompt_tokens: Counter::default(),
            live_generated_tokens: Counter::default(),
            first_token: Histogram::new(FIRST_TOKEN_BOUNDS_S),
            token_gap: Histogram::new(TOKEN_GAP_BOUNDS_S),
            interruption: Histogram::new(TOKEN_GAP_BOUNDS_S),
            ignored_fields: Counter::default(),
            resumptions: Counter::default(),
            quarantined: Counter::default(),
            incidents: Incidents::default(),
            end_to_end: Histogram::new(REQUEST_BOUNDS_S),
            phases: Phases::default(),
            parts: std::array::from_fn(|_| Histogram::new(PART_BOUNDS_S)),
            spans: Arc::default(),
            connections: Counter::default(),
            connections_closed: Counter::default(),
            connections_displaced: Counter::default(),
            connections_refused: Counter::default(),
            accept_errors: Counter::default(),
            timeouts: Counter::default(),
        }
    }
}

impl Metrics {
    /// Counts a response.
    pub fn response(&self, route: Route, status: u16) {
        let class = usize::from(status / 100).saturating_sub(1).min(CLASSES - 1);
        if let Some(counter) = self.responses.get(route as usize).and_then(|classes| classes.get(class)) {
            counter.add(1);
        }
    }

    /// Counts the end of an accepted request.
    pub fn end(&self, reason: EndReason, reaches_engine: bool) {
        if let Some(counter) = self.ends.get(reason as usize) {
            counter.add(1);
        }
        if let Some(counter) = self.engine_ends.get(reason as usize).filter(|_| reaches_engine) {
            counter.add(1);
        }
    }

    /// Requests for the engine that ended for one of `reasons`: generations, and texts that become vectors.
    pub fn engine_requests(&self, reasons: &[EndReason]) -> u64 {
        reasons.iter().filter_map(|reason| self.engine_ends.get(*reason as usize)).map(Counter::get).sum()
    }

    /// Responses by route and class (1 to 5).
    pub fn responses(&self) -> impl Iterator<Item = (Route, usize, u64)> + '_ {
        Route::ALL.iter().zip(&self.responses).flat_map(|(route, classes)| {
            classes.iter().enumerate().map(|(class, counter)| (*route, class + 1, counter.get()))
        })
    }

    /// Requests for the model that were answered, and those that the service failed to answer.
    pub fn answered_and_failed(&self) -> (u64, u64) {
        let of_class = |wanted| {
            let of_model =
                self.responses().filter(|(route, class, _)| route.asks_model() && *class == wanted);
            of_model.map(|(.., count)| count).sum()
        };
        (of_class(2), of_class(5))
    }

    /// Ends by reason.
    pub fn ends(&self) -> impl Iterator<Item = (EndReason, u64)> + '_ {
        EndReason::ALL.iter().zip(&self.ends).map(|(reason, counter)| (*reason, counter.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_at_or_below_each_bound() {
        let histogram = Histogram::new(&[0.1, 1.0]);
        for ns in [50_000_000, 100_000_000, 500_000_000, 5_000_000_000] {
            histogram.observe_ns(ns);
        }
        assert_eq!(histogram.cumulative().collect::<Vec<_>>(), vec![(0.1, 2), (1.0, 3)]);
        assert_eq!(histogram.sum_and_count(), (5.65, 4));
    }

    #[test]
    fn a_life_fills_its_phases_and_an_unstamped_boundary_leaves_them_out() {
        let phases = Phases::default();
        let full = Life {
            queued_ns: 1_000_000_000,
            scheduled_ns: 2_000_000_000,
            first_token_ns: 4_000_000_000,
            last_token_ns: 8_000_000_000,
            prompt_tokens: 7,
            generated_tokens: 5,
        };
        phases.observe(&full);
        phases.observe(&Life { scheduled_ns: 0, generated_tokens: 1, ..full });
        let got: Vec<(f64, u64)> = [
            &phases.queue,
            &phases.prefill,
            &phases.decode,
            &phases.inference,
            &phases.time_per_token,
            &phases.prompt_tokens,
            &phases.generated_tokens,
        ]
        .iter()
        .map(|h| h.sum_and_count())
        .collect();
        let expected = [(1.0, 1), (2.0, 1), (8.0, 2), (6.0, 1), (1.0, 1), (14.0, 2), (6.0, 2)];
        assert_eq!(got, expected);
    }

    #[test]
    fn label_enums_count_in_their_own_place() {
        for (index, reason) in EndReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
        for (index, route) in Route::ALL.iter().enumerate() {
            assert_eq!(*route as usize, index);
        }
        let metrics = Metrics::default();
        metrics.response(Route::Chat, 429);
        metrics.end(EndReason::Length, true);
        metrics.end(EndReason::Answered, false);
        assert!(metrics.responses().all(|(r, class, n)| (n == 1) == (r == Route::Chat && class == 4)));
        assert!(
            metrics
                .ends()
                .all(|(reason, n)| (n == 1) == matches!(reason, EndReason::Length | EndReason::Answered))
        );
        assert_eq!(metrics.engine_requests(&EndReason::ALL), 1);
    }
}
