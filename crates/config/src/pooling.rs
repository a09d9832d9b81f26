//! Whether the model pools: gives one vector for a prompt, and generates no text.
//!
//! A folder of sentence-transformers says so in modules.json, and the operator may say it of any other (`--pooling`).

use crate::fault::Collector;
use crate::json_file::{load, object, optional_object, origin};
use crate::model_facts::ModelFacts;
use crate::sources::Settings;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;

/// Largest modules.json, in bytes.
const MODULES_BYTES_MAX: u64 = 1 << 20;
/// Numbers of a vector of the fake backend, which has no hidden state.
pub const FAKE_VECTOR_WIDTH: u32 = 8;
/// Keys of config.json with which each token sees those after it, each with the value that says so.
const BOTH_WAYS: [(&str, bool); 3] =
    [("is_causal", false), ("use_bidirectional_attention", true), ("is_bidirectional", true)];

/// Which of a prompt's outputs make its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolingKind {
    /// The last token's.
    Last,
    /// The mean over all tokens.
    Mean,
}

/// Lengths to which a vector may be cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shorter {
    /// None: the first numbers of a vector alone mean nothing.
    None,
    /// Any.
    Any,
    /// These.
    Of(Vec<u32>),
}

/// How a model that pools does it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pooling {
    /// What makes the vector.
    pub kind: PoolingKind,
    /// Numbers of a vector.
    pub width: u32,
    /// Vectors have length 1.
    pub normalize: bool,
    /// Lengths to which they may be cut.
    pub shorter: Shorter,
}

/// What modules.json and the files that it names say.
struct Modules {
    /// Or why it is none of ours.
    kind: Result<PoolingKind, (String, String)>,
    normalize: bool,
}

/// How the model in `dir` pools, if it does. Faults are noted with their files. A folder that pools may limit its
/// texts, and so the context in `facts`.
pub(crate) fn read(
    dir: &Path,
    settings: &Settings,
    facts: &mut ModelFacts,
    faults: &mut Collector,
) -> Option<Pooling> {
    let asked = match settings.text("pooling") {
        Some("none") => return None,
        Some("last") => Some(PoolingKind::Last),
        Some("mean") => Some(PoolingKind::Mean),
        _ => None,
    };
    let modules = modules(dir, faults)?;
    let (kind, normalize) = match (asked, modules) {
        (None, None) => return None,
        (None, Some(Modules { kind, normalize })) => match kind {
            Ok(kind) => (kind, normalize),
            Err((file, reason)) => {
                faults.add(&origin(&dir.join(file)), reason);
                return None;
            }
        },
        (Some(kind), modules) => (kind, modules.is_none_or(|modules| modules.normalize)),
    };
    let config = object(dir, "config.json", faults)?;
    let path = origin(&dir.join("config.json"));
    for (key, value) in BOTH_WAYS {
        if config.get(key) == Some(&Value::Bool(value)) {
            faults
                .add(&path, format!("{key} is {value}: tokens that see those after them are not supported"));
        }
    }
    let shorter = shorter(&config).map_err(|reason| faults.add(&path, reason)).ok()?;
    limit(dir, facts, faults);
    let is_fake = settings.text("backend") == Some("fake");
    let width = if is_fake { FAKE_VECTOR_WIDTH } else { facts.hidden };
    Some(Pooling { kind, width, normalize, shorter })
}

