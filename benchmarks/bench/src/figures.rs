//! What is reported of a run. Latencies count from the scheduled arrival; percentiles come from an HDR histogram
//! (nanoseconds, three digits), so a value is off by at most 0.1 %; `max` is exact.

use crate::replay::{ClientCost, Measured, Run};
use crate::table::number;
use crate::tail::Tail;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Digits that a percentile keeps.
const SIGNIFICANT_DIGITS: u8 = 3;

/// A distribution of times, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Spread {
    pub(crate) fn of(values_ns: impl IntoIterator<Item = u64>) -> Spread {
        let mut histogram =
            Histogram::<u64>::new(SIGNIFICANT_DIGITS).expect("three digits are a valid precision");
        histogram.auto(true); // grows with the values
        let (mut sum, mut max, mut count) = (0u128, 0, 0u64);
        for value in values_ns {
            histogram.record(value).expect("it grows");
            sum += u128::from(value);
            max = max.max(value);
            count += 1;
        }
        if count == 0 {
            return Spread::default();
        }
        let at = |quantile: f64| histogram.value_at_quantile(quantile).min(max) as f64 / 1e6;
        Spread {
            count,
            mean: sum as f64 / count as f64 / 1e6,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: max as f64 / 1e6,
        }
    }
}

/// A percentile that is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantile {
    P50,
    P90,
    P99,
}

/// Stands below tables where a percentile is left out.
pub(crate) const TOO_FEW_NOTE: &str =
    "-: too few samples. A p90 takes 100, a p99 1000: requests, or for ITL the gaps of all requests.";

impl Quantile {
    /// Samples without which it is not shown: ten lie beyond it.
    pub(crate) fn samples_min(self) -> u64 {
        match self {
            Quantile::P50 => 1,
            Quantile::P90 => 100,
            Quantile::P99 => 1000,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Quantile::P50 => "p50",
            Quantile::P90 => "p90",
            Quantile::P99 => "p99",
        }
    }

    /// Whatever the number of samples.
    pub(crate) fn of(self, spread: &Spread) -> f64 {
        match self {
            Quantile::P50 => spread.p50,
            Quantile::P90 => spread.p90,
            Quantile::P99 => spread.p99,
        }
    }

    /// `None` where there are too few samples.
    pub(crate) fn shown(self, spread: &Spread) -> Option<f64> {
        (spread.count >= self.samples_min()).then(|| self.of(spread))
    }

    /// The cell of a table, in which [`TOO_FEW_NOTE`] explains a dash.
    pub(crate) fn cell(self, spread: &Spread) -> String {
        self.shown(spread).map_or("-".to_owned(), number)
    }
}

/// What a request must meet to count as good; absent means anything will do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Targets {
    pub ttft_ms: Option<f64>,
    pub tpot_ms: Option<f64>,
    pub e2e_ms: Option<f64>,
}

impl Targets {
    /// Reads `ttft=200,tpot=50` in milliseconds.
    pub(crate) fn parse(text: &str) -> Result<Targets, String> {
        let mut targets = Targets::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let fault = || format!("`{part}`: targets look like ttft=200,tpot=50,e2e=5000 (milliseconds)");
            let (name, value) = part.split_once('=').ok_or_else(fault)?;
            let value: f64 = value.trim_end_matches("ms").parse().map_err(|_| fault())?;
            match name {
                "ttft" => targets.ttft_ms = Some(value),
                "tpot" => targets.tpot_ms = Some(value),
                "e2e" => targets.e2e_ms = Some(value),
                _ => return Err(fault()),
            }
        }
        Ok(targets)
    }

    fn met_by(&self, request: &Measured) -> bool {
        let within = |target: Option<f64>, value_ns: Option<u64>| match (target, value_ns) {
            (None, _) => true,
            (Some(target), Some(value_ns)) => value_ns as f64 <= target * 1e6,
            (Some(_), None) => false,
        };
        // One token has no time per further token: nothing was missed.
        let tpot = Some(tpot_ns(request).unwrap_or(0));
        is_complete(request)
            && within(self.ttft_ms, ttft_ns(request))
            && within(self.tpot_ms, tpot)
            && within(self.e2e_ms, Some(e2e_ns(request)))
    }
}

/// Requests within all targets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Goodput {
    pub targets: Targets,
    pub good: usize,
    pub share: f64,
    pub per_s: f64,
}

/// Everything that is reported of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub requests: usize,
    pub completed: usize,
    /// Streams that the client left in the middle, as it was told to (`--cancel-share`): neither complete nor failed.
    #[serde(default)]
    pub left: usize,
    /// Failed requests by kind.
    pub errors: BTreeMap<String, usize>,
    /// Complete answers with fewer tokens than were asked for.
    pub shorter_than_asked: usize,
    pub wall_s: f64,
    pub requests_per_s: f64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub output_tokens_per_s: f64,
    pub total_tokens_per_s: f64,
    /// Prompt tokens that the server says came from its cache; absent where it does not say.
    pub cached_tokens: Option<u64>,
    /// Above 1 where characters span tokens, or where tokens leave together.
    pub tokens_per_event: f64,
    pub ttft_ms: Spread,
    pub itl_ms: Spread,
    pub tpot_ms: Spread,
    pub e2e_ms: Spread,
    /// From the scheduled arrival to the moment of sending: how late this client was.
    pub send_lag_ms: Spread,
    /// From the server's write to the arrival here; only where the server says when it wrote (`null-server`).
    pub wire_lag_ms: Spread,
    pub e2e_p99_over_p50: f64,
    pub goodput: Option<Goodput>,
    /// With `--timings`, from a server that has them.
    #[serde(default)]
    pub tail: Option<Tail>,
    pub client: ClientCost,
}

