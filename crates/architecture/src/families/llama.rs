//! Llama 2 and 3, and what others change of it: RMS norms before attention and MLP, rotary positions, a gated MLP.
//! Mirrors `LlamaConfig` in transformers' models/llama/configuration_llama.py.

use crate::reader::{Reader, inverse_root, layers_of};
use crate::rope_keys::RopeRule;
use crate::{Architecture, Attention, Head, Names, Norm, NormKind, NormPlaces, Position, QkNorm};

pub(super) fn read(reader: &mut Reader<'_>) -> Architecture {
    let mut found = base(reader, "llama", [None; 2], RopeRule::common);
    let bias = reader.flag("attention_bias", false);
    found.attention.qkv_bias = bias;
    found.attention.out_bias = bias;
    found.mlp.bias = reader.flag("mlp_bias", false);
    found
}

/// What Llama's relatives start from: no bias, no window, one rotation in every layer. The class's own number of KV
/// heads and width of a head, if it has any, hold where the file has no such key.
pub(super) fn base(
    reader: &mut Reader<'_>,
    family: &'static str,
    [kv_heads, head_dim]: [Option<u32>; 2],
    rope: impl Fn(u32) -> RopeRule,
) -> Architecture {
    let hidden = reader.width("hidden_size", None);
    let vocab = reader.vocab();
    let layers = reader.layers("num_hidden_layers");
    let [heads, kv_heads, head_dim] = reader.heads(hidden, [None, kv_heads, head_dim]);
    let (rotary, context) = reader.rope(rope(head_dim));
    let scale = inverse_root(f64::from(head_dim));
    Architecture {
        family,
        hidden,
        vocab,
        context,
        embedding_multiplier: None,
        position: Position::Rotary(vec![rotary]),
        attention: Attention {
            heads,
            kv_heads,
            head_dim,
            qkv_bias: false,
            out_bias: false,
            qk_norm: QkNorm::Absent,
            soft_cap: None,
        },
        layers: layers_of(&vec![false; layers as usize], None, scale),
        norm: Norm { kind: NormKind::Rms, epsilon: reader.positive("rms_norm_eps").unwrap_or(1e-6) },
        norm_places: NormPlaces::Before,
        mlp: reader.gated_mlp(),
        residual_multiplier: None,
        head: Head { tied: reader.flag("tie_word_embeddings", false), divisor: None, soft_cap: None },
        fits_f16: true,
        stop_ids: Vec::new(),
        begin_id: None,
        names: Names::COMMON,
        packed: None,
    }
}
