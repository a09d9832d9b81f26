//! A body of `/v1/messages` as the body of a chat.
//!
//! What is translated is checked here, so that a fault has this API's names; values that both APIs share, such as
//! `temperature`, go on as they are and are checked there.

use super::content;
use crate::Translated;
use crate::json::{as_integer, function_name, wrong_type};
use crate::limits::TOOLS_MAX;
use crate::object::{Object, at};
use crate::shared::move_shared;
use pinion_protocol::Fault;
use pinion_protocol::limits::{MESSAGES_MAX, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX};
use serde_json::{Map, Value, json};

/// Fields that would change the answer and are not served.
const REFUSED: [(&str, &str); 2] = [
    ("container", "there are no containers here"),
    ("mcp_servers", "the service calls no tools itself; send them as custom tools"),
];

/// The message that a conversation would be continued from.
pub(super) const CONTINUED: &str = "thread.previous_message_id";

/// Fields that cannot change the answer.
const HARMLESS: [&str; 3] = ["cache_control", "inference_geo", "service_tier"];

/// The chat that a body of `/v1/messages` asks for.
pub fn chat(body: Map<String, Value>) -> Result<Translated, Fault> {
    let mut body = Object::root(body);
    let mut chat = prompt(&mut body)?;
    match body.take("max_tokens") {
        Some(value) if as_integer(&value).is_some_and(|count| count > 0) => {
            chat.insert("max_tokens".to_owned(), value);
        }
        other => return Err(wrong_type("max_tokens", "a positive integer", &other.unwrap_or(Value::Null))),
    }
    if let Some(stop) = stop_sequences(&mut body)? {
        chat.insert("stop".to_owned(), stop);
    }
    if body.take("metadata").is_some_and(|metadata| !metadata.is_object()) {
        return Err(Fault::field("metadata", "metadata must be an object"));
    }
    move_shared(&mut body, &["temperature", "top_p", "frequency_penalty", "presence_penalty"], &mut chat);
    for name in HARMLESS {
        body.take(name);
    }
    Ok(Translated { chat, rest: body.rest() })
}

/// The chat whose prompt a body of `/v1/messages/count_tokens` wants counted.
pub fn count(body: Map<String, Value>) -> Result<Map<String, Value>, Fault> {
    let mut body = Object::root(body);
    let mut chat = prompt(&mut body)?;
    for name in ["model", "chat_template_kwargs"] {
        if let Some(value) = body.take(name) {
            chat.insert(name.to_owned(), value);
        }
    }
    Ok(chat)
}

/// What makes the prompt: system, messages, tools and how much the model thinks.
fn prompt(body: &mut Object) -> Result<Map<String, Value>, Fault> {
    for (name, why) in REFUSED {
        if body.take(name).is_some_and(|value| value != json!([])) {
            return Err(body.refused(name, why));
        }
    }
    context_management(body)?;
    thread(body)?;
    let mut chat = Map::new();
    let items = body.array("messages", MESSAGES_MAX)?;
    let items = body.need("messages", items)?;
    if items.is_empty() {
        return Err(Fault::field("messages", "messages must have at least one entry"));
    }
    let (messages, continues) = content::messages(items, body.take("system"))?;
    chat.insert("messages".to_owned(), messages.into());
    if continues {
        chat.insert("continue_final_message".to_owned(), true.into());
    }
    tools(body, &mut chat)?;
    thinking(body, &mut chat)?;
    output_config(body, &mut chat)?;
    Ok(chat)
}

/// What a conversation drops of its reasoning is the chat template's choice; other edits are not made.
fn context_management(body: &mut Object) -> Result<(), Fault> {
    let Some(mut management) = body.object("context_management")? else { return Ok(()) };
    let edits = management.array("edits", MESSAGES_MAX)?.unwrap_or_default();
    for (index, edit) in edits.into_iter().enumerate() {
        let mut edit = Object::new(at(&management.at("edits"), index), edit)?;
        let kind = edit.string("type")?;
        let kind = edit.need("type", kind)?;
        if !kind.starts_with("clear_thinking_") {
            return Err(edit.refused("type", format_args!("the edit \"{kind}\" is not served")));
        }
    }
    Ok(())
}

/// A conversation is sent whole: none is kept, so none can be continued. [`super::error_body`] tells clients so.
fn thread(body: &mut Object) -> Result<(), Fault> {
    let Some(mut thread) = body.object("thread")? else { return Ok(()) };
    let kind = thread.string("type")?;
    match thread.need("type", kind)?.as_str() {
        "create" => Ok(()),
        "continue" => Err(Fault::field(
            CONTINUED,
            format!("{CONTINUED}: no conversation is kept here; send all messages"),
        )),
        other => Err(thread.refused("type", format_args!("\"{other}\" is not served; send all messages"))),
    }
}

fn stop_sequences(body: &mut Object) -> Result<Option<Value>, Fault> {
    const NAME: &str = "stop_sequences";
    let Some(items) = body.array(NAME, STOP_STRINGS_MAX)? else { return Ok(None) };
    for (index, item) in items.iter().enumerate() {
        let fits = |text: &str| (1..=STOP_STRING_BYTES_MAX).contains(&text.len());
        if !item.as_str().is_some_and(fits) {
            let wanted = format!("a string of 1 to {STOP_STRING_BYTES_MAX} bytes");
            return Err(wrong_type(&at(NAME, index), &wanted, item));
        }
    }
    Ok(Some(Value::Array(items)))
}

