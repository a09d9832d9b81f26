//! Threads that share the work of one caller at a time: those of a step's kernels.
//!
//! [`Team::run`] cuts work into chunks, gives each thread a part, and lets those that are done take chunks of the
//! others. A step has dozens of such regions, tens to thousands of microseconds long, so threads look for the next one
//! for a while before they sleep ([`spin::Spin`]), and a region never waits for a thread that has not come:
//! [`crew::Crew`].

// Unsafe is allowed here: what a caller lends to its helpers ends with the call, which no lifetime can say.
#![allow(unsafe_code)]

pub mod crew;
#[cfg(not(loom))]
pub mod spin;
mod sync;
#[cfg(not(loom))]
mod team;

#[cfg(not(loom))]
pub use team::{Team, TeamOptions};
