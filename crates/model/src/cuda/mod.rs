//! A decoder on a CUDA device: paged cache, captured decode graphs, sampling on the device, steps queued ahead.
//!
//! Start at [`load_cuda`], then `engine` (a step from launch to retire), `forward` (a step's kernels) and `layer`,
//! `inputs` (what travels to the device), `buckets`. It needs no libtorch at run time and runs on any object that
//! implements kernels/include/pinion_cuda.h: the real one, or the emulated device that tests use.
//! docs/design/0006-cuda.md.

mod buckets;
mod cache;
pub(crate) mod changes;
mod convert;
mod engine;
mod forward;
mod fused_decode;
mod host_rows;
pub(crate) mod inputs;
pub(crate) mod late;
mod layer;
mod memory;
mod mixed_graphs;
mod prepare;
mod probe;
pub(crate) mod sampling;
pub(crate) mod shape;
mod wait;
mod weights;

pub use engine::CudaDecoder;
pub use fused_decode::fused_splits;
pub use memory::splits;
pub use pinion_cuda::{CudaDtype, Refusal};
pub use probe::{CudaProbe, probe};

use self::shape::Shape;
use crate::config_json;
use crate::load::{KvSize, LoadError, LoadEvent, tell_ignored};
use pinion_cuda::{CudaError, Device};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes that cuBLASLt may use beside its operands.
const PRODUCT_WORKSPACE_BYTES: u64 = 32 << 20;
/// Algorithms of cuBLASLt that are timed for a shape.
pub const PRODUCT_CANDIDATES: u32 = 8;
/// Changes of logits for which a step has room, for each of its rows: with more, rows are the host's. A request with
/// penalties has one for each id in its context.
pub(crate) const CHANGES_PER_ROW: usize = 512;

/// Size of the cache on the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CudaKv {
    /// As on the CPU.
    Size(KvSize),
    /// A share of the device memory that is free once the weights and activations have theirs.
    FreeShare(f32),
}

/// Which kernel does the attention of prompt chunks. `PrefillAttention::on_tensor_cores` is the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefillAttention {
    /// Tensor cores where dtype and head size allow, else the plain one.
    #[default]
    Auto,
    /// The decode kernel, a query token at a time.
    Plain,
}

impl PrefillAttention {
    /// Whether chunks go to the tensor-core kernel.
    pub(crate) fn on_tensor_cores(self, dtype: CudaDtype, head_dim: u32) -> bool {
        self == Self::Auto && dtype != CudaDtype::F32 && matches!(head_dim, 64 | 128)
    }
}

/// How decode steps of up to eight rows run; larger ones are graphs, or kernel by kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DecodePath {
    /// As the larger ones.
    #[default]
    Graph,
    /// One cooperative kernel, and the sampler.
    Fused,
}

/// Everything that [`load_cuda`] can be told.
#[derive(Debug, Clone, PartialEq)]
pub struct CudaOptions {
    /// The shared object.
    pub object: PathBuf,
    /// Which device.
    pub device: u32,
    /// Where cuBLASLt is, if not where the loader looks.
    pub products: Option<PathBuf>,
    /// Weights, activations and cache.
    pub dtype: CudaDtype,
    /// Threads of the host that convert weights.
    pub load_threads: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Size of the KV pool.
    pub kv: CudaKv,
    /// Longest sequence that is served; without one, the model's default. Some rotations depend on it.
    pub max_model_len: Option<u32>,
    /// Most rows in a step; lanes are below this.
    pub max_rows: u32,
    /// Most query tokens in a step.
    pub max_tokens: u32,
    /// Replay captured graphs for decode steps.
    pub graphs: bool,
    /// Replay captured graphs for the layers of other steps too, where prompt chunks go to the tensor-core kernel.
    pub mixed_graphs: bool,
    /// A step's kernels begin before the ones ahead of them have ended (programmatic dependent launch).
    pub dependent_launch: bool,
    /// A layer norm adds the residual sum before it in one kernel.
    pub fused_norms: bool,
    /// A product adds its bias and applies its activation.
    pub fused_products: bool,
    /// Attention of prompt chunks.
    pub prefill: PrefillAttention,
    /// Small decode steps.
    pub decode: DecodePath,
    /// Time cuBLASLt's algorithms for each shape before ready and keep the quickest; off, take its own first choice.
    pub measured_products: bool,
    /// Penalties, biases and banned ids are the sampler kernel's; off, the host's, which such steps then wait for.
    pub shaped_on_device: bool,
    /// Logprobs are two kernels' more; off, the host's, which such steps then wait for.
    pub scored_on_device: bool,
    /// Masks of grammars are the sampler kernel's; off, the host's, to which such rows are copied.
    pub masked_on_device: bool,
    /// How long the host looks for the end of a step before it sleeps: nothing where it shares its core.
    pub spin: Duration,
    /// A step that the device has not ended after this time counts as stuck.
    pub step_deadline: Duration,
}