fn is_complete(request: &Measured) -> bool {
    request.outcome.error.is_none() && !request.outcome.left
}

fn ttft_ns(request: &Measured) -> Option<u64> {
    Some(request.outcome.event_ns.first()?.saturating_sub(request.scheduled_ns))
}

fn e2e_ns(request: &Measured) -> u64 {
    request.outcome.end_ns.saturating_sub(request.scheduled_ns)
}

/// From the first token to the last one, over the tokens after the first.
fn tpot_ns(request: &Measured) -> Option<u64> {
    let events = &request.outcome.event_ns;
    let further = u64::from(request.outcome.output_tokens).checked_sub(1).filter(|count| *count > 0)?;
    Some(events.last()?.saturating_sub(*events.first()?) / further)
}

/// Gaps between the token events of all complete requests.
pub(crate) fn gaps_ns(requests: &[Measured]) -> impl Iterator<Item = u64> + '_ {
    let complete = requests.iter().filter(|request| is_complete(request));
    complete
        .flat_map(|request| request.outcome.event_ns.windows(2).map(|pair| pair[1].saturating_sub(pair[0])))
}

/// Computes the report of a run. `streamed` is false for answers in one piece, which have an end and no tokens in
/// between.
pub(crate) fn of(run: &Run, targets: Option<Targets>, streamed: bool) -> Figures {
    let complete: Vec<&Measured> = run.requests.iter().filter(|request| is_complete(request)).collect();
    let mut errors = BTreeMap::new();
    for kind in run.requests.iter().filter_map(|request| request.outcome.error.clone()) {
        *errors.entry(kind).or_insert(0) += 1;
    }
    let sum = |count: &dyn Fn(&Measured) -> u64| complete.iter().map(|request| count(request)).sum::<u64>();
    let output_tokens = sum(&|request| u64::from(request.outcome.output_tokens));
    let input_tokens =
        sum(&|request| u64::from(request.outcome.prompt_tokens.unwrap_or(request.lengths.input)));
    let events = sum(&|request| request.outcome.event_ns.len() as u64);
    let cached = complete.iter().filter_map(|request| request.outcome.cached_tokens.map(u64::from));
    let cached: Vec<u64> = cached.collect();
    let per_s = |count: u64| if run.wall_s > 0.0 { count as f64 / run.wall_s } else { 0.0 };
    let e2e_ms = Spread::of(complete.iter().map(|request| e2e_ns(request)));
    let goodput = targets.map(|targets| {
        let good = run.requests.iter().filter(|request| targets.met_by(request)).count();
        let share = good as f64 / run.requests.len().max(1) as f64;
        Goodput { targets, good, share, per_s: per_s(good as u64) }
    });
    let token_times = |requests: &[&Measured], of: fn(&Measured) -> Option<u64>| {
        Spread::of(requests.iter().filter_map(|request| of(request)).filter(|_| streamed))
    };
    Figures {
        requests: run.requests.len(),
        completed: complete.len(),
        left: run.requests.iter().filter(|request| request.outcome.left).count(),
        errors,
        shorter_than_asked: complete.iter().filter(|r| r.outcome.output_tokens < r.lengths.output).count(),
        wall_s: run.wall_s,
        requests_per_s: per_s(complete.len() as u64),
        input_tokens,
        output_tokens,
        output_tokens_per_s: per_s(output_tokens),
        total_tokens_per_s: per_s(output_tokens + input_tokens),
        cached_tokens: (!cached.is_empty()).then(|| cached.iter().sum()),
        tokens_per_event: if events > 0 { output_tokens as f64 / events as f64 } else { 0.0 },
        ttft_ms: token_times(&complete, ttft_ns),
        itl_ms: Spread::of(gaps_ns(&run.requests)),
        tpot_ms: token_times(&complete, tpot_ns),
        e2e_p99_over_p50: if e2e_ms.p50 > 0.0 { e2e_ms.p99 / e2e_ms.p50 } else { 0.0 },
        e2e_ms,
        send_lag_ms: Spread::of(run.requests.iter().map(|r| r.sent_ns.saturating_sub(r.scheduled_ns))),
        wire_lag_ms: Spread::of(run.requests.iter().flat_map(|r| r.outcome.wire_lag_ns.iter().copied())),
        goodput,
        tail: Tail::of(complete.iter().map(|request| (e2e_ns(request), *request))),
        client: run.client,
    }
}

