//! Chat messages as plain text, for models whose folder brings no chat template.

use pinion_protocol::Fault;
use pinion_protocol::limits::MESSAGES_MAX;
use serde_json::Value;

/// Renders a JSON array of `{role, content}` as text that a base model can continue:
///
/// ```text
/// System: Answer briefly.
/// User: What is a pinion?
/// Assistant:
/// ```
///
/// One line start per message (`system` and `developer` are "System", then "User", "Assistant", "Tool"),
/// the content verbatim, and a final "Assistant:" for the answer. The content is a string or an array of
/// `{"type": "text", "text": ..}` parts, which are joined without anything between them; an assistant's
/// may be null. The same messages always give the same text.
///
/// Errors name the field in the API's spelling, such as `messages[2].content`.
pub fn render_chat(messages_json: &str) -> Result<String, Fault> {
    let messages: Value = serde_json::from_str(messages_json)
        .map_err(|e| Fault::field("messages", format!("not valid JSON: {e}")))?;
    let Value::Array(messages) = messages else {
        return Err(Fault::field("messages", "must be an array of {role, content} objects"));
    };
    if messages.is_empty() {
        return Err(Fault::field("messages", "must have at least one message"));
    }
    if messages.len() > MESSAGES_MAX {
        let message = format!("has {} messages, but at most {MESSAGES_MAX} are accepted", messages.len());
        return Err(Fault::field("messages", message));
    }
    let mut text = String::with_capacity(messages_json.len());
    for (index, message) in messages.iter().enumerate() {
        render_message(index, message, &mut text)?;
    }
    text.push_str("Assistant:");
    Ok(text)
}

fn render_message(index: usize, message: &Value, text: &mut String) -> Result<(), Fault> {
    let at = |field: &str| format!("messages[{index}]{field}");
    if !message.is_object() {
        return Err(Fault::field(&at(""), "must be an object with role and content"));
    }
    let role = message.get("role").and_then(Value::as_str);
    let name = match role {
        Some("system" | "developer") => "System",
        Some("user") => "User",
        Some("assistant") => "Assistant",
        Some("tool") => "Tool",
        _ => {
            return Err(Fault::field(
                &at(".role"),
                "must be one of system, developer, user, assistant, tool",
            ));
        }
    };
    text.push_str(name);
    text.push_str(": ");
    match message.get("content") {
        Some(Value::String(content)) => text.push_str(content),
        Some(Value::Array(parts)) => {
            for (part_index, part) in parts.iter().enumerate() {
                let part_at = |field: &str| format!("messages[{index}].content[{part_index}]{field}");
                if part.get("type").and_then(Value::as_str) != Some("text") {
                    return Err(Fault::field(&part_at(".type"), "only parts of type \"text\" are supported"));
                }
                let Some(content) = part.get("text").and_then(Value::as_str) else {
                    return Err(Fault::field(&part_at(".text"), "must be a string"));
                };
                text.push_str(content);
            }
        }
        Some(Value::Null) | None if name == "Assistant" => {}
        _ => return Err(Fault::field(&at(".content"), "must be a string or an array of text parts")),
    }
    text.push('\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_labelled_lines() {
        let json = r#"[
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": ""},
            {"role": "user", "content": [{"type": "text", "text": "Hé"}, {"type": "text", "text": "llo\n終"}]},
            {"role": "assistant", "content": null},
            {"role": "tool", "content": "42", "tool_call_id": "x"}
        ]"#;
        let expected = "System: Be brief.\nSystem: \nUser: Héllo\n終\nAssistant: \nTool: 42\nAssistant:";
        assert_eq!(render_chat(json).as_deref(), Ok(expected));
    }

    #[test]
    fn faults_name_the_field() {
        let cases = [
            ("", "messages"),
            ("{}", "messages"),
            ("[]", "messages"),
            ("[1]", "messages[0]"),
            (r#"[{"role": "user", "content": "a"}, {"role": "wizard", "content": "a"}]"#, "messages[1].role"),
            (r#"[{"content": "a"}]"#, "messages[0].role"),
            (r#"[{"role": "user"}]"#, "messages[0].content"),
            (r#"[{"role": "user", "content": 3}]"#, "messages[0].content"),
            (r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#, "messages[0].content[0].type"),
            (r#"[{"role": "user", "content": ["a"]}]"#, "messages[0].content[0].type"),
            (
                r#"[{"role": "user", "content": [{"type": "text", "text": 1}]}]"#,
                "messages[0].content[0].text",
            ),
        ];
        for (json, param) in cases {
            assert_eq!(render_chat(json).unwrap_err().param.as_deref(), Some(param), "{json}");
        }
        let many = format!("[{}]", vec![r#"{"role": "user", "content": ""}"#; MESSAGES_MAX + 1].join(","));
        assert_eq!(render_chat(&many).unwrap_err().param.as_deref(), Some("messages"));
        let deep = "[".repeat(10_000);
        assert_eq!(render_chat(&deep).unwrap_err().param.as_deref(), Some("messages"));
    }
}
