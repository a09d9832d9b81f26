//! What this frontend counts by itself: requests, outcomes, tokens, latencies. Plain cells, one thread.
//!
//! The text page of `/metrics`, with what the other processes' status pages say, is made in
//! [`crate::exposition`]. Labels are closed enums, so no client can make a new series.

use crate::routes::Route;
use pinion_protocol::FaultCode;
use std::cell::Cell;

/// Upper bounds of the time-to-first-token buckets in seconds; vLLM's, so that dashboards fit.
pub const FIRST_TOKEN_BOUNDS_S: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
/// Upper bounds of the end-to-end buckets in seconds.
pub const END_TO_END_BOUNDS_S: &[f64] = &[
    0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
];

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

/// Counts of durations by bucket.
pub struct Histogram {
    bounds_s: &'static [f64],
    buckets: Vec<Counter>,
    sum_s: Cell<f64>,
    count: Counter,
}

impl Histogram {
    fn new(bounds_s: &'static [f64]) -> Histogram {
        let buckets = bounds_s.iter().map(|_| Counter::default()).collect();
        Histogram { bounds_s, buckets, sum_s: Cell::new(0.0), count: Counter::default() }
    }

    /// Adds one duration, in nanoseconds.
    pub fn observe_ns(&self, ns: u64) {
        let seconds = ns as f64 / 1e9;
        self.sum_s.set(self.sum_s.get() + seconds);
        self.count.add(1);
        let place = self.bounds_s.partition_point(|bound| *bound < seconds);
        if let Some(bucket) = self.buckets.get(place) {
            bucket.add(1);
        }
    }

    /// Each bound with the number of durations at or below it.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut total = 0;
        self.bounds_s.iter().zip(&self.buckets).map(move |(bound, bucket)| {
            total += bucket.get();
            (*bound, total)
        })
    }

    /// Sum of all durations in seconds, and their number.
    pub fn sum_and_count(&self) -> (f64, u64) {
        (self.sum_s.get(), self.count.get())
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
    /// `/tokenize` or `/detokenize` was answered.
    Answered = 8,
}

impl EndReason {
    /// All, in the order of their numbers.
    pub const ALL: [EndReason; 9] = [
        EndReason::Stop,
        EndReason::Length,
        EndReason::Disconnected,
        EndReason::Rejected,
        EndReason::Overload,
        EndReason::Engine,
        EndReason::Internal,
        EndReason::SlowReader,
        EndReason::Answered,
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
        }
    }

    /// The reason that stands for a fault.
    pub fn of_fault(code: FaultCode) -> EndReason {
        match code {
            FaultCode::InvalidValue
            | FaultCode::ContextLengthExceeded
            | FaultCode::ModelNotFound
            | FaultCode::BodyTooLarge => EndReason::Rejected,
            FaultCode::TooManyRequests => EndReason::Overload,
            FaultCode::RoleRestarted | FaultCode::Unavailable => EndReason::Engine,
            FaultCode::NonFinite | FaultCode::Internal => EndReason::Internal,
            FaultCode::SlowReader => EndReason::SlowReader,
        }
    }
}

/// Status classes 1xx to 5xx.
const CLASSES: usize = 5;

/// Everything this process counts.
pub struct Metrics {
    responses: [[Counter; CLASSES]; Route::ALL.len()],
    ends: [Counter; EndReason::ALL.len()],
    /// Prompt tokens of finished requests.
    pub prompt_tokens: Counter,
    /// Generated tokens of finished requests.
    pub generated_tokens: Counter,
    /// From the parsed head to the first bytes of the answer (first text, for answers that are not streamed).
    pub first_token: Histogram,
    /// From the parsed head to the last bytes of the answer.
    pub end_to_end: Histogram,
    /// Connections accepted.
    pub connections: Counter,
    /// Connections that ended.
    pub connections_closed: Counter,
    /// Failures of accept.
    pub accept_errors: Counter,
    /// Connections dropped because a head, a body, an idle time or a write took too long.
    pub timeouts: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            responses: Default::default(),
            ends: Default::default(),
            prompt_tokens: Counter::default(),
            generated_tokens: Counter::default(),
            first_token: Histogram::new(FIRST_TOKEN_BOUNDS_S),
            end_to_end: Histogram::new(END_TO_END_BOUNDS_S),
            connections: Counter::default(),
            connections_closed: Counter::default(),
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
    pub fn end(&self, reason: EndReason) {
        if let Some(counter) = self.ends.get(reason as usize) {
            counter.add(1);
        }
    }

    /// Responses by route and class (1 to 5).
    pub fn responses(&self) -> impl Iterator<Item = (Route, usize, u64)> + '_ {
        Route::ALL.iter().zip(&self.responses).flat_map(|(route, classes)| {
            classes.iter().enumerate().map(|(class, counter)| (*route, class + 1, counter.get()))
        })
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
    fn label_enums_count_in_their_own_place() {
        for (index, reason) in EndReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
        for (index, route) in Route::ALL.iter().enumerate() {
            assert_eq!(*route as usize, index);
        }
        let metrics = Metrics::default();
        metrics.response(Route::Chat, 429);
        metrics.end(EndReason::Length);
        assert!(metrics.responses().all(|(r, class, n)| (n == 1) == (r == Route::Chat && class == 4)));
        assert!(metrics.ends().all(|(reason, n)| (n == 1) == (reason == EndReason::Length)));
    }
}