fn tools(body: &mut Object, chat: &mut Map<String, Value>) -> Result<(), Fault> {
    let items = body.array("tools", TOOLS_MAX)?.unwrap_or_default();
    let mut functions = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        functions.push(tool(Object::new(at("tools", index), item)?)?);
    }
    if !functions.is_empty() {
        chat.insert("tools".to_owned(), functions.into());
    }
    let Some(mut choice) = body.object("tool_choice")? else { return Ok(()) };
    if choice.boolean("disable_parallel_tool_use")?.unwrap_or(false) {
        chat.insert("parallel_tool_calls".to_owned(), false.into());
    }
    let kind = choice.string("type")?;
    let kind = choice.need("type", kind)?;
    let chosen = match kind.as_str() {
        "auto" => "auto".into(),
        "any" => "required".into(),
        "none" => "none".into(),
        "tool" => {
            let name = choice.take("name").unwrap_or(Value::Null);
            let name = function_name(&choice.at("name"), &name)?;
            json!({"type": "function", "function": {"name": name}})
        }
        _ => return Err(wrong_type(&choice.at("type"), "auto, any, tool or none", &Value::String(kind))),
    };
    chat.insert("tool_choice".to_owned(), chosen);
    Ok(())
}

fn tool(mut tool: Object) -> Result<Value, Fault> {
    if let Some(kind) = tool.string("type")?.filter(|kind| kind != "custom") {
        let why = format_args!(
            "\"{kind}\" is a tool that the service would run itself; only custom tools are served"
        );
        return Err(tool.refused("type", why));
    }
    let name = tool.take("name").unwrap_or(Value::Null);
    let mut function = Map::new();
    function.insert("name".to_owned(), function_name(&tool.at("name"), &name)?.into());
    if let Some(description) = tool.string("description")? {
        function.insert("description".to_owned(), description.into());
    }
    let schema = tool.object("input_schema")?;
    let schema = tool.need("input_schema", schema)?;
    function.insert("parameters".to_owned(), Value::Object(schema.rest()));
    if let Some(strict) = tool.boolean("strict")? {
        function.insert("strict".to_owned(), strict.into());
    }
    Ok(json!({"type": "function", "function": function}))
}

/// `thinking`: on and off are told to the chat template, as far as the body does not do so itself. How many tokens it
/// may take is no limit here.
fn thinking(body: &mut Object, chat: &mut Map<String, Value>) -> Result<(), Fault> {
    let Some(mut thinking) = body.object("thinking")? else { return Ok(()) };
    let kind = thinking.string("type")?;
    let kind = thinking.need("type", kind)?;
    let enabled = match kind.as_str() {
        "enabled" => Some(true),
        "disabled" => Some(false),
        "adaptive" => None,
        _ => {
            let wanted = "enabled, disabled or adaptive";
            return Err(wrong_type(&thinking.at("type"), wanted, &Value::String(kind)));
        }
    };
    if let Some(budget) =
        thinking.take("budget_tokens").filter(|budget| as_integer(budget).is_none_or(|budget| budget < 0))
    {
        return Err(wrong_type(&thinking.at("budget_tokens"), "a whole number", &budget));
    }
    let is_omitted = match thinking.string("display")?.as_deref() {
        None | Some("summarized") => false,
        Some("omitted") => true,
        Some(other) => {
            let other = Value::String(other.to_owned());
            return Err(wrong_type(&thinking.at("display"), "summarized or omitted", &other));
        }
    };
    if let Some(enabled) = enabled {
        let mut kwargs = match body.take("chat_template_kwargs") {
            None => Map::new(),
            Some(Value::Object(kwargs)) => kwargs,
            Some(other) => return Err(wrong_type("chat_template_kwargs", "an object", &other)),
        };
        kwargs.entry("enable_thinking").or_insert(enabled.into());
        chat.insert("chat_template_kwargs".to_owned(), kwargs.into());
    }
    if is_omitted || enabled == Some(false) {
        chat.insert("include_reasoning".to_owned(), false.into());
    }
    Ok(())
}

/// `output_config`: a schema that the text must follow, and how much effort the model takes.
fn output_config(body: &mut Object, chat: &mut Map<String, Value>) -> Result<(), Fault> {
    let Some(mut config) = body.object("output_config")? else { return Ok(()) };
    if let Some(effort) = config.take("effort") {
        chat.insert("reasoning_effort".to_owned(), effort);
    }
    let Some(mut format) = config.object("format")? else { return Ok(()) };
    let kind = format.string("type")?;
    let kind = format.need("type", kind)?;
    if kind != "json_schema" {
        return Err(wrong_type(&format.at("type"), "json_schema", &Value::String(kind)));
    }
    let schema = format.object("schema")?;
    let schema = Value::Object(format.need("schema", schema)?.rest());
    let format = json!({"type": "json_schema", "json_schema": {"name": "output", "schema": schema}});
    chat.insert("response_format".to_owned(), format);
    Ok(())
}

/// A chat's names for what has another name here. A name that contains another stands before it.
const NAMES: [(&str, &str); 8] = [
    ("response_format.json_schema.schema", "output_config.format.schema"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    (".function.parameters", ".input_schema"),
    (".function.name", ".name"),
    ("continue_final_message", "the last message"),
    ("max_completion_tokens", "max_tokens"),
];

/// A fault of the chat in this API's names: `tools[1].function.name` is `tools.1.name`.
pub fn renamed(param: Option<&str>, message: &str) -> (Option<String>, String) {
    let Some(param) = param else { return (None, message.to_owned()) };
    let mut ours = if param == "stop" { "stop_sequences".to_owned() } else { param.to_owned() };
    for (theirs, name) in NAMES {
        ours = ours.replace(theirs, name);
    }
    let ours = ours.replace('[', ".").replace(']', "");
    let message = if ours == param { message.to_owned() } else { message.replace(param, &ours) };
    (Some(ours), message)
}
