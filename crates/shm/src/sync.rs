//! The atomics of this crate: the standard ones, or loom's when the model checker runs (`--cfg loom`).
//!
//! The two fences that make sleeping safe have names, so that the model checker can show that each is needed:
//! `tests/loom.rs` leaves one of them out and must then fail.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Sync point `ring-sleep`, writer's half: between the store of `head` and the load of `reader_asleep`.
/// Pairs with [`reader_fence`].
#[inline]
pub(crate) fn writer_fence() {
    #[cfg(loom)]
    if is_left_out("writer") {
        return;
    }
    fence(Ordering::SeqCst);
}

/// Sync point `ring-sleep`, reader's half: between the store of `reader_asleep` and the load of `head`.
/// Pairs with [`writer_fence`].
#[inline]
pub(crate) fn reader_fence() {
    #[cfg(loom)]
    if is_left_out("reader") {
        return;
    }
    fence(Ordering::SeqCst);
}

/// The fence that every model of this process leaves out: `writer` or `reader`.
#[cfg(loom)]
pub static LEFT_OUT: std::sync::OnceLock<String> = std::sync::OnceLock::new();

#[cfg(loom)]
fn is_left_out(end: &str) -> bool {
    LEFT_OUT.get().is_some_and(|left_out| left_out == end)
}
