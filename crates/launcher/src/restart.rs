//! When a dead role comes back: exponential back-off within a sliding minute, and a limit past which the
//! service gives up instead of flapping. Pure: time comes in as an argument.

use std::collections::VecDeque;

const MINUTE_NS: u64 = 60_000_000_000;
/// The longest back-off.
const BACKOFF_NS_MAX: u64 = 5_000_000_000;

/// What to do about a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Start a successor at this time.
    RestartAt {
        /// CLOCK_MONOTONIC ns.
        ns: u64,
    },
    /// It died too often within a minute.
    GiveUp {
        /// Deaths within the last minute.
        deaths: u32,
    },
}

/// The deaths of one role within the last minute.
#[derive(Debug, Default)]
pub struct RestartPolicy {
    deaths_ns: VecDeque<u64>,
}

impl RestartPolicy {
    /// Records a death at `now_ns`. The first within a minute restarts at once, the k-th after
    /// `backoff_ns · 2^(k−2)`, at most 5 s; more than `limit` deaths within a minute give up.
    pub fn died(&mut self, now_ns: u64, backoff_ns: u64, limit: u32) -> Verdict {
        while self.deaths_ns.front().is_some_and(|&t| now_ns.saturating_sub(t) > MINUTE_NS) {
            self.deaths_ns.pop_front();
        }
        self.deaths_ns.push_back(now_ns);
        let deaths = self.deaths_ns.len() as u32;
        if deaths > limit {
            return Verdict::GiveUp { deaths };
        }
        let delay_ns = match deaths {
            1 => 0,
            k => backoff_ns.saturating_mul(1 << (k - 2).min(16)).min(BACKOFF_NS_MAX),
        };
        Verdict::RestartAt { ns: now_ns + delay_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backs_off_gives_up_and_forgets_after_a_minute() {
        let (ms, mut policy) = (1_000_000, RestartPolicy::default());
        let mut now = 1_000 * ms;
        for delay_ms in [0, 100, 200, 400, 800] {
            assert_eq!(policy.died(now, 100 * ms, 5), Verdict::RestartAt { ns: now + delay_ms * ms });
            now += 1_000 * ms;
        }
        assert_eq!(policy.died(now, 100 * ms, 5), Verdict::GiveUp { deaths: 6 });
        now += 61_000 * ms;
        assert_eq!(policy.died(now, 100 * ms, 5), Verdict::RestartAt { ns: now });
    }

    #[test]
    fn the_delay_is_bounded() {
        let mut policy = RestartPolicy::default();
        for now in 0..50 {
            if let Verdict::RestartAt { ns } = policy.died(now, u64::MAX / 2, 100) {
                assert!(ns - now <= BACKOFF_NS_MAX);
            }
        }
    }
}
