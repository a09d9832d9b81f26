//! The launcher: resolves the plan once, creates all shared memory, spawns, pins, watches and restarts the
//! roles. It never touches a request and never waits on a child without a deadline.
//!
//! [`command_line::run`] is the binary, [`serve::serve`] is the whole life in one loop; [`wiring`] is what the roles
//! share, [`member`] one role, [`admin`] the orders of operators that are under way, [`restart`] the pure policy of
//! when to bring one back.

pub mod admin;
mod child;
mod collector;
pub mod command_line;
pub mod corrupt;
mod descriptors;
pub mod ending;
mod gpu;
mod host;
pub mod member;
mod notify;
mod port;
pub mod profile;
mod pull;
pub mod restart;
pub mod role_event;
pub mod serve;
mod signals;
mod spare;
mod trace;
mod welcome;
pub mod wiring;

pub use host::{Host, RoleEnd, RoleMain};
