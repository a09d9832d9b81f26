//! The worst requests of the last hour, for `/debug/slow`: bounded, and only those pay for it that get in.
//!
//! The hour is kept as periods, each with its own worst requests, so that a period that leaves takes its requests
//! along and hides none of a later one. What is shown covers between five sixths of the hour and the whole.

use crate::observe::timeline::{Timeline, Timings};
use pinion_protocol::RequestId;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Requests kept by each measure.
const KEPT: usize = 32;
/// Periods of the hour.
const PERIODS: usize = 6;
const PERIOD_NS: u64 = 600_000_000_000;

/// What is said about one request.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    /// `X-Request-Id`.
    pub(crate) label: String,
    /// The slot's request.
    pub(crate) id: RequestId,
    /// Its route.
    pub(crate) route: &'static str,
    /// How it ended.
    pub(crate) reason: &'static str,
    /// Unix seconds of its end.
    pub(crate) ended_unix_s: u64,
    /// Where its time went.
    pub(crate) timeline: Timeline,
}

/// The largest by one measure, in no order.
#[derive(Default)]
struct Worst(Vec<(u64, Slow)>);

impl Worst {
    /// Whether a request with this measure would be kept.
    fn takes(&self, measure: u64) -> bool {
        self.0.len() < KEPT || self.0.iter().any(|(kept, _)| *kept < measure)
    }

    fn put(&mut self, measure: u64, slow: Slow) {
        if self.0.len() == KEPT
            && let Some(least) = (0..KEPT).min_by_key(|index| self.0[*index].0)
        {
            self.0.swap_remove(least);
        }
        self.0.push((measure, slow));
    }
}

struct Period {
    begins_ns: u64,
    by_e2e: Worst,
    by_ttft: Worst,
}

/// The worst requests of the last hour.
#[derive(Default)]
pub(crate) struct SlowLog {
    periods: VecDeque<Period>,
}

impl SlowLog {
    /// Looks at a request that has ended at `now_ns`; `describe` is called if it is among the worst.
    pub(crate) fn look(&mut self, timeline: &Timeline, now_ns: u64, describe: impl FnOnce() -> Slow) {
        self.forget(now_ns);
        if self.periods.back().is_none_or(|period| now_ns - period.begins_ns >= PERIOD_NS) {
            self.periods.push_back(Period {
                begins_ns: now_ns,
                by_e2e: Worst::default(),
                by_ttft: Worst::default(),
            });
        }
        let Some(Period { by_e2e, by_ttft, .. }) = self.periods.back_mut() else { return };
        let first_ns = timeline.first_ns.filter(|ns| by_ttft.takes(*ns));
        let total_ns = Some(timeline.total_ns).filter(|ns| by_e2e.takes(*ns));
        if first_ns.is_none() && total_ns.is_none() {
            return;
        }
        let slow = describe();
        if let Some(ns) = first_ns {
            by_ttft.put(ns, slow.clone());
        }
        if let Some(ns) = total_ns {
            by_e2e.put(ns, slow);
        }
    }

    fn forget(&mut self, now_ns: u64) {
        let over = |period: &Period| now_ns.saturating_sub(period.begins_ns) >= PERIOD_NS * PERIODS as u64;
        while self.periods.front().is_some_and(over) {
            self.periods.pop_front();
        }
    }

    /// The worst by both measures, worst first.
    pub(crate) fn page(&mut self, frontend: u16, now_ns: u64) -> Value {
        self.forget(now_ns);
        let since_ns = self.periods.front().map_or(0, |period| now_ns - period.begins_ns);
        json!({
            "frontend": frontend,
            "covers_s": since_ns / 1_000_000_000,
            "by_e2e": self.merged(|period| &period.by_e2e),
            "by_ttft": self.merged(|period| &period.by_ttft),
        })
    }

    fn merged(&self, of: fn(&Period) -> &Worst) -> Vec<Value> {
        let mut all: Vec<&(u64, Slow)> = self.periods.iter().flat_map(|period| &of(period).0).collect();
        all.sort_by_key(|(measure, _)| std::cmp::Reverse(*measure));
        all.into_iter().take(KEPT).map(|(_, slow)| shown(slow)).collect()
    }
}

fn shown(slow: &Slow) -> Value {
    json!({
        "request_id": slow.label,
        "id": slow.id.to_string(),
        "route": slow.route,
        "reason": slow.reason,
        "ended_unix_s": slow.ended_unix_s,
        "received_monotonic_ns": slow.timeline.received_ns,
        "timings": Timings::from(&slow.timeline),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_NS: u64 = 60_000_000_000;

    fn look(log: &mut SlowLog, total_ns: u64, now_ns: u64) -> bool {
        let timeline = Timeline { total_ns, first_ns: Some(1_000_000 - total_ns), ..Timeline::default() };
        let mut described = false;
        log.look(&timeline, now_ns, || {
            described = true;
            Slow {
                label: total_ns.to_string(),
                id: RequestId::default(),
                route: "r",
                reason: "stop",
                ended_unix_s: 0,
                timeline,
            }
        });
        described
    }

    fn labels(log: &mut SlowLog, measure: &str, now_ns: u64) -> Vec<u64> {
        let page = log.page(0, now_ns);
        let label = |entry: &Value| entry["request_id"].as_str().unwrap().parse().unwrap();
        page[measure].as_array().unwrap().iter().map(label).collect()
    }

    #[test]
    fn the_worst_by_both_measures_stay_and_the_rest_costs_nothing() {
        let mut log = SlowLog::default();
        for total in 1..=1000 {
            look(&mut log, total * 3 % 1001, total);
        }
        assert_eq!(labels(&mut log, "by_e2e", 1000), (969..=1000).rev().collect::<Vec<_>>());
        assert_eq!(labels(&mut log, "by_ttft", 1000), (1..=32).collect::<Vec<_>>());
        assert!(!look(&mut log, 500, 1000), "one in the middle is not described");
        assert!(look(&mut log, 2000, 1000));
    }

    #[test]
    fn an_old_period_leaves_and_hides_none_of_a_later_one() {
        let mut log = SlowLog::default();
        for n in 0..40 {
            look(&mut log, 900 + n, MINUTE_NS);
        }
        for n in 0..40 {
            look(&mut log, 100 + n, 30 * MINUTE_NS);
        }
        assert_eq!(labels(&mut log, "by_e2e", 50 * MINUTE_NS)[0], 939);
        assert_eq!(labels(&mut log, "by_e2e", 61 * MINUTE_NS), (108..140).rev().collect::<Vec<_>>());
        assert!(labels(&mut log, "by_e2e", 120 * MINUTE_NS).is_empty());
    }
}
