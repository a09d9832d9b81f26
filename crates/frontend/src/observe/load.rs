//! How busy this replica is, for what chooses among replicas: rates of the last seconds, and `GET /v1/loads`.
//!
//! [`Load`] is pure: counts go in, rates come out. The reactor puts them in; `orca` and `loads` read.

use crate::limits::{LOAD_SAMPLE_PERIOD, LOAD_WINDOW};
use crate::observe::health::{Health, gauge};
use crate::observe::metrics::Metrics;
use crate::observe::view::View;
use pinion_protocol::Role;
use pinion_protocol::status::Gauge;
use pinion_shm::page::Page;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Counts at one time, from which rates are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// CLOCK_MONOTONIC ns.
    pub at_ns: u64,
    /// Requests for the model that this frontend answered.
    pub answered: u64,
    /// Those that it answered with a 5xx.
    pub failed: u64,
    /// Tokens that each engine has generated.
    pub generated: Vec<u64>,
}

impl Counts {
    /// The counts now.
    pub fn of(metrics: &Metrics, health: &Health, at_ns: u64) -> Counts {
        let (answered, failed) = metrics.answered_and_failed();
        let generated = engines(health).map(|(_, page)| gauge(page, Gauge::GeneratedTokens)).collect();
        Counts { at_ns, answered, failed, generated }
    }
}

/// Counts per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Requests for the model answered.
    pub answered: f64,
    /// Those answered with a 5xx.
    pub failed: f64,
    /// Tokens generated, by engine.
    pub generated: Vec<f64>,
}

/// The samples of the last seconds, oldest first.
#[derive(Debug, Default)]
pub struct Load {
    samples: VecDeque<Counts>,
}

impl Load {
    /// Whether the last sample is old enough for the next one.
    pub fn due(&self, now_ns: u64) -> bool {
        let age_ns = |sample: &Counts| u128::from(now_ns.saturating_sub(sample.at_ns));
        self.samples.back().is_none_or(|last| age_ns(last) >= LOAD_SAMPLE_PERIOD.as_nanos())
    }

    /// Keeps a sample that is due, and forgets those that are too old.
    pub fn look(&mut self, now: Counts) {
        let age_ns = |sample: &Counts| u128::from(now.at_ns.saturating_sub(sample.at_ns));
        while self.samples.front().is_some_and(|first| age_ns(first) > LOAD_WINDOW.as_nanos()) {
            self.samples.pop_front();
        }
        self.samples.push_back(now);
    }

    /// Rates from the oldest sample to `now`. Time below one sample's period counts as one: a first answer is one per
    /// second, not a thousand. A count that went back is that of a restarted engine and begins at zero.
    pub fn rates(&self, now: &Counts) -> Rates {
        let nothing = Counts { at_ns: now.at_ns, ..Counts::default() };
        let first = self.samples.front().unwrap_or(&nothing);
        let ns = u128::from(now.at_ns.saturating_sub(first.at_ns)).max(LOAD_SAMPLE_PERIOD.as_nanos());
        let rate = |new: u64, old: u64| {
            let grown = if new >= old { new - old } else { new };
            grown as f64 * 1e9 / ns as f64
        };
        let before = first.generated.iter().copied().chain(std::iter::repeat(0));
        Rates {
            answered: rate(now.answered, first.answered),
            failed: rate(now.failed, first.failed),
            generated: now.generated.iter().zip(before).map(|(new, old)| rate(*new, old)).collect(),
        }
    }
}

/// What an engine's status page says of its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Engine {
    pub(crate) running: u64,
    /// For room, or for their grammars.
    pub(crate) waiting: u64,
    blocks_used: u64,
    blocks_total: u64,
}

impl Engine {
    fn of(page: &Page) -> Engine {
        Engine {
            running: gauge(page, Gauge::RequestsRunning),
            waiting: gauge(page, Gauge::RequestsWaiting) + gauge(page, Gauge::RequestsDeferred),
            blocks_used: gauge(page, Gauge::KvBlocksUsed),
            blocks_total: gauge(page, Gauge::KvBlocksTotal),
        }
    }

    /// All engines as one.
    pub(crate) fn all(health: &Health) -> Engine {
        let nothing = Engine { running: 0, waiting: 0, blocks_used: 0, blocks_total: 0 };
        engines(health).map(|(_, page)| Engine::of(page)).fold(nothing, |sum, one| Engine {
            running: sum.running + one.running,
            waiting: sum.waiting + one.waiting,
            blocks_used: sum.blocks_used + one.blocks_used,
            blocks_total: sum.blocks_total + one.blocks_total,
        })
    }

