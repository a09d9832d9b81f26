//! Where a model folder keeps its chat template and the special tokens that templates write.

use crate::codec::{CONFIG_BYTES_MAX, LoadError, read_bounded};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Special tokens that a template may name.
const TOKEN_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A template's text and the file that it came from.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// Special tokens by the name that templates give them.
pub(super) type SpecialTokens = BTreeMap<&'static str, String>;

/// The folder's template, if it has one, and its special tokens. A template in a file of its own counts more
/// than one inside `tokenizer_config.json`, as in transformers.
pub(super) fn find(folder: &Path) -> Result<(Option<Source>, SpecialTokens), LoadError> {
    let config_path = folder.join("tokenizer_config.json");
    let config = optional_json(&config_path)?;
    let tokens = config.as_ref().map(special_tokens).unwrap_or_default();
    let own_path = folder.join("chat_template.jinja");
    if let Some(bytes) = optional(&own_path)? {
        let text = String::from_utf8(bytes)
            .map_err(|e| LoadError::Template(own_path.clone(), format!("not UTF-8: {e}")))?;
        return Ok((Some(Source { path: own_path, text }), tokens));
    }
    if let Some(source) = in_json(config_path, config)? {
        return Ok((Some(source), tokens));
    }
    let json_path = folder.join("chat_template.json");
    let json = optional_json(&json_path)?;
    Ok((in_json(json_path, json)?, tokens))
}

/// The bytes of a file that need not be there.
fn optional(path: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    match read_bounded(path, CONFIG_BYTES_MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(LoadError::Missing(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn optional_json(path: &Path) -> Result<Option<Value>, LoadError> {
    let Some(bytes) = optional(path)? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes);
    value.map(Some).map_err(|e| LoadError::NotJson(path.to_owned(), e.to_string()))
}

/// `chat_template` of a JSON file: a string, or a list of `{name, template}`.
fn in_json(path: PathBuf, json: Option<Value>) -> Result<Option<Source>, LoadError> {
    let text = match json.as_ref().and_then(|json| json.get("chat_template")) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(named)) => {
            let named_default = |item: &&Value| item.get("name").and_then(Value::as_str) == Some("default");
            let default = named.iter().find(named_default).and_then(|item| item.get("template")?.as_str());
            match default {
                Some(text) => text.to_owned(),
                None => {
                    let reason = "chat_template is a list without one named \"default\"";
                    return Err(LoadError::Template(path, reason.to_owned()));
                }
            }
        }
        Some(_) => {
            let reason = "chat_template is neither a string nor a list of named templates";
            return Err(LoadError::Template(path, reason.to_owned()));
        }
    };
    Ok(Some(Source { path, text }))
}

/// Each token is a string, or an object with its `content`.
fn special_tokens(config: &Value) -> SpecialTokens {
    let content = |token: &Value| Some(token.as_str().or_else(|| token.get("content")?.as_str())?.to_owned());
    let named = |name| Some((name, content(config.get(name)?)?));
    TOKEN_NAMES.into_iter().filter_map(named).collect()
}
