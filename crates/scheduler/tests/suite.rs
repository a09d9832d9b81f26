//! The scheduler's tests in one program, so that what they share is compiled and linked once. deploy/run_tests.py
//! runs each module in a process of its own; `cargo test --package pinion-scheduler MODULE::` runs one.

mod simulation;

mod ahead;
mod edges;
mod fairness;
mod policies;
mod pools;
mod prefix;
mod prompt_scores;
mod random;
mod step_budget;
mod stops;
mod windows;
