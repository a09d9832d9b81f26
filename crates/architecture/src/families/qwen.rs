//! Qwen2 and 2.5: biases on queries, keys and values, always. Qwen3: none, and a norm on each head of queries and keys.
//! Mirrors transformers' models/qwen2 and models/qwen3.

use super::llama;
use crate::reader::Reader;
use crate::rope_keys::RopeRule;
use crate::{Architecture, QkNorm};

pub(super) fn read_qwen2(reader: &mut Reader<'_>) -> Architecture {
    let mut found = windowed(reader, "qwen2", None);
    found.attention.qkv_bias = true;
    found
}

pub(super) fn read_qwen3(reader: &mut Reader<'_>) -> Architecture {
    let mut found = windowed(reader, "qwen3", Some(128));
    let bias = reader.flag("attention_bias", false);
    found.attention.qkv_bias = bias;
    found.attention.out_bias = bias;
    found.attention.qk_norm = QkNorm::PerHead;
    found
}

/// Layers from `max_window_layers` on have a window, if there are windows at all.
fn windowed(reader: &mut Reader<'_>, family: &'static str, head_dim: Option<u32>) -> Architecture {
    let mut found = llama::base(reader, family, [Some(32), head_dim], RopeRule::common);
    if !reader.flag("use_sliding_window", false) {
        return found;
    }
    let window = reader.window_or(4096);
    let first = reader.get("max_window_layers").and_then(serde_json::Value::as_u64).unwrap_or(28);
    let sliding = reader.sliding(found.layers.len() as u32, |layer| u64::from(layer) >= first);
    for (layer, slides) in found.layers.iter_mut().zip(sliding) {
        layer.window = window.filter(|_| slides);
    }
    found
}
