//! [`look`] and [`Spin`]: how long a thread looks for work before it sleeps, and when it had better not look at all.
//!
//! A thread that looks is running, as far as the kernel can tell. On a core of its own that costs nothing. Beside
//! another program that computes it uses up this thread's share of the core, which it then lacks when there is work; a
//! thread that slept gets the core at once (docs/EXPERIMENTS.md, `neighbour-cpu`). So a helper compares the time that
//! it was awake with the time that it had a core, and stops looking for a while where others took much of it.

use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Time awake over which a thread judges.
const JUDGED: Duration = Duration::from_millis(20);
/// For so long a thread that was kept from its core does not look.
const REST: Duration = Duration::from_secs(1);

/// One helper's looking.
#[derive(Debug)]
pub struct Spin {
    limit: Duration,
    rests_until: Option<Instant>,
    since: Clocks,
    slept: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Clocks {
    wall: Instant,
    /// Time on a core.
    cpu: Duration,
}

/// Of the calling thread.
fn time_on_core() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

impl Spin {
    /// Of the calling thread, for at most `limit` at a time; zero: it never looks.
    pub fn new(limit: Duration) -> Spin {
        let since = Clocks { wall: Instant::now(), cpu: time_on_core() };
        Spin { limit, rests_until: None, since, slept: Duration::ZERO }
    }

    /// Looks until `found`, for at most the limit. Whether it was found.
    pub fn until(&mut self, found: &dyn Fn() -> bool) -> bool {
        let limit =
            if self.limit.is_zero() || self.rests(Instant::now()) { Duration::ZERO } else { self.limit };
        look(limit, found)
    }

    /// Sleeps, by `sleep`, in time that does not count as awake.
    pub fn asleep<R>(&mut self, sleep: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = sleep();
        self.slept += start.elapsed();
        result
    }

    /// Whether the thread does not look now, since others took its core.
    fn rests(&mut self, now: Instant) -> bool {
        if let Some(end) = self.rests_until {
            if now < end {
                return true;
            }
            self.rests_until = None;
            self.begin(now);
        }
        let awake = now.duration_since(self.since.wall).saturating_sub(self.slept);
        if awake >= JUDGED {
            if is_crowded(awake, time_on_core().saturating_sub(self.since.cpu)) {
                self.rests_until = Some(now + REST);
            }
            self.begin(now);
        }
        self.rests_until.is_some()
    }

    fn begin(&mut self, now: Instant) {
        self.since = Clocks { wall: now, cpu: time_on_core() };
        self.slept = Duration::ZERO;
    }
}

/// Looks until `found`, for at most `limit`. Whether it was found; what is there already always is.
pub fn look(limit: Duration, found: &dyn Fn() -> bool) -> bool {
    if found() {
        return true;
    }
    if limit.is_zero() {
        return false;
    }
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            std::hint::spin_loop();
            if found() {
                return true;
            }
        }
        if start.elapsed() >= limit {
            return false;
        }
    }
}

/// Others had the core for more than a quarter of the time that the thread was awake. The light roles of a service take
/// a few percent, another program that computes half.
fn is_crowded(awake: Duration, on_core: Duration) -> bool {
    awake.saturating_sub(on_core) * 4 > awake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_core_is_crowded_and_nine_tenths_are_not() {
        let awake = Duration::from_millis(20);
        assert!(is_crowded(awake, Duration::from_millis(10)));
        assert!(!is_crowded(awake, Duration::from_millis(18)));
        assert!(!is_crowded(awake, Duration::from_millis(21)), "clocks differ in resolution");
    }

    #[test]
    fn nothing_is_looked_for_without_time() {
        let looks = std::cell::Cell::new(0);
        assert!(!Spin::new(Duration::ZERO).until(&|| {
            looks.set(looks.get() + 1);
            false
        }));
        assert_eq!(looks.get(), 1, "what is there already is always found");
    }

    #[test]
    fn a_thread_that_is_kept_from_its_core_rests_and_tries_again() {
        let mut spin = Spin::new(Duration::from_micros(50));
        // Blocked, which the clocks cannot tell from a core that another program has.
        std::thread::sleep(JUDGED * 2);
        let start = Instant::now();
        assert!(spin.rests(start));
        assert!(spin.rests(start + REST / 2));
        assert!(!spin.rests(start + REST), "it tries again");
    }

    #[test]
    fn sleep_is_not_held_against_a_core() {
        let mut spin = Spin::new(Duration::from_micros(50));
        spin.asleep(|| std::thread::sleep(JUDGED * 2));
        assert!(!spin.rests(Instant::now()));
    }
}
