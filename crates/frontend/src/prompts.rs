//! The shapes in which clients give prompts, chat messages and stop strings.
//!
//! Called by [`crate::admission`] only.

use crate::admission::{Limits, token_id};
use crate::json::{Fields, wrong_type};
use pinion_protocol::limits::{CHOICES_MAX, MESSAGES_MAX, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX};
use pinion_protocol::tokenizer_inbox::Prompt;
use pinion_protocol::{Fault, FaultCode};
use serde::Serialize;
use serde_json::Value;

const PROMPT_SHAPES: &str = "a string, an array of token ids, or an array of these";
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// `prompt` of `/generate`, and of `/v1/completions` where it may be a list of up to [`CHOICES_MAX`] prompts.
pub(crate) fn prompts(fields: &mut Fields, limits: &Limits, list: bool) -> Result<Vec<Prompt>, Fault> {
    let Some(value) = fields.take("prompt") else { return Err(Fault::field("prompt", "prompt is required")) };
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(items) => items,
        other => return Err(wrong_type("prompt", PROMPT_SHAPES, &other)),
    };
    match items.first() {
        None => return Err(Fault::field("prompt", "prompt must not be an empty array")),
        Some(Value::Number(_)) => return Ok(vec![prompt_ids(&items, limits)?]),
        Some(_) => {}
    }
    let most = if list { CHOICES_MAX } else { 1 };
    if items.len() > most {
        let message = format!("prompt may have at most {most} prompts here, got {}", items.len());
        return Err(Fault::field("prompt", message));
    }
    let one = |item: Value| match item {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) => prompt_ids(&ids, limits),
        other => Err(wrong_type("prompt", PROMPT_SHAPES, &other)),
    };
    items.into_iter().map(one).collect()
}

fn prompt_ids(items: &[Value], limits: &Limits) -> Result<Prompt, Fault> {
    if items.is_empty() {
        return Err(Fault::field("prompt", "prompt must have at least one token"));
    }
    ids("prompt", items, limits).map(Prompt::Ids)
}

/// Token ids, fewer than the context holds and each in the vocabulary.
pub(crate) fn ids(name: &str, items: &[Value], limits: &Limits) -> Result<Vec<u32>, Fault> {
    if items.len() > limits.max_model_len as usize {
        let message = format!(
            "{name} has {} tokens; this model's maximum context length is {} tokens",
            items.len(),
            limits.max_model_len
        );
        let fault = Fault::new(FaultCode::ContextLengthExceeded, message);
        return Err(Fault { param: Some(name.to_owned()), ..fault });
    }
    items.iter().map(|item| token_id(name, item, limits)).collect()
}

/// `messages` of `/v1/chat/completions`.
pub(crate) fn messages(fields: &mut Fields) -> Result<Prompt, Fault> {
    match fields.take("messages") {
        Some(messages) => rendered(messages),
        None => Err(Fault::field("messages", "messages is required")),
    }
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    content: String,
}

/// Checks messages and renders them as the JSON array of `{role, content}` that tokenizers take.
pub(crate) fn rendered(messages: Value) -> Result<Prompt, Fault> {
    let items = match &messages {
        Value::Array(items) => items,
        other => return Err(wrong_type("messages", "an array of messages", other)),
    };
    if items.is_empty() || items.len() > MESSAGES_MAX {
        let message = format!("messages must have from 1 to {MESSAGES_MAX} entries, got {}", items.len());
        return Err(Fault::field("messages", message));
    }
    let checked: Vec<Message<'_>> =
        items.iter().enumerate().map(|(index, item)| message(index, item)).collect::<Result<_, _>>()?;
    let json = serde_json::to_string(&checked).expect("strings always serialise");
    Ok(Prompt::Messages(json))
}

fn message(index: usize, item: &Value) -> Result<Message<'_>, Fault> {
    let name = |field: &str| format!("messages[{index}].{field}");
    let Some(members) = item.as_object() else {
        return Err(wrong_type(&format!("messages[{index}]"), "an object", item));
    };
    let role = match members.get("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role.as_str(),
        other => {
            let wanted = format!("one of {}", ROLES.join(", "));
            return Err(wrong_type(&name("role"), &wanted, other.unwrap_or(&Value::Null)));
        }
    };
    for field in ["tool_calls", "function_call", "audio"] {
        let given = members.get(field).filter(|v| !v.is_null() && v.as_array().is_none_or(|a| !a.is_empty()));
        if given.is_some() {
            let field = name(field);
            return Err(Fault::field(&field, format!("{field} is not supported by this version")));
        }
    }
    let content = match members.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => joined(index, parts)?,
        None | Some(Value::Null) if role == "assistant" => String::new(),
        other => {
            let wanted = "a string or an array of text parts";
            return Err(wrong_type(&name("content"), wanted, other.unwrap_or(&Value::Null)));
        }
    };
    Ok(Message { role, content })
}

/// The text of content parts, one after the other.
fn joined(index: usize, parts: &[Value]) -> Result<String, Fault> {
    let mut text = String::new();
    for (part_index, part) in parts.iter().enumerate() {
        let kind = part.get("type").and_then(Value::as_str);
        let piece = part.get("text").and_then(Value::as_str);
        match (kind, piece) {
            (Some("text"), Some(piece)) => text.push_str(piece),
            _ => {
                let name = format!("messages[{index}].content[{part_index}]");
                let message = format!("{name} must be a text part: {{\"type\": \"text\", \"text\": ...}}");
                return Err(Fault::field(&name, message));
            }
        }
    }
    Ok(text)
}

/// `stop`: a string or up to [`STOP_STRINGS_MAX`] of them, none empty.
pub(crate) fn stop(fields: &mut Fields) -> Result<Vec<String>, Fault> {
    let wanted = "a string or an array of strings";
    let strings = match fields.take("stop") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(items)) => {
            let as_string = |item: Value| match item {
                Value::String(text) => Ok(text),
                other => Err(wrong_type("stop", wanted, &other)),
            };
            items.into_iter().map(as_string).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong_type("stop", wanted, &other)),
    };
    if strings.len() > STOP_STRINGS_MAX {
        let message = format!("stop may have at most {STOP_STRINGS_MAX} strings, got {}", strings.len());
        return Err(Fault::field("stop", message));
    }
    if strings.iter().any(|text| text.is_empty() || text.len() > STOP_STRING_BYTES_MAX) {
        let message = format!("each stop string must have from 1 to {STOP_STRING_BYTES_MAX} bytes");
        return Err(Fault::field("stop", message));
    }
    Ok(strings)
}