fn backend(error: CudaError) -> LoadError {
    LoadError::Backend { operation: error.operation, message: error.message }
}

/// Opens the device and loads the model in `folder` onto it.
///
/// # Errors
/// [`LoadError::Backend`] when there is no device or not enough of its memory: one line says which.
/// [`LoadError::Options`] for a model or an option that the kernels do not take.
pub fn load_cuda(folder: &Path, options: &CudaOptions) -> Result<CudaDecoder, LoadError> {
    load_cuda_watched(folder, options, &mut |_| {})
}

/// As [`load_cuda`]; `watch` hears how it goes.
///
/// # Errors
/// As [`load_cuda`].
pub fn load_cuda_watched(
    folder: &Path,
    options: &CudaOptions,
    watch: &mut dyn FnMut(LoadEvent<'_>),
) -> Result<CudaDecoder, LoadError> {
    let shape = shape_of(folder, options)?;
    let device = Device::open(&options.object, options.device).map_err(backend)?;
    let allocated_before = device.counts().allocated_bytes;
    device.open_products(options.products.as_deref(), PRODUCT_WORKSPACE_BYTES).map_err(backend)?;
    tell_ignored(folder, true, watch)?;
    CudaDecoder::new(device, allocated_before, folder, shape, options, watch)
}

/// Whether the engine takes the model in `folder` with these options, as far as that can be told without a device.
///
/// # Errors
/// What it does not take.
pub fn check_cuda(folder: &Path, options: &CudaOptions) -> Result<(), LoadError> {
    shape_of(folder, options).map(drop)
}

fn shape_of(folder: &Path, options: &CudaOptions) -> Result<Shape, LoadError> {
    check(options)?;
    Shape::of(config_json::architecture(folder)?, folder, options)
}

fn check(options: &CudaOptions) -> Result<(), LoadError> {
    let refuse = |reason: String| Err(LoadError::Options { reason });
    if options.max_rows == 0 || options.max_tokens < options.max_rows || options.max_tokens > 65_535 {
        return refuse(format!(
            "a step of {} rows and {} tokens is not one that the CUDA engine takes (1 to 65535 tokens, a token a row)",
            options.max_rows, options.max_tokens
        ));
    }
    if options.block_size == 0 || options.block_size > 1024 {
        return refuse(format!("block size {} is not in 1..=1024", options.block_size));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_tensor_cores_where_type_and_head_size_allow() {
        for dtype in [CudaDtype::F32, CudaDtype::Bf16, CudaDtype::F16] {
            for head_dim in [16, 64, 96, 128, 256] {
                let allowed = dtype.size() == 2 && (head_dim == 64 || head_dim == 128);
                assert_eq!(PrefillAttention::Auto.on_tensor_cores(dtype, head_dim), allowed);
                assert!(!PrefillAttention::Plain.on_tensor_cores(dtype, head_dim));
            }
        }
    }
}
