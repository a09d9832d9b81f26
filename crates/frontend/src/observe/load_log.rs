//! The line that an operator sees every ten seconds while the service works: token rates, requests, KV cache.
//!
//! Pure: totals go in, a line or nothing comes out. Only the first frontend writes it, since it is about the engines.

use crate::limits::LOAD_LOG_PERIOD;
use crate::observe::health::Health;
use pinion_protocol::Role;
use pinion_protocol::status::Gauge;

/// What the engines' status pages said at one time, summed over engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineTotals {
    /// CLOCK_MONOTONIC ns.
    pub at_ns: u64,
    /// Prompt tokens computed so far.
    pub prompt_tokens: u64,
    /// Tokens generated so far.
    pub generated_tokens: u64,
    /// Requests in the running set.
    pub running: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// KV blocks held.
    pub kv_blocks_used: u64,
    /// KV blocks in the pool.
    pub kv_blocks: u64,
}

impl EngineTotals {
    /// Reads the pages.
    pub fn of(health: &Health, at_ns: u64) -> EngineTotals {
        let sum = |gauge| health.sum(Role::Engine, gauge);
        EngineTotals {
            at_ns,
            prompt_tokens: sum(Gauge::PromptTokens),
            generated_tokens: sum(Gauge::GeneratedTokens),
            running: sum(Gauge::RequestsRunning),
            waiting: sum(Gauge::RequestsWaiting),
            kv_blocks_used: sum(Gauge::KvBlocksUsed),
            kv_blocks: sum(Gauge::KvBlocksTotal),
        }
    }
}

/// What is worth saying about the time since the last look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Prompt tokens computed per second.
    pub prompt_tokens_per_s: f64,
    /// Tokens generated per second.
    pub generated_tokens_per_s: f64,
    /// Requests in the running set now.
    pub running: u64,
    /// Requests that wait now.
    pub waiting: u64,
    /// KV blocks held, in percent of the pool.
    pub kv_percent: f64,
}

/// Remembers the last look.
#[derive(Debug)]
pub struct LoadLog {
    last: EngineTotals,
}

impl LoadLog {
    /// The first period begins at `first`.
    pub fn new(first: EngineTotals) -> LoadLog {
        LoadLog { last: first }
    }

    /// Whether it is time to look again.
    pub fn due(&self, now_ns: u64) -> bool {
        u128::from(now_ns.saturating_sub(self.last.at_ns)) >= LOAD_LOG_PERIOD.as_nanos()
    }

    /// The line for the period that ends with `now`; none if nothing happened in it. A counter that went back is
    /// that of a restarted engine, and counts from zero.
    pub fn line(&mut self, now: EngineTotals) -> Option<Line> {
        let last = std::mem::replace(&mut self.last, now);
        let seconds = now.at_ns.saturating_sub(last.at_ns) as f64 / 1e9;
        let grown = |new: u64, old: u64| if new >= old { new - old } else { new };
        let prompt = grown(now.prompt_tokens, last.prompt_tokens);
        let generated = grown(now.generated_tokens, last.generated_tokens);
        if seconds <= 0.0 || prompt + generated + now.running + now.waiting == 0 {
            return None;
        }
        let used = now.kv_blocks_used as f64 / now.kv_blocks.max(1) as f64;
        Some(Line {
            prompt_tokens_per_s: prompt as f64 / seconds,
            generated_tokens_per_s: generated as f64 / seconds,
            running: now.running,
            waiting: now.waiting,
            kv_percent: 100.0 * used,
        })
    }
}

impl Line {
    /// One line in the log.
    pub fn log(&self) {
        tracing::info!(
            prompt_tokens_per_s = format_args!("{:.1}", self.prompt_tokens_per_s),
            generated_tokens_per_s = format_args!("{:.1}", self.generated_tokens_per_s),
            running = self.running,
            waiting = self.waiting,
            kv_percent = format_args!("{:.1}", self.kv_percent),
            "load"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_line_is_said_when_something_happened_and_rates_survive_a_restart() {
        let idle = EngineTotals { at_ns: SECOND, kv_blocks: 50, ..EngineTotals::default() };
        let mut log = LoadLog::new(idle);
        assert!(!log.due(SECOND) && !log.due(10 * SECOND) && log.due(11 * SECOND));
        assert_eq!(log.line(EngineTotals { at_ns: 11 * SECOND, ..idle }), None);
        let busy = EngineTotals {
            at_ns: 21 * SECOND,
            prompt_tokens: 100,
            generated_tokens: 25,
            running: 2,
            waiting: 1,
            kv_blocks_used: 10,
            ..idle
        };
        let line = log.line(busy).unwrap();
        assert_eq!((line.prompt_tokens_per_s, line.generated_tokens_per_s), (10.0, 2.5));
        assert_eq!((line.running, line.waiting, line.kv_percent), (2, 1, 20.0));
        assert!(!log.due(30 * SECOND) && log.due(31 * SECOND));

        let restarted = EngineTotals { at_ns: 31 * SECOND, generated_tokens: 5, ..idle };
        let line = log.line(restarted).unwrap();
        assert_eq!((line.prompt_tokens_per_s, line.generated_tokens_per_s), (0.0, 0.5));
        let waits = EngineTotals { at_ns: 41 * SECOND, waiting: 1, generated_tokens: 5, ..idle };
        assert!(log.line(waits).is_some(), "a request that only waits is worth a line");
        assert_eq!(log.line(EngineTotals { at_ns: 51 * SECOND, waiting: 0, ..waits }), None);
    }
}
