//! The messages of a body, with their blocks, as messages of a chat.
//!
//! A user's message may hold results of tools; each of them is a message of its own in a chat. An assistant's blocks
//! are one message: its reasoning, its text and its calls.

use crate::json::{function_name, wrong_type};
use crate::limits::{CONTENT_PARTS_MAX, TOOL_CALLS_MAX};
use crate::object::{Object, at};
use pinion_protocol::Fault;
use serde_json::{Map, Value, json};

/// The messages of a chat, and whether the last one is the beginning of the answer.
pub(super) fn messages(items: Vec<Value>, system: Option<Value>) -> Result<(Vec<Value>, bool), Fault> {
    let mut out = Vec::with_capacity(items.len() + 1);
    let system = system.map(|system| texts("system", system)).transpose()?;
    // One that says nothing is none: a template has its own for a chat without any.
    if let Some(system) = system.filter(|system| *system != "") {
        out.push(json!({"role": "system", "content": system}));
    }
    let mut continues = false;
    for (index, item) in items.into_iter().enumerate() {
        let mut message = Object::new(at("messages", index), item)?;
        let role = message.string("role")?;
        let role = message.need("role", role)?;
        let content = message.take("content");
        let content = message.need("content", content)?;
        let path = message.at("content");
        continues = role == "assistant";
        match role.as_str() {
            "user" => user(&path, content, &mut out)?,
            "assistant" => out.push(assistant(&path, content)?),
            "system" => out.push(json!({"role": "system", "content": texts(&path, content)?})),
            _ => {
                let wanted = "user, assistant or system";
                return Err(wrong_type(&message.at("role"), wanted, &Value::String(role)));
            }
        }
    }
    Ok((out, continues))
}

/// The blocks of a content that is no string.
fn blocks(path: &str, content: Value) -> Result<Vec<Object>, Fault> {
    let items = match content {
        Value::Array(items) => items,
        other => return Err(wrong_type(path, "a string or an array of blocks", &other)),
    };
    if items.len() > CONTENT_PARTS_MAX {
        let message = format!("{path} may have at most {CONTENT_PARTS_MAX} blocks, got {}", items.len());
        return Err(Fault::field(path, message));
    }
    items.into_iter().enumerate().map(|(index, item)| Object::new(at(path, index), item)).collect()
}

/// A string, or blocks of text, as the content of a message.
fn texts(path: &str, content: Value) -> Result<Value, Fault> {
    if let Value::String(_) = content {
        return Ok(content);
    }
    let mut parts = Vec::new();
    for mut block in blocks(path, content)? {
        match kind(&mut block)?.as_str() {
            "text" => parts.push(text(&mut block)?),
            other => return Err(not_served(&block, other)),
        }
    }
    Ok(content_of(parts))
}

fn kind(block: &mut Object) -> Result<String, Fault> {
    let kind = block.string("type")?;
    block.need("type", kind)
}

fn text(block: &mut Object) -> Result<String, Fault> {
    let text = block.string("text")?;
    block.need("text", text)
}

fn not_served(block: &Object, kind: &str) -> Fault {
    block.refused("type", format_args!("content of the type \"{kind}\" is not served here; send text"))
}

/// One text as itself, several as parts.
fn content_of(mut parts: Vec<String>) -> Value {
    if parts.len() <= 1 {
        return Value::String(parts.pop().unwrap_or_default());
    }
    parts.into_iter().map(|text| json!({"type": "text", "text": text})).collect()
}

fn user(path: &str, content: Value, out: &mut Vec<Value>) -> Result<(), Fault> {
    if let Value::String(_) = content {
        out.push(json!({"role": "user", "content": content}));
        return Ok(());
    }
    let (mut parts, mut has_result) = (Vec::new(), false);
    for mut block in blocks(path, content)? {
        match kind(&mut block)?.as_str() {
            "text" => parts.push(text(&mut block)?),
            "tool_result" => {
                if !parts.is_empty() {
                    out.push(json!({"role": "user", "content": content_of(std::mem::take(&mut parts))}));
                }
                out.push(tool_result(&mut block)?);
                has_result = true;
            }
            other => return Err(not_served(&block, other)),
        }
    }
    if !parts.is_empty() || !has_result {
        out.push(json!({"role": "user", "content": content_of(parts)}));
    }
    Ok(())
}

fn tool_result(block: &mut Object) -> Result<Value, Fault> {
    let id = block.string("tool_use_id")?;
    let id = block.need("tool_use_id", id)?;
    let content = block.take("content").map(|content| texts(&block.at("content"), content)).transpose()?;
    let mut content = content.unwrap_or_else(|| Value::String(String::new()));
    // A chat has no place for it but the text.
    if block.boolean("is_error")?.unwrap_or(false) {
        match &mut content {
            Value::Array(parts) => parts.insert(0, json!({"type": "text", "text": "Error: "})),
            Value::String(text) => text.insert_str(0, "Error: "),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
        }
    }
    Ok(json!({"role": "tool", "tool_call_id": id, "content": content}))
}

fn assistant(path: &str, content: Value) -> Result<Value, Fault> {
    if let Value::String(_) = content {
        return Ok(json!({"role": "assistant", "content": content}));
    }
    let (mut said, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for mut block in blocks(path, content)? {
        match kind(&mut block)?.as_str() {
            "text" => said.push_str(&text(&mut block)?),
            "thinking" => {
                let thought = block.string("thinking")?;
                thoughts.push_str(&block.need("thinking", thought)?);
            }
            // Only the service that wrote it can read it.
            "redacted_thinking" => {}
            "tool_use" => calls.push(tool_use(block)?),
            other => return Err(not_served(&block, other)),
        }
    }
    if calls.len() > TOOL_CALLS_MAX {
        let message =
            format!("{path} may have at most {TOOL_CALLS_MAX} tool_use blocks, got {}", calls.len());
        return Err(Fault::field(path, message));
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    let content = if said.is_empty() && !calls.is_empty() { Value::Null } else { said.into() };
    message.insert("content".to_owned(), content);
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    if !thoughts.is_empty() {
        message.insert("reasoning_content".to_owned(), thoughts.into());
    }
    Ok(Value::Object(message))
}

fn tool_use(mut block: Object) -> Result<Value, Fault> {
    let id = block.string("id")?;
    let id = block.need("id", id)?;
    let name = block.take("name").unwrap_or(Value::Null);
    let name = function_name(&block.at("name"), &name)?;
    let arguments = match block.take("input") {
        None => "{}".to_owned(),
        Some(input @ Value::Object(_)) => input.to_string(),
        Some(other) => return Err(wrong_type(&block.at("input"), "an object", &other)),
    };
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}
