//! The forward of libtorch's own operators, on any device that libtorch has: CUDA tensors, or those of the CPU.
//!
//! It interprets the same [`Architecture`](pinion_architecture::Architecture) as the tuned forwards and calls none of
//! our kernels: it is the reference for them on one device, and it runs the models that they do not take. Quantised
//! checkpoints are unpacked to the compute dtype. It is written to be right and not to be fast: attention is computed
//! for each row by itself. With [`OperatorKernels`] attention and the append to the cache are kernels of the CUDA
//! object instead, on libtorch's stream, between the same operators, and so is the sampler. Start at `decoder`, then
//! `network`; `attention` is the first way, `paged` and `draws` the second.
//! docs/design/0016-libtorch-operators.md.

#[cfg(feature = "torch")]
mod attention;
#[cfg(feature = "torch")]
mod decoder;
#[cfg(feature = "torch")]
mod draws;
#[cfg(feature = "torch")]
mod network;
#[cfg(feature = "torch")]
mod paged;
#[cfg(feature = "torch")]
mod weights;

use crate::Model;
use crate::load::{KvSize, LoadError, LoadEvent};
use std::fmt;
use std::path::{Path, PathBuf};

/// Where the tensors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorDevice {
    /// In this process's memory.
    Cpu,
    /// On this CUDA device, by libtorch's numbers.
    Cuda(u32),
}

impl fmt::Display for OperatorDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Type of weights, activations and cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorDtype {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl OperatorDtype {
    /// As [`ModelInfo::dtype`](crate::ModelInfo::dtype) has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

/// Size of the cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OperatorKv {
    /// Given.
    Size(KvSize),
    /// A share of the CUDA device's memory that is free beside the weights and the activations of the largest steps.
    FreeShare(f32),
}

/// How prompt chunks attend; single tokens always do as `Plain` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OperatorPrefill {
    /// `Sdpa`, but in models that cap their scores, which it cannot.
    #[default]
    Auto,
    /// libtorch's scaled_dot_product_attention, in the compute dtype.
    Sdpa,
    /// Products and a softmax, in fp32.
    Plain,
}

/// Kernels of the CUDA object in place of libtorch's operators, where the object has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorKernels {
    /// The shared object; over tensors on the CPU the emulated one.
    pub object: PathBuf,
    /// Operators alone will do, with a [`LoadEvent::WithoutKernels`], where the object cannot be used.
    pub may_do_without: bool,
    /// Penalties, biases and banned ids are the sampler kernel's; off, the host's, as for the two below.
    pub shaped_on_device: bool,
    /// Logprobs of drawn tokens.
    pub scored_on_device: bool,
    /// Masks of grammars.
    pub masked_on_device: bool,
}

/// Everything that [`load_operators`] can be told.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorOptions {
    /// Where the model is computed.
    pub device: OperatorDevice,
    /// In what.
    pub dtype: OperatorDtype,
    /// Threads of the host, at least 1: those of operations on the CPU, and those that unpack weights.
    pub threads: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Size of the KV cache.
    pub kv: OperatorKv,
    /// Longest sequence that is served; without one, the model's default.
    pub max_model_len: Option<u32>,
    /// Most rows in a step; [`OperatorKv::FreeShare`] leaves room for it.
    pub max_rows: u32,
    /// Most query tokens in a step.
    pub max_tokens: u32,
    /// Attention of prompt chunks. With kernels `Auto` is the tensor cores' where type and head size allow, and `Plain`
    /// the kernel of single tokens.
    pub prefill: OperatorPrefill,
    /// Attention, the append to the cache and the sampler are the CUDA object's kernels.
    pub kernels: Option<OperatorKernels>,
}

/// Whether this build has the operators, and whether libtorch has this device.
///
/// # Errors
/// [`LoadError::Backend`]: what is missing.
pub fn check_device(device: OperatorDevice) -> Result<(), LoadError> {
    #[cfg(feature = "torch")]
    return decoder::open(device);
    #[cfg(not(feature = "torch"))]
    return Err(no_torch(device));
}

/// Loads the model in `folder` onto a device of libtorch. `watch` hears how it goes.
///
/// # Errors
/// See [`LoadError`]; [`LoadError::Backend`] for a device that is not there or has not enough memory.
pub fn load_operators(
    folder: &Path,
    options: &OperatorOptions,
    watch: &mut dyn FnMut(LoadEvent<'_>),
) -> Result<Box<dyn Model>, LoadError> {
    check_device(options.device)?;
    #[cfg(feature = "torch")]
    return decoder::load(folder, options, watch);
    #[cfg(not(feature = "torch"))]
    {
        let _ = (folder, watch);
        Err(no_torch(options.device))
    }
}

#[cfg(any(test, not(feature = "torch")))]
fn no_torch(device: OperatorDevice) -> LoadError {
    let reason = format!("this build has no libtorch to compute on {device}; use --backend native or fake");
    LoadError::Options { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_libtorch_names_the_device() {
        for (device, name) in [(OperatorDevice::Cpu, "on cpu;"), (OperatorDevice::Cuda(1), "on cuda:1;")] {
            let told = no_torch(device).to_string();
            assert!(told.contains(name), "{told}");
        }
    }
}
