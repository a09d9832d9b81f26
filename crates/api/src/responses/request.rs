//! A body of `/v1/responses` as the body of a chat, and what its answer repeats of it.

use super::input;
use crate::Translated;
use crate::json::{as_integer, function_name, wrong_type};
use crate::limits::TOOLS_MAX;
use crate::object::{Object, at};
use crate::shared::move_shared;
use pinion_protocol::Fault;
use pinion_protocol::limits::MESSAGES_MAX;
use serde_json::{Map, Value, json};

/// Fields that would change the answer and are not served.
const REFUSED: [(&str, &str); 5] = [
    ("conversation", "conversations are not kept here; send previous_response_id, or the items themselves"),
    ("prompt", "there are no stored prompts here; send instructions and input"),
    ("stop", "this API has no stop strings"),
    ("context_management", "items are not compacted here; send fewer"),
    ("moderation", "nothing is moderated here"),
];
/// Fields that cannot change the answer.
const HARMLESS: [&str; 7] = [
    "max_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "stream_options",
];
/// What `include` may ask for. There is no encrypted reasoning: it is in the items as it is.
const INCLUDED: [&str; 1] = ["reasoning.encrypted_content"];
/// As OpenAI has it.
const METADATA_MAX: usize = 16;
/// As OpenAI has it.
const METADATA_VALUE_CHARS_MAX: usize = 512;

/// A body that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The chat without its messages, and the unknown members.
    body: Translated,
    /// The message ahead of the conversation.
    instructions: Option<String>,
    /// The items of this turn.
    input: Vec<Value>,
    /// The response whose conversation goes on.
    pub previous: Option<String>,
    /// Whether the answer is kept.
    pub store: bool,
    /// What the answer repeats.
    pub echo: Map<String, Value>,
}

impl Asked {
    /// Reads a body.
    pub fn parse(body: Map<String, Value>) -> Result<Asked, Fault> {
        let mut body = Object::root(body);
        let mut asked = parse(&mut body).map_err(bracketed)?;
        asked.body.rest = body.rest();
        Ok(asked)
    }

    /// The chat, behind the items of earlier responses, which are a JSON array; and all items of the conversation.
    pub fn chat(self, earlier: Option<&str>) -> Result<(Translated, Vec<Value>), Fault> {
        let unreadable = || Fault::field("previous_response_id", "the earlier response cannot be read");
        let mut items: Vec<Value> = match earlier {
            None => Vec::new(),
            Some(text) => serde_json::from_str(text).map_err(|_| unreadable())?,
        };
        let mut messages = Vec::with_capacity(items.len() + self.input.len() + 1);
        if let Some(instructions) = self.instructions.filter(|text| !text.is_empty()) {
            messages.push(json!({"role": "system", "content": instructions}));
        }
        input::messages("previous_response_id", &items, &mut messages).map_err(|_| unreadable())?;
        input::messages("input", &self.input, &mut messages).map_err(bracketed)?;
        if messages.is_empty() || messages.len() > MESSAGES_MAX {
            let message = format!("input must come to 1 to {MESSAGES_MAX} messages, got {}", messages.len());
            return Err(Fault::field("input", message));
        }
        items.extend(self.input);
        let mut body = self.body;
        body.chat.insert("messages".to_owned(), messages.into());
        Ok((body, items))
    }
}

fn parse(body: &mut Object) -> Result<Asked, Fault> {
    for (name, why) in REFUSED {
        if body.take(name).is_some() {
            return Err(body.refused(name, why));
        }
    }
    if body.boolean("background")?.unwrap_or(false) {
        return Err(body.refused("background", "responses are not made in the background here; use stream"));
    }
    let mut asked = Asked {
        body: Translated { chat: Map::new(), rest: Map::new() },
        instructions: body.string("instructions")?,
        input: items(body)?,
        previous: body.string("previous_response_id")?,
        store: body.boolean("store")?.unwrap_or(true),
        echo: Map::new(),
    };
    let Asked { body: Translated { chat, .. }, echo, .. } = &mut asked;
    truncation(body)?;
    included(body)?;
    tools(body, chat, echo)?;
    text(body, chat, echo)?;
    reasoning(body, chat, echo)?;
    limits(body, chat, echo)?;
    move_shared(body, &["user"], chat);
    for name in HARMLESS {
        body.take(name);
    }
    let repeated = json!({"instructions": asked.instructions, "previous_response_id": asked.previous, "store": asked.store});
    asked.echo.extend(repeated.as_object().cloned().unwrap_or_default());
    Ok(asked)
}

