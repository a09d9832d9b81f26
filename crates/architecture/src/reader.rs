//! Keys of config.json, in both of its dialects: transformers 4 (`sliding_window_pattern`) and 5 (`layer_types`). Those
//! of rotary embeddings are in `rope_keys`. Faults are collected; a stand-in lets the reading go on.

use crate::families::{self, FAMILIES};
use crate::packing::{self, Packed};
use crate::{Activation, Architecture, Layer, Layout, Mlp};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Longest context that is served, in tokens.
pub const CONTEXT_MAX: u32 = 1 << 20;
/// Largest vocabulary that is served.
pub const VOCAB_MAX: u32 = 1 << 20;
const LAYERS_MAX: u32 = 1 << 12;
const WIDTH_MAX: u32 = 1 << 20;
const HEAD_DIM_MAX: u32 = 512;

/// Keys that say that the weights are not what a dense decoder of floating-point numbers has.
const UNSUPPORTED: [&str; 7] = [
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "kv_lora_rank",
    "is_encoder_decoder",
    "add_cross_attention",
    "use_bidirectional_attention",
];

/// What serving needs to know of a model that is not run, of whatever family it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Longest sequence in tokens.
    pub context: u32,
    /// Token ids are below this.
    pub vocab: u32,
    /// Ids that end a text, without those outside the vocabulary.
    pub stop_ids: Vec<u32>,
    /// The id that a text begins with.
    pub begin_id: Option<u32>,
}

/// The text of a config.json as its keys.
///
/// # Errors
/// What is wrong with it, in words that follow the file's name.
pub fn parse(text: &[u8]) -> Result<Map<String, Value>, String> {
    match serde_json::from_slice(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("is not a JSON object".into()),
        Err(error) => Err(format!("is not valid JSON: {error}")),
    }
}

/// Reads the keys of a config.json.
///
/// # Errors
/// Every fault, in words that follow the file's name.
pub fn read(config: &Map<String, Value>) -> Result<Architecture, Vec<String>> {
    let mut reader = Reader::new(config);
    let Some((family, wrapped)) = family_of(config) else {
        return Err(vec![unknown_type(config)]);
    };
    if let Some(inner) = wrapped {
        reader = Reader::nested(inner, family);
    }
    reader.refuse_unsupported();
    let mut found = (family.read)(&mut reader);
    found.packed = reader.packed(config, found.names.layout);
    let keys_of_text = [Some(config), wrapped];
    let id = |key: &str| keys_of_text.iter().flatten().find_map(|map| map.get(key).filter(|v| !v.is_null()));
    found.stop_ids = id("eos_token_id").map(|value| reader.stop_ids(value, found.vocab)).unwrap_or_default();
    found.begin_id = id("bos_token_id").and_then(|value| ids(value, found.vocab).first().copied());
    if wrapped.is_some() {
        // The head is the wrapper's: what it says of it counts more than what the text says.
        let mut outer = Reader::new(config);
        found.head.tied = outer.flag("tie_word_embeddings", found.head.tied);
        reader.faults.append(&mut outer.faults);
        found.names.prefixes = &["model.language_model.", "language_model.model."];
        found.names.head_prefixes = &["", "language_model."];
    }
    if reader.faults.is_empty() { Ok(found) } else { Err(reader.faults) }
}

/// Reads what is there of any family.
///
/// # Errors
/// As [`read`].
pub fn facts(config: &Map<String, Value>) -> Result<Facts, Vec<String>> {
    let inner = config.get("text_config").and_then(Value::as_object);
    let mut reader = match family_of(config) {
        Some((family, Some(inner))) => Reader::nested(inner, family),
        _ => Reader::new(inner.unwrap_or(config)),
    };
    let context = reader.positions_of(&["n_positions", "n_ctx", "max_position_embeddings"]).min(CONTEXT_MAX);
    let vocab = reader.vocab();
    let ends = config.get("eos_token_id").filter(|value| !value.is_null());
    let stop_ids = ends.map(|value| reader.stop_ids(value, vocab)).unwrap_or_default();
    let begin_id = config.get("bos_token_id").and_then(|value| ids(value, vocab).first().copied());
    if reader.faults.is_empty() {
        Ok(Facts { context, vocab, stop_ids, begin_id })
    } else {
        Err(reader.faults)
    }
}

