//! Takes a chat apart: the messages, and what goes to the template beside them.

use minijinja::Value;
use minijinja::value::ValueKind;
use pinion_protocol::Fault;
use pinion_protocol::limits::MESSAGES_MAX;

/// A chat as it crossed from the frontend, checked as far as the forms depend on it.
pub(super) struct Chat {
    pub(super) messages: Vec<Message>,
    /// An array; undefined if there are none.
    pub(super) tools: Value,
    /// An array; undefined if there are none.
    pub(super) documents: Value,
    /// An object of more names for the template; undefined if there are none.
    pub(super) template_kwargs: Value,
    /// The template that the client names.
    pub(super) template: Option<String>,
    /// The client wants what the tokenizer puts around every text.
    pub(super) is_framed: bool,
    /// End with the opening of the assistant's turn.
    pub(super) add_generation_prompt: bool,
    /// End inside the last message.
    pub(super) continue_final_message: bool,
}

/// One message. A member that is not looked at here stays in `members` for the template.
pub(super) struct Message {
    pub(super) role: String,
    /// `None` where the content is null or absent, which only an assistant's may be.
    pub(super) content: Option<Content>,
    /// Tools that an assistant called; undefined if there are none.
    pub(super) tool_calls: Value,
    pub(super) members: Value,
}

pub(super) enum Content {
    Text(String),
    /// The parts as they were sent, and their texts joined.
    Parts(Value, String),
}

impl Content {
    pub(super) fn text(&self) -> &str {
        match self {
            Content::Text(text) | Content::Parts(_, text) => text,
        }
    }
}

/// The chat of a JSON object. The roles are not judged: which there are is up to the template.
pub(super) fn parse(chat_json: &str) -> Result<Chat, Fault> {
    let chat: Value = serde_json::from_str(chat_json)
        .map_err(|e| Fault::field("messages", format!("not valid JSON: {e}")))?;
    let flag = |name: &str, preset: bool| match member(&chat, name).kind() {
        ValueKind::Undefined | ValueKind::None => Ok(preset),
        ValueKind::Bool => Ok(member(&chat, name).is_true()),
        _ => Err(Fault::field(name, "must be a boolean")),
    };
    let given = |name: &str, wanted: ValueKind| {
        let value = member(&chat, name);
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => Ok(Value::UNDEFINED),
            kind if kind == wanted => Ok(value),
            _ => Err(Fault::field(name, "is not of the right type")),
        }
    };
    Ok(Chat {
        messages: messages(&member(&chat, "messages"))?,
        tools: given("tools", ValueKind::Seq)?,
        documents: given("documents", ValueKind::Seq)?,
        template_kwargs: given("chat_template_kwargs", ValueKind::Map)?,
        template: given("chat_template", ValueKind::String)?.as_str().map(str::to_owned),
        is_framed: flag("add_special_tokens", false)?,
        add_generation_prompt: flag("add_generation_prompt", true)?,
        continue_final_message: flag("continue_final_message", false)?,
    })
}

fn messages(array: &Value) -> Result<Vec<Message>, Fault> {
    let count = match array.kind() {
        ValueKind::Seq => array.len().unwrap_or(0),
        _ => return Err(Fault::field("messages", "must be an array of {role, content} objects")),
    };
    if count == 0 {
        return Err(Fault::field("messages", "must have at least one message"));
    }
    if count > MESSAGES_MAX {
        let message = format!("has {count} messages, but at most {MESSAGES_MAX} are accepted");
        return Err(Fault::field("messages", message));
    }
    items(array).enumerate().map(|(index, members)| message(index, members)).collect()
}

