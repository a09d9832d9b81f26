//! Bodies of the routes that a tokenizer answers by itself: `/tokenize`, `/detokenize`, `/apply-template` and
//! `/v1/messages/count_tokens`.

use crate::admission::json::{Fields, wrong_type};
use crate::admission::tools::{CallReading, tools};
use crate::admission::unknown::leftovers;
use crate::admission::{Limits, chat, check_model, prompts};
use pinion_protocol::Fault;
use pinion_protocol::tokenizer_inbox::Prompt;
use serde_json::Value;

/// Fields of `/tokenize` for a text.
const TEXT: [&str; 4] = ["add_special_tokens", "messages", "model", "prompt"];
/// Those for a chat: what makes its prompt.
const CHAT: [&str; 13] = [
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "messages",
    "model",
    "parallel_tool_calls",
    "prompt",
    "reasoning_effort",
    "tool_choice",
    "tools",
];
/// Fields of `/detokenize`.
const IDS: [&str; 2] = ["model", "tokens"];

/// Admits a body of `/tokenize`: the prompt to encode, and the names of unknown fields.
pub fn admit_tokenize(body: &[u8], limits: &Limits) -> Result<(Prompt, Vec<String>), Fault> {
    let mut fields = Fields::parse(body)?;
    check_model(&mut fields, limits)?;
    let is_chat = fields.has("messages");
    let prompt = match (fields.take("prompt"), is_chat) {
        (Some(Value::String(text)), false) => {
            let framed = prompts::framed(&mut fields, vec![Prompt::Text(text)])?;
            framed.into_iter().next().ok_or_else(|| Fault::field("prompt", "prompt is required"))?
        }
        (Some(other), false) => return Err(wrong_type("prompt", "a string", &other)),
        (None, true) => {
            let offered = offered(&mut fields)?;
            chat::prompt(&mut fields, offered)?
        }
        (Some(_), true) => {
            return Err(Fault::field("messages", "give either prompt or messages, not both"));
        }
        (None, false) => return Err(Fault::field("prompt", "prompt or messages is required")),
    };
    let known: &[&str] = if is_chat { &CHAT } else { &TEXT };
    Ok((prompt, leftovers(|| owned(known), &fields, limits.strict_fields)?))
}

/// Admits a body of `/apply-template`: the chat to render. What does not make the prompt is left alone, so that the
/// body of a chat passes as it is.
pub fn admit_apply_template(body: &[u8], limits: &Limits) -> Result<String, Fault> {
    let mut fields = Fields::parse(body)?;
    check_model(&mut fields, limits)?;
    let offered = offered(&mut fields)?;
    chat::text(&mut fields, offered)
}

/// Admits a body of `/v1/messages/count_tokens`: the prompt to count.
pub fn admit_count(body: &[u8], limits: &Limits) -> Result<Prompt, Fault> {
    let mut fields = Fields::of(pinion_api::messages::count(Fields::parse(body)?.into_members())?);
    check_model(&mut fields, limits)?;
    let offered = offered(&mut fields)?;
    chat::prompt(&mut fields, offered)
}

/// Admits a body of `/detokenize`: the ids to decode, and the names of unknown fields.
pub fn admit_detokenize(body: &[u8], limits: &Limits) -> Result<(Vec<u32>, Vec<String>), Fault> {
    let mut fields = Fields::parse(body)?;
    check_model(&mut fields, limits)?;
    let ids = match fields.take("tokens") {
        None => return Err(Fault::field("tokens", "tokens is required")),
        Some(Value::Array(items)) => prompts::ids("tokens", &items, limits)?,
        Some(other) => return Err(wrong_type("tokens", "an array of token ids", &other)),
    };
    Ok((ids, leftovers(|| owned(&IDS), &fields, limits.strict_fields)?))
}

/// The tools that the template shows.
fn offered(fields: &mut Fields) -> Result<Option<Value>, Fault> {
    Ok(tools(fields, CallReading::AsText)?.offered)
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::json::taken_names;
    use pinion_config::SamplingDefaults;
    use std::collections::BTreeSet;

    fn limits(strict_fields: bool) -> Limits {
        Limits {
            model: "tiny".to_owned(),
            vocab_size: 100,
            max_model_len: 64,
            calls: CallReading::AsText,
            reasons: false,
            defaults: SamplingDefaults::NONE,
            strict_fields,
            pooling: None,
        }
    }

    /// Names of unknown fields, or the message of the fault.
    fn ignored(body: &str, strict: bool) -> Result<Vec<String>, String> {
        let (body, limits) = (body.as_bytes(), limits(strict));
        let is_ids = body.starts_with(b"{\"tokens\"");
        let admitted = match is_ids {
            true => admit_detokenize(body, &limits).map(|(_, ignored)| ignored),
            false => admit_tokenize(body, &limits).map(|(_, ignored)| ignored),
        };
        admitted.map_err(|fault| fault.message)
    }

    #[test]
    fn the_names_that_are_suggested_are_those_that_are_read() {
        let bodies: [(&str, &[&str]); 3] = [
            (r#"{"prompt":"a"}"#, &["add_special_tokens", "model", "prompt"]),
            (r#"{"messages":[{"role":"user","content":"a"}]}"#, &CHAT),
            (r#"{"tokens":[1]}"#, &IDS),
        ];
        for (body, known) in bodies {
            taken_names();
            assert_eq!(ignored(body, true), Ok(Vec::new()));
            let read: BTreeSet<String> = taken_names().into_iter().collect();
            assert_eq!(read, owned(known).into_iter().collect(), "{body}");
        }
    }

    /// They were dropped without a word.
    #[test]
    fn unknown_fields_are_named_or_refused() {
        for (body, name, meant) in [
            (r#"{"prompt":"a","add_special_token":false,"metadata":{}}"#, "add_special_token", true),
            (r#"{"prompt":"a","return_token_strs":true}"#, "return_token_strs", false),
            (r#"{"messages":[{"role":"user","content":"a"}],"chat_tmplate":"x"}"#, "chat_tmplate", true),
            (r#"{"tokens":[1],"modell":"tiny"}"#, "modell", true),
        ] {
            assert_eq!(ignored(body, false), Ok(vec![name.to_owned()]), "{body}");
            let message = ignored(body, true).unwrap_err();
            assert!(message.starts_with(&format!("there is no field {name}")), "{message}");
            assert_eq!(message.contains("did you mean"), meant, "{message}");
        }
        let refused =
            ignored(r#"{"messages":[{"role":"user","content":"a"}],"enable_thinking":false}"#, false);
        assert_eq!(
            refused.unwrap_err(),
            "enable_thinking is not supported. It belongs into chat_template_kwargs."
        );
    }
}
