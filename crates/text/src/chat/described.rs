//! What a model's chat templates show of it, for processes that render nothing.

use super::source::{self, Given};
use crate::codec::LoadError;
use crate::reasoning::{CLOSE, OPEN};
use crate::tools::CallFormat;
use std::path::Path;

/// What is known without running a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// The text of the default template; without one chats are plain lines.
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
        found.calls = CallFormat::of_template(sources.with_tools());
        found.reasons = sources.all().any(|text| text.contains(OPEN) || text.contains(CLOSE));
        let with_tools = sources.with_tools();
        found.with_tools = (with_tools != sources.default.text).then(|| with_tools.to_owned());
        found.template = Some(sources.default.text);
        Ok(found)
    }
}
