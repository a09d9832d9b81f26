//! Chat messages as the text that a model continues: through the template of the model folder, or as plain
//! lines where the folder brings none. A template never comes from a request.
//!
//! [`ChatRenderer`] renders, [`Described`] tells of the template. `source` finds the template, `template` runs it
//! within limits, `messages` checks what the client sent, `forms` gives it the spelling that the template knows,
//! `plain` is the form without a template, `python` and `date` write what Python would have written.

mod date;
mod described;
mod forms;
mod messages;
mod plain;
mod python;
mod source;
mod template;

use crate::codec::LoadError;
use crate::reasoning::{CLOSE, OPEN};
use messages::{Chat, Content};
use pinion_protocol::{Fault, Reasoning};
use source::{Source, Sources, SpecialTokens};
use std::collections::BTreeMap;
use std::path::Path;
use template::Template;

pub use described::Described;
pub use source::Given;
pub use template::{RENDERED_BYTES_MAX, TEMPLATE_RECURSION_MAX, TEMPLATE_STEPS_MAX};

/// Renders chat messages in the form that one model was trained on.
pub struct ChatRenderer(Form);

enum Form {
    Plain,
    Template(Box<Templates>),
}

/// The templates of a folder.
struct Templates {
    /// Without one, a chat names its template.
    default: Option<Template>,
    /// By name; the one called `tool_use` is for chats with tools.
    named: BTreeMap<String, Template>,
}

impl Templates {
    fn compile(sources: Sources, tokens: &SpecialTokens) -> Result<Templates, LoadError> {
        let compile = |source: Source| {
            let wrong = |reason| LoadError::Template(source.path.clone(), reason);
            Template::compile(source.text, tokens.clone()).map_err(wrong)
        };
        let named = sources.named.into_iter().map(|(name, source)| Ok((name, compile(source)?)));
        let named = named.collect::<Result<_, LoadError>>()?;
        Ok(Templates { default: sources.default.map(compile).transpose()?, named })
    }

    /// The template that the client names, or the one for what the chat has.
    fn choose(&self, name: Option<&str>, chat: &Chat) -> Result<&Template, Fault> {
        let fitting = self.named.get(source::WITH_TOOLS).filter(|_| chat.tools.is_true());
        let found = match name {
            None => fitting.or(self.default.as_ref()),
            Some(source::DEFAULT) => self.default.as_ref(),
            Some(name) => self.named.get(name),
        };
        found.ok_or_else(|| Fault::field("chat_template", self.not_found(name)))
    }

    fn not_found(&self, name: Option<&str>) -> String {
        let default = self.default.as_ref().map(|_| source::DEFAULT);
        let known: Vec<&str> = default.into_iter().chain(self.named.keys().map(String::as_str)).collect();
        let known = known.join(", ");
        match name {
            None => format!(
                "the model has no default chat template: name one of its templates in chat_template, which are {known}; \
                 an operator gives it a default with --chat-template"
            ),
            Some(_) => format!(
                "chat_template names one of the model's templates, which are {known}; a template in a request is not run"
            ),
        }
    }
}

impl ChatRenderer {
    /// Plain lines, the form for a folder without a template.
    pub fn plain() -> ChatRenderer {
        ChatRenderer(Form::Plain)
    }

    /// The templates of a model folder: `chat_template.jinja`, else `chat_template` in `tokenizer_config.json` (a
    /// string, or a list in which the default is named "default"), else in `chat_template.json`; plain lines if there
    /// is none at all. Others come from such a list and from `additional_chat_templates/NAME.jinja`. Special tokens
    /// come from `tokenizer_config.json`, in older folders from `special_tokens_map.json`. Errors name the file.
    pub fn load(folder: &Path) -> Result<ChatRenderer, LoadError> {
        ChatRenderer::load_given(folder, None)
    }

    /// The same with the operator's template in place of the folder's.
    pub fn load_given(folder: &Path, given: Option<Given<'_>>) -> Result<ChatRenderer, LoadError> {
        let (sources, tokens) = source::find(folder, given)?;
        let Some(sources) = sources else { return Ok(ChatRenderer::plain()) };
        Ok(ChatRenderer(Form::Template(Box::new(Templates::compile(sources, &tokens)?))))
    }

    /// Whether the folder brought a template.
    pub fn has_template(&self) -> bool {
        matches!(self.0, Form::Template(_))
    }

    /// The names of the templates where none of them is the default, so that a chat has to name one.
    pub fn names_without_default(&self) -> Option<Vec<&str>> {
        match &self.0 {
            Form::Template(templates) if templates.default.is_none() => {
                Some(templates.named.keys().map(String::as_str).collect())
            }
            Form::Plain | Form::Template(_) => None,
        }
    }

    /// The text of a chat, given as a JSON object:
    ///
    /// - `messages`, an array of `{role, content}` objects. The content is a string or an array of
    ///   `{"type": "text", "text": ..}` parts, which become lines unless the template takes them apart itself;
    ///   an assistant's may be null. Other members are for the template.
    /// - `tools` and `documents`, arrays, and `chat_template_kwargs`, an object of more names for the template.
    ///   Plain lines have no place for them.
    /// - `add_generation_prompt` (true): end with the opening of the assistant's turn.
    /// - `chat_template`: the name of one of the folder's templates. Without it a chat with tools has the one named
    ///   "tool_use", if there is one, and all others the default; without a default it is required.
    /// - `add_special_tokens` (false): goes into the answer.
    /// - `continue_final_message` (false): end with the last message's content instead of its end mark.
    ///
    /// `unix_seconds` is for templates that write the date. The same input always gives the same text.
    ///
    /// The template's own beginning-of-sequence token is in the text.
    ///
    /// Errors name the field in the API's spelling, such as `messages[2].content`; what the template refuses
    /// is a fault of `messages` in the template's words.
    pub fn render(&self, chat_json: &str, unix_seconds: i64) -> Result<Rendered, Fault> {
        let chat = messages::parse(chat_json)?;
        let text = match &self.0 {
            Form::Plain => plain::render(&chat.messages, chat.add_generation_prompt),
            Form::Template(templates) => {
                templates.choose(chat.template.as_deref(), &chat)?.render(&chat, unix_seconds)
            }
        }?;
        let (text, continued_content) = if chat.continue_final_message {
            let content = chat.messages.last().and_then(|message| message.content.as_ref());
            (continued(text, &chat)?, content.map(Content::text))
        } else {
            (text, None)
        };
        let reasoning = answer_begins(&text, continued_content);
        Ok(Rendered { text, is_framed: chat.is_framed, reasoning })
    }
}

/// A chat as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Encode it with what the tokenizer puts around every text: the client wants it so.
    pub is_framed: bool,
    /// How the answer to it begins, if the model reasons.
    pub reasoning: Reasoning,
}

/// What a prompt leaves for the answer: its end may have opened the reasoning, or closed it before it began.
/// `continued` is the content that the answer goes on with.
fn answer_begins(text: &str, continued: Option<&str>) -> Reasoning {
    match continued {
        Some(content) => match (content.rfind(OPEN), content.rfind(CLOSE)) {
            (Some(open), close) if close.is_none_or(|close| close < open) => Reasoning::Begun,
            (None, None) if content.trim().is_empty() => Reasoning::Possible,
            _ => Reasoning::None,
        },
        None if text.trim_end().ends_with(OPEN) => Reasoning::Begun,
        None if text.trim_end().ends_with(CLOSE) => Reasoning::None,
        None => Reasoning::Possible,
    }
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
