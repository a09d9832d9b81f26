//! A chat as it crosses to a tokenizer: the messages, and what the template is to know beside them.
//!
//! Called by [`crate::admission`] only; the messages themselves are checked in [`crate::admission::messages`].

use crate::admission::json::{Fields, wrong_type};
use crate::admission::messages;
use crate::limits::{DOCUMENTS_MAX, TEMPLATE_KWARGS_BYTES_MAX, TEMPLATE_KWARGS_MAX, TEMPLATE_NAME_BYTES_MAX};
use pinion_protocol::Fault;
use pinion_protocol::tokenizer_inbox::Prompt;
use serde::Serialize;
use serde_json::Value;

/// Names that a template gets from us; `chat_template_kwargs` cannot have them.
const OUR_NAMES: [&str; 5] =
    ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"];

/// Values of `reasoning_effort`; the first is no reasoning at all.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// What [`pinion_protocol::tokenizer_inbox::Prompt::Chat`] holds, as JSON; absent where it is the default.
#[derive(Serialize)]
struct Chat {
    messages: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    documents: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template_kwargs: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    add_generation_prompt: Option<bool>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    continue_final_message: bool,
    /// The name of one of the model's templates.
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    add_special_tokens: bool,
}

/// `messages` and what else makes the prompt of `/v1/chat/completions` and `/tokenize`. `tools` are checked already.
pub(crate) fn prompt(fields: &mut Fields, tools: Option<Value>) -> Result<Prompt, Fault> {
    text(fields, tools).map(Prompt::Chat)
}

/// The same as the text that tokenizers take.
pub(crate) fn text(fields: &mut Fields, tools: Option<Value>) -> Result<String, Fault> {
    let messages = fields.take("messages");
    let continue_final_message = fields.boolean("continue_final_message")?.unwrap_or(false);
    // A message that goes on leaves no place for the beginning of another.
    let mut add_generation_prompt = fields.boolean("add_generation_prompt")?;
    if continue_final_message && add_generation_prompt == Some(true) {
        let message = "continue_final_message and add_generation_prompt cannot both be true";
        return Err(Fault::field("continue_final_message", message));
    }
    if continue_final_message {
        add_generation_prompt = Some(false);
    }
    let chat = Chat {
        messages: match messages {
            Some(messages) => messages::checked(messages)?,
            None => return Err(Fault::field("messages", "messages is required")),
        },
        tools,
        documents: documents(fields)?,
        chat_template_kwargs: with_effort(template_kwargs(fields)?, effort(fields)?),
        add_generation_prompt,
        continue_final_message,
        chat_template: template_name(fields)?,
        add_special_tokens: fields.boolean("add_special_tokens")?.unwrap_or(false),
    };
    Ok(serde_json::to_string(&chat).expect("JSON values always serialise"))
}

/// `chat_template`: the name of one of the model's templates. Which there are is for the tokenizer to say.
fn template_name(fields: &mut Fields) -> Result<Option<String>, Fault> {
    const NAME: &str = "chat_template";
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let name = fields.string(NAME)?;
    match &name {
        Some(name)
            if name.is_empty() || name.len() > TEMPLATE_NAME_BYTES_MAX || !name.chars().all(is_plain) =>
        {
            let message =
                "chat_template must name one of the model's templates; a template in a request is not run";
            Err(Fault::field(NAME, message))
        }
        Some(_) | None => Ok(name),
    }
}

/// `reasoning_effort`: how much the model is to think, as OpenAI and vLLM have it.
fn effort(fields: &mut Fields) -> Result<Option<String>, Fault> {
    const NAME: &str = "reasoning_effort";
    match fields.take(NAME) {
        None => Ok(None),
        Some(Value::String(effort)) if EFFORTS.contains(&effort.as_str()) => Ok(Some(effort)),
        Some(other) => Err(wrong_type(NAME, &format!("one of {}", EFFORTS.join(", ")), &other)),
    }
}

/// Tells the template of the effort, as far as the client has not done so itself. None at all is what templates know
/// as `enable_thinking`.
fn with_effort(kwargs: Option<Value>, effort: Option<String>) -> Option<Value> {
    let Some(effort) = effort else { return kwargs };
    let mut names = kwargs.and_then(|kwargs| kwargs.as_object().cloned()).unwrap_or_default();
    if effort == EFFORTS[0] {
        names.entry("enable_thinking").or_insert(Value::Bool(false));
    }
    names.entry("reasoning_effort").or_insert(Value::String(effort));
    Some(Value::Object(names))
}

/// `documents`: objects for templates that quote them.
fn documents(fields: &mut Fields) -> Result<Option<Value>, Fault> {
    let items = match fields.take("documents") {
        None => return Ok(None),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong_type("documents", "an array of objects", &other)),
    };
    if items.len() > DOCUMENTS_MAX {
        let message = format!("documents may have at most {DOCUMENTS_MAX} entries, got {}", items.len());
        return Err(Fault::field("documents", message));
    }
    match items.iter().position(|item| !item.is_object()) {
        Some(at) => Err(wrong_type(&format!("documents[{at}]"), "an object", &items[at])),
        None => Ok((!items.is_empty()).then_some(Value::Array(items))),
    }
}

/// `chat_template_kwargs`: more names for the template, such as `enable_thinking`.
fn template_kwargs(fields: &mut Fields) -> Result<Option<Value>, Fault> {
    const NAME: &str = "chat_template_kwargs";
    let names = match fields.take(NAME) {
        None => return Ok(None),
        Some(Value::Object(names)) => names,
        Some(other) => return Err(wrong_type(NAME, "an object", &other)),
    };
    if names.len() > TEMPLATE_KWARGS_MAX {
        let message = format!("{NAME} may have at most {TEMPLATE_KWARGS_MAX} names, got {}", names.len());
        return Err(Fault::field(NAME, message));
    }
    if let Some(ours) = OUR_NAMES.iter().find(|ours| names.contains_key(**ours)) {
        let field = format!("{NAME}.{ours}");
        return Err(Fault::field(&field, format!("{field} has a field of its own: {ours}")));
    }
    let value = Value::Object(names);
    let bytes = value.to_string().len();
    if bytes > TEMPLATE_KWARGS_BYTES_MAX {
        let message = format!("{NAME} may have at most {TEMPLATE_KWARGS_BYTES_MAX} bytes, got {bytes}");
        return Err(Fault::field(NAME, message));
    }
    Ok(Some(value))
}
