//! Chat messages as the text that a model continues: through the template of the model folder, or as plain
//! lines where the folder brings none. A template never comes from a request.
//!
//! [`ChatRenderer`] is the one entry point. [`source`] finds the template, [`template`] runs it within limits,
//! [`messages`] checks what the client sent, [`plain`] is the form without a template, [`python`] and [`date`]
//! write what Python would have written.

mod date;
mod messages;
mod plain;
mod python;
mod source;
mod template;

use crate::codec::LoadError;
use minijinja::Value;
use pinion_protocol::Fault;
use std::path::Path;
use template::Template;

pub use template::{RENDERED_BYTES_MAX, TEMPLATE_RECURSION_MAX, TEMPLATE_STEPS_MAX};

/// Renders chat messages in the form that one model was trained on.
pub struct ChatRenderer(Form);

enum Form {
    Plain,
    Template(Box<Template>),
}

/// What a render needs besides the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatOptions<'a> {
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// A JSON array of tool descriptions; `None` leaves `tools` undefined. Plain lines have no place for them.
    pub tools_json: Option<&'a str>,
    /// Seconds since 1970, for templates that write the date.
    pub unix_seconds: i64,
}

impl ChatRenderer {
    /// Plain lines, the form for a folder without a template.
    pub fn plain() -> ChatRenderer {
        ChatRenderer(Form::Plain)
    }

    /// The template of a model folder: `chat_template.jinja`, else `chat_template` in `tokenizer_config.json` (a
    /// string, or the one named "default" in a list), else in `chat_template.json`; plain lines if there is
    /// none. Special tokens come from `tokenizer_config.json`. Errors name the file.
    pub fn load(folder: &Path) -> Result<ChatRenderer, LoadError> {
        let (source, tokens) = source::find(folder)?;
        let Some(source) = source else { return Ok(ChatRenderer::plain()) };
        let template = Template::compile(source.text, tokens)
            .map_err(|reason| LoadError::Template(source.path, reason))?;
        Ok(ChatRenderer(Form::Template(Box::new(template))))
    }

    /// Whether the folder brought a template.
    pub fn has_template(&self) -> bool {
        matches!(self.0, Form::Template(_))
    }

    /// The text of a JSON array of `{role, content}` objects. The content is a string or an array of
    /// `{"type": "text", "text": ..}` parts, which are joined without anything between them unless the
    /// template takes them apart itself; an assistant's may be null. The same input always gives the same text.
    ///
    /// The template's own beginning-of-sequence token is in the text, so the text is to be encoded without
    /// another one, as [`crate::TextCodec::encode`] does.
    ///
    /// Errors name the field in the API's spelling, such as `messages[2].content`; what the template refuses
    /// is a fault of `messages` in the template's words.
    pub fn render(&self, messages_json: &str, options: &ChatOptions<'_>) -> Result<String, Fault> {
        let messages = messages::parse(messages_json)?;
        let tools = options.tools_json.map(tools).transpose()?;
        match &self.0 {
            Form::Plain => plain::render(&messages, options.add_generation_prompt),
            Form::Template(template) => template.render(&messages, tools, options),
        }
    }
}

fn tools(json: &str) -> Result<Value, Fault> {
    let tools: Value =
        serde_json::from_str(json).map_err(|e| Fault::field("tools", format!("not valid JSON: {e}")))?;
    match tools.kind() {
        minijinja::value::ValueKind::Seq => Ok(tools),
        _ => Err(Fault::field("tools", "must be an array of tools")),
    }
}
