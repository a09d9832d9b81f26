//! What `pinion top` shows, from answers of `/stats` and `/debug/slow`. Pure: counters become rates, histograms become
//! percentiles of the time between two answers.

use serde_json::Value;
use std::collections::VecDeque;

/// Rates are over this long at most, percentiles over the next one.
const RATE_OVER_S: f64 = 5.5;
const PERCENTILES_OVER_S: f64 = 60.5;
/// Answers that are kept: one a second.
const SAMPLES_MAX: usize = 128;
/// Slow requests that are shown.
const SLOW_SHOWN: usize = 5;

/// The answers so far, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History(VecDeque<Value>);

impl History {
    pub(crate) fn add(&mut self, stats: Value) {
        if self.0.len() == SAMPLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(stats);
    }

    /// The oldest answer of the same life of the same frontend that is no older than `over_s`.
    fn before(&self, now: &Value, over_s: f64) -> Option<&Value> {
        let same = |key: &str, old: &Value| old[key] == now[key];
        let at = |value: &Value| value["monotonic_s"].as_f64().unwrap_or(0.0);
        self.0.iter().find(|old| {
            let age = at(now) - at(old);
            same("frontend", old) && same("started_unix_s", old) && age > 0.0 && age <= over_s
        })
    }
}

/// Three percentiles in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
}

/// A slow request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slow {
    pub(crate) e2e_ms: f64,
    pub(crate) route: String,
    pub(crate) tokens: u64,
    pub(crate) reason: String,
    pub(crate) id: String,
}

/// Everything that is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    pub(crate) model: String,
    pub(crate) version: String,
    /// `serving`, `draining`, or what is wrong.
    pub(crate) state: String,
    pub(crate) is_fine: bool,
    /// Each process and its phase.
    pub(crate) roles: Vec<(String, String)>,
    pub(crate) running: u64,
    pub(crate) waiting: u64,
    pub(crate) finished: u64,
    pub(crate) slots: (u64, u64),
    pub(crate) restarts: u64,
    /// Blocks used, kept for reuse, and in all.
    pub(crate) kv: (u64, u64, u64),
    /// Per second; absent before the second look.
    pub(crate) generated: Option<f64>,
    pub(crate) prompt: Option<f64>,
    pub(crate) first_token: Option<Percentiles>,
    pub(crate) gap: Option<Percentiles>,
    pub(crate) slow: Vec<Slow>,
}

impl Figures {
    /// Of the newest answer, against those before it.
    pub(crate) fn of(now: &Value, history: &History, slow: Option<&Value>) -> Figures {
        let number = |path: &str| now.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let problems: Vec<String> = now["problems"].as_array().into_iter().flatten().map(text).collect();
        let draining = now["draining"] == true;
        let state = match (draining, problems.is_empty()) {
            (true, _) => "draining".to_owned(),
            (false, true) => "serving".to_owned(),
            (false, false) => problems.join("; "),
        };
        let recent = history.before(now, RATE_OVER_S);
        let longer = history.before(now, PERCENTILES_OVER_S);
        let roles = now["roles"].as_array().into_iter().flatten();
        Figures {
            model: text(&now["model"]),
            version: text(&now["version"]),
            is_fine: !draining && problems.is_empty(),
            state,
            roles: roles.map(|role| (text(&role["role"]), text(&role["phase"]))).collect(),
            running: number("/requests/running"),
            waiting: number("/requests/waiting"),
            finished: number("/requests/finished"),
            slots: (number("/slots/used"), number("/slots/total")),
            restarts: number("/restarts"),
            kv: (number("/kv_blocks/used"), number("/kv_blocks/cached"), number("/kv_blocks/total")),
            generated: recent.and_then(|before| rate(before, now, "/tokens/generated")),
            prompt: recent.and_then(|before| rate(before, now, "/tokens/prompt")),
            first_token: percentiles(longer.map(|before| &before["first_tokens"]), &now["first_tokens"]),
            gap: percentiles(longer.map(|before| &before["gaps"]), &now["gaps"]),
            slow: slowest(slow),
        }
    }
}

/// A counter's growth per second. One that went back is that of an engine that was restarted, and counts from zero.
fn rate(before: &Value, now: &Value, path: &str) -> Option<f64> {
    let number = |value: &Value, path: &str| value.pointer(path).and_then(Value::as_f64);
    let (old, new) = (number(before, path)?, number(now, path)?);
    let seconds = number(now, "/monotonic_s")? - number(before, "/monotonic_s")?;
    let grown = if new >= old { new - old } else { new };
    (seconds > 0.0).then(|| grown / seconds)
}

