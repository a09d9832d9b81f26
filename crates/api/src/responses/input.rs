//! The items of a conversation as messages of a chat.
//!
//! What an assistant did is several items and one message: its reasoning, its text, then its calls.

use crate::json::{function_name, wrong_type};
use crate::limits::{CONTENT_PARTS_MAX, TOOL_CALLS_MAX};
use crate::object::{Object, at};
use pinion_protocol::Fault;
use serde_json::{Map, Value, json};

/// What an assistant said and did between two messages of others.
#[derive(Default)]
struct Turn {
    reasoning: String,
    content: Option<String>,
    calls: Vec<Value>,
}

impl Turn {
    fn end(&mut self, out: &mut Vec<Value>) {
        let Turn { reasoning, content, calls } = std::mem::take(self);
        if content.is_none() && calls.is_empty() {
            // Reasoning that led to nothing is no message.
            return;
        }
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        message.insert("content".to_owned(), content.map_or(Value::Null, Value::String));
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), calls.into());
        }
        if !reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), reasoning.into());
        }
        out.push(Value::Object(message));
    }
}

/// The messages of a chat. `path` is where the items stand in the body.
pub(super) fn messages(path: &str, items: &[Value], out: &mut Vec<Value>) -> Result<(), Fault> {
    let mut turn = Turn::default();
    for (index, item) in items.iter().enumerate() {
        let mut item = Object::new(at(path, index), item.clone())?;
        let kind = item.string("type")?.unwrap_or_else(|| "message".to_owned());
        match kind.as_str() {
            "message" => message(&mut item, &mut turn, out)?,
            "reasoning" => {
                if turn.content.is_some() || !turn.calls.is_empty() {
                    turn.end(out);
                }
                turn.reasoning.push_str(&reasoning(&mut item)?);
            }
            "function_call" => {
                turn.calls.push(function_call(&mut item)?);
                if turn.calls.len() > TOOL_CALLS_MAX {
                    let message = format_args!("an answer has at most {TOOL_CALLS_MAX} calls");
                    return Err(item.refused("type", message));
                }
            }
            "function_call_output" => {
                turn.end(out);
                let id = item.string("call_id")?;
                let id = item.need("call_id", id)?;
                let output = item.take("output");
                let output = texts(&item.at("output"), item.need("output", output)?)?;
                out.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
            }
            _ => {
                let why = format_args!("items of the type \"{kind}\" are not served here");
                return Err(item.refused("type", why));
            }
        }
    }
    turn.end(out);
    Ok(())
}

fn message(item: &mut Object, turn: &mut Turn, out: &mut Vec<Value>) -> Result<(), Fault> {
    let role = item.string("role")?;
    let role = item.need("role", role)?;
    let content = item.take("content");
    let content = texts(&item.at("content"), item.need("content", content)?)?;
    match role.as_str() {
        "assistant" => {
            // Text behind calls is another message.
            if !turn.calls.is_empty() {
                turn.end(out);
            }
            let text = match content {
                Value::String(text) => text,
                parts => {
                    parts.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()).collect()
                }
            };
            turn.content.get_or_insert_default().push_str(&text);
            Ok(())
        }
        "user" | "system" | "developer" => {
            turn.end(out);
            out.push(json!({"role": role, "content": content}));
            Ok(())
        }
        _ => {
            let wanted = "user, assistant, system or developer";
            Err(wrong_type(&item.at("role"), wanted, &Value::String(role)))
        }
    }
}

/// A string, or parts of text, as the content of a message.
fn texts(path: &str, content: Value) -> Result<Value, Fault> {
    let parts = match content {
        Value::String(_) => return Ok(content),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(path, "a string or an array of parts", &other)),
    };
    if parts.len() > CONTENT_PARTS_MAX {
        let message = format!("{path} may have at most {CONTENT_PARTS_MAX} parts, got {}", parts.len());
        return Err(Fault::field(path, message));
    }
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let mut part = Object::new(at(path, index), part)?;
        let kind = part.string("type")?;
        let kind = part.need("type", kind)?;
        let member = match kind.as_str() {
            "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => "text",
            "refusal" => "refusal",
            _ => {
                let why = format_args!("content of the type \"{kind}\" is not served here; send text");
                return Err(part.refused("type", why));
            }
        };
        let text = part.string(member)?;
        texts.push(part.need(member, text)?);
    }
    if texts.len() <= 1 {
        return Ok(Value::String(texts.pop().unwrap_or_default()));
    }
    Ok(texts.into_iter().map(|text| json!({"type": "text", "text": text})).collect())
}

/// What the model thought: its own text, else the summary of it.
fn reasoning(item: &mut Object) -> Result<String, Fault> {
    let mut said = String::new();
    for name in ["content", "summary"] {
        let Some(value) = item.take(name).filter(|_| said.is_empty()) else { continue };
        match texts(&item.at(name), value)? {
            Value::String(text) => said.push_str(&text),
            parts => {
                said.extend(parts.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()));
            }
        }
    }
    Ok(said)
}

fn function_call(item: &mut Object) -> Result<Value, Fault> {
    let id = item.string("call_id")?;
    let id = item.need("call_id", id)?;
    let name = item.take("name").unwrap_or(Value::Null);
    let name = function_name(&item.at("name"), &name)?;
    let field = item.at("arguments");
    let arguments =
        item.string("arguments")?.filter(|text| !text.is_empty()).unwrap_or_else(|| "{}".to_owned());
    crate::json::check_depth(arguments.as_bytes())
        .map_err(|fault| Fault { param: Some(field.clone()), ..fault })?;
    if !serde_json::from_str::<Value>(&arguments).is_ok_and(|value| value.is_object()) {
        return Err(wrong_type(&field, "a JSON object as a string", &Value::String(arguments)));
    }
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}
