//! Granite: Llama with four factors.
//! Mirrors `GraniteConfig` in transformers' models/granite/configuration_granite.py.

use super::llama;
use crate::Architecture;
use crate::reader::Reader;
use crate::rope_keys::RopeRule;

pub(super) fn read(reader: &mut Reader<'_>) -> Architecture {
    let mut found = llama::base(reader, "granite", [None; 2], RopeRule::common);
    let bias = reader.flag("attention_bias", false);
    found.attention.qkv_bias = bias;
    found.attention.out_bias = bias;
    found.mlp.bias = reader.flag("mlp_bias", false);
    let mut factor = |key: &str| reader.positive(key).map(|factor| factor as f32);
    found.embedding_multiplier = factor("embedding_multiplier");
    found.residual_multiplier = factor("residual_multiplier");
    found.head.divisor = factor("logits_scaling");
    let scale = factor("attention_multiplier").unwrap_or(1.0);
    found.layers.iter_mut().for_each(|layer| layer.scale = scale);
    found
}
