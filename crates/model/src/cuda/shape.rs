//! What the device runs of an architecture: its sizes, and what it refuses by name.

use super::{CudaDtype, CudaOptions, DecodePath};
use crate::config_json;
use crate::load::LoadError;
use pinion_architecture::{
    Activation, Architecture, CUDA_HEAD_DIM_MAX, NormKind, Position, beyond_cuda_object,
};
use pinion_cuda::{CudaActivation, GENERAL_DIM_MAX};
use std::path::Path;

/// Heads of the tuned attention kernels; others, windows and soft caps take the general one.
const TUNED_HEAD_DIMS: [u32; 4] = [16, 32, 64, 128];

const _: () = assert!(GENERAL_DIM_MAX == CUDA_HEAD_DIM_MAX);

/// A layer's window, if the longest sequence is longer.
pub(crate) fn window_within(model: &Architecture, layer: usize, max_context: u32) -> Option<u32> {
    model.layers[layer].window.filter(|&window| window < max_context)
}

/// Whether a layer's attention is the general kernel's.
pub(crate) fn is_general(model: &Architecture, layer: usize, max_context: u32) -> bool {
    let attention = &model.attention;
    window_within(model, layer, max_context).is_some()
        || attention.soft_cap.is_some()
        || !TUNED_HEAD_DIMS.contains(&attention.head_dim)
}

/// An architecture that the device runs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shape {
    pub(super) model: Architecture,
    /// Longest sequence that is served.
    pub(super) max_context: u32,
}

impl Shape {
    /// # Errors
    /// What the kernels do not take, by its name.
    pub(super) fn of(model: Architecture, folder: &Path, options: &CudaOptions) -> Result<Self, LoadError> {
        if let Some(reason) = beyond_cuda_object(&model, options.dtype.size() as u64) {
            let reason = format!("{reason}; use --backend torch or --device cpu");
            return Err(config_json::fault(folder, reason));
        }
        if options.dtype == CudaDtype::F16 && !model.fits_f16 {
            let reason = format!(
                "model_type {:?} has activations beyond the range of fp16; use --dtype bf16",
                model.family
            );
            return Err(LoadError::Options { reason });
        }
        let max_context = options.max_model_len.unwrap_or(model.context.default).min(model.context.max);
        let shape = Self { model, max_context };
        if options.decode == DecodePath::Fused && !shape.fits_fused_decode() {
            let family = shape.model.family;
            let reason =
                format!("model_type {family:?} does not fit the fused decode step; use --decode graph");
            return Err(LoadError::Options { reason });
        }
        Ok(shape)
    }

    pub(super) fn layers(&self) -> u32 {
        self.model.layers.len() as u32
    }

    /// Columns of queries, keys and values side by side.
    pub(super) fn qkv_width(&self) -> u32 {
        self.model.query_width() + 2 * self.model.kv_width()
    }

    /// The window of a layer, if it is shorter than the longest sequence.
    pub(super) fn window(&self, layer: usize) -> Option<u32> {
        window_within(&self.model, layer, self.max_context)
    }

    /// Whether a layer's attention is the general kernel's.
    pub(super) fn is_general(&self, layer: usize) -> bool {
        is_general(&self.model, layer, self.max_context)
    }

    /// Whether the tuned kernels take every layer's attention.
    pub(super) fn is_tuned(&self) -> bool {
        (0..self.model.layers.len()).all(|layer| !self.is_general(layer))
    }

    /// What a product of the MLP without a gate applies.
    pub(super) fn product_activation(&self) -> CudaActivation {
        match (self.model.mlp.gated, self.model.mlp.activation) {
            (true, _) | (false, Activation::Silu) => CudaActivation::None,
            (false, Activation::GeluTanh) => CudaActivation::GeluTanh,
            (false, Activation::GeluErf) => CudaActivation::GeluErf,
        }
    }

    /// Whether the model is what the fused decode step computes: GPT-2 in all but its sizes.
    fn fits_fused_decode(&self) -> bool {
        let (model, attention) = (&self.model, &self.model.attention);
        matches!(model.position, Position::Learned { .. })
            && model.norm.kind == NormKind::Layer
            && attention.qkv_bias
            && attention.out_bias
            && model.mlp.bias
            && !model.mlp.gated
            && attention.kv_heads == attention.heads
            && model.query_width() == model.hidden
            && self.is_tuned()
            && (model.embedding_multiplier, model.residual_multiplier) == (None, None)
            && (model.head.divisor, model.head.soft_cap) == (None, None)
    }
}
