//! The engine role: takes admitted requests from tokenizers, runs the model step by step, and publishes tokens to
//! detokenizers and ends to frontends.
//!
//! Start at [`Engine::turn`], the loop on one screen. What to compute is decided by `pinion_scheduler`, how by
//! `pinion_model`; this crate moves records between them and the rings. It does not tokenize, knows no HTTP, and in
//! the steady state neither allocates, locks, logs nor blocks per token. [`Ports`] is the seam at which a test drives
//! the same loop without processes.

mod admission;
mod alone;
mod alone_main;
mod batch;
mod cache_events;
mod constraints;
mod cuda_start;
mod engine;
mod gauges;
mod load_progress;
mod op_profile;
mod operator_options;
mod options;
mod ports;
mod probe_main;
mod publish;
mod recorded;
mod recorded_device;
mod replay_main;
mod role;
mod step_sizes;
pub mod tape;
mod wish;

pub use alone::run_alone;
pub use alone_main::alone;
pub use engine::{Broken, Engine, Sizes, Turn};
pub use options::{build, model_options, sizes};
pub use ports::Ports;
pub use probe_main::probe;
pub use replay_main::replay;
pub use role::{Server, live, taped_turn};
