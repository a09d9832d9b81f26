//! How the host waits for a step of the device: it looks for a while where it has a core to itself, then it sleeps.

use std::time::{Duration, Instant};

/// Looks between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 256;

/// Waits until `passed` or, from `spin` on, in `sleep`, which returns when it has passed. A spin of nothing looks once.
pub(super) fn wait<E>(
    spin: Duration,
    mut passed: impl FnMut() -> Result<bool, E>,
    sleep: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    if passed()? {
        return Ok(());
    }
    let began = Instant::now();
    while began.elapsed() < spin {
        for _ in 0..LOOKS_PER_CLOCK {
            if passed()? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
    }
    sleep()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `passes` after that many looks takes: looks, and whether it slept.
    fn waited(spin: Duration, passes: u32) -> (u32, bool) {
        let (mut looks, mut slept) = (0, false);
        let passed = || {
            looks += 1;
            Ok::<bool, ()>(looks > passes)
        };
        wait(spin, passed, || {
            slept = true;
            Ok(())
        })
        .expect("nothing fails");
        (looks, slept)
    }

    #[test]
    fn a_shared_core_sleeps_at_once_and_an_own_one_spins_for_a_bounded_time() {
        assert_eq!(waited(Duration::ZERO, 0), (1, false), "what has passed costs no sleep");
        assert_eq!(waited(Duration::ZERO, u32::MAX), (1, true));
        assert_eq!(waited(Duration::from_secs(600), 1000), (1001, false));
        let (looks, slept) = waited(Duration::from_millis(1), u32::MAX);
        assert!(slept && looks > 1, "{looks}");
        assert_eq!(wait(Duration::ZERO, || Err(7), || Ok(())), Err(7));
    }
}
