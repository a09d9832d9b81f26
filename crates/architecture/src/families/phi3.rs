//! Phi-3, Phi-3.5 and Phi-4-mini: Llama with fused tensors, a part of each head rotated, and frequencies in two lists.
//! Mirrors `Phi3Config` in transformers' models/phi3/configuration_phi3.py.

use super::llama;
use crate::reader::Reader;
use crate::rope_keys::RopeRule;
use crate::{Architecture, Names};

const NAMES: Names = Names { qkv: &["self_attn.qkv_proj"], up: &["mlp.gate_up_proj"], ..Names::COMMON };

pub(super) fn read(reader: &mut Reader<'_>) -> Architecture {
    reader.refuse("attention_bias");
    let rule = |head_dim| RopeRule {
        partial: true,
        long_only: true,
        trained: Some(4096),
        ..RopeRule::common(head_dim)
    };
    let mut found = llama::base(reader, "phi3", [None; 2], rule);
    if reader.get("rms_norm_eps").is_none() {
        found.norm.epsilon = 1e-5;
    }
    let window = reader.window();
    found.layers.iter_mut().for_each(|layer| layer.window = window);
    found.names = NAMES;
    found
}
