//! `quantization_config` of a checkpoint whose weights are quantised already: how they stand in its files.

use serde_json::{Map, Value};

/// How the weights of products stand in the files. Which products are packed is seen from the tensors that are there:
/// those that `ignore` or `modules_to_not_convert` names have a plain `weight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// The value of `quant_method`, for messages.
    pub method: &'static str,
    /// The layout.
    pub packing: Packing,
    /// Inputs that share a scale, where the file says so.
    pub group: Option<u32>,
}

/// Layouts of packed weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// AutoAWQ's GEMM: `qweight` `[in, out / 8]` of 4 bits in the order 0, 2, 4, 6, 1, 3, 5, 7, `qzeros`, `scales`.
    Awq,
    /// GPTQ: `qweight` `[in * bits / 32, out]`, `qzeros`, `scales`, perhaps `g_idx`.
    Gptq {
        /// 4 or 8.
        bits: u32,
        /// What is added to a stored zero point: 1 in the first version of the format.
        zero_offset: u8,
    },
    /// compressed-tensors' pack-quantized: `weight_packed` `[out, in * bits / 32]`, low bits first, `weight_scale`.
    PackedIntegers {
        /// 4 or 8.
        bits: u32,
        /// Whether there are no zero points.
        is_symmetric: bool,
    },
    /// compressed-tensors' int-quantized: `weight` of signed bytes, `weight_scale`.
    Integers {
        /// Whether there are no zero points.
        is_symmetric: bool,
    },
    /// `weight` of F8_E4M3 with `weight_scale` or `weight_scale_inv`.
    Float8 {
        /// Outputs and inputs that share a scale; otherwise an output or the whole tensor has one.
        block: Option<[u32; 2]>,
    },
}

/// Files in which AutoGPTQ and AutoAWQ say what newer checkpoints have in config.json, and the method of each.
const FILES: [(&str, &str); 2] = [("quantize_config.json", "gptq"), ("quant_config.json", "awq")];

/// Puts into the keys of a config.json what a file beside it says of packed weights, if the keys say nothing of them.
/// `file` gives a file of the folder as its keys, if it is there.
///
/// # Errors
/// Those of `file`.
pub fn complete<E>(
    config: &mut Map<String, Value>,
    mut file: impl FnMut(&str) -> Result<Option<Map<String, Value>>, E>,
) -> Result<(), E> {
    let whole: &Map<String, Value> = config;
    let text = whole.get("text_config").and_then(Value::as_object);
    let is_said = |map: &Map<String, Value>| {
        KEYS.into_iter().chain(["quantization"]).any(|key| map.get(key).is_some_and(|value| !value.is_null()))
    };
    if is_said(whole) || text.is_some_and(is_said) {
        return Ok(());
    }
    for (name, method) in FILES {
        let Some(mut found) = file(name)? else { continue };
        // Other tools write files of these names, too: transformers.js one about its ONNX files.
        if !["bits", "w_bit", "quant_method"].iter().any(|key| found.contains_key(*key)) {
            continue;
        }
        // AutoAWQ once wrote files of both names.
        let method = if found.contains_key("w_bit") { "awq" } else { method };
        found.entry("quant_method").or_insert_with(|| method.into());
        config.insert(KEYS[0].to_owned(), Value::Object(found));
        return Ok(());
    }
    Ok(())
}

/// Keys of config.json for packed weights; the second is that of older compressed-tensors.
pub(crate) const KEYS: [&str; 2] = ["quantization_config", "compression_config"];

/// The methods that are read.
const METHODS: [&str; 4] = ["awq", "compressed-tensors", "fp8", "gptq"];

/// Reads the object under `quantization_config`.
///
/// # Errors
/// Every fault, with its key.
pub(crate) fn read(value: &Value) -> Result<Packed, Vec<String>> {
    let Some(map) = value.as_object() else {
        return Err(vec![format!("quantization_config is {value}; expected an object")]);
    };
    let mut keys = Keys { map, path: "quantization_config".into(), faults: Vec::new() };
    let found = match map.get("quant_method").and_then(Value::as_str) {
        Some("awq") => awq(&mut keys),
        Some("gptq") => gptq(&mut keys),
        Some("fp8") => fp8(&mut keys),
        Some("compressed-tensors") => compressed_tensors(&mut keys),
        other => {
            let other = other.map_or("(absent)".to_owned(), str::to_owned);
            keys.fault(
                "quant_method",
                &format!("{other} is not supported; supported: {}", METHODS.join(", ")),
            );
            None
        }
    };
    match found {
        Some(found) if keys.faults.is_empty() => Ok(found),
        Some(_) | None => Err(keys.faults),
    }
}