/// Of what was observed since `before`; of everything where there is none, or nothing was observed since.
fn percentiles(before: Option<&Value>, now: &Value) -> Option<Percentiles> {
    let bounds: Vec<f64> = now["bounds_ms"].as_array()?.iter().filter_map(Value::as_f64).collect();
    let counts = |histogram: &Value| -> Vec<u64> {
        histogram["counts"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
    };
    let all = counts(now);
    let old = before.map(counts).unwrap_or_default();
    let fresh: Vec<u64> = all
        .iter()
        .enumerate()
        .map(|(at, count)| count.saturating_sub(old.get(at).copied().unwrap_or(0)))
        .collect();
    let counted = if fresh.iter().sum::<u64>() > 0 { fresh } else { all };
    let at = |share| quantile(&bounds, &counted, share);
    Some(Percentiles { p50: at(0.5)?, p90: at(0.9)?, p99: at(0.99)? })
}

/// The value below which this share lies, on a straight line within its bucket; the last bound for what lies above it.
fn quantile(bounds: &[f64], counts: &[u64], share: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let wanted = total as f64 * share;
    let (mut below, mut low) = (0.0, 0.0);
    for (at, count) in counts.iter().enumerate() {
        let high = bounds.get(at).copied().unwrap_or(low);
        let count = *count as f64;
        if count > 0.0 && below + count >= wanted {
            return Some(low + (high - low) * (wanted - below) / count);
        }
        (below, low) = (below + count, high);
    }
    None
}

fn slowest(slow: Option<&Value>) -> Vec<Slow> {
    let requests = slow.and_then(|slow| slow["by_e2e"].as_array()).into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |request: &Value| Slow {
        e2e_ms: request["timings"]["e2e_ms"].as_f64().unwrap_or(0.0),
        route: text(&request["route"]),
        tokens: request["timings"]["predicted_n"].as_u64().unwrap_or(0),
        reason: text(&request["reason"]),
        id: text(&request["request_id"]),
    };
    requests.take(SLOW_SHOWN).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stats(at: f64, generated: u64, counts: [u64; 3]) -> Value {
        json!({
            "frontend": 0, "started_unix_s": 9, "monotonic_s": at, "model": "m", "version": "1", "problems": [],
            "draining": false, "roles": [{"role": "engine-0", "phase": "ready"}],
            "requests": {"running": 2, "waiting": 1, "finished": 7}, "slots": {"used": 3, "total": 8},
            "kv_blocks": {"used": 4, "cached": 1, "total": 16}, "tokens": {"prompt": 0, "generated": generated},
            "restarts": 0, "gaps": {"bounds_ms": [10.0, 20.0], "counts": counts},
            "first_tokens": {"bounds_ms": [10.0], "counts": [0, 0]},
        })
    }

    #[test]
    fn rates_are_of_the_last_seconds_and_of_the_same_frontend() {
        let mut history = History::default();
        for (at, generated) in [(1.0, 0), (95.0, 100), (99.0, 200)] {
            history.add(stats(at, generated, [0, 0, 0]));
        }
        let mut other = stats(98.0, 0, [0, 0, 0]);
        other["frontend"] = json!(1);
        history.add(other);
        let figures = Figures::of(&stats(100.0, 600, [4, 4, 0]), &history, None);
        assert_eq!(figures.generated, Some(100.0));
        assert_eq!((figures.running, figures.slots, figures.kv), (2, (3, 8), (4, 1, 16)));
        assert!(figures.is_fine && figures.state == "serving" && figures.first_token.is_none());
        assert_eq!(Figures::of(&stats(100.0, 50, [0; 3]), &history, None).generated, Some(10.0), "a restart");
        assert_eq!(Figures::of(&stats(1.0, 50, [0; 3]), &History::default(), None).generated, None);
    }

    #[test]
    fn percentiles_are_of_what_is_new_else_of_everything() {
        let histogram = |counts: [u64; 3]| json!({"bounds_ms": [10.0, 20.0], "counts": counts});
        let all = percentiles(None, &histogram([5, 5, 0])).unwrap();
        assert_eq!(all, Percentiles { p50: 10.0, p90: 18.0, p99: 19.8 });
        let fresh = percentiles(Some(&histogram([5, 5, 0])), &histogram([5, 15, 0])).unwrap();
        assert_eq!(fresh.p50, 15.0);
        assert_eq!(percentiles(Some(&histogram([5, 5, 0])), &histogram([5, 5, 0])), Some(all));
        assert_eq!(percentiles(None, &histogram([0, 0, 3])).unwrap().p50, 20.0, "above all bounds");
        assert_eq!(percentiles(None, &histogram([0, 0, 0])), None);
    }

    #[test]
    fn trouble_and_slow_requests_are_told() {
        let mut now = stats(1.0, 0, [0; 3]);
        now["problems"] = json!(["engine-0 is down"]);
        let request = json!({"request_id": "r", "route": "/v1/completions", "reason": "stop",
                             "timings": {"e2e_ms": 12.5, "predicted_n": 3}});
        let slow = json!({"by_e2e": vec![request; 9]});
        let figures = Figures::of(&now, &History::default(), Some(&slow));
        assert_eq!(
            (figures.is_fine, figures.state.as_str(), figures.slow.len()),
            (false, "engine-0 is down", 5)
        );
        assert_eq!(
            (figures.slow[0].e2e_ms, figures.slow[0].tokens, figures.slow[0].id.as_str()),
            (12.5, 3, "r")
        );
    }
}
