//! Chat messages as plain text, for models whose folder brings no chat template.

use super::messages::{Content, Message};
use pinion_protocol::Fault;

/// Renders messages as text that a base model can continue:
///
/// ```text
/// System: Answer briefly.
/// User: What is a pinion?
/// Assistant:
/// ```
///
/// One line start per message (`system` and `developer` are "System", then "User", "Assistant", and "Tool" for
/// `tool` and `function`), the content verbatim, and a final "Assistant:" for the answer.
pub(super) fn render(messages: &[Message], add_generation_prompt: bool) -> Result<String, Fault> {
    let mut text = String::new();
    for (index, message) in messages.iter().enumerate() {
        let name = match message.role.as_str() {
            "system" | "developer" => "System",
            "user" => "User",
            "assistant" => "Assistant",
            "tool" | "function" => "Tool",
            _ => {
                let roles = "must be one of system, developer, user, assistant, tool, function";
                return Err(Fault::field(&format!("messages[{index}].role"), roles));
            }
        };
        text.push_str(name);
        text.push_str(": ");
        text.push_str(message.content.as_ref().map_or("", Content::text));
        text.push('\n');
    }
    if add_generation_prompt {
        text.push_str("Assistant:");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::messages::parse;
    use super::*;

    fn parsed(json: &str) -> Vec<Message> {
        parse(&format!(r#"{{"messages": {json}}}"#)).unwrap().messages
    }

    #[test]
    fn messages_become_labelled_lines() {
        let json = r#"[
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": ""},
            {"role": "user", "content": [{"type": "text", "text": "Hé"}, {"type": "text", "text": "llo\n終"}]},
            {"role": "assistant", "content": null},
            {"role": "tool", "content": "42", "tool_call_id": "x"}
        ]"#;
        let lines = "System: Be brief.\nSystem: \nUser: Hé\nllo\n終\nAssistant: \nTool: 42\n";
        let messages = parsed(json);
        assert_eq!(render(&messages, false).as_deref(), Ok(lines));
        assert_eq!(render(&messages, true), Ok(format!("{lines}Assistant:")));
    }

    #[test]
    fn an_unknown_role_is_named() {
        let messages = parsed(r#"[{"role": "user", "content": "a"}, {"role": "wizard", "content": "a"}]"#);
        assert_eq!(render(&messages, true).unwrap_err().param.as_deref(), Some("messages[1].role"));
    }
}