    /// Share of the KV blocks that requests hold.
    pub(crate) fn kv_share(self) -> f64 {
        if self.blocks_total == 0 { 0.0 } else { self.blocks_used as f64 / self.blocks_total as f64 }
    }

    /// Requests over places in the batch, above 1 with a queue; or the share of KV blocks, if that is higher.
    pub(crate) fn utilization(self, places: u64) -> f64 {
        self.kv_share().max((self.running + self.waiting) as f64 / places.max(1) as f64)
    }
}

/// Engines of this service, each with its index and page.
pub(crate) fn engines(health: &Health) -> impl Iterator<Item = (u16, &Page)> {
    health.pages_of(Role::Engine).map(|(peer, page)| (peer.index, page))
}

/// Four decimals are enough to choose by.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// `GET /v1/loads`: SGLang's form. `num_waiting_uncached_tokens` is not known here and is left out.
pub(crate) fn loads(view: &View<'_>, rates: &Rates, unix_s: u64) -> Value {
    let constants = &view.constants;
    let (block_size, places) = (u64::from(constants.block_size), u64::from(constants.running_max));
    let loads: Vec<Value> = engines(view.health)
        .zip(&rates.generated)
        .map(|((index, page), generated)| {
            let engine = Engine::of(page);
            let queried = gauge(page, Gauge::PrefixQueryTokens).max(1) as f64;
            json!({
                "dp_rank": index,
                "num_running_reqs": engine.running,
                "num_waiting_reqs": engine.waiting,
                "num_total_reqs": engine.running + engine.waiting,
                "num_used_tokens": engine.blocks_used * block_size,
                "max_total_num_tokens": engine.blocks_total * block_size,
                "token_usage": rounded(engine.kv_share()),
                "gen_throughput": rounded(*generated),
                "cache_hit_rate": rounded(gauge(page, Gauge::PrefixHitTokens) as f64 / queried),
                "utilization": rounded(engine.utilization(places)),
                "max_running_requests": places,
            })
        })
        .collect();
    json!({
        "timestamp": iso_8601(unix_s),
        "version": env!("CARGO_PKG_VERSION"),
        "dp_rank_count": loads.len(),
        "loads": loads,
    })
}

/// A time of day in UTC. The date is Howard Hinnant's `civil_from_days` for days after 1970.
fn iso_8601(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * shifted + 2) / 5 + 1, (shifted + 2) % 12 + 1);
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}+00:00")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn sample(at_s: u64, answered: u64, generated: u64) -> Counts {
        Counts { at_ns: at_s * SECOND, answered, failed: 0, generated: vec![generated] }
    }

    #[test]
    fn rates_are_over_the_window_and_survive_a_restart_of_the_engine() {
        let mut load = Load::default();
        let at_once = load.rates(&sample(100, 3, 0));
        assert_eq!(at_once.answered, 3.0, "no sample yet: as if within a second");
        for second in 0..30 {
            assert!(load.due((100 + second) * SECOND), "a second has passed");
            load.look(sample(100 + second, 2 * second, 10 * second));
            assert!(!load.due((101 + second) * SECOND - 1));
        }
        assert!(load.samples.len() <= 12, "{}", load.samples.len());
        let rates = load.rates(&sample(129, 58, 290));
        assert_eq!((rates.answered, rates.generated), (2.0, vec![10.0]));
        let oldest = load.samples.front().unwrap().at_ns / SECOND;
        let restarted = load.rates(&sample(129, 58, 30));
        assert_eq!(restarted.generated, vec![30.0 / (129 - oldest) as f64]);
    }

    #[test]
    fn utilization_is_the_scarcer_of_places_and_blocks_and_grows_with_the_queue() {
        let engine =
            |running, waiting, blocks_used| Engine { running, waiting, blocks_used, blocks_total: 100 };
        for (engine, expected) in [
            (engine(0, 0, 0), 0.0),
            (engine(2, 0, 10), 0.25),
            (engine(2, 0, 90), 0.9),
            (engine(8, 8, 90), 2.0),
            (Engine { blocks_total: 0, ..engine(0, 0, 0) }, 0.0),
        ] {
            assert_eq!(engine.utilization(8), expected, "{engine:?}");
        }
    }

    #[test]
    fn times_of_day_are_utc() {
        for (unix_s, text) in [
            (0, "1970-01-01T00:00:00+00:00"),
            (951_782_399, "2000-02-28T23:59:59+00:00"),
            (951_782_400, "2000-02-29T00:00:00+00:00"),
            (1_795_176_000, "2026-11-20T12:00:00+00:00"),
        ] {
            assert_eq!(iso_8601(unix_s), text);
        }
    }
}
