//! The engine's tests in one program, so that what they share is compiled and linked once. deploy/run_tests.py
//! runs each module in a process of its own; `cargo test --package pinion-engine MODULE::` runs one.

mod rig;
#[cfg(feature = "torch")]
#[path = "../../model/tests/tiny/mod.rs"]
mod tiny;

mod alone;
mod grammar;
mod overlap;
mod pooling;
mod prompt_scores;
mod replay;
mod sampling;
mod scheduling;
mod speculation;
mod speculation_families;
mod step_budget;
mod turns;
mod window_families;
