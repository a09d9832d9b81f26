//! Chat messages as the text that a model continues: through the template of the model folder, or as plain
//! lines where the folder brings none. A template never comes from a request.
//!
//! [`ChatRenderer`] is the one entry point. [`source`] finds the template, [`template`] runs it within limits,
//! [`messages`] checks what the client sent, [`forms`] gives it the spelling that the template knows, [`plain`] is the
//! form without a template, [`python`] and [`date`] write what Python would have written.

mod date;
mod forms;
mod messages;
mod plain;
mod python;
mod source;
mod template;

use crate::codec::LoadError;
use crate::tools::CallFormat;
use messages::{Chat, Content};
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

    /// The text of a chat, given as a JSON object:
    ///
    /// - `messages`, an array of `{role, content}` objects. The content is a string or an array of
    ///   `{"type": "text", "text": ..}` parts, which become lines unless the template takes them apart itself;
    ///   an assistant's may be null. Other members are for the template.
    /// - `tools` and `documents`, arrays, and `chat_template_kwargs`, an object of more names for the template.
    ///   Plain lines have no place for them.
    /// - `add_generation_prompt` (true): end with the opening of the assistant's turn.
    /// - `continue_final_message` (false): end with the last message's content instead of its end mark.
    ///
    /// `unix_seconds` is for templates that write the date. The same input always gives the same text.
    ///
    /// The template's own beginning-of-sequence token is in the text, so the text is to be encoded without
    /// another one, as [`crate::TextCodec::encode`] does.
    ///
    /// Errors name the field in the API's spelling, such as `messages[2].content`; what the template refuses
    /// is a fault of `messages` in the template's words.
    pub fn render(&self, chat_json: &str, unix_seconds: i64) -> Result<String, Fault> {
        let chat = messages::parse(chat_json)?;
        let text = match &self.0 {
            Form::Plain => plain::render(&chat.messages, chat.add_generation_prompt),
            Form::Template(template) => template.render(&chat, unix_seconds),
        }?;
        if chat.continue_final_message { continued(text, &chat) } else { Ok(text) }
    }
}

/// How the model of a folder writes tool calls, as far as its chat template shows it.
pub fn call_format(folder: &Path) -> Result<Option<CallFormat>, LoadError> {
    let (source, _) = source::find(folder)?;
    Ok(source.and_then(|source| CallFormat::of_template(&source.text)))
}

/// The text up to the end of the last message's content, found as transformers finds it: the last place where the
/// content stands without the white space around it, and with that behind it if the template kept it.
fn continued(mut text: String, chat: &Chat) -> Result<String, Fault> {
    let content = chat.messages.last().and_then(|message| message.content.as_ref()).map_or("", Content::text);
    let (trimmed, kept) = (content.trim(), content.trim_start());
    let Some(at) = text.rfind(trimmed) else {
        let message = "the chat template does not show the last message's content as it is";
        return Err(Fault::field("continue_final_message", message));
    };
    let length = if text[at..].starts_with(kept) { kept.len() } else { trimmed.len() };
    text.truncate(at + length);
    Ok(text)
}
