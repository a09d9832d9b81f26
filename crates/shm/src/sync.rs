//! The atomics of this crate: the standard ones, or loom's when the model checker runs (`--cfg loom`).
//!
//! The two fences that make sleeping safe have names, so that the model checker can show that each is
//! needed: `--cfg pinion_drop_writer_fence` and `--cfg pinion_drop_reader_fence` compile one of them out,
//! and `tests/loom.rs` must then fail.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Sync point `ring-sleep`, writer's half: between the store of `head` and the load of `reader_asleep`.
/// Pairs with [`reader_fence`].
#[inline]
pub(crate) fn writer_fence() {
    #[cfg(not(pinion_drop_writer_fence))]
    fence(Ordering::SeqCst);
}

/// Sync point `ring-sleep`, reader's half: between the store of `reader_asleep` and the load of `head`.
/// Pairs with [`writer_fence`].
#[inline]
pub(crate) fn reader_fence() {
    #[cfg(not(pinion_drop_reader_fence))]
    fence(Ordering::SeqCst);
}
