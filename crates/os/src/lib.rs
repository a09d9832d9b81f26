//! What a process of the server asks of Linux, where the standard library does not reach.
//!
//! * [`fdpass`]: messages with descriptors over a socket; [`pidfd`]: the death of a process as a descriptor.
//! * [`process`]: children that die with their parent, the name that `ps` shows; [`clock`]: the clock of the timeline.
//! * [`nvtx`]: named ranges for NVIDIA's tools.
//!
//! It knows no role, no record and no sibling crate. It never blocks without a deadline and never logs.

// The workspace denies unsafe code. System calls without a safe wrapper, ownership of received descriptors and a
// tool's table of functions need it; this crate keeps them in `fdpass`, `pidfd`, `process` and `nvtx`.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod clock;
pub mod fdpass;
pub mod nvtx;
pub mod pidfd;
pub mod process;
