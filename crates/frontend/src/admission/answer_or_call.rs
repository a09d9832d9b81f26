//! The grammar of a chat with both `response_format` and tools that the model is free to call: its text is either what
//! the format wants or calls, as the model was trained to write them. Without it, a model that must write JSON from the
//! first token on could never call a tool.
//!
//! Called by [`crate::admission::tools`] only.

use crate::limits::FORCED_CALLS_MAX;
use pinion_protocol::limits::GRAMMAR_BYTES_MAX;
use pinion_protocol::{Grammar, GrammarKind, JSON_SEPARATORS};
use pinion_text::tools::CallFormat;
use serde_json::{Value, json};

/// Members that say nothing of what a value may be. The cost of a grammar is told from its characters.
const WORDS_FOR_PEOPLE: [&str; 3] = ["description", "title", "$comment"];
/// Members that hold data, not schemas.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];

/// Repetition signs in one grammar, schemas included: where there are more, the check of grammars may refuse it. It
/// counts these characters wherever they stand, and those of patterns twice.
const SIGNS_MAX: usize = 150;

/// A function that may be called.
pub(crate) struct Callable<'a> {
    pub(crate) name: &'a str,
    /// What the arguments of a function follow that is `strict`; those of others are any object.
    pub(crate) arguments: Option<Value>,
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

/// The grammar of `answer` or of calls in `format`. Where the schemas of strict functions are too much for one grammar,
/// their arguments are any object; where the answer's own schema is, or the format has no such grammar, `answer` alone.
pub(crate) fn answer_or_call(
    answer: Grammar,
    format: CallFormat,
    callables: &[Callable<'_>],
    is_parallel: bool,
) -> Grammar {
    let schema = match answer.kind {
        GrammarKind::JsonObject => json!({"type": "object"}),
        GrammarKind::JsonSchema => {
            serde_json::from_str(&answer.text).expect("a schema was made from JSON by admission")
        }
        GrammarKind::Regex | GrammarKind::Choice | GrammarKind::Lark | GrammarKind::Tokens => return answer,
    };
    let answer_rule = format!("answer: %json {}\n", inline(schema, false));
    let fits = |text: &String| {
        let signs = text.bytes().filter(|byte| matches!(byte, b'?' | b'*' | b'+')).count();
        text.len() <= GRAMMAR_BYTES_MAX && signs <= SIGNS_MAX
    };
    let text = [true, false].into_iter().find_map(|by_schema| {
        let calls = call_rules(format, callables, by_schema, is_parallel)?;
        Some(format!("start: answer | calls\n{answer_rule}{calls}")).filter(fits)
    });
    match text {
        Some(text) => Grammar { kind: GrammarKind::Lark, field: answer.field, text: text.into() },
        None => answer,
    }
}

/// The rules of `calls`, with the schemas of strict functions or without; none if the format has no grammar.
fn call_rules(
    format: CallFormat,
    callables: &[Callable<'_>],
    by_schema: bool,
    is_parallel: bool,
) -> Option<String> {
    let (mut calls, mut rules, mut between) = (Vec::with_capacity(callables.len()), String::new(), "");
    for (index, Callable { name, arguments }) in callables.iter().enumerate() {
        let (open, close, separator) = frame(format, name)?;
        let (open, close) = (Value::from(open), Value::from(close));
        let arguments = arguments.clone().filter(|_| by_schema);
        let arguments = inline(arguments.unwrap_or_else(|| json!({"type": "object"})), true);
        rules.push_str(&format!("call_{index}: {open} arguments_{index} {close}\n"));
        rules.push_str(&format!("arguments_{index}: %json {arguments}\n"));
        calls.push(format!("call_{index}"));
        between = separator;
    }
    let more = match is_parallel {
        true => format!(" ({} call){{0,{}}}", Value::from(between), FORCED_CALLS_MAX - 1),
        false => String::new(),
    };
    Some(format!("calls: call{more}\ncall: {}\n{rules}", calls.join(" | ")))
}

/// A schema as a part of a grammar, with the spaces that JSON grammars have by themselves. Of a lenient one the library
/// leaves out what it does not support.
fn inline(mut schema: Value, is_lenient: bool) -> Value {
    strip(&mut schema);
    if let Value::Object(members) = &mut schema {
        let (item, key) = JSON_SEPARATORS;
        members.entry("x-guidance").or_insert_with(
            || json!({"whitespace_flexible": false, "item_separator": item, "key_separator": key, "lenient": is_lenient}),
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

    fn answer() -> Grammar {
        Grammar { kind: GrammarKind::JsonObject, field: GrammarField::ResponseFormat, text: "".into() }
    }

    #[test]
    fn formats_that_no_grammar_tells_from_an_answer_leave_it_alone() {
        for format in CallFormat::ALL {
            let callables = [Callable { name: "f", arguments: None }];
            let grammar = answer_or_call(answer(), format, &callables, true);
            assert_eq!(grammar.kind == GrammarKind::Lark, format == CallFormat::Hermes, "{format:?}");
        }
    }

    #[test]
    fn schemas_that_are_too_much_for_a_grammar_do_not_refuse_a_request() {
        let with = |arguments: Value, answer: Grammar| {
            let callables = [Callable { name: "f", arguments: Some(arguments) }];
            answer_or_call(answer, CallFormat::Hermes, &callables, true)
        };
        let kept = with(json!({"type": "object", "properties": {"kept": {}}}), answer());
        assert!(kept.text.contains("kept"), "{}", kept.text);
        for much in ["long ".repeat(GRAMMAR_BYTES_MAX / 5), "*".repeat(SIGNS_MAX + 1)] {
            let grammar = with(json!({"type": "object", "properties": {"kept": {"const": much}}}), answer());
            assert_eq!(grammar.kind, GrammarKind::Lark);
            assert!(!grammar.text.contains("kept"), "{}", grammar.text);
            let text = json!({"const": much}).to_string();
            let large = Grammar { kind: GrammarKind::JsonSchema, text: text.into(), ..answer() };
            assert_eq!(with(json!({"type": "object"}), large.clone()), large);
        }
    }
}
