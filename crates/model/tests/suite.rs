//! The models' tests in one program, so that what they share is compiled and linked once. deploy/run_tests.py
//! runs each module in a process of its own; `cargo test --package pinion-model MODULE::` runs one.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

mod company;
mod cuda_sweeps;
mod driver;
mod emulated;
mod tiny;
mod tiny_prequantized;

mod checkpoints;
mod cuda;
mod cuda_cache;
mod cuda_families;
mod cuda_fused;
mod cuda_launch;
mod cuda_logprobs;
mod cuda_sampler;
mod cuda_shaping;
mod families;
mod gguf;
mod int8_kv;
mod load_faults;
mod logprobs;
mod operator_kernels;
mod operators;
mod packed;
mod parity;
mod pooling;
mod prequantized;
mod prompt_logprobs;
mod quantized;
mod sampler;
mod sampling_threads;
mod shaping;
mod team;
mod windows;
