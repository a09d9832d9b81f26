//! Shared memory between the processes of one server, and the doorbells beside it.
//!
//! * [`region`]: one sealed memfd per edge, checked at attach; [`words`]: what lies inside, as atomics.
//! * [`ring`]: single producer, single consumer, variable-size records. Start here.
//! * [`slots`]: request slots (generation, cancel and stop bits, timeline); [`page`]: status pages.
//! * [`spans`]: what each process did lately, always recorded.
//! * [`doorbell`]: eventfd wake-ups and the one bounded wait.
//!
//! It knows no role and no record, and of the sibling crates `os` only: kinds, stages, counters and gauges are plain
//! numbers here. It never blocks without a deadline and never logs.
//!
//! Everything in a region may change at any moment under a broken peer's hands. Therefore nothing ever
//! forms a plain reference to mapped bytes: every access is an atomic word, copied out, checked, then used.

// The workspace denies unsafe code. Mapping memory needs it; this crate keeps it in `region`.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod doorbell;
pub mod ring;
pub mod spans;
pub mod sync;
pub mod words;

// Mapped memory holds real atomics, which the model checker cannot follow: under loom only the algorithms
// over heap words exist.
#[cfg(not(loom))]
pub mod page;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod slots;
