//! What the model says, before any API words it.

use serde::Serialize;
use serde_json::Value;

/// Why the text ended, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// End-of-sequence token or stop string.
    Stop,
    /// `max_tokens` or the context.
    Length,
    /// The model called tools.
    #[serde(rename = "tool_calls")]
    ToolCalls,
}

impl Ending {
    /// As in the API.
    pub fn name(self) -> &'static str {
        match self {
            Ending::Stop => "stop",
            Ending::Length => "length",
            Ending::ToolCalls => "tool_calls",
        }
    }
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Those of them that came from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens of the answer: up to and including the one that completed a stop string or ended the sequence. What the
    /// engine drew beyond it, because it runs ahead of the detokenizer, is no part of it.
    pub completion_tokens: u32,
    /// Those of them that are reasoning, where it is looked for.
    pub reasoning_tokens: Option<u32>,
}

impl Usage {
    /// The sum over an answer's choices, each prompt counted once.
    pub fn of_choices(usages: impl Iterator<Item = Usage>, choices_per_prompt: usize) -> Usage {
        let none = Usage { prompt_tokens: 0, cached_tokens: 0, completion_tokens: 0, reasoning_tokens: None };
        usages.enumerate().fold(none, |sum, (index, usage)| {
            let is_first = index % choices_per_prompt.max(1) == 0;
            let (prompt_tokens, cached_tokens) =
                if is_first { (usage.prompt_tokens, usage.cached_tokens) } else { (0, 0) };
            Usage {
                prompt_tokens: sum.prompt_tokens.saturating_add(prompt_tokens),
                cached_tokens: sum.cached_tokens.saturating_add(cached_tokens),
                completion_tokens: sum.completion_tokens.saturating_add(usage.completion_tokens),
                reasoning_tokens: match (sum.reasoning_tokens, usage.reasoning_tokens) {
                    (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
                    (sum, more) => sum.or(more),
                },
            }
        })
    }
}

/// A piece of what the model says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// Reasoning ahead of the answer.
    Reasoning(&'a str),
    /// The answer's text.
    Text(&'a str),
    /// A call of a tool begins.
    Call {
        /// What the tool's result will name.
        id: &'a str,
        /// The function.
        name: &'a str,
    },
    /// More of that call's arguments, as JSON.
    Arguments(&'a str),
}

/// Why a request failed, for an API to word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure<'a> {
    /// The HTTP status that the error has, or would have had before the stream began.
    pub status: u16,
    /// The field at fault.
    pub param: Option<&'a str>,
    /// A stable name of the error.
    pub code: Option<&'a str>,
    /// For people.
    pub message: &'a str,
}

/// The arguments of a call as an object. What a limit has cut off is left out: the members that are complete remain.
pub(crate) fn arguments_object(text: &str) -> Value {
    if let Ok(value @ Value::Object(_)) = serde_json::from_str(text) {
        return value;
    }
    let complete = |end: usize, open: &[u8]| {
        let mut prefix = text.get(..end)?.to_owned();
        prefix.extend(open.iter().rev().map(|closing| char::from(*closing)));
        serde_json::from_str::<Value>(&prefix).ok().filter(Value::is_object)
    };
    // The last place behind a complete member, with the brackets that are open there.
    let (mut open, mut in_string, mut escaped) = (Vec::new(), false, false);
    let mut cut: Option<(usize, Vec<u8>)> = None;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                open.push(if byte == b'{' { b'}' } else { b']' });
                cut = Some((at + 1, open.clone()));
            }
            b'}' | b']' => {
                open.pop();
                cut = Some((at + 1, open.clone()));
            }
            b',' => cut = Some((at, open.clone())),
            _ => {}
        }
    }
    cut.and_then(|(end, open)| complete(end, &open)).unwrap_or_else(|| Value::Object(serde_json::Map::new()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_that_were_cut_off_keep_their_complete_members() {
        for (text, expected) in [
            ("{\"a\": 1, \"b\": \"x,}\"}", json!({"a": 1, "b": "x,}"})),
            ("{\"a\": 1, \"b\": \"x,", json!({"a": 1})),
            ("{\"a\": {\"c\": [1, 2, {\"d\": \"\\\"", json!({"a": {"c": [1, 2, {}]}})),
            ("{\"a\": [1, 2], \"b", json!({"a": [1, 2]})),
            ("{\"a\"", json!({})),
            ("{", json!({})),
            ("", json!({})),
            ("[1]", json!({})),
            ("3", json!({})),
            ("}{", json!({})),
        ] {
            assert_eq!(arguments_object(text), expected, "{text}");
        }
    }
}
