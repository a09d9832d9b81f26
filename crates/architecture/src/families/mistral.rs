//! Mistral: Llama with a window on every layer.
//! Mirrors `MistralConfig` in transformers' models/mistral/configuration_mistral.py. The text of `mistral3` is one,
//! with the same defaults.

use super::llama;
use crate::Architecture;
use crate::reader::Reader;
use crate::rope_keys::RopeRule;

/// Of `MistralConfig`, for a `text_config`.
pub(super) const DEFAULTS: &[(&str, u32)] = &[
    ("hidden_size", 4096),
    ("intermediate_size", 14_336),
    ("max_position_embeddings", 131_072),
    ("num_attention_heads", 32),
    ("num_hidden_layers", 32),
    ("vocab_size", 32_000),
];

pub(super) fn read(reader: &mut Reader<'_>) -> Architecture {
    reader.refuse("attention_bias");
    reader.refuse("mlp_bias");
    let mut found = llama::base(reader, "mistral", [Some(8), None], RopeRule::common);
    let window = reader.window_or(4096);
    // `MistralModel` gives every layer the same mask, whatever `layer_types` says.
    let sliding = reader.sliding(found.layers.len() as u32, |_| window.is_some());
    if sliding.iter().any(|&slides| slides != window.is_some()) {
        reader.fault("layer_types with several kinds is not supported for this model_type".into());
    }
    found.layers.iter_mut().for_each(|layer| layer.window = window);
    found
}
