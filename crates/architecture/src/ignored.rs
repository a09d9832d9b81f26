//! Keys of config.json that say something of the model, and that its family is run without: one that other families
//! have, or a fork's own. A model with such a key may be another one than the one that is run.

use crate::reader::Reader;
use serde_json::{Map, Value};

/// Keys of some families, each with what it is where it changes nothing.
const KEYS: [(&str, f64); 26] = [
    ("attention_bias", 0.0),
    ("attention_multiplier", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("clip_qkv", 0.0),
    ("dim_model_base", 0.0),
    ("dual_chunk_attention_config", 0.0),
    ("embedding_multiplier", 1.0),
    ("final_logit_softcapping", 0.0),
    ("layer_types", 0.0),
    ("logit_scale", 1.0),
    ("logits_scaling", 1.0),
    ("mlp_bias", 0.0),
    ("no_rope_layers", 0.0),
    ("num_loops", 1.0),
    ("parallel_attn", 0.0),
    ("qk_layernorm", 0.0),
    ("qk_norm", 0.0),
    ("query_pre_attn_scalar", 0.0),
    ("residual_multiplier", 1.0),
    ("rope_interleaved", 0.0),
    ("scale_depth", 0.0),
    ("scale_emb", 1.0),
    ("sliding_window", 0.0),
    ("use_alibi", 0.0),
    ("use_qk_norm", 0.0),
    ("use_sliding_window", 0.0),
];

/// What of a config.json that was `read` is ignored although it may change the model, in words that follow the file's
/// name.
pub(crate) fn of(outer: &Map<String, Value>, reader: &Reader<'_>, generates: bool) -> Vec<String> {
    let model_type = reader.map.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let mut found: Vec<String> = Vec::new();
    for (key, neutral) in KEYS {
        let Some(value) = reader.map.get(key).filter(|value| !is_neutral(value, neutral)) else { continue };
        // Windows can be there and off.
        let is_off =
            key == "sliding_window" && reader.map.get("use_sliding_window") == Some(&Value::Bool(false));
        if !is_off && !reader.has_read(key) {
            found.push(format!(
                "{key} is {value}; models of the model_type {model_type} are served without it: it is ignored"
            ));
        }
    }
    // vLLM multiplies with it, transformers does not.
    let factor = |key: &str| reader.map.get(key)?.get("attn_factor").filter(|value| !is_neutral(value, 1.0));
    if let Some(factor) = ["rope_scaling", "rope_parameters"].into_iter().find_map(factor) {
        found.push(format!(
            "attn_factor is {factor}; as in transformers, attention_factor counts: it is ignored"
        ));
    }
    let head = outer.get("architectures").and_then(|all| all.get(0)).and_then(Value::as_str);
    let is_for_text = |head: &&str| {
        ["CausalLM", "LMHeadModel", "ConditionalGeneration"].iter().any(|end| head.ends_with(end))
    };
    match head {
        Some(head) if !is_for_text(&head) => {
            // Models that pool have classes of several names.
            if generates {
                found
                    .push(format!("architectures names {head}; it is served as a model that generates text"));
            }
        }
        Some(head) if !is_class_of(head, outer, reader) => {
            found.push(format!("architectures names {head}; it is served as the model_type {model_type}"));
        }
        Some(_) | None => {}
    }
    found
}

/// Whether a class is that of its model_type, by their names: `SmolLM3ForCausalLM` and `smollm3`.
fn is_class_of(class: &str, outer: &Map<String, Value>, reader: &Reader<'_>) -> bool {
    let class = class.to_lowercase();
    [outer, reader.map].into_iter().filter_map(|map| map.get("model_type")?.as_str()).any(|model_type| {
        let name = model_type.strip_suffix("_text").unwrap_or(model_type);
        class.strip_prefix(name).is_some_and(|rest| rest.starts_with("for") || rest.starts_with("lmhead"))
    })
}

fn is_neutral(value: &Value, neutral: f64) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(neutral),
        Value::Array(items) => items.iter().all(|item| *item == "full_attention"),
        Value::Object(members) => members.is_empty(),
        Value::String(text) => text.is_empty(),
    }
}
