//! The messages of a chat, checked member by member and brought into one spelling.
//!
//! What a template may look at goes on to the tokenizer: role, content, name, tool calls, the id of the call that a
//! tool answers, and thoughts. The arguments of a tool call go on as the text that the model wrote. Anything else is
//! left out. Called by [`crate::admission::chat`] only.

use crate::admission::json::{check_depth, wrong_type};
use crate::limits::{CONTENT_PARTS_MAX, TOOL_CALLS_MAX};
pub(crate) use pinion_api::json::function_name;
use pinion_protocol::Fault;
use pinion_protocol::limits::MESSAGES_MAX;
use serde_json::{Map, Value, json};

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
/// Members that go on as they are, if they are strings.
const STRINGS: [&str; 4] = ["name", "tool_call_id", "reasoning_content", "reasoning"];

/// The messages as tokenizers take them.
pub(crate) fn checked(messages: Value) -> Result<Value, Fault> {
    let items = match messages {
        Value::Array(items) => items,
        other => return Err(wrong_type("messages", "an array of messages", &other)),
    };
    if items.is_empty() || items.len() > MESSAGES_MAX {
        let message = format!("messages must have from 1 to {MESSAGES_MAX} entries, got {}", items.len());
        return Err(Fault::field("messages", message));
    }
    items.into_iter().enumerate().map(|(index, item)| message(index, item)).collect()
}

fn message(index: usize, item: Value) -> Result<Value, Fault> {
    let at = |field: &str| format!("messages[{index}].{field}");
    let mut members = match item {
        Value::Object(members) => members,
        other => return Err(wrong_type(&format!("messages[{index}]"), "an object", &other)),
    };
    // `null` is absent, as everywhere.
    members.retain(|_, value| !value.is_null());
    let role = match members.remove("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role,
        other => {
            let wanted = format!("one of {}", ROLES.join(", "));
            return Err(wrong_type(&at("role"), &wanted, &other.unwrap_or(Value::Null)));
        }
    };
    for (field, instead) in [("function_call", "tool_calls"), ("audio", "text content")] {
        if members.contains_key(field) {
            let field = at(field);
            return Err(Fault::field(&field, format!("{field} is not supported; use {instead}")));
        }
    }
    let is_assistant = role == "assistant";
    let mut checked = Map::new();
    checked.insert("role".to_owned(), role.into());
    let calls = tool_calls(&at("tool_calls"), members.remove("tool_calls"), is_assistant)?;
    let content = match members.remove("content") {
        None if is_assistant => refusal(&at("refusal"), members.remove("refusal"))?,
        content => self::content(index, content, is_assistant)?,
    };
    checked.insert("content".to_owned(), content);
    checked.extend(calls.map(|calls| ("tool_calls".to_owned(), calls)));
    for name in STRINGS {
        match members.remove(name) {
            None => {}
            Some(Value::String(text)) => {
                checked.insert(name.to_owned(), text.into());
            }
            Some(other) => return Err(wrong_type(&at(name), "a string", &other)),
        }
    }
    Ok(Value::Object(checked))
}

/// What an assistant without content said instead, or null.
fn refusal(field: &str, refusal: Option<Value>) -> Result<Value, Fault> {
    match refusal {
        None => Ok(Value::Null),
        Some(Value::String(text)) => Ok(text.into()),
        Some(other) => Err(wrong_type(field, "a string", &other)),
    }
}

/// A string, or parts as templates know them.
fn content(index: usize, content: Option<Value>, is_assistant: bool) -> Result<Value, Fault> {
    let field = format!("messages[{index}].content");
    let parts = match content {
        Some(Value::String(text)) => return Ok(text.into()),
        Some(Value::Array(parts)) => parts,
        other => {
            let wanted = "a string or an array of text parts";
            return Err(wrong_type(&field, wanted, &other.unwrap_or(Value::Null)));
        }
    };
    if parts.len() > CONTENT_PARTS_MAX {
        let message = format!("{field} may have at most {CONTENT_PARTS_MAX} parts, got {}", parts.len());
        return Err(Fault::field(&field, message));
    }
    let part = |(part_index, part): (usize, Value)| {
        let at = |member: &str| format!("{field}[{part_index}].{member}");
        let member = match part.get("type").and_then(Value::as_str) {
            Some("text") => "text",
            Some("refusal") if is_assistant => "refusal",
            _ => {
                let kind = part.get("type").unwrap_or(&Value::Null);
                return Err(wrong_type(&at("type"), "\"text\": other content is not supported", kind));
            }
        };
        match part.get(member) {
            Some(Value::String(text)) => Ok(json!({"type": "text", "text": text})),
            other => Err(wrong_type(&at(member), "a string", other.unwrap_or(&Value::Null))),
        }
    };
    parts.into_iter().enumerate().map(part).collect()
}

/// The calls that an assistant made, or nothing where there are none.
fn tool_calls(field: &str, calls: Option<Value>, is_assistant: bool) -> Result<Option<Value>, Fault> {
    let calls = match calls {
        None => return Ok(None),
        Some(Value::Array(calls)) if calls.is_empty() => return Ok(None),
        Some(Value::Array(calls)) => calls,
        Some(other) => return Err(wrong_type(field, "an array of tool calls", &other)),
    };
    if !is_assistant {
        return Err(Fault::field(field, format!("{field} is for messages of the assistant")));
    }
    if calls.len() > TOOL_CALLS_MAX {
        let message = format!("{field} may have at most {TOOL_CALLS_MAX} entries, got {}", calls.len());
        return Err(Fault::field(field, message));
    }
    let calls = calls.iter().enumerate().map(|(at, call)| tool_call(&format!("{field}[{at}]"), call));
    calls.collect::<Result<Vec<_>, _>>().map(|calls| Some(Value::Array(calls)))
}

fn tool_call(field: &str, call: &Value) -> Result<Value, Fault> {
    let member = |object: &Value, name: &str| object.get(name).cloned().unwrap_or(Value::Null);
    let at = |name: &str| format!("{field}.{name}");
    let id = match member(call, "id") {
        Value::String(id) => id,
        other => return Err(wrong_type(&at("id"), "a string", &other)),
    };
    match member(call, "type") {
        Value::Null => {}
        Value::String(kind) if kind == "function" => {}
        other => return Err(wrong_type(&at("type"), "\"function\"", &other)),
    }
    let function = member(call, "function");
    let name = function_name(&at("function.name"), &member(&function, "name"))?.to_owned();
    let arguments = arguments(&at("function.arguments"), member(&function, "arguments"))?;
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

/// Arguments as text: as they were sent, if they are an object, written out or not.
fn arguments(field: &str, arguments: Value) -> Result<String, Fault> {
    let text = match arguments {
        Value::Null => return Ok("{}".to_owned()),
        Value::Object(_) => return Ok(arguments.to_string()),
        Value::String(text) if text.is_empty() => return Ok("{}".to_owned()),
        Value::String(text) => text,
        other => return Err(wrong_type(field, "a JSON object as a string", &other)),
    };
    check_depth(text.as_bytes()).map_err(|fault| Fault { param: Some(field.to_owned()), ..fault })?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(_)) => Ok(text),
        _ => Err(wrong_type(field, "a JSON object as a string", &Value::String(text))),
    }
}
