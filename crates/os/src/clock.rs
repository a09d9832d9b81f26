//! The one clock of the timeline: CLOCK_MONOTONIC, the same in every process of the machine. And the time of day, for
//! what people and clients read.

use nix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// A clock that a loop reads: [`now_ns`] in every process, a simulation's own in one.
pub type Clock = fn() -> u64;

/// Nanoseconds since an arbitrary fixed point. Never 0, which means "not reached" in a slot.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC exists on Linux");
    (now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64).max(1)
}

/// Nanoseconds since 1970; a clock before that counts as 0.
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Seconds since 1970; a clock before that counts as 0.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