/// Edges in ms and counts of the gaps, in equal steps of the logarithm: for the histogram.
pub(crate) fn gap_histogram(requests: &[Measured], steps_per_decade: u32) -> Vec<(f64, u64)> {
    let mut counts: BTreeMap<i32, u64> = BTreeMap::new();
    for gap in gaps_ns(requests) {
        // Tokens of one packet have no gap; 10 µs is the floor of the picture.
        let ms = (gap as f64 / 1e6).max(0.01);
        *counts.entry((ms.log10() * f64::from(steps_per_decade)).floor() as i32).or_insert(0) += 1;
    }
    let edge = |step: i32| 10f64.powf(f64::from(step) / f64::from(steps_per_decade));
    counts.into_iter().map(|(step, count)| (edge(step), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Outcome;
    use crate::random::Random;
    use crate::workload::Lengths;

    fn request(scheduled_ms: u64, events_ms: &[u64], end_ms: u64, tokens: u32) -> Measured {
        Measured {
            scheduled_ns: scheduled_ms * 1_000_000,
            sent_ns: scheduled_ms * 1_000_000 + 5_000,
            lengths: Lengths { input: 10, output: 4 },
            outcome: Outcome {
                event_ns: events_ms.iter().map(|ms| ms * 1_000_000).collect(),
                end_ns: end_ms * 1_000_000,
                output_tokens: tokens,
                counted_by_server: true,
                ..Outcome::default()
            },
        }
    }

    fn run(requests: Vec<Measured>) -> Run {
        Run { requests, wall_s: 2.0, client: ClientCost::default() }
    }

    #[test]
    fn percentiles_are_those_of_a_sorted_list() {
        let mut random = Random::new(11);
        for count in [1, 2, 10, 99, 1000, 20_000] {
            let mut values: Vec<u64> = (0..count).map(|_| (random.gamma(1.0) * 3e7) as u64 + 1).collect();
            let found = Spread::of(values.iter().copied());
            values.sort_unstable();
            // Nearest rank: the smallest value that so large a share does not exceed.
            let at = |q: f64| values[((q * count as f64).ceil() as usize).max(1) - 1] as f64 / 1e6;
            for (q, value) in [(0.5, found.p50), (0.9, found.p90), (0.99, found.p99), (0.999, found.p999)] {
                assert!((value / at(q) - 1.0).abs() < 2e-3, "{count} values, q {q}: {value} {}", at(q));
            }
            let mean = values.iter().sum::<u64>() as f64 / count as f64 / 1e6;
            assert!((found.mean / mean - 1.0).abs() < 1e-9);
            assert_eq!((found.max, found.count), (values[count - 1] as f64 / 1e6, count as u64));
        }
        assert_eq!(Spread::of([]), Spread::default());
    }

    #[test]
    fn a_percentile_is_shown_with_the_samples_that_it_takes() {
        let of = |count: u64| Spread::of((1..=count).map(|ms| ms * 1_000_000));
        let cells = |count| [Quantile::P50, Quantile::P90, Quantile::P99].map(|q| q.cell(&of(count)));
        assert_eq!(cells(0), ["-", "-", "-"]);
        assert_eq!(cells(99)[1..], ["-", "-"]);
        assert_eq!(cells(100)[1..], ["90.0", "-"]);
        assert_eq!(cells(999)[2], "-");
        assert_eq!(cells(1000)[2], "990");
    }

    #[test]
    fn latencies_count_from_the_schedule_and_tokens_from_the_server() {
        // Three events, four tokens: one came without text of its own.
        let figures = of(&run(vec![request(100, &[150, 170, 210], 215, 4)]), None, true);
        let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 2e-3, "{found}");
        near(figures.ttft_ms.p50, 50.0);
        near(figures.tpot_ms.p50, 20.0);
        near(figures.itl_ms.max, 40.0);
        near(figures.e2e_ms.p50, 115.0);
        near(figures.output_tokens_per_s, 2.0);
        near(figures.tokens_per_event, 4.0 / 3.0);
        assert_eq!(figures.itl_ms.count, 2);
        let whole = of(&run(vec![request(100, &[215], 215, 4)]), None, false);
        assert_eq!((whole.ttft_ms.count, whole.tpot_ms.count, whole.e2e_ms.count), (0, 0, 1));
    }

    #[test]
    fn goodput_counts_complete_requests_within_all_targets() {
        let mut failed = request(0, &[10], 20, 1);
        failed.outcome.error = Some("timeout".to_owned());
        let requests = vec![
            request(0, &[50, 60, 70, 80], 81, 4),      // good
            request(0, &[300, 310, 320, 330], 331, 4), // late
            request(0, &[50, 150, 250, 350], 351, 4),  // slow
            request(0, &[50], 51, 1),                  // one token: no time per token
            failed,
        ];
        let targets = Targets::parse("ttft=200,tpot=50ms").expect("targets");
        let goodput = of(&run(requests), Some(targets), true).goodput.expect("asked for");
        assert_eq!((goodput.good, goodput.share, goodput.per_s), (2, 0.4, 1.0));
        for bad in ["ttft", "ttft=x", "speed=3"] {
            assert!(Targets::parse(bad).is_err(), "{bad}");
        }
    }
}