/// `input`: a text of the user's, or items.
fn items(body: &mut Object) -> Result<Vec<Value>, Fault> {
    match body.take("input") {
        None => body.need("input", None),
        Some(Value::String(text)) => Ok(vec![json!({"type": "message", "role": "user", "content": text})]),
        Some(Value::Array(items)) if items.is_empty() => {
            Err(Fault::field("input", "input must have at least one item"))
        }
        Some(Value::Array(items)) if items.len() > MESSAGES_MAX => {
            let message = format!("input may have at most {MESSAGES_MAX} items, got {}", items.len());
            Err(Fault::field("input", message))
        }
        Some(Value::Array(items)) => Ok(items),
        Some(other) => Err(wrong_type("input", "a string or an array of items", &other)),
    }
}

fn truncation(body: &mut Object) -> Result<(), Fault> {
    match body.string("truncation")?.as_deref() {
        None | Some("disabled") => Ok(()),
        Some("auto") => {
            Err(body.refused("truncation", "items are not left out here; send fewer, and \"disabled\""))
        }
        Some(other) => Err(wrong_type("truncation", "\"disabled\"", &Value::String(other.to_owned()))),
    }
}

fn included(body: &mut Object) -> Result<(), Fault> {
    for (index, name) in body.array("include", MESSAGES_MAX)?.unwrap_or_default().iter().enumerate() {
        if !name.as_str().is_some_and(|name| INCLUDED.contains(&name)) {
            return Err(wrong_type(&at("include", index), "\"reasoning.encrypted_content\"", name));
        }
    }
    Ok(())
}

fn tools(
    body: &mut Object,
    chat: &mut Map<String, Value>,
    echo: &mut Map<String, Value>,
) -> Result<(), Fault> {
    let items = body.array("tools", TOOLS_MAX)?.unwrap_or_default();
    let (mut functions, mut shown) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    for (index, item) in items.into_iter().enumerate() {
        let (function, tool) = tool(Object::new(at("tools", index), item)?)?;
        functions.push(function);
        shown.push(tool);
    }
    if !functions.is_empty() {
        chat.insert("tools".to_owned(), functions.into());
    }
    echo.insert("tools".to_owned(), shown.into());
    let parallel = body.boolean("parallel_tool_calls")?;
    chat.extend(parallel.map(|parallel| ("parallel_tool_calls".to_owned(), parallel.into())));
    echo.insert("parallel_tool_calls".to_owned(), parallel.unwrap_or(true).into());
    let choice = body.take("tool_choice").unwrap_or_else(|| "auto".into());
    echo.insert("tool_choice".to_owned(), choice.clone());
    let chosen = match choice {
        Value::String(word) if ["none", "auto", "required"].contains(&word.as_str()) => word.into(),
        Value::Object(members) => {
            let mut choice = Object::new("tool_choice".to_owned(), Value::Object(members))?;
            let kind = choice.string("type")?;
            let kind = choice.need("type", kind)?;
            if kind != "function" {
                let why = format_args!("the choice \"{kind}\" is not served; name a function");
                return Err(choice.refused("type", why));
            }
            let name = choice.take("name").unwrap_or(Value::Null);
            json!({"type": "function", "function": {"name": function_name(&choice.at("name"), &name)?}})
        }
        other => return Err(wrong_type("tool_choice", "none, auto, required or a function", &other)),
    };
    if chat.contains_key("tools") || chosen != "auto" {
        chat.insert("tool_choice".to_owned(), chosen);
    }
    Ok(())
}

/// A tool for the chat, and as the answer shows it.
fn tool(mut tool: Object) -> Result<(Value, Value), Fault> {
    let kind = tool.string("type")?;
    let kind = tool.need("type", kind)?;
    if kind != "function" {
        let why = format_args!("tools of the type \"{kind}\" are not served here; only functions are");
        return Err(tool.refused("type", why));
    }
    let name = tool.take("name").unwrap_or(Value::Null);
    let name = function_name(&tool.at("name"), &name)?.to_owned();
    let description = tool.string("description")?;
    let parameters = tool.object("parameters")?.map(|schema| Value::Object(schema.rest()));
    let strict = tool.boolean("strict")?;
    let shown = json!({"type": "function", "name": name, "description": description, "parameters": parameters,
        "strict": strict.unwrap_or(true)});
    let mut function =
        json!({"name": name, "description": description, "parameters": parameters, "strict": strict});
    // Templates may show every member that there is.
    function.as_object_mut().into_iter().for_each(|members| members.retain(|_, value| !value.is_null()));
    Ok((json!({"type": "function", "function": function}), shown))
}

