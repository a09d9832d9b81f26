//! The kernels' tests in one program, so that what they share is compiled and linked once. deploy/run_tests.py
//! runs each module in a process of its own; `cargo test --package pinion-ops MODULE::` runs one.

mod layers;

mod attention;
mod attention_int8;
mod attention_spans;
mod attention_windows;
mod integers;
mod linear;
mod matrix;
mod packed;
mod quantized;
mod rows;
mod walks;
