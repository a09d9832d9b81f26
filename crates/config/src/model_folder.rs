//! Reads what the configuration needs from a Hugging Face folder, and says what is wrong with the folder
//! before any process starts. Weights are not opened here; that is the engine's.

use crate::config::{Backend, ModelFacts};
use crate::fault::{Collector, Origin};
use pinion_protocol::limits::{CONTEXT_MAX, VOCAB_MAX};
use serde_json::{Map, Value};
use std::path::Path;

/// Architectures that the torch backend runs.
const SUPPORTED: &[&str] = &["gpt2"];
/// Largest JSON file read from a model folder, in bytes.
const JSON_BYTES_MAX: u64 = 256 << 20;

/// Facts about the model in `dir`, or `None` after every fault was noted with its file.
pub(crate) fn read(dir: &Path, backend: Backend, faults: &mut Collector) -> Option<ModelFacts> {
    let before = faults.0.len();
    if !dir.is_dir() {
        let reason = if dir.exists() {
            "is a file; a Hugging Face folder is expected"
        } else {
            "no such folder; a Hugging Face folder is expected, or ORG/NAME for a model of the hub"
        };
        faults.add(&origin(dir), reason);
        return None;
    }
    let config = object(dir, "config.json", faults);
    check_json(dir, "tokenizer.json", faults);
    if backend == Backend::Torch {
        check_weights(dir, faults);
    }
    // The tokenizer reads it; that it is broken is said before anything starts.
    optional_object(dir, "tokenizer_config.json", faults);
    let generation = optional_object(dir, "generation_config.json", faults);
    let config = config?;
    let mut reader = Reader { config: &config, path: origin(&dir.join("config.json")), faults };
    let mut facts = reader.facts(backend);
    facts.eos =
        eos(&config).or_else(|| generation.as_ref().and_then(eos)).filter(|&id| id < facts.vocab_size);
    (faults.0.len() == before).then_some(facts)
}

fn origin(path: &Path) -> Origin {
    Origin::Model(path.display().to_string())
}

/// The whole text, with the reason in words if there is none.
fn load(path: &Path) -> Result<Vec<u8>, String> {
    let length = std::fs::metadata(path).map_err(io_reason)?.len();
    match length {
        0 => Err("is empty".to_owned()),
        n if n > JSON_BYTES_MAX => Err(format!("is larger than {JSON_BYTES_MAX} bytes")),
        _ => std::fs::read(path).map_err(io_reason),
    }
}

fn io_reason(error: std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "is missing".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}

fn object(dir: &Path, name: &str, faults: &mut Collector) -> Option<Map<String, Value>> {
    let path = dir.join(name);
    let parsed = load(&path).and_then(|bytes| {
        serde_json::from_slice::<Value>(&bytes).map_err(|e| format!("is not valid JSON: {e}")).and_then(
            |value| match value {
                Value::Object(map) => Ok(map),
                _ => Err("is not a JSON object".to_owned()),
            },
        )
    });
    parsed.map_err(|reason| faults.add(&origin(&path), reason)).ok()
}

fn optional_object(dir: &Path, name: &str, faults: &mut Collector) -> Option<Map<String, Value>> {
    dir.join(name).exists().then(|| object(dir, name, faults)).flatten()
}

/// Syntax only, without building the tree: a vocabulary has a hundred thousand entries.
fn check_json(dir: &Path, name: &str, faults: &mut Collector) {
    let path = dir.join(name);
    let parsed = load(&path).and_then(|bytes| {
        let parsed = serde_json::from_slice::<serde::de::IgnoredAny>(&bytes);
        parsed.map(|_| ()).map_err(|e| format!("is not valid JSON: {e}"))
    });
    if let Err(reason) = parsed {
        faults.add(&origin(&path), reason);
    }
}

fn check_weights(dir: &Path, faults: &mut Collector) {
    let path = dir.join("model.safetensors");
    let reason = match std::fs::metadata(&path) {
        Ok(meta) if meta.is_file() && meta.len() > 0 => return,
        Ok(meta) if meta.is_file() => "is empty".to_owned(),
        Ok(_) => "is not a file".to_owned(),
        Err(_) if dir.join("model.safetensors.index.json").exists() => {
            "is missing; the folder holds weights in several files, and only one is read".to_owned()
        }
        Err(_) if dir.join("pytorch_model.bin").exists() => {
            "is missing; pytorch_model.bin is not read, convert it to safetensors".to_owned()
        }
        Err(error) => io_reason(error),
    };
    faults.add(&origin(&path), reason);
}

/// One id, or the first of a list; null and absence are the same.
fn eos(map: &Map<String, Value>) -> Option<u32> {
    let value = match map.get("eos_token_id")? {
        Value::Array(ids) => ids.first()?,
        one => one,
    };
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// Takes numbers out of config.json under the names that GPT-2 and the Llama family give them.
struct Reader<'a> {
    config: &'a Map<String, Value>,
    path: Origin,
    faults: &'a mut Collector,
}

impl Reader<'_> {
    fn facts(&mut self, backend: Backend) -> ModelFacts {
        let needs_shape = backend == Backend::Torch;
        if needs_shape {
            self.check_type();
        }
        let facts = ModelFacts {
            max_context: self.number(&["n_positions", "n_ctx", "max_position_embeddings"], CONTEXT_MAX, true),
            vocab_size: self.number(&["vocab_size"], VOCAB_MAX, true),
            eos: None,
            layers: self.number(&["n_layer", "num_hidden_layers"], 1 << 12, needs_shape),
            heads: self.number(&["n_head", "num_attention_heads"], 1 << 12, needs_shape),
            head_dim: 1,
            hidden: self.number(&["n_embd", "hidden_size"], 1 << 17, needs_shape),
        };
        if needs_shape && !facts.hidden.is_multiple_of(facts.heads) {
            self.faults
                .add(&self.path, format!("{} heads do not divide a width of {}", facts.heads, facts.hidden));
        }
        ModelFacts { head_dim: (facts.hidden / facts.heads).max(1), ..facts }
    }

    fn check_type(&mut self) {
        let supported = SUPPORTED.join(", ");
        let reason = match self.config.get("model_type") {
            Some(Value::String(name)) if SUPPORTED.contains(&name.as_str()) => return,
            Some(other) => format!("model_type {other} is not supported; supported: {supported}"),
            None => format!("has no model_type; supported: {supported}"),
        };
        self.faults.add(&self.path, reason);
    }

    /// The first of `names` that the file has, from 1 to `max`. 1 stands for what is absent or at fault, so that
    /// the other checks can go on.
    fn number(&mut self, names: &[&str], max: u32, needed: bool) -> u32 {
        let found =
            names.iter().find_map(|name| self.config.get(*name).filter(|v| !v.is_null()).map(|v| (name, v)));
        let Some((name, value)) = found else {
            if needed {
                self.faults.add(&self.path, format!("has no {}", names.join(" or ")));
            }
            return 1;
        };
        match value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=max).contains(n)) {
            Some(n) => n,
            None => {
                self.faults
                    .add(&self.path, format!("{name} is {value}; expected a whole number from 1 to {max}"));
                1
            }
        }
    }
}
