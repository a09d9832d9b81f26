//! What a process of the server asks of Linux, where the standard library does not reach.
//!
//! * [`fdpass`]: messages with descriptors over a socket; [`pidfd`]: the death of a process as a descriptor.
//! * [`process`]: children that die with their parent, the name that `ps` shows; [`clock`]: the clock of the timeline.
//! * [`privileges`], [`files`], [`calls`]: what a process gives up: capabilities, files (Landlock), system calls
//!   (seccomp).
//! * [`heap`]: a limit of its memory that it can speak of; free memory given back.
//! * [`nvtx`]: named ranges for NVIDIA's tools.
//! * [`port`]: a free port for a server that is started.
//!
//! It knows no role, no record and no sibling crate. It never blocks without a deadline and never logs.

// The workspace denies unsafe code. System calls without a safe wrapper, ownership of received descriptors and a
// tool's table of functions need it; this crate keeps them in `fdpass`, `heap`, `nvtx`, `pidfd`, `privileges` and
// `process`.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod calls;
pub mod clock;
pub mod fdpass;
pub mod files;
pub mod heap;
pub mod nvtx;
pub mod pidfd;
pub mod port;
pub mod privileges;
pub mod process;
