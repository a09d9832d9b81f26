//! What a model's chat templates show of it, for processes that render nothing.

use super::source::{self, Given};
use crate::codec::LoadError;
use crate::reasoning::{CLOSE, OPEN};
use crate::tools::CallFormat;
use std::path::Path;

/// What is known without running a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// The text of the default template; without one chats are plain lines, or name one of the others.
    pub template: Option<String>,
    /// The text of the template for chats with tools, where that is another one.
    pub with_tools: Option<String>,
    /// The token that texts begin with, as the tokenizer's config names it.
    pub bos_token: Option<String>,
    /// The token that ends texts.
    pub eos_token: Option<String>,
    /// How the model writes tool calls.
    pub calls: Option<CallFormat>,
    /// Whether it reasons before it answers.
    pub reasons: bool,
}

impl Described {
    /// Reads the templates of a folder, or the operator's. Errors name the file.
    pub fn read(folder: &Path, given: Option<Given<'_>>) -> Result<Described, LoadError> {
        let (sources, mut tokens) = source::find(folder, given)?;
        let mut found = Described {
            bos_token: tokens.remove("bos_token"),
            eos_token: tokens.remove("eos_token"),
            ..Described::default()
        };
        let Some(sources) = sources else { return Ok(found) };
        let with_tools = sources.with_tools().map(str::to_owned);
        found.calls = with_tools.as_deref().and_then(CallFormat::of_template);
        found.reasons = sources.all().any(|text| text.contains(OPEN) || text.contains(CLOSE));
        found.template = sources.default.map(|default| default.text);
        found.with_tools = with_tools.filter(|text| found.template.as_ref() != Some(text));
        Ok(found)
    }
}
