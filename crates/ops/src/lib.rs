//! Our CPU kernels, their plain Rust twins, the libtorch shim, and the safe wrappers over them.
//!
//! Start at [`attention`] (paged attention and KV append over a [`KvPool`]); [`twin`] says the same in plain Rust.
//! [`layer`] runs the kernels over a step's activations, each a [`Matrix`]. With feature `torch` (the default),
//! `product` multiplies these by weights, and `tensor_kernels` runs the kernels of the CUDA object on libtorch's
//! stream.
//! This crate knows matrices and pointers, not models.

// Unsafe is allowed here: this crate calls the C++ kernels and maps files.
#![allow(unsafe_code)]

pub mod attention;
mod cpu;
#[cfg(feature = "torch")]
pub mod device;
mod epilogue;
mod ffi;
mod kv_pool;
pub mod layer;
#[cfg(feature = "torch")]
pub mod linear;
mod mapped_file;
pub mod matrix;
#[cfg(feature = "torch")]
pub mod op_trace;
pub mod packed;
#[cfg(feature = "torch")]
pub mod product;
pub mod quantized;
pub mod rows;
#[cfg(feature = "torch")]
mod shim;
pub mod team;
#[cfg(feature = "torch")]
pub mod tensor;
#[cfg(feature = "torch")]
pub mod tensor_kernels;
pub mod twin;
pub mod walks;
mod weight_memory;

// Linked with this crate; `ffi` declares what is in it.
use pinion_kernels as _;

pub use cpu::{IntegerLevel, KernelLevel, has_tiles, supports_bf16};
pub use epilogue::Epilogue;
pub use kv_pool::{Dtype, Element, KvDtype, KvPool, KvShape};
pub use mapped_file::MappedFile;
pub use matrix::Matrix;

/// Which implementation of paged attention and KV append runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AttentionKernel {
    /// The C++ kernels, at the best level that the CPU has.
    #[default]
    Vector,
    /// The plain Rust twins: the readable reference, slow.
    Twin,
}

/// How the products of a model hold their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinearKind {
    /// `Packed` where that reads fewer bytes: weights of 16 bits in the file, activations in fp32, at least AVX2. Else
    /// `OneDnn`.
    #[default]
    Auto,
    /// In our own layout, for our own kernels: in the file's type under fp32 activations, else in bf16.
    Packed,
    /// In the activations' type, reordered once at load into oneDNN's blocked layout.
    OneDnn,
    /// In the activations' type, row-major \[out, in\], as `torch.nn.functional.linear` takes it.
    Plain,
}

/// Whether weights become integers while they are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quantization {
    /// They are what `LinearKind` makes of them; those of a quantised checkpoint are unpacked.
    #[default]
    None,
    /// Those of a quantised checkpoint stay integers where a form of [`quantized`] holds them exactly; all others as
    /// with `None`.
    Checkpoint,
    /// 8 bits with a scale for each output.
    Int8,
    /// 4 bits in groups; the head has 8.
    Int4,
}

/// What is applied to a linear's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// GELU with the tanh approximation: Hugging Face's `gelu_new` and `gelu_pytorch_tanh`.
    GeluTanh,
    /// GELU with erf: Hugging Face's `gelu`.
    GeluErf,
}

impl Activation {
    /// As the kernels and the shim take it.
    fn code(self) -> i32 {
        match self {
            Self::None => 0,
            Self::GeluTanh => 1,
            Self::GeluErf => 2,
        }
    }
}
