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
    deaths: VecDeque<Death>,
}

#[derive(Debug)]
struct Death {
    at_ns: u64,
    /// It counts for the limit.
    counts: bool,
}

impl RestartPolicy {
    /// Records a death at `now_ns`. The first within a minute restarts at once, the k-th after
    /// `backoff_ns · 2^(k−2)`, at most 5 s; more than `limit` deaths within a minute give up. A death without a limit
    /// never counts for one, but it does delay the next restart.
    pub fn died(&mut self, now_ns: u64, backoff_ns: u64, limit: Option<u32>) -> Verdict {
        while self.deaths.front().is_some_and(|death| now_ns.saturating_sub(death.at_ns) > MINUTE_NS) {
            self.deaths.pop_front();
        }
        self.deaths.push_back(Death { at_ns: now_ns, counts: limit.is_some() });
        let counted = self.deaths.iter().filter(|death| death.counts).count() as u32;
        if limit.is_some_and(|limit| counted > limit) {
            return Verdict::GiveUp { deaths: counted };
        }
        let delay_ns = match self.deaths.len() as u32 {
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
            assert_eq!(policy.died(now, 100 * ms, Some(5)), Verdict::RestartAt { ns: now + delay_ms * ms });
            now += 1_000 * ms;
        }
        assert_eq!(policy.died(now, 100 * ms, Some(5)), Verdict::GiveUp { deaths: 6 });
        now += 61_000 * ms;
        assert_eq!(policy.died(now, 100 * ms, Some(5)), Verdict::RestartAt { ns: now });
    }

    #[test]
    fn deaths_without_a_limit_bring_no_later_death_nearer_to_its_own() {
        let (second, mut policy) = (1_000_000_000, RestartPolicy::default());
        for death in 0..20 {
            assert!(matches!(policy.died(death * second, 0, None), Verdict::RestartAt { .. }), "{death}");
        }
        assert_eq!(policy.died(20 * second, 0, Some(1)), Verdict::RestartAt { ns: 20 * second });
        assert_eq!(policy.died(21 * second, 0, Some(1)), Verdict::GiveUp { deaths: 2 });
    }

    #[test]
    fn the_delay_is_bounded() {
        let mut policy = RestartPolicy::default();
        for now in 0..50 {
            if let Verdict::RestartAt { ns } = policy.died(now, u64::MAX / 2, Some(100)) {
                assert!(ns - now <= BACKOFF_NS_MAX);
            }
        }
    }
}
