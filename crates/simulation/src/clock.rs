//! The time of a simulation: it passes only when the simulation says so.

use std::cell::Cell;

/// When each run begins, in ns.
pub(crate) const BEGIN_NS: u64 = 1_000_000_000;

thread_local! {
    static NOW_NS: Cell<u64> = const { Cell::new(BEGIN_NS) };
}

/// What every loop of the simulated service reads.
pub(crate) fn now_ns() -> u64 {
    NOW_NS.get()
}

/// A run begins.
pub(crate) fn reset() {
    NOW_NS.set(BEGIN_NS);
}

/// Time passes.
pub(crate) fn pass_ns(ns: u64) {
    NOW_NS.set(NOW_NS.get() + ns);
}
