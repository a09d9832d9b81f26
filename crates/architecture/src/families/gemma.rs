//! Gemma 2 and 3: four norms a layer with weights of 1 + w, embeddings times the root of their width, windows on most
//! layers. Gemma 2 caps scores and logits; Gemma 3 norms each head and has a rotation of its own for the layers with
//! windows. Mirrors transformers' models/gemma2 and models/gemma3; defaults are the classes'.

use crate::reader::{CONTEXT_MAX, Reader, inverse_root, layers_of};
use crate::rope_keys::RopeRule;
use crate::{
    Activation, Architecture, Attention, Context, Head, Mlp, Names, Norm, NormKind, NormPlaces, Position,
    QkNorm, Rotary,
};
use serde_json::{Map, Value};

const NAMES: Names = Names {
    attention_post_norm: "post_attention_layernorm",
    mlp_norm: "pre_feedforward_layernorm",
    mlp_post_norm: "post_feedforward_layernorm",
    ..Names::COMMON
};

/// Of `Gemma3TextConfig`, for a `text_config`; the others hold for every file.
pub(super) const DEFAULTS_OF_GEMMA3: &[(&str, u32)] = &[("num_hidden_layers", 26)];

pub(super) fn read_gemma2(reader: &mut Reader<'_>) -> Architecture {
    let (hidden, vocab) = (reader.width("hidden_size", Some(2304)), reader.vocab_or(Some(256_000)));
    let [heads, kv_heads, head_dim] = reader.heads(hidden, [Some(8), Some(4), Some(256)]);
    let (rotary, context) = reader.rope(RopeRule::common(head_dim));
    let mut found = base(reader, "gemma2", [hidden, vocab, heads, kv_heads, head_dim], context);
    found.position = Position::Rotary(vec![rotary]);
    let cap = |reader: &mut Reader<'_>, key: &str, default: f64| match reader.has_null(key) {
        true => None,
        false => Some(reader.positive(key).unwrap_or(default) as f32),
    };
    found.attention.soft_cap = cap(reader, "attn_logit_softcapping", 50.0);
    found.head.soft_cap = cap(reader, "final_logit_softcapping", 30.0);
    windows(reader, &mut found, 2);
    found
}

pub(super) fn read_gemma3(reader: &mut Reader<'_>) -> Architecture {
    let (hidden, vocab) = (reader.width("hidden_size", Some(2304)), reader.vocab_or(Some(262_208)));
    let [heads, kv_heads, head_dim] = reader.heads(hidden, [Some(8), Some(4), Some(256)]);
    let positions = reader.width("max_position_embeddings", Some(131_072)).min(CONTEXT_MAX);
    let context = Context { default: positions, max: positions };
    let rotaries = rotaries(reader, head_dim, positions);
    let mut found = base(reader, "gemma3_text", [hidden, vocab, heads, kv_heads, head_dim], context);
    found.position = Position::Rotary(rotaries);
    found.attention.qk_norm = QkNorm::PerHead;
    found.attention.soft_cap = reader.positive("attn_logit_softcapping").map(|cap| cap as f32);
    found.head.soft_cap = reader.positive("final_logit_softcapping").map(|cap| cap as f32);
    let pattern = reader.width("sliding_window_pattern", Some(6));
    windows(reader, &mut found, pattern);
    // The second rotation is that of layers with a window.
    for layer in found.layers.iter_mut().filter(|layer| layer.window.is_some()) {
        layer.rotary = Some(1);
    }
    found
}

/// The rotation of layers without a window, then that of those with one.
fn rotaries(reader: &mut Reader<'_>, head_dim: u32, positions: u32) -> Vec<Rotary> {
    let object = |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or_default();
    let nested = object(reader.get("rope_parameters"));
    let kind = |name: &str| -> Map<String, Value> { object(nested.get(name)) };
    let (mut full, sliding) = (kind("full_attention"), kind("sliding_attention"));
    // `convert_rope_params_to_dict` of Gemma3TextConfig.
    full.extend(object(reader.get("rope_scaling")));
    let theta = reader.positive("rope_theta");
    let local = reader.positive("rope_local_base_freq");
    let rule = |theta: f64| RopeRule { theta, ..RopeRule::common(head_dim) };
    vec![
        reader.rotary(&full, theta, rule(1_000_000.0), positions),
        reader.rotary(&sliding, local, rule(10_000.0), positions),
    ]
}

fn base(
    reader: &mut Reader<'_>,
    family: &'static str,
    [hidden, vocab, heads, kv_heads, head_dim]: [u32; 5],
    context: Context,
) -> Architecture {
    let layers = reader.layers("num_hidden_layers");
    let bias = reader.flag("attention_bias", false);
    let scale = inverse_root(reader.positive("query_pre_attn_scalar").unwrap_or(256.0));
    Architecture {
        family,
        hidden,
        vocab,
        context,
        embedding_multiplier: Some(f64::from(hidden).sqrt() as f32),
        position: Position::Rotary(Vec::new()),
        attention: Attention {
            heads,
            kv_heads,
            head_dim,
            qkv_bias: bias,
            out_bias: bias,
            qk_norm: QkNorm::Absent,
            soft_cap: None,
        },
        layers: layers_of(&vec![false; layers as usize], None, scale),
        norm: Norm { kind: NormKind::RmsOnePlus, epsilon: reader.positive("rms_norm_eps").unwrap_or(1e-6) },
        norm_places: NormPlaces::Around,
        mlp: Mlp {
            inner: reader.width("intermediate_size", Some(9216)),
            gated: true,
            activation: reader.activation("hidden_activation", Activation::GeluTanh, true),
            bias: false,
        },
        residual_multiplier: None,
        head: Head { tied: reader.flag("tie_word_embeddings", true), divisor: None, soft_cap: None },
        fits_f16: false,
        stop_ids: Vec::new(),
        begin_id: None,
        names: NAMES,
        packed: None,
    }
}

/// Every `pattern`-th layer sees everything.
fn windows(reader: &mut Reader<'_>, found: &mut Architecture, pattern: u32) {
    let window = reader.window_or(4096);
    let sliding = reader.sliding(found.layers.len() as u32, |layer| !(layer + 1).is_multiple_of(pattern));
    for (layer, slides) in found.layers.iter_mut().zip(sliding) {
        layer.window = window.filter(|_| slides);
    }
}
