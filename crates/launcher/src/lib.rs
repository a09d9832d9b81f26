//! The launcher: resolves the plan once, creates all shared memory, spawns, pins, watches and restarts the
//! roles. It never touches a request and never waits on a child without a deadline.
//!
//! [`serve::serve`] is the whole life in one loop; [`wiring`] is what the roles share, [`member`] one role
//! process, [`restart`] the pure policy of when to bring one back.

pub mod member;
pub mod restart;
pub mod serve;
mod signals;
pub mod wiring;
