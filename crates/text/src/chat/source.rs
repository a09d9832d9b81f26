//! Where a model folder keeps its chat template and the special tokens that templates write.

use crate::codec::LoadError;
use crate::tokenizer_config::{self, ROLES, TOKENIZER_CONFIG, optional, optional_json};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A template's text and the file that it came from.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// The template that is used where no other is meant.
pub(super) const DEFAULT: &str = "default";
/// The template for chats with tools, if a folder has one of its own for them.
pub(super) const WITH_TOOLS: &str = "tool_use";
/// Folder of further templates.
const ADDITIONAL: &str = "additional_chat_templates";
/// Templates of one model folder, besides the default.
const NAMED_MAX: usize = 32;

/// The templates of a folder, at least one.
pub(super) struct Sources {
    /// Without one, a chat names its template.
    pub(super) default: Option<Source>,
    pub(super) named: BTreeMap<String, Source>,
}

impl Sources {
    /// The text of the template that is used for chats with tools.
    pub(super) fn with_tools(&self) -> Option<&str> {
        self.named.get(WITH_TOOLS).or(self.default.as_ref()).map(|source| source.text.as_str())
    }

    /// The texts of all of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.default.iter().chain(self.named.values()).map(|source| source.text.as_str())
    }
}

/// Special tokens by the name that templates give them.
pub(super) type SpecialTokens = BTreeMap<&'static str, String>;

/// The template of an operator, in place of all that a folder has.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// What errors call it: its file, or the option.
    pub name: &'a str,
    /// The template.
    pub text: &'a str,
}

/// The folder's templates, if it has any, and its special tokens. A template in a file of its own counts more than one
/// inside `tokenizer_config.json`, as in transformers; a `given` one more than all of them.
pub(super) fn find(
    folder: &Path,
    given: Option<Given<'_>>,
) -> Result<(Option<Sources>, SpecialTokens), LoadError> {
    if let Some(Given { name, text }) = given {
        let default = Source { path: name.into(), text: text.to_owned() };
        let config = tokenizer_config::read(folder)?;
        let tokens = config.as_ref().map(special_tokens).unwrap_or_default();
        return Ok((Some(Sources { default: Some(default), named: BTreeMap::new() }), tokens));
    }
    let (mut named, tokens) = named(folder)?;
    named.extend(additional(folder)?);
    if named.len() > NAMED_MAX + 1 {
        let reason = format!("there are more than {NAMED_MAX} templates besides the default");
        return Err(LoadError::Template(folder.to_owned(), reason));
    }
    let default = named.remove(DEFAULT);
    let has_any = default.is_some() || !named.is_empty();
    Ok((has_any.then_some(Sources { default, named }), tokens))
}

/// `additional_chat_templates/NAME.jinja`.
fn additional(folder: &Path) -> Result<Vec<(String, Source)>, LoadError> {
    let folder = folder.join(ADDITIONAL);
    let unreadable = |error| LoadError::Unreadable(folder.clone(), error);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        // A GGUF file has no folder.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(unreadable(error)),
    };
    let mut named = Vec::new();
    for entry in entries.take(NAMED_MAX + 2) {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).map(str::to_owned);
        let is_template = path.extension().is_some_and(|extension| extension == "jinja");
        if let Some(name) = name.filter(|_| is_template)
            && let Some(source) = in_file(path)?
        {
            named.push((name, source));
        }
    }
    Ok(named)
}

/// A template in a file of its own.
fn in_file(path: PathBuf) -> Result<Option<Source>, LoadError> {
    let Some(bytes) = optional(&path)? else { return Ok(None) };
    let text = String::from_utf8(bytes)
        .map_err(|error| LoadError::Template(path.clone(), format!("not UTF-8: {error}")))?;
    Ok(Some(Source { path, text }))
}

/// Templates by name, the default among them, from the first place that has any.
fn named(folder: &Path) -> Result<(BTreeMap<String, Source>, SpecialTokens), LoadError> {
    let config = tokenizer_config::read(folder)?;
    let tokens = config.as_ref().map(special_tokens).unwrap_or_default();
    if let Some(source) = in_file(folder.join("chat_template.jinja"))? {
        return Ok((BTreeMap::from([(DEFAULT.to_owned(), source)]), tokens));
    }
    let in_config = in_json(folder.join(TOKENIZER_CONFIG), config)?;
    if !in_config.is_empty() {
        return Ok((in_config, tokens));
    }
    let json_path = folder.join("chat_template.json");
    let json = optional_json(&json_path)?;
    Ok((in_json(json_path, json)?, tokens))
}

/// `chat_template` of a JSON file: a string, or a list of `{name, template}`.
fn in_json(path: PathBuf, json: Option<Value>) -> Result<BTreeMap<String, Source>, LoadError> {
    let source = |text: &str| Source { path: path.clone(), text: text.to_owned() };
    let wrong = |reason: &str| LoadError::Template(path.clone(), reason.to_owned());
    match json.as_ref().and_then(|json| json.get("chat_template")) {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::String(text)) => Ok(BTreeMap::from([(DEFAULT.to_owned(), source(text))])),
        Some(Value::Array(items)) => {
            let text = |item: &Value, member: &str| item.get(member)?.as_str().map(str::to_owned);
            let named = |item| Some((text(item, "name")?, source(&text(item, "template")?)));
            let incomplete = || wrong("chat_template is a list with an entry without a name or a template");
            items.iter().map(|item| named(item).ok_or_else(incomplete)).collect()
        }
        Some(_) => Err(wrong("chat_template is neither a string nor a list of named templates")),
    }
}

/// The tokens by their names.
fn special_tokens(config: &Value) -> SpecialTokens {
    let named = |name| Some((name, tokenizer_config::content(config.get(name)?)?.to_owned()));
    ROLES.into_iter().filter_map(named).collect()
}
