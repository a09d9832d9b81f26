//! GPT-2: learned positions, layer norms, products with biases stored as `[in, out]`.
//! Mirrors `GPT2Config` and `GPT2Attention` in transformers' models/gpt2.

use crate::reader::{CONTEXT_MAX, Reader};
use crate::{
    Activation, Architecture, Attention, Context, Head, Layer, Layout, Mlp, Names, Norm, NormKind,
    NormPlaces, Position, QkNorm,
};

const NAMES: Names = Names {
    prefixes: &["", "transformer."],
    layout: Layout::InOut,
    token_embedding: "wte",
    position_embedding: "wpe",
    layers: "h",
    attention_norm: "ln_1",
    qkv: &["attn.c_attn"],
    out: "attn.c_proj",
    mlp_norm: "ln_2",
    up: &["mlp.c_fc"],
    down: "mlp.c_proj",
    final_norm: "ln_f",
    ..Names::COMMON
};

pub(super) fn read(reader: &mut Reader<'_>) -> Architecture {
    let positions = reader.positions_of(&["n_positions", "n_ctx", "max_position_embeddings"]);
    let context = positions.min(CONTEXT_MAX);
    let vocab = reader.vocab();
    let layers = reader.layers("n_layer");
    let (heads, hidden) = (reader.width("n_head", None), reader.width("n_embd", None));
    if !hidden.is_multiple_of(heads) {
        reader.fault(format!("n_head {heads} does not divide n_embd {hidden}"));
    }
    let head_dim = (hidden / heads).max(1);
    reader.check_head_dim(head_dim);
    let by_dim = if reader.flag("scale_attn_weights", true) { 1.0 / (head_dim as f32).sqrt() } else { 1.0 };
    let by_layer = reader.flag("scale_attn_by_inverse_layer_idx", false);
    let scale = |layer: u32| if by_layer { by_dim / (layer + 1) as f32 } else { by_dim };
    Architecture {
        family: "gpt2",
        hidden,
        vocab,
        context: Context { default: context, max: context },
        embedding_multiplier: None,
        position: Position::Learned { count: positions },
        attention: Attention {
            heads,
            kv_heads: heads,
            head_dim,
            qkv_bias: true,
            out_bias: true,
            qk_norm: QkNorm::Absent,
            soft_cap: None,
        },
        layers: (0..layers).map(|at| Layer { rotary: None, window: None, scale: scale(at) }).collect(),
        norm: Norm { kind: NormKind::Layer, epsilon: reader.positive("layer_norm_epsilon").unwrap_or(1e-5) },
        norm_places: NormPlaces::Before,
        mlp: Mlp {
            inner: reader.width("n_inner", Some(4 * hidden)),
            gated: false,
            activation: reader.activation("activation_function", Activation::GeluTanh, false),
            bias: true,
        },
        residual_multiplier: None,
        head: Head { tied: reader.flag("tie_word_embeddings", true), divisor: None, soft_cap: None },
        fits_f16: true,
        stop_ids: Vec::new(),
        begin_id: None,
        names: NAMES,
        packed: None,
    }
}