/// What of the keys of a config.json may change the model and is ignored, in words that follow the file's name. Nothing
/// of a file that [`read`] refuses. Whether the model `generates` text, or pools.
pub fn ignored(config: &Map<String, Value>, generates: bool) -> Vec<String> {
    let Some((family, wrapped)) = family_of(config) else { return Vec::new() };
    let mut reader = wrapped.map_or_else(|| Reader::new(config), |inner| Reader::nested(inner, family));
    reader.refuse_unsupported();
    (family.read)(&mut reader);
    if reader.faults.is_empty() { crate::ignored::of(config, &reader, generates) } else { Vec::new() }
}

/// One id or a list of them, without those outside the vocabulary and without repetitions.
fn ids(value: &Value, vocab: u32) -> Vec<u32> {
    let one = std::slice::from_ref(value);
    let all = value.as_array().map_or(one, Vec::as_slice);
    let mut ids = Vec::new();
    for id in all.iter().filter_map(whole).filter_map(|id| u32::try_from(id).ok()) {
        if id < vocab && !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// A whole number, also where it is written as 2.0.
fn whole(value: &Value) -> Option<i64> {
    let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() <= f64::from(u32::MAX);
    value.as_i64().or_else(|| value.as_f64().filter(is_whole).map(|number| number as i64))
}

/// The family that `model_type` names; of a multimodal model, that of its `text_config`, which need not name it.
fn family_of(
    config: &Map<String, Value>,
) -> Option<(&'static families::Family, Option<&Map<String, Value>>)> {
    let named = |map: &Map<String, Value>| {
        let name = map.get("model_type")?.as_str()?;
        FAMILIES.iter().find(|family| family.name == name)
    };
    if let Some(family) = named(config) {
        return Some((family, None));
    }
    let wrapper = config.get("model_type")?.as_str()?;
    let inner = config.get("text_config")?.as_object()?;
    let family = match inner.get("model_type").filter(|name| !name.is_null()) {
        Some(_) => named(inner)?,
        None => wrapped_in(wrapper)?,
    };
    family.wrappers.contains(&wrapper).then_some((family, Some(inner)))
}

/// The family of the text of this multimodal model.
fn wrapped_in(wrapper: &str) -> Option<&'static families::Family> {
    FAMILIES.iter().find(|family| family.wrappers.contains(&wrapper))
}

fn unknown_type(config: &Map<String, Value>) -> String {
    let names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
    let supported = names.join(", ");
    // Of a multimodal model whose text could be served, the text's own is what is not supported.
    let wrapper = config.get("model_type").and_then(Value::as_str).and_then(wrapped_in);
    if let Some(other) = wrapper.and(config.get("text_config")).and_then(|text| text.get("model_type")) {
        return format!("text_config.model_type {other} is not supported; supported: {supported}");
    }
    match config.get("model_type") {
        Some(other) => format!("model_type {other} is not supported; supported: {supported}"),
        None => format!("has no model_type; supported: {supported}"),
    }
}

/// Mirrors `ACT2FN` in transformers' activations.py; gelu_fast is gelu_new, written otherwise.
const ACTIVATIONS: [(&str, Activation); 6] = [
    ("gelu", Activation::GeluErf),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];

/// Takes values out of a config, checked.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) map: &'a Map<String, Value>,
    pub(crate) faults: Vec<String>,
    /// Names of keys that were asked for.
    asked: RefCell<BTreeSet<String>>,
    /// Values for keys that are absent and have no other default.
    defaults: &'static [(&'static str, u32)],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Reader<'a> {
        Reader { map, faults: Vec::new(), asked: RefCell::default(), defaults: &[] }
    }

    /// Of the `text_config` of a multimodal model.
    fn nested(map: &'a Map<String, Value>, family: &families::Family) -> Reader<'a> {
        Reader { defaults: family.nested, ..Reader::new(map) }
    }
}

