//! The grammar of a chat with both `response_format` and tools that the model is free to call: its text is either what
//! the format wants or calls, as the model was trained to write them. Without it, a model that must write JSON from the
//! first token on could never call a tool.
//!
//! Called by [`crate::admission::tools`] only.

use crate::limits::FORCED_CALLS_MAX;
use pinion_protocol::limits::GRAMMAR_BYTES_MAX;
use pinion_protocol::{Fault, Grammar, GrammarKind};
use pinion_text::tools::CallFormat;
use serde_json::{Value, json};

/// Members that say nothing of what a value may be. The cost of a grammar is told from its characters.
const WORDS_FOR_PEOPLE: [&str; 3] = ["description", "title", "$comment"];
/// Members that hold data, not schemas.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];

/// A function that may be called, and the schema of its arguments.
pub(crate) struct Callable<'a> {
    pub(crate) name: &'a str,
    pub(crate) parameters: Value,
}

/// What a format writes around the arguments of a call, and between two calls. None where arguments are no JSON, the
/// format has several forms, or a call begins as JSON does: the library's lexer takes the longer of two words that
/// begin alike, so the answer could not be written.
fn frame(format: CallFormat, name: &str) -> Option<(String, &'static str, &'static str)> {
    let name = Value::from(name);
    match format {
        CallFormat::Hermes => {
            Some((format!("<tool_call>\n{{\"name\": {name}, \"arguments\": "), "}\n</tool_call>", "\n"))
        }
        CallFormat::Llama3Json | CallFormat::Mistral | CallFormat::Qwen3Coder | CallFormat::Pythonic => None,
    }
}

/// The grammar of `answer` or of calls in `format`; `answer` alone where no grammar can be made of that.
pub(crate) fn answer_or_call(
    answer: Grammar,
    format: CallFormat,
    callables: Vec<Callable<'_>>,
    is_parallel: bool,
) -> Result<Grammar, Fault> {
    let schema = match answer.kind {
        GrammarKind::JsonObject => json!({"type": "object"}),
        GrammarKind::JsonSchema => {
            serde_json::from_str(&answer.text).expect("a schema was made from JSON by admission")
        }
        GrammarKind::Regex | GrammarKind::Choice | GrammarKind::Lark | GrammarKind::Tokens => {
            return Ok(answer);
        }
    };
    let (mut calls, mut rules, mut between) = (Vec::with_capacity(callables.len()), String::new(), "");
    for (index, Callable { name, parameters }) in callables.into_iter().enumerate() {
        let Some((open, close, separator)) = frame(format, name) else { return Ok(answer) };
        let (open, close) = (Value::from(open), Value::from(close));
        rules.push_str(&format!("call_{index}: {open} arguments_{index} {close}\n"));
        rules.push_str(&format!("arguments_{index}: %json {}\n", inline(parameters)));
        calls.push(format!("call_{index}"));
        between = separator;
    }
    let more = match is_parallel {
        true => format!(" ({} call){{0,{}}}", Value::from(between), FORCED_CALLS_MAX - 1),
        false => String::new(),
    };
    let head = format!("start: answer | call{more}\nanswer: %json {}\n", inline(schema));
    let text = format!("{head}call: {}\n{rules}", calls.join(" | "));
    if text.len() > GRAMMAR_BYTES_MAX {
        let name = answer.field.name();
        let message = format!(
            "{name} and the parameters of tools may have at most {GRAMMAR_BYTES_MAX} bytes together, got {}",
            text.len()
        );
        return Err(Fault::field(name, message));
    }
    Ok(Grammar { kind: GrammarKind::Lark, field: answer.field, text: text.into() })
}

/// A schema as a part of a grammar, with the spaces that JSON grammars have by themselves.
fn inline(mut schema: Value) -> Value {
    strip(&mut schema);
    if let Value::Object(members) = &mut schema {
        members.entry("x-guidance").or_insert_with(
            || json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}),
        );
    }
    schema
}

/// Removes what is for people. A property of such a name is a schema, not a text, and stays.
fn strip(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.retain(|name, value| !(value.is_string() && WORDS_FOR_PEOPLE.contains(&name.as_str())));
            members
                .iter_mut()
                .filter(|(name, _)| !DATA.contains(&name.as_str()))
                .for_each(|(_, value)| strip(value));
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_protocol::GrammarField;

    #[test]
    fn what_is_for_people_is_left_out_and_properties_of_such_names_stay() {
        let schema = json!({"type": "object", "title": "T", "description": "Why? *", "properties": {
            "title": {"type": "string", "description": "d"}, "description": {"const": {"title": "kept"}}}});
        let expected = json!({"type": "object", "properties": {
            "title": {"type": "string"}, "description": {"const": {"title": "kept"}}}});
        let mut stripped = schema;
        strip(&mut stripped);
        assert_eq!(stripped, expected);
    }

    #[test]
    fn formats_that_no_grammar_tells_from_an_answer_leave_it_alone() {
        let answer = || Grammar {
            kind: GrammarKind::JsonObject,
            field: GrammarField::ResponseFormat,
            text: "".into(),
        };
        for format in CallFormat::ALL {
            let callables = vec![Callable { name: "f", parameters: json!({"type": "object"}) }];
            let grammar = answer_or_call(answer(), format, callables, true).unwrap();
            assert_eq!(grammar.kind == GrammarKind::Lark, format == CallFormat::Hermes, "{format:?}");
        }
    }
}
