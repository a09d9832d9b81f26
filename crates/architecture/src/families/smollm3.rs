//! SmolLM3: Llama with layers that do not rotate.
//! Mirrors `SmolLM3Config` in transformers' models/smollm3/configuration_smollm3.py.

use super::llama;
use crate::Architecture;
use crate::reader::Reader;
use crate::rope_keys::RopeRule;

pub(super) fn read(reader: &mut Reader<'_>) -> Architecture {
    let rule = |head_dim| RopeRule { theta: 2_000_000.0, ..RopeRule::common(head_dim) };
    let mut found = llama::base(reader, "smollm3", [Some(4), None], rule);
    let bias = reader.flag("attention_bias", false);
    found.attention.qkv_bias = bias;
    found.attention.out_bias = bias;
    found.mlp.bias = reader.flag("mlp_bias", false);
    found.head.tied = reader.flag("tie_word_embeddings", true);
    let count = found.layers.len() as u32;
    let interval = reader.width("no_rope_layer_interval", Some(4));
    // 1 means that the layer rotates.
    let by_interval = || (0..count).map(|layer| !(layer + 1u32).is_multiple_of(interval)).collect();
    let rotates: Vec<bool> = reader.switches("no_rope_layers", count).unwrap_or_else(by_interval);
    let window = if reader.flag("use_sliding_window", false) { reader.window() } else { None };
    let sliding = reader.sliding(count, |layer| !rotates[layer as usize]);
    for (index, layer) in found.layers.iter_mut().enumerate() {
        layer.rotary = rotates[index].then_some(0);
        layer.window = window.filter(|_| sliding[index]);
    }
    found
}