/// `text`: what the whole text must look like.
fn text(
    body: &mut Object,
    chat: &mut Map<String, Value>,
    echo: &mut Map<String, Value>,
) -> Result<(), Fault> {
    let mut shown = json!({"format": {"type": "text"}});
    if let Some(mut text) = body.object("text")? {
        if let Some(verbosity) = text.take("verbosity") {
            if !["low", "medium", "high"].iter().any(|known| verbosity == *known) {
                return Err(wrong_type(&text.at("verbosity"), "low, medium or high", &verbosity));
            }
            shown["verbosity"] = verbosity;
        }
        if let Some(format) = text.take("format") {
            shown["format"] = format.clone();
            let mut format = Object::new(text.at("format"), format)?;
            let kind = format.string("type")?;
            let kind = format.need("type", kind)?;
            let format = match kind.as_str() {
                "text" => None,
                "json_object" => Some(match format.take("schema") {
                    None => json!({"type": "json_object"}),
                    Some(schema) => json!({"type": "json_object", "schema": schema}),
                }),
                "json_schema" => Some(json_schema(format)?),
                _ => {
                    let wanted = "text, json_object or json_schema";
                    return Err(wrong_type(&format.at("type"), wanted, &Value::String(kind)));
                }
            };
            chat.extend(format.map(|format| ("response_format".to_owned(), format)));
        }
    }
    echo.insert("text".to_owned(), shown);
    Ok(())
}

fn json_schema(mut format: Object) -> Result<Value, Fault> {
    let name = format.string("name")?;
    let name = format.need("name", name)?;
    let schema = format.object("schema")?;
    let schema = Value::Object(format.need("schema", schema)?.rest());
    let strict = format.boolean("strict")?;
    Ok(json!({"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}}))
}

fn reasoning(
    body: &mut Object,
    chat: &mut Map<String, Value>,
    echo: &mut Map<String, Value>,
) -> Result<(), Fault> {
    let (mut effort, mut summary) = (None, None);
    if let Some(mut reasoning) = body.object("reasoning")? {
        effort = reasoning.take("effort");
        summary = reasoning.string("summary")?;
        chat.extend(effort.clone().map(|effort| ("reasoning_effort".to_owned(), effort)));
    }
    echo.insert("reasoning".to_owned(), json!({"effort": effort, "summary": summary}));
    Ok(())
}

/// How the answer is drawn and how long it may be, and what is only repeated.
fn limits(
    body: &mut Object,
    chat: &mut Map<String, Value>,
    echo: &mut Map<String, Value>,
) -> Result<(), Fault> {
    let most = body.take("max_output_tokens");
    if let Some(value) = most.as_ref().filter(|value| as_integer(value).is_none_or(|count| count < 1)) {
        return Err(wrong_type("max_output_tokens", "a positive integer", value));
    }
    chat.extend(most.clone().map(|most| ("max_completion_tokens".to_owned(), most)));
    echo.insert("max_output_tokens".to_owned(), most.unwrap_or(Value::Null));
    for name in ["temperature", "top_p", "presence_penalty", "frequency_penalty"] {
        let value = body.take(name);
        echo.insert(name.to_owned(), json!(value));
        chat.extend(value.map(|value| (name.to_owned(), value)));
    }
    if let Some(alternatives) = body.take("top_logprobs").filter(|value| *value != 0) {
        return Err(wrong_type("top_logprobs", "0: logprobs are for chats", &alternatives));
    }
    let metadata = body.take("metadata").unwrap_or_else(|| json!({}));
    let is_short =
        |value: &Value| value.as_str().is_some_and(|text| text.chars().count() <= METADATA_VALUE_CHARS_MAX);
    let fits = |members: &Map<String, Value>| members.len() <= METADATA_MAX && members.values().all(is_short);
    if !metadata.as_object().is_some_and(fits) {
        let wanted = format!(
            "an object of up to {METADATA_MAX} strings of up to {METADATA_VALUE_CHARS_MAX} characters"
        );
        return Err(wrong_type("metadata", &wanted, &metadata));
    }
    echo.insert("metadata".to_owned(), metadata);
    Ok(())
}

/// A fault with places as OpenAI writes them: `input.0.content` is `input[0].content`.
fn bracketed(fault: Fault) -> Fault {
    let Some(param) = fault.param else { return fault };
    let mut out = String::with_capacity(param.len() + 4);
    for part in param.split('.') {
        match part.bytes().all(|byte| byte.is_ascii_digit()) {
            true => out.extend(["[", part, "]"]),
            false if out.is_empty() => out.push_str(part),
            false => out.extend([".", part]),
        }
    }
    let message = fault.message.replace(&param, &out);
    Fault { param: Some(out), message, ..fault }
}

/// A chat's names for what has another name here. A name that contains another stands before it.
const NAMES: [(&str, &str); 6] = [
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("max_completion_tokens", "max_output_tokens"),
    ("messages", "input"),
    (".function", ""),
];

/// A fault of the chat in this API's names: `tools[1].function.name` is `tools[1].name`.
pub fn renamed(param: Option<&str>, message: &str) -> (Option<String>, String) {
    let Some(param) = param else { return (None, message.to_owned()) };
    let ours = NAMES.iter().fold(param.to_owned(), |ours, (theirs, name)| ours.replace(theirs, name));
    let message = if ours == param { message.to_owned() } else { message.replace(param, &ours) };
    (Some(ours), message)
}
