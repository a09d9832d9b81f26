//! OLMo 2: norms on what attention and MLP give, and over all heads of queries and keys together.
//! Mirrors transformers' models/olmo2.

use super::llama;
use crate::reader::Reader;
use crate::rope_keys::RopeRule;
use crate::{Architecture, Names, NormKind, NormPlaces, QkNorm};

const NAMES: Names = Names {
    attention_norm: "",
    attention_post_norm: "post_attention_layernorm",
    mlp_norm: "",
    mlp_post_norm: "post_feedforward_layernorm",
    ..Names::COMMON
};

pub(super) fn read(reader: &mut Reader<'_>) -> Architecture {
    let mut found = llama::base(reader, "olmo2", [None; 2], RopeRule::common);
    let bias = reader.flag("attention_bias", false);
    found.attention.qkv_bias = bias;
    found.attention.out_bias = bias;
    found.attention.qk_norm = QkNorm::Whole;
    found.norm.kind = NormKind::RmsWide;
    if reader.get("rms_norm_eps").is_none() {
        found.norm.epsilon = 1e-5;
    }
    found.norm_places = NormPlaces::After;
    found.names = NAMES;
    found
}
