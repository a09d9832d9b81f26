//! Where slow requests lose their time: the server's own timeline of the slowest requests beside that of all. Only
//! for servers that answer `"timings": true` with Pinion's stages.

use crate::figures::{Quantile, Spread};
use crate::replay::Measured;
use crate::table::number;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The slowest requests are so large a share of all, at least one.
const SLOWEST_SHARE: f64 = 0.05;
/// Stages between the engine's last token and the socket.
const AFTER_ENGINE: [&str; 2] = ["detokenize", "write"];

/// The `timings` of one answer, as far as they are read here.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct Timings {
    #[serde(default)]
    stages_ms: BTreeMap<String, f64>,
    #[serde(default)]
    batch: Batch,
}

/// What shared the request's steps.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
struct Batch {
    #[serde(default)]
    rows_mean: f64,
    #[serde(default)]
    prefill_tokens_mean: f64,
}

/// Means over a group of requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub requests: usize,
    pub e2e_ms: f64,
    pub input_tokens: f64,
    pub output_tokens: f64,
    /// By stage.
    pub stages_ms: BTreeMap<String, f64>,
    /// Rows of the steps that the requests were in.
    pub rows: f64,
    /// Prompt tokens computed in those steps.
    pub prefill_tokens: f64,
}

/// The slowest requests and all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tail {
    pub slowest: Group,
    pub all: Group,
    /// From the engine's last token of a request to its last bytes in the socket, per request.
    pub token_to_socket_ms: Spread,
}

impl Group {
    fn of(requests: &[(u64, &Measured, &Timings)]) -> Group {
        let count = requests.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Measured, &Timings) -> f64| {
            requests.iter().map(|(_, request, timings)| of(request, timings)).sum::<f64>() / count
        };
        let mut stages_ms = BTreeMap::new();
        for (stage, ms) in requests.iter().flat_map(|(_, _, timings)| &timings.stages_ms) {
            *stages_ms.entry(stage.clone()).or_insert(0.0) += ms / count;
        }
        Group {
            requests: requests.len(),
            e2e_ms: requests.iter().map(|(e2e_ns, ..)| *e2e_ns as f64 / 1e6).sum::<f64>() / count,
            input_tokens: mean(&|request, _| f64::from(request.lengths.input)),
            output_tokens: mean(&|request, _| f64::from(request.outcome.output_tokens)),
            stages_ms,
            rows: mean(&|_, timings| timings.batch.rows_mean),
            prefill_tokens: mean(&|_, timings| timings.batch.prefill_tokens_mean),
        }
    }
}

