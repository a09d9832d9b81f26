//! What the device runs of an architecture: its sizes, and what it refuses by name.

use super::{CudaDtype, CudaOptions, DecodePath};
use crate::config_json;
use crate::load::LoadError;
use pinion_architecture::{Activation, Architecture, NormKind, NormPlaces, Position, QkNorm};
use pinion_cuda::{CudaActivation, GENERAL_DIM_MAX};
use std::path::Path;

/// Heads of the tuned attention kernels; others, windows and soft caps take the general one.
const TUNED_HEAD_DIMS: [u32; 4] = [16, 32, 64, 128];

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
        let chunk = (16 / options.dtype.size()) as u32;
        let head_dim = model.attention.head_dim;
        let config = |reason: String| Err(config_json::fault(folder, reason));
        if model.packed.is_some() {
            return config("quantization_config is not supported on CUDA yet; use --device cpu".into());
        }
        if head_dim > GENERAL_DIM_MAX || !head_dim.is_multiple_of(chunk) {
            return config(format!(
                "head_dim {head_dim} is not supported on CUDA (a multiple of {chunk} up to {GENERAL_DIM_MAX}); use --device cpu"
            ));
        }
        for (key, width) in [("hidden_size", model.hidden), ("intermediate_size", model.mlp.inner)] {
            if !width.is_multiple_of(chunk) {
                return config(format!(
                    "{key} {width} is not supported on CUDA (a multiple of {chunk}); use --device cpu"
                ));
            }
        }
        if !model.mlp.gated && model.mlp.activation == Activation::Silu {
            return config("an MLP without a gate and with the activation silu is not supported".into());
        }
        if model.norm.kind == NormKind::Layer && model.norm_places != NormPlaces::Before {
            return config("layer norms behind attention and MLP are not supported on CUDA".into());
        }
        if model.norm.kind == NormKind::Layer && model.attention.qk_norm != QkNorm::Absent {
            return config("layer norms on queries and keys are not supported on CUDA".into());
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
        self.model.layers[layer].window.filter(|&window| window < self.max_context)
    }

    /// Whether a layer's attention is the general kernel's.
    pub(super) fn is_general(&self, layer: usize) -> bool {
        let attention = &self.model.attention;
        self.window(layer).is_some()
            || attention.soft_cap.is_some()
            || !TUNED_HEAD_DIMS.contains(&attention.head_dim)
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
