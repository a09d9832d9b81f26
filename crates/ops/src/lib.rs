//! Our CPU kernels, their plain Rust twins, the libtorch shim, and the safe wrappers over them.
//!
//! Start at [`attention`] (paged attention and KV append). This crate knows tensors and pointers, not models.

// This crate is one of the two that may hold unsafe code: it calls the C++ kernels and maps files.
#![allow(unsafe_code)]

/// Which implementation of paged attention and KV append runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AttentionKernel {
    /// The C++ kernels, at the best level that the CPU has.
    #[default]
    Vector,
    /// The plain Rust twins: the readable reference, slow.
    Twin,
}

/// How linears hold their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinearKind {
    /// Reordered once at load into oneDNN's blocked layout.
    #[default]
    Packed,
    /// Row-major \[out, in\], as `torch.nn.functional.linear` takes it.
    Plain,
}