impl Tail {
    /// `None` where the answers carry no timings. Each request comes with its E2E.
    pub(crate) fn of<'a>(requests: impl Iterator<Item = (u64, &'a Measured)>) -> Option<Tail> {
        let mut all: Vec<(u64, &Measured, &Timings)> = requests
            .filter_map(|(e2e_ns, request)| Some((e2e_ns, request, request.outcome.timings.as_ref()?)))
            // llama-server's field of this name has other things in it.
            .filter(|(_, _, timings)| !timings.stages_ms.is_empty())
            .collect();
        all.sort_by_key(|(e2e_ns, ..)| std::cmp::Reverse(*e2e_ns));
        let slowest = ((all.len() as f64 * SLOWEST_SHARE).ceil() as usize).min(all.len());
        let after_engine = |timings: &Timings| {
            let ms: f64 = AFTER_ENGINE.iter().filter_map(|stage| timings.stages_ms.get(*stage)).sum();
            (ms * 1e6) as u64
        };
        (!all.is_empty()).then(|| Tail {
            slowest: Group::of(&all[..slowest]),
            all: Group::of(&all),
            token_to_socket_ms: Spread::of(all.iter().map(|(_, _, timings)| after_engine(timings))),
        })
    }

    /// Three lines for people: what the slowest wait for, what shared their steps, and the way to the socket.
    pub(crate) fn text(&self) -> String {
        let (slow, all) = (&self.slowest, &self.all);
        let mut stages: Vec<(&String, f64, f64)> = slow
            .stages_ms
            .iter()
            .map(|(stage, ms)| (stage, *ms, all.stages_ms.get(stage).copied().unwrap_or(0.0)))
            .collect();
        stages.sort_by(|a, b| (b.1 - b.2).total_cmp(&(a.1 - a.2)));
        let more_ms = (slow.e2e_ms - all.e2e_ms).max(f64::MIN_POSITIVE);
        let lost: Vec<String> = stages
            .iter()
            .filter(|(_, ms, mean)| (ms - mean) / more_ms >= 0.01)
            .map(|(stage, ms, mean)| {
                let share = (ms - mean) / more_ms * 100.0;
                format!("{stage} {} against {} ({share:.0} % of the difference)", number(*ms), number(*mean))
            })
            .collect();
        let to_socket = &self.token_to_socket_ms;
        format!(
            "the slowest {} of {}: E2E {} against {} ms: {}\n\
             their steps: {} rows and {} prompt tokens against {} and {}; {} in, {} out against {} and {}\n\
             last token to socket: {} / {} / {} ms (p50/p99/max of {} requests)",
            slow.requests,
            all.requests,
            number(slow.e2e_ms),
            number(all.e2e_ms),
            lost.join(", "),
            number(slow.rows),
            number(slow.prefill_tokens),
            number(all.rows),
            number(all.prefill_tokens),
            number(slow.input_tokens),
            number(slow.output_tokens),
            number(all.input_tokens),
            number(all.output_tokens),
            Quantile::P50.cell(to_socket),
            Quantile::P99.cell(to_socket),
            number(to_socket.max),
            to_socket.count,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Outcome;
    use crate::workload::Lengths;

    #[test]
    fn the_slowest_are_set_beside_all() {
        let requests: Vec<Measured> = (0..40u32)
            .map(|index| {
                let slow = f64::from(u8::from(index == 7 || index == 9));
                let timings = serde_json::json!({
                    "stages_ms": {"queue": 1.0 + 99.0 * slow, "decode": 10.0, "detokenize": 0.25, "write": 0.75},
                    "batch": {"rows_mean": 4.0, "prefill_tokens_mean": 100.0 * slow},
                    "prompt_n": 3
                });
                let outcome = Outcome {
                    output_tokens: 5,
                    timings: Some(serde_json::from_value(timings).expect("timings")),
                    ..Outcome::default()
                };
                let lengths = Lengths { input: 3, output: 5 };
                Measured { scheduled_ns: 0, sent_ns: 0, lengths, outcome }
            })
            .collect();
        let e2e_ns = |index: usize| if index == 7 || index == 9 { 111_000_000 } else { 12_000_000 };
        let tail =
            Tail::of(requests.iter().enumerate().map(|(index, r)| (e2e_ns(index), r))).expect("timings");
        assert_eq!((tail.slowest.requests, tail.all.requests), (2, 40));
        assert_eq!((tail.slowest.stages_ms["queue"], tail.slowest.prefill_tokens), (100.0, 100.0));
        assert!((tail.all.stages_ms["queue"] - 5.95).abs() < 1e-9, "{tail:?}");
        assert!((tail.token_to_socket_ms.p50 - 1.0).abs() < 1e-2, "{tail:?}");
        let text = tail.text();
        assert!(text.contains("queue 100 against 5.95 (100 % of the difference)"), "{text}");
        assert!(!text.contains("decode"), "{text}");
        assert_eq!(Tail::of(std::iter::empty()), None);
        let mut other = requests[0].clone();
        other.outcome.timings = serde_json::from_str("{\"predicted_ms\": 2.5}").ok();
        assert!(other.outcome.timings.is_some() && Tail::of([(1, &other)].into_iter()).is_none());
    }
}
