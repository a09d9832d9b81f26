//! The CPU kernels of kernels/cpu, compiled for every instruction set: no Rust, only what build.rs links.
//!
//! pinion-ops declares the functions and wraps them. They are a crate of their own because they are the same with
//! libtorch and without: a build of the other kind need not compile them again.
