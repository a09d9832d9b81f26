//! How the host waits for a step of the device: it looks all the time where it has a core to itself, then it sleeps
//! between two looks.

use std::time::{Duration, Instant};

/// Looks between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 256;
/// A sleep takes this part of the time that was waited so far, so that a step is seen that much too late at most.
const SLEEP_DIVISOR: u32 = 20;
/// Shorter sleeps take as long, and longer ones are not needed to leave the core to others.
const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// How long a wait spins, and when it is given up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) spin: Duration,
    pub(super) deadline: Duration,
}

/// Waits until `passed`, or gives `false` at the deadline. A spin of nothing looks once before the first sleep.
pub(super) fn wait<E>(
    patience: Patience,
    mut passed: impl FnMut() -> Result<bool, E>,
    mut sleep: impl FnMut(Duration),
) -> Result<bool, E> {
    if passed()? {
        return Ok(true);
    }
    let began = Instant::now();
    while began.elapsed() < patience.spin {
        for _ in 0..LOOKS_PER_CLOCK {
            if passed()? {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
    }
    loop {
        let waited = began.elapsed();
        if waited > patience.deadline {
            return Ok(false);
        }
        sleep((waited / SLEEP_DIVISOR).clamp(SLEEP_MIN, SLEEP_MAX));
        if passed()? {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// Looks and sleeps until the event has passed, which it does after `looks_needed` looks or after a sleep.
    fn waited(spin: Duration, looks_needed: u32) -> (u32, u32) {
        let (mut looks, sleeps) = (0, std::cell::Cell::new(0));
        let passed = || {
            looks += 1;
            Ok::<bool, ()>(looks > looks_needed || sleeps.get() > 0)
        };
        let sleep = |time: Duration| {
            assert!((SLEEP_MIN..=SLEEP_MAX).contains(&time), "{time:?}");
            sleeps.set(sleeps.get() + 1);
        };
        assert_eq!(wait(Patience { spin, deadline: LONG }, passed, sleep), Ok(true));
        (looks, sleeps.get())
    }

    #[test]
    fn a_shared_core_sleeps_at_once_and_an_own_one_spins_for_a_bounded_time() {
        assert_eq!(waited(Duration::ZERO, 0), (1, 0), "what has passed costs no sleep");
        assert_eq!(waited(Duration::ZERO, u32::MAX), (2, 1));
        assert_eq!(waited(LONG, 1000), (1001, 0));
        let (looks, sleeps) = waited(Duration::from_millis(1), u32::MAX);
        assert!(looks > 2 && sleeps == 1, "{looks} {sleeps}");
    }

    #[test]
    fn a_device_that_never_answers_or_fails_ends_the_wait() {
        let patience = Patience { spin: Duration::ZERO, deadline: Duration::from_millis(5) };
        assert_eq!(wait(patience, || Ok::<bool, ()>(false), std::thread::sleep), Ok(false));
        assert_eq!(wait(patience, || Err(7), |_| {}), Err(7));
    }
}
