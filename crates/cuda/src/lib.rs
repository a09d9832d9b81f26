//! The safe side of kernels/include/pinion_cuda.h: a device opened at run time from a shared object, its memory,
//! streams and graphs, and our CUDA kernels. It knows tensors and pointers, not models.
//!
//! Start at [`Device::open`]. Nothing of CUDA is linked: a machine without it gets one line that says why
//! ([`CudaError`]). The same object built by kernels/emulation/build.sh runs the kernels in this process; tests hold
//! them against [`twin`] there. Memory lives as long as its device, so an address in a captured graph stays good.

// Unsafe is allowed here: this crate calls functions of an object that it opens.
#![allow(unsafe_code)]

mod borrowed;
mod decode;
mod device;
mod draw;
mod driver;
mod kernels;
mod launch;
mod layers;
mod memory;
mod refusal;
mod symbols;
pub mod twin;

pub use decode::{
    BiasedWeight, DECODE_PHASES, DecodeBuffers, DecodeLayer, DecodeModel, DecodePlan, DecodeShape,
    DecodeStep, DecodeTables, Stamp,
};
pub use device::{CudaError, Device, DeviceCounts, DeviceFacts, Event, Graph, Stream};
pub use draw::{
    BEST_MAX, CHANGE_BYTES, DRAW_BYTES, Draw, DrawMode, LogitChange, RowChanges, SAMPLED_BYTES, SCORED_BYTES,
    SCORES_BYTES, Sampled, SampledState, Scored, Scores, mask_bytes,
};
pub use driver::{DriverDevice, DriverFacts, driver};
pub use kernels::{
    Append, Attention, BiasActivation, CopyBlocks, CudaActivation, DecodeSplit, Embed, GEMV_ROWS_MAX, Gather,
    Norm, NormKind, PREFILL_TILE, Prefill, Product, ProductMethod, Sample, Score, TokenBatch, UpdateTables,
};
pub use layers::{GENERAL_DIM_MAX, Gate, GateActivation, GeneralAttention, Rms, RmsOrder, Rope, Scale};
pub use memory::{Pinned, Span};
pub use refusal::Refusal;

/// In place of a lane: the token is padding.
pub const NO_LANE: u32 = u32::MAX;
/// In place of a query token's index in attention's list: padding.
pub const NO_QUERY: u32 = u32::MAX;
/// In place of a token id: what the lane's last step sampled.
pub const FUTURE_TOKEN: u32 = u32::MAX;
/// Largest vocabulary that the sampler kernel takes.
pub const SAMPLE_VOCAB_MAX: u32 = 262_144;

/// Element types of device tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CudaDtype {
    /// IEEE single precision: for comparisons, no kernel is quick in it.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl CudaDtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// `"f32"`, `"bf16"` or `"f16"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    pub(crate) fn code(self) -> i32 {
        match self {
            Self::F32 => 0,
            Self::Bf16 => 1,
            Self::F16 => 2,
        }
    }
}