/// What modules.json says, if there is one. `None` after a fault was noted.
fn modules(dir: &Path, faults: &mut Collector) -> Option<Option<Modules>> {
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        path: String,
        #[serde(rename = "type")]
        kind: String,
    }
    let path = dir.join("modules.json");
    if pinion_gguf::is_gguf(dir) || !path.exists() {
        return Some(None);
    }
    let listed = load(&path, MODULES_BYTES_MAX).and_then(|bytes| {
        serde_json::from_slice::<Vec<Entry>>(&bytes)
            .map_err(|error| format!("is no list of modules: {error}"))
    });
    let listed = listed.map_err(|reason| faults.add(&origin(&path), reason)).ok()?;
    let (mut pooling, mut normalize) = (None, false);
    for (at, entry) in listed.iter().enumerate() {
        let name = entry.kind.strip_prefix("sentence_transformers.").and_then(|name| name.rsplit('.').next());
        match name {
            Some("Transformer") if at == 0 && entry.path.is_empty() => {}
            Some("Pooling") if at == 1 => pooling = Some(entry.path.as_str()),
            Some("Normalize") if at > 1 => normalize = true,
            _ => {
                let reason = format!("the module {} at index {at} is not supported", entry.kind);
                faults.add(&origin(&path), reason);
                return None;
            }
        }
    }
    let Some(folder) = pooling else {
        let file = "modules.json".to_owned();
        let kind = Err((file, "has no Pooling behind the Transformer; --pooling says which".to_owned()));
        return Some(Some(Modules { kind, normalize }));
    };
    if folder.is_empty() || folder.contains(['/', '\\']) || folder.starts_with('.') {
        faults.add(&origin(&path), format!("the path {folder:?} is no folder beside it"));
        return None;
    }
    let file = format!("{folder}/config.json");
    let keys = object(dir, &file, faults)?;
    Some(Some(Modules { kind: pooling_kind(&keys).map_err(|reason| (file, reason)), normalize }))
}

/// The one mode that a pooling module's config.json switches on.
fn pooling_kind(keys: &Map<String, Value>) -> Result<PoolingKind, String> {
    let mut on: Vec<&str> = keys
        .iter()
        .filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Value::Bool(true))
        .map(|(key, _)| key.as_str())
        .collect();
    on.extend(keys.get("pooling_mode").and_then(Value::as_str));
    match on.as_slice() {
        ["pooling_mode_lasttoken" | "lasttoken"] => Ok(PoolingKind::Last),
        ["pooling_mode_mean_tokens" | "mean"] => Ok(PoolingKind::Mean),
        [] => Err("names no pooling_mode".to_owned()),
        [one] => Err(format!("{one} is not supported; the last token's and the mean are")),
        several => Err(format!("{} together are not supported", several.join(" and "))),
    }
}

/// The keys with which vLLM knows models whose vectors may be cut.
fn shorter(config: &Map<String, Value>) -> Result<Shorter, String> {
    const LENGTHS: &str = "matryoshka_dimensions";
    match config.get(LENGTHS) {
        None | Some(Value::Null) => {}
        Some(list) => {
            let lengths: Option<Vec<u32>> = list.as_array().and_then(|list| {
                list.iter()
                    .map(|length| length.as_u64().and_then(|length| u32::try_from(length).ok()))
                    .collect()
            });
            let lengths = lengths.filter(|lengths| !lengths.is_empty() && !lengths.contains(&0));
            return lengths.map(Shorter::Of).ok_or_else(|| format!("{LENGTHS} is no list of lengths"));
        }
    }
    let any = config.get("is_matryoshka") == Some(&Value::Bool(true));
    Ok(if any { Shorter::Any } else { Shorter::None })
}

/// sentence-transformers cuts texts at this length, and vLLM takes it as the context.
fn limit(dir: &Path, facts: &mut ModelFacts, faults: &mut Collector) {
    const FILE: &str = "sentence_bert_config.json";
    if pinion_gguf::is_gguf(dir) {
        return;
    }
    let Some(keys) = optional_object(dir, FILE, faults) else { return };
    if keys.get("do_lower_case") == Some(&Value::Bool(true)) {
        faults.add(&origin(&dir.join(FILE)), "do_lower_case is not supported");
    }
    let length = keys.get("max_seq_length").and_then(Value::as_u64);
    if let Some(length) = length.and_then(|length| u32::try_from(length).ok()).filter(|&length| length > 0) {
        facts.default_context = facts.default_context.min(length);
    }
}