impl Reader<'_> {
    /// The value, unless it is absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether the family has asked for the key.
    pub(crate) fn has_read(&self, key: &str) -> bool {
        self.asked.borrow().contains(key)
    }

    /// Whether the key is present and its value is null.
    pub(crate) fn has_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    pub(crate) fn fault(&mut self, reason: String) {
        self.faults.push(reason);
    }

    /// A whole number from 1 to `max`. A missing one is a fault without a default of the caller or the class.
    fn number(&mut self, key: &str, max: u32, default: Option<u32>) -> u32 {
        let Some(value) = self.get(key) else {
            return default.or_else(|| self.default(key)).unwrap_or_else(|| {
                self.fault(format!("has no {key}"));
                1
            });
        };
        match value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=max).contains(n)) {
            Some(number) => number,
            None => {
                let reason = format!("{key} is {value}; expected a whole number from 1 to {max}");
                self.fault(reason);
                1
            }
        }
    }

    fn default(&self, key: &str) -> Option<u32> {
        let is_absent = !self.map.contains_key(key);
        self.defaults.iter().find(|(known, _)| is_absent && *known == key).map(|(_, value)| *value)
    }

    /// A width, from 1 to 2^20.
    pub(crate) fn width(&mut self, key: &str, default: Option<u32>) -> u32 {
        self.number(key, WIDTH_MAX, default)
    }

    pub(crate) fn layers(&mut self, key: &str) -> u32 {
        self.number(key, LAYERS_MAX, None)
    }

    pub(crate) fn vocab(&mut self) -> u32 {
        self.vocab_or(None)
    }

    pub(crate) fn vocab_or(&mut self, default: Option<u32>) -> u32 {
        self.number("vocab_size", VOCAB_MAX, default)
    }

    /// The positions that the file names under the first of these keys that it has. They may be more than are served.
    pub(crate) fn positions_of(&mut self, keys: &[&str]) -> u32 {
        match keys.iter().find(|key| self.get(key).is_some()) {
            Some(key) => self.number(key, u32::MAX, None),
            None => keys.iter().find_map(|key| self.default(key)).unwrap_or_else(|| {
                self.fault(format!("has no {}", keys.join(" or ")));
                1
            }),
        }
    }

    /// A finite number.
    pub(crate) fn float(&mut self, key: &str) -> Option<f64> {
        let value = self.get(key)?;
        let number = value.as_f64().filter(|number| number.is_finite());
        if number.is_none() {
            let reason = format!("{key} is {value}; expected a number");
            self.fault(reason);
        }
        number
    }

    /// A number above zero.
    pub(crate) fn positive(&mut self, key: &str) -> Option<f64> {
        let number = self.float(key)?;
        if number <= 0.0 {
            self.fault(format!("{key} is {number}; expected a number above 0"));
            return None;
        }
        Some(number)
    }

    /// The value of `eos_token_id` as [`ids`]. -1 is how some say that there is none; what is no token id is a fault,
    /// as a text would not end there.
    fn stop_ids(&mut self, value: &Value, vocab: u32) -> Vec<u32> {
        let one = std::slice::from_ref(value);
        let all = value.as_array().map_or(one, Vec::as_slice);
        let is_id = |value: &&Value| whole(value).is_some_and(|id| id >= -1);
        if let Some(other) = all.iter().find(|value| !is_id(value)) {
            self.fault(format!("eos_token_id has {other}; expected token ids, as one number or a list"));
        }
        ids(value, vocab)
    }

    pub(crate) fn flag(&mut self, key: &str, default: bool) -> bool {
        match self.get(key) {
            None => default,
            Some(Value::Bool(flag)) => *flag,
            Some(other) => {
                let reason = format!("{key} is {other}; expected true or false");
                self.fault(reason);
                default
            }
        }
    }

    /// Refuses a key whose value is anything but absence, null, false, zero or an empty list or object.
    pub(crate) fn refuse(&mut self, key: &str) {
        let is_off = |value: &Value| match value {
            Value::Null => true,
            Value::Bool(flag) => !flag,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::String(_) => false,
        };
        if self.map.get(key).is_some_and(|value| !is_off(value)) {
            self.fault(format!("has {key}, which is not supported for this model_type"));
        }
    }

    /// How packed weights stand in the files; of a multimodal model, either object may say it.
    fn packed(&mut self, whole: &Map<String, Value>, layout: Layout) -> Option<Packed> {
        let is_there =
            |value: &&Value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty());
        if self.map.get("quantization").filter(is_there).is_some() {
            // With or without a quantization_config beside it.
            let reason = "has quantization, which is MLX's packing of weights and not supported; take the checkpoint \
                          that it was made from";
            self.fault(reason.into());
            return None;
        }
        let found = packing::KEYS
            .into_iter()
            .find_map(|key| [whole, self.map].into_iter().find_map(|map| map.get(key)).filter(is_there))?;
        if layout == Layout::InOut {
            self.fault("has quantization_config, which is not supported for this model_type".into());
            return None;
        }
        packing::read(found).map_err(|faults| self.faults.extend(faults)).ok()
    }

    fn refuse_unsupported(&mut self) {
        UNSUPPORTED.into_iter().for_each(|key| self.refuse(key));
    }

    /// The activation of a gated MLP, or of one without a gate, where no model that is read has SiLU.
    pub(crate) fn activation(&mut self, key: &str, default: Activation, gated: bool) -> Activation {
        let Some(value) = self.get(key) else { return default };
        let known = || ACTIVATIONS.into_iter().filter(|(_, found)| gated || *found != Activation::Silu);
        let named = value.as_str().and_then(|name| known().find(|(known, _)| *known == name));
        if let Some((_, found)) = named {
            return found;
        }
        let supported = known().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
        let reason = format!("{key} {value} is not supported; supported: {supported}");
        self.fault(reason);
        default
    }

    /// A gated MLP under the common names.
    pub(crate) fn gated_mlp(&mut self) -> Mlp {
        let activation = self.activation("hidden_act", Activation::Silu, true);
        let inner = self.width("intermediate_size", None);
        Mlp { inner, gated: true, activation, bias: false }
    }

    /// Heads, KV heads and the width of a head under the common names, with these defaults of the family. Where the
    /// number of KV heads is null, each head has its own; where it is absent, that is so without a default.
    pub(crate) fn heads(&mut self, hidden: u32, defaults: [Option<u32>; 3]) -> [u32; 3] {
        let heads = self.width("num_attention_heads", defaults[0]);
        let kv_default = defaults[1].filter(|_| !self.has_null("num_key_value_heads"));
        let kv_heads = self.width("num_key_value_heads", kv_default.or(Some(heads)));
        if !heads.is_multiple_of(kv_heads) {
            self.fault(format!("num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}"));
        }
        let is_given = self.get("head_dim").is_some() || defaults[2].is_some();
        if !is_given && !hidden.is_multiple_of(heads) {
            self.fault(format!("num_attention_heads {heads} does not divide hidden_size {hidden}"));
        }
        let head_dim = self.width("head_dim", defaults[2].or(Some((hidden / heads).max(1))));
        self.check_head_dim(head_dim);
        [heads, kv_heads, head_dim]
    }

    pub(crate) fn check_head_dim(&mut self, head_dim: u32) {
        if head_dim > HEAD_DIM_MAX {
            self.fault(format!("a head_dim of {head_dim} is not supported; the largest is {HEAD_DIM_MAX}"));
        }
    }

    /// Which layers have a window: `layer_types`, or else `rule`.
    pub(crate) fn sliding(&mut self, layers: u32, rule: impl Fn(u32) -> bool) -> Vec<bool> {
        let by_rule = || (0..layers).map(&rule).collect();
        let Some(value) = self.get("layer_types") else { return by_rule() };
        let kind = |value: &Value| match value.as_str() {
            Some("full_attention") => Some(false),
            Some("sliding_attention") => Some(true),
            _ => None,
        };
        let list = value.as_array().map(|list| list.iter().map(kind).collect::<Option<Vec<bool>>>());
        match list {
            Some(Some(list)) if list.len() == layers as usize => list,
            Some(Some(list)) => {
                let reason = format!("layer_types names {} layers, not {layers}", list.len());
                self.fault(reason);
                by_rule()
            }
            Some(None) | None => {
                let reason = format!(
                    "layer_types is {value}; expected a list of full_attention and sliding_attention"
                );
                self.fault(reason);
                by_rule()
            }
        }
    }

    pub(crate) fn window(&mut self) -> Option<u32> {
        self.get("sliding_window")?;
        Some(self.number("sliding_window", u32::MAX, None))
    }

    /// The window of a class that has one by default: null means none, absence `default`.
    pub(crate) fn window_or(&mut self, default: u32) -> Option<u32> {
        if self.has_null("sliding_window") { None } else { self.window().or(Some(default)) }
    }

    /// A list of 0 and 1, one for each layer.
    pub(crate) fn switches(&mut self, key: &str, layers: u32) -> Option<Vec<bool>> {
        let value = self.get(key)?;
        let list: Option<Vec<bool>> = value
            .as_array()
            .map(|list| list.iter().map(|item| item.as_u64().map(|n| n != 0)))
            .and_then(Iterator::collect);
        match list.filter(|list| list.len() == layers as usize) {
            Some(list) => Some(list),
            None => {
                let reason = format!("{key} is {value}; expected {layers} numbers");
                self.fault(reason);
                None
            }
        }
    }
}

/// Layers that differ in nothing but their windows.
pub(crate) fn layers_of(sliding: &[bool], window: Option<u32>, scale: f32) -> Vec<Layer> {
    let layer = |&slides: &bool| Layer { rotary: Some(0), window: window.filter(|_| slides), scale };
    sliding.iter().map(layer).collect()
}

/// 1 / sqrt(width), as Python's `width ** -0.5`.
pub(crate) fn inverse_root(width: f64) -> f32 {
    width.powf(-0.5) as f32
}
