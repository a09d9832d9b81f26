//! What every role process does before and around its loop: attach to what the launcher made, pin itself,
//! say that it is ready, hear about peers that die and come back, sleep and wake.
//!
//! It knows nothing of HTTP, tokens or models. Start at [`Session`]; a role's main is
//! [`process`]: `Session::attach → build → ready → loop → stop`. The launcher's half of the control channel is
//! [`control::LauncherEnd`], beside the role's half, so that both can be read together.

mod adopt;
mod attach;
mod channel;
pub mod control;
mod corrupt;
mod edge;
mod event;
mod launcher_link;
mod links;
mod memory;
mod memory_limit;
mod pauses;
mod pin;
mod process;
mod recorder;
mod sandbox;
mod session;
mod sleeper;
mod start_error;
pub mod telemetry;

pub use channel::EdgeEnd;
pub use edge::{Inbox, Outbox, Overflow};
pub use event::{ControlEvent, Pace};
pub use links::Links;
pub use memory::lock as lock_memory;
pub use pin::pin_to;
pub use process::{attached, process};
pub use recorder::Recorder;
pub use sandbox::confine;
pub use session::{Session, beat};
pub use start_error::StartError;