/// The keys of one object.
struct Keys<'a> {
    map: &'a Map<String, Value>,
    path: String,
    faults: Vec<String>,
}

impl<'a> Keys<'a> {
    fn fault(&mut self, key: &str, reason: &str) {
        self.faults.push(format!("{}.{key} {reason}", self.path));
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// A fault unless the value is one of `allowed`, absence included where there is a `default`.
    fn only(&mut self, key: &str, allowed: &[Value], default: Option<Value>) -> Option<Value> {
        let value = self.get(key).cloned().or(default);
        match value {
            Some(value) if allowed.contains(&value) => Some(value),
            found => {
                let found = found.map_or("is absent".to_owned(), |value| format!("{value} is not supported"));
                let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
                self.fault(key, &format!("{found}; supported: {}", allowed.join(", ")));
                None
            }
        }
    }

    /// A fault if the key says anything but absence, null, false or emptiness.
    fn refuse(&mut self, key: &str) {
        let is_off = |value: &Value| match value {
            Value::Bool(flag) => !flag,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if self.get(key).is_some_and(|value| !is_off(value)) {
            self.fault(key, "is not supported");
        }
    }

    fn bits(&mut self, key: &str, allowed: &[u32]) -> u32 {
        let allowed: Vec<Value> = allowed.iter().map(|&bits| bits.into()).collect();
        self.only(key, &allowed, None).and_then(|value| value.as_u64()).map_or(4, |bits| bits as u32)
    }

    /// Inputs of a group; -1 and absence mean all.
    fn group(&mut self, key: &str) -> Option<u32> {
        let value = self.get(key)?;
        match value.as_i64() {
            Some(-1) => None,
            Some(group) if (1..=1 << 20).contains(&group) => Some(group as u32),
            _ => {
                self.fault(key, &format!("is {value}; expected a number of inputs, or -1 for all"));
                None
            }
        }
    }

    fn flag(&mut self, key: &str, default: bool) -> bool {
        let both = [Value::Bool(true), Value::Bool(false)];
        self.only(key, &both, Some(default.into())) == Some(Value::Bool(true))
    }

    /// Two sizes of a block, as a list or, of older compressed-tensors, as `128x128`.
    fn block(&mut self, key: &str) -> Option<[u32; 2]> {
        let value = self.get(key)?;
        let sizes: Vec<Option<u64>> = match value {
            Value::Array(list) => list.iter().map(Value::as_u64).collect(),
            Value::String(text) => text.split('x').map(|size| size.parse().ok()).collect(),
            _ => Vec::new(),
        };
        let size = |size: Option<u64>| size.filter(|n| (1..=1 << 20).contains(n)).map(|n| n as u32);
        let found = match sizes.as_slice() {
            &[outputs, inputs] => size(outputs).zip(size(inputs)),
            _ => None,
        };
        if found.is_none() {
            self.fault(key, &format!("is {value}; expected two numbers of outputs and inputs"));
        }
        found.map(|(outputs, inputs)| [outputs, inputs])
    }
}

/// AutoAWQ's `AwqConfig`.
fn awq(keys: &mut Keys<'_>) -> Option<Packed> {
    keys.bits(if keys.get("w_bit").is_some() { "w_bit" } else { "bits" }, &[4]);
    let group = keys.group(if keys.get("q_group_size").is_some() { "q_group_size" } else { "group_size" });
    let version = keys.get("version").and_then(Value::as_str).unwrap_or("gemm");
    if !version.eq_ignore_ascii_case("gemm") {
        keys.fault("version", &format!("{version} is not supported; supported: gemm"));
    }
    keys.only("zero_point", &[true.into()], Some(true.into()));
    Some(Packed { method: "awq", packing: Packing::Awq, group })
}

/// AutoGPTQ's and GPTQModel's `quantize_config`.
fn gptq(keys: &mut Keys<'_>) -> Option<Packed> {
    let bits = keys.bits("bits", &[4, 8]);
    let group = keys.group("group_size");
    // GPTQModel's rules for modules by name; those behind `-:` are not quantised, which their tensors show.
    let only_excludes = |rules: &Map<String, Value>| rules.keys().all(|rule| rule.starts_with("-:"));
    if !keys.get("dynamic").and_then(Value::as_object).is_some_and(only_excludes) {
        keys.refuse("dynamic");
    }
    keys.refuse("is_marlin_format");
    let formats = ["gptq".into(), "gptq_v2".into()];
    let format = keys.only("checkpoint_format", &formats, Some("gptq".into()))?;
    let zero_offset = u8::from(format == "gptq");
    Some(Packed { method: "gptq", packing: Packing::Gptq { bits, zero_offset }, group })
}

/// DeepSeek's and Qwen's FP8, and the form that vLLM writes. Activations keep more than 8 bits here, whatever
/// `activation_scheme` says.
fn fp8(keys: &mut Keys<'_>) -> Option<Packed> {
    for key in ["fmt", "weight_format"] {
        if keys.get(key).is_some() {
            keys.only(key, &["e4m3".into(), "float8_e4m3fn".into()], None);
        }
    }
    let block = keys.block("weight_block_size");
    Some(Packed { method: "fp8", packing: Packing::Float8 { block }, group: None })
}

/// One scheme for all packed products. What the config says of activations and of the KV cache is left out: both keep
/// more bits here.
fn compressed_tensors(keys: &mut Keys<'_>) -> Option<Packed> {
    keys.refuse("transform_config");
    if let Some(sparsity) = keys.get("sparsity_config").and_then(|value| value.get("format"))
        && sparsity != "dense"
    {
        keys.fault("sparsity_config.format", &format!("{sparsity} is not supported; supported: dense"));
    }
    let format = keys.get("format");
    let Some(groups) = keys.get("config_groups").and_then(Value::as_object).filter(|map| !map.is_empty())
    else {
        keys.fault("config_groups", "is absent or empty");
        return None;
    };
    let mut found = None;
    for (name, group) in groups {
        let Some(map) = group.as_object() else {
            keys.fault(&format!("config_groups.{name}"), "is not an object");
            continue;
        };
        let path = format!("{}.config_groups.{name}", keys.path);
        let Some(weights) = map.get("weights").and_then(Value::as_object) else { continue };
        let format = map.get("format").filter(|value| !value.is_null()).or(format);
        let mut inner = Keys { map: weights, path: format!("{path}.weights"), faults: Vec::new() };
        let scheme = weight_scheme(&mut inner, format);
        keys.faults.append(&mut inner.faults);
        match (found, scheme) {
            (Some(one), Some(other)) if one != other => {
                keys.fault("config_groups", "have different weights; one scheme for all is supported");
            }
            (_, Some(scheme)) => found = Some(scheme),
            (_, None) => {}
        }
    }
    if found.is_none() && keys.faults.is_empty() {
        keys.fault("config_groups", "quantise no weights");
    }
    found
}

/// `QuantizationArgs` of weights.
fn weight_scheme(keys: &mut Keys<'_>, format: Option<&Value>) -> Option<Packed> {
    let is_symmetric = keys.flag("symmetric", true);
    let strategies = ["tensor", "channel", "group", "block"].map(Value::from);
    let strategy = match keys.get("strategy") {
        Some(_) => keys.only("strategy", &strategies, None),
        None => None,
    };
    let group = keys.group("group_size").filter(|_| strategy.as_ref().is_none_or(|kind| kind == "group"));
    let kind = keys.only("type", &["int".into(), "float".into()], Some("int".into()))?;
    let packing = match (kind.as_str(), format.and_then(Value::as_str)) {
        (Some("int"), Some("pack-quantized")) => {
            Packing::PackedIntegers { bits: keys.bits("num_bits", &[4, 8]), is_symmetric }
        }
        (Some("int"), Some("int-quantized" | "naive-quantized")) => {
            keys.bits("num_bits", &[8]);
            Packing::Integers { is_symmetric }
        }
        (Some("float"), Some("float-quantized" | "naive-quantized")) => {
            keys.bits("num_bits", &[8]);
            let block = keys.block("block_structure").filter(|_| strategy == Some("block".into()));
            if !is_symmetric {
                keys.fault("symmetric", "false is not supported for floating point");
            }
            Packing::Float8 { block }
        }
        _ => {
            let format = format.map_or("(absent)".to_owned(), Value::to_string);
            keys.fault(
                "type",
                &format!(
                    "{kind} in the format {format} is not supported; supported: int in \"pack-quantized\" and \
                     \"int-quantized\", float in \"float-quantized\""
                ),
            );
            return None;
        }
    };
    Some(Packed { method: "compressed-tensors", packing, group })
}
