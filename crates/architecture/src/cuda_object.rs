//! Which decoders the kernels of our CUDA object take: a question to the description alone, so that it is answered
//! before any process starts.

use crate::{Activation, Architecture, NormKind, NormPlaces, QkNorm};

/// Bytes of a vector that the kernels load.
const VECTOR_BYTES: u32 = 16;

/// Largest head of the CUDA object's attention kernels.
pub const CUDA_HEAD_DIM_MAX: u32 = 256;

fn chunk(element_bytes: u64) -> u32 {
    VECTOR_BYTES / u32::try_from(element_bytes).unwrap_or(VECTOR_BYTES).clamp(1, VECTOR_BYTES)
}

/// Why the CUDA object's kernels of attention do not take a decoder with queries, keys and values of `element_bytes`
/// each, if they do not.
pub fn beyond_cuda_attention(model: &Architecture, element_bytes: u64) -> Option<String> {
    let (chunk, head_dim) = (chunk(element_bytes), model.attention.head_dim);
    (head_dim > CUDA_HEAD_DIM_MAX || !head_dim.is_multiple_of(chunk)).then(|| {
        format!(
            "head_dim {head_dim} is not supported by the CUDA object (a multiple of {chunk} up to {CUDA_HEAD_DIM_MAX})"
        )
    })
}

/// Why the CUDA object does not take a decoder with weights and activations of `element_bytes` each, if it does not.
pub fn beyond_cuda_object(model: &Architecture, element_bytes: u64) -> Option<String> {
    let chunk = chunk(element_bytes);
    if model.packed.is_some() {
        return Some("quantization_config is not supported by the CUDA object".into());
    }
    if let Some(reason) = beyond_cuda_attention(model, element_bytes) {
        return Some(reason);
    }
    let widths = [("hidden_size", model.hidden), ("intermediate_size", model.mlp.inner)];
    if let Some((key, width)) = widths.into_iter().find(|(_, width)| !width.is_multiple_of(chunk)) {
        return Some(format!("{key} {width} is not supported by the CUDA object (a multiple of {chunk})"));
    }
    let is_layer_norm = model.norm.kind == NormKind::Layer;
    let what = if !model.mlp.gated && model.mlp.activation == Activation::Silu {
        "an MLP without a gate and with the activation silu is"
    } else if is_layer_norm && model.norm_places != NormPlaces::Before {
        "layer norms behind attention and MLP are"
    } else if is_layer_norm && model.attention.qk_norm != QkNorm::Absent {
        "layer norms on queries and keys are"
    } else {
        return None;
    };
    Some(format!("{what} not supported by the CUDA object"))
}