fn message(index: usize, members: Value) -> Result<Message, Fault> {
    let at = |field: &str| format!("messages[{index}]{field}");
    if members.kind() != ValueKind::Map {
        return Err(Fault::field(&at(""), "must be an object with role and content"));
    }
    let role = member(&members, "role");
    let Some(role) = role.as_str().filter(|role| !role.is_empty()) else {
        return Err(Fault::field(&at(".role"), "must be a string, such as user or assistant"));
    };
    let content = member(&members, "content");
    let content = match content.kind() {
        ValueKind::String => Some(Content::Text(content.to_string())),
        ValueKind::Seq => {
            let text = joined(index, &content)?;
            Some(Content::Parts(content, text))
        }
        ValueKind::None | ValueKind::Undefined if role == "assistant" => None,
        _ => return Err(Fault::field(&at(".content"), "must be a string or an array of text parts")),
    };
    let tool_calls = match member(&members, "tool_calls") {
        calls if calls.kind() == ValueKind::Seq && calls.is_true() => calls,
        _ => Value::UNDEFINED,
    };
    Ok(Message { role: role.to_owned(), content, tool_calls, members })
}

/// The text of content parts, a line each.
fn joined(index: usize, parts: &Value) -> Result<String, Fault> {
    let mut text = String::new();
    for (part_index, part) in items(parts).enumerate() {
        if part_index > 0 {
            text.push('\n');
        }
        let at = |field: &str| format!("messages[{index}].content[{part_index}]{field}");
        if member(&part, "type").as_str() != Some("text") {
            return Err(Fault::field(&at(".type"), "only parts of type \"text\" are supported"));
        }
        match member(&part, "text").as_str() {
            Some(piece) => text.push_str(piece),
            None => return Err(Fault::field(&at(".text"), "must be a string")),
        }
    }
    Ok(text)
}

/// The items of an array; nothing if it is none.
pub(super) fn items(array: &Value) -> impl Iterator<Item = Value> {
    array.try_iter().ok().into_iter().flatten()
}

/// A member of an object; undefined if there is none.
pub(super) fn member(object: &Value, name: &str) -> Value {
    object.get_attr(name).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_name_the_field() {
        let cases = [
            ("", "messages"),
            ("null", "messages"),
            ("{}", "messages"),
            ("\"text\"", "messages"),
            ("[]", "messages"),
            ("[1]", "messages[0]"),
            ("[[]]", "messages[0]"),
            (r#"[{"content": "a"}]"#, "messages[0].role"),
            (r#"[{"role": 3, "content": "a"}]"#, "messages[0].role"),
            (r#"[{"role": "", "content": "a"}]"#, "messages[0].role"),
            (r#"[{"role": "user"}]"#, "messages[0].content"),
            (r#"[{"role": "user", "content": 3}]"#, "messages[0].content"),
            (
                r#"[{"role": "user", "content": "a"}, {"role": "user", "content": null}]"#,
                "messages[1].content",
            ),
            (r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#, "messages[0].content[0].type"),
            (r#"[{"role": "user", "content": ["a"]}]"#, "messages[0].content[0].type"),
            (
                r#"[{"role": "user", "content": [{"type": "text", "text": 1}]}]"#,
                "messages[0].content[0].text",
            ),
        ];
        for (json, param) in cases {
            let fault = parse(&format!(r#"{{"messages": {json}}}"#)).err().expect(json);
            assert_eq!(fault.param.as_deref(), Some(param), "{json}");
        }
        let many = vec![r#"{"role": "user", "content": ""}"#; MESSAGES_MAX + 1].join(",");
        let many = format!(r#"{{"messages": [{many}]}}"#);
        assert_eq!(parse(&many).err().expect("too many").param.as_deref(), Some("messages"));
        let deep = r#"{"messages":"#.to_owned() + &"[".repeat(10_000);
        assert_eq!(parse(&deep).err().expect("too deep").param.as_deref(), Some("messages"));
        for (name, value) in [
            ("tools", "{}"),
            ("documents", "3"),
            ("chat_template_kwargs", "[]"),
            ("add_generation_prompt", "1"),
            ("continue_final_message", "\"yes\""),
        ] {
            let json = format!(r#"{{"messages": [{{"role": "user", "content": ""}}], "{name}": {value}}}"#);
            assert_eq!(parse(&json).err().expect(name).param.as_deref(), Some(name));
        }
    }
}
