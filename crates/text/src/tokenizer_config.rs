//! tokenizer_config.json of a model folder, with what older folders say in files beside it.

use crate::codec::{CONFIG_BYTES_MAX, LoadError, read_bounded};
use serde_json::{Map, Value};
use std::path::Path;

pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Special tokens that have a role in every model, and that a template may name.
pub(crate) const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Lists of special tokens without a role, by their older and their newer name.
pub(crate) const EXTRA_TOKENS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The keys of tokenizer_config.json, if there are any. The special tokens of special_tokens_map.json count more,
/// unless there is an `added_tokens_decoder`: as in transformers' `_from_pretrained`.
pub(crate) fn read(folder: &Path) -> Result<Option<Value>, LoadError> {
    let config = optional_json(&folder.join(TOKENIZER_CONFIG))?;
    let mut config = match config {
        Some(Value::Object(config)) => config,
        None => Map::new(),
        other @ Some(_) => return Ok(other),
    };
    if !config.contains_key("added_tokens_decoder")
        && let Some(Value::Object(special)) = optional_json(&folder.join("special_tokens_map.json"))?
    {
        merge(&mut config, special);
    }
    Ok(Some(Value::Object(config)).filter(|config| config.as_object().is_some_and(|keys| !keys.is_empty())))
}

fn merge(config: &mut Map<String, Value>, special: Map<String, Value>) {
    for (key, value) in special {
        if EXTRA_TOKENS.contains(&key.as_str()) {
            let list = config.entry(key).or_insert_with(|| Value::Array(Vec::new()));
            if let (Value::Array(list), Value::Array(more)) = (list, value) {
                list.extend(more);
            }
        } else if key.ends_with("_token") {
            config.insert(key, value);
        }
    }
}

/// The text of a token, which is a string or an object with its `content`.
pub(crate) fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// The bytes of a file that need not be there.
pub(crate) fn optional(path: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    match read_bounded(path, CONFIG_BYTES_MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(LoadError::Missing(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same for a file of JSON.
pub(crate) fn optional_json(path: &Path) -> Result<Option<Value>, LoadError> {
    let Some(bytes) = optional(path)? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes);
    value.map(Some).map_err(|e| LoadError::NotJson(path.to_owned(), e.to_string()))
}
