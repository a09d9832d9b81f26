//! The fields that ask for a form of the text: which grammar each becomes, and what is refused, naming which field.
#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::asked::{body, limits};
use pinion_frontend::admission::{Admitted, Api, admit};
use pinion_protocol::{Fault, FaultCode, Grammar, GrammarField, GrammarKind};
use serde_json::{Value, json};

fn admitted(api: Api, body: &str) -> Result<Admitted, Fault> {
    admit(api, body.as_bytes(), &limits(), 77)
}

fn passes(api: Api, extra: Value) -> Admitted {
    let body = body(api, extra).to_string();
    admitted(api, &body).unwrap_or_else(|fault| panic!("{body}: {fault}"))
}

fn refused(api: Api, body: &str) -> (FaultCode, Option<String>) {
    let fault = admitted(api, body).expect_err(body);
    (fault.code, fault.param)
}

#[test]
fn every_way_to_ask_for_a_form_gives_its_grammar() {
    use GrammarField::*;
    let schema = json!({"type": "object", "properties": {"z": {"type": "null"}, "a": {"type": "null"}}});
    // In the order in which the client wrote the members, and closed.
    let text = r#"{"type":"object","properties":{"z":{"type":"null"},"a":{"type":"null"}},"additionalProperties":false}"#;
    let named = json!({"name": "n-1", "schema": schema, "strict": true, "description": "x"});
    let choices = json!(["a", "é\""]);
    let table = [
        ("response_format", json!({"type": "json_object"}), GrammarKind::JsonObject, ResponseFormat, ""),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": named}),
            GrammarKind::JsonSchema,
            ResponseFormat,
            text,
        ),
        ("guided_json", schema.clone(), GrammarKind::JsonSchema, GuidedJson, text),
        ("guided_json", json!(format!(" {text} ")), GrammarKind::JsonSchema, GuidedJson, text),
        ("guided_regex", json!("a+"), GrammarKind::Regex, GuidedRegex, "a+"),
        ("guided_choice", choices.clone(), GrammarKind::Choice, GuidedChoice, "[\"a\",\"é\\\"\"]"),
        ("guided_grammar", json!("start: \"a\""), GrammarKind::Lark, GuidedGrammar, "start: \"a\""),
        ("structured_outputs", json!({"json": schema}), GrammarKind::JsonSchema, StructuredOutputs, text),
        (
            "structured_outputs",
            json!({"regex": "b", "json": null}),
            GrammarKind::Regex,
            StructuredOutputs,
            "b",
        ),
        ("structured_outputs", json!({"choice": ["a"]}), GrammarKind::Choice, StructuredOutputs, "[\"a\"]"),
        ("structured_outputs", json!({"grammar": "g"}), GrammarKind::Lark, StructuredOutputs, "g"),
        (
            "structured_outputs",
            json!({"json_object": true, "disable_any_whitespace": true}),
            GrammarKind::JsonObject,
            StructuredOutputs,
            "",
        ),
    ];
    for (name, value, kind, field, text) in table {
        let expected = Grammar { kind, field, text: text.into() };
        for api in [Api::Completions, Api::Chat] {
            assert_eq!(passes(api, json!({name: value})).sampling.grammar, Some(expected.clone()), "{name}");
        }
        let body = body(Api::Generate, json!({name: value})).to_string();
        assert_eq!(refused(Api::Generate, &body), (FaultCode::InvalidValue, Some(name.to_owned())), "{name}");
    }
    for neutral in [json!({"response_format": {"type": "text"}}), json!({"guided_json": null})] {
        assert_eq!(passes(Api::Chat, neutral).sampling.grammar, None);
    }
}

#[test]
fn what_is_no_form_is_refused_by_name() {
    let long = "x".repeat((64 << 10) + 1);
    let many = vec!["x"; 1025];
    let named = |name: Value, schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}});
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(40), "]".repeat(40));
    let table = [
        (json!({"response_format": 5}), "response_format"),
        (json!({"response_format": {}}), "response_format.type"),
        (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": 5}}),
            "response_format.json_schema",
        ),
        (named(json!(null), json!({})), "response_format.json_schema.name"),
        (named(json!("a b"), json!({})), "response_format.json_schema.name"),
        (named(json!("x".repeat(65)), json!({})), "response_format.json_schema.name"),
        (named(json!("n"), json!(null)), "response_format.json_schema.schema"),
        (named(json!("n"), json!("{}")), "response_format.json_schema.schema"),
        (named(json!("n"), json!({"x": long})), "response_format.json_schema.schema"),
        (json!({"guided_json": [1]}), "guided_json"),
        (json!({"guided_json": "{"}), "guided_json"),
        (json!({"guided_json": "5"}), "guided_json"),
        (json!({"guided_json": deep}), "guided_json"),
        (json!({"guided_regex": ""}), "guided_regex"),
        (json!({"guided_regex": 5}), "guided_regex"),
        (json!({"guided_regex": long}), "guided_regex"),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"guided_choice": ["a", ""]}), "guided_choice"),
        (json!({"guided_choice": ["a", 5]}), "guided_choice"),
        (json!({"guided_choice": many}), "guided_choice"),
        (json!({"guided_choice": "a"}), "guided_choice"),
        (json!({"guided_grammar": {}}), "guided_grammar"),
        (json!({"guided_whitespace_pattern": " "}), "guided_whitespace_pattern"),
        (json!({"guided_whitespace_pattern": " ", "guided_regex": "a"}), "guided_whitespace_pattern"),
        (json!({"guided_whitespace_pattern": "", "guided_json": {}}), "guided_whitespace_pattern"),
        (json!({"guided_whitespace_pattern": 5, "guided_json": {}}), "guided_whitespace_pattern"),
        (
            json!({"structured_outputs": {"json": {}, "disable_any_whitespace": 5}}),
            "structured_outputs.disable_any_whitespace",
        ),
        (
            json!({"structured_outputs": {"json": {}, "disable_any_whitespace": true, "whitespace_pattern": " "}}),
            "structured_outputs.whitespace_pattern",
        ),
        (json!({"guided_regex": "a", "guided_choice": ["a"]}), "guided_choice"),
        (json!({"guided_regex": "a", "response_format": {"type": "json_object"}}), "guided_regex"),
        (json!({"guided_regex": "a", "structured_outputs": {"regex": "a"}}), "structured_outputs"),
        (json!({"structured_outputs": {}}), "structured_outputs"),
        (json!({"structured_outputs": {"json_object": false}}), "structured_outputs"),
        (json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}), "structured_outputs"),
        (json!({"structured_outputs": {"regex": 5}}), "structured_outputs.regex"),
        (json!({"structured_outputs": {"json_object": 5}}), "structured_outputs.json_object"),
        (
            json!({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}),
            "structured_outputs.whitespace_pattern",
        ),
        (json!({"structured_outputs": {"structural_tag": "{}"}}), "structured_outputs.structural_tag"),
    ];
    for (extra, param) in table {
        for api in [Api::Completions, Api::Chat] {
            let body = body(api, extra.clone()).to_string();
            assert_eq!(refused(api, &body), (FaultCode::InvalidValue, Some(param.to_owned())), "{extra}");
        }
    }
}

/// As llama-server, Together and Fireworks have it; it was dropped without a word.
#[test]
fn a_json_object_may_have_a_schema() {
    let closed = r#"{"type":"object","properties":{"a":{}},"additionalProperties":false}"#;
    for (schema, kind, text) in [
        (json!(null), GrammarKind::JsonObject, ""),
        (json!({}), GrammarKind::JsonObject, ""),
        (json!({"type": "object", "properties": {"a": {}}}), GrammarKind::JsonSchema, closed),
    ] {
        let format = json!({"response_format": {"type": "json_object", "schema": schema}});
        let expected = Grammar { kind, field: GrammarField::ResponseFormat, text: text.into() };
        assert_eq!(passes(Api::Chat, format).sampling.grammar, Some(expected), "{schema}");
    }
    let short = json!({"type": "json_schema", "schema": {"type": "object", "properties": {"a": {}}}});
    let grammar = passes(Api::Chat, json!({"response_format": short})).sampling.grammar;
    assert_eq!(grammar.map(|grammar| grammar.text.to_string()).as_deref(), Some(closed));
    for schema in [json!("{}"), json!([]), json!({"x": "x".repeat((64 << 10) + 1)})] {
        let body = body(Api::Chat, json!({"response_format": {"type": "json_object", "schema": schema}}));
        let (code, param) = refused(Api::Chat, &body.to_string());
        assert_eq!((code, param.as_deref()), (FaultCode::InvalidValue, Some("response_format.schema")));
    }
}

/// An object that names its members has no others, unless the client wants the letter of the standard.
#[test]
fn a_schema_may_be_taken_literally() {
    let open = json!({"type": "object", "properties": {"a": {}}});
    let mut closed = open.clone();
    closed["additionalProperties"] = false.into();
    for (schema, is_closed) in
        [(open.clone(), None), (json!(open.to_string()), None), (open.clone(), Some(true))]
    {
        let outputs = json!({"json": schema, "disable_additional_properties": is_closed});
        let grammar = passes(Api::Chat, json!({ "structured_outputs": outputs })).sampling.grammar;
        assert_eq!(&*grammar.expect("a grammar").text, closed.to_string());
    }
    for schema in [open.clone(), json!(open.to_string())] {
        let outputs = json!({"json": schema, "disable_additional_properties": false});
        let grammar = passes(Api::Chat, json!({ "structured_outputs": outputs })).sampling.grammar;
        assert_eq!(&*grammar.expect("a grammar").text, open.to_string());
    }
}

/// JSON is compact unless the request asks for white space, and then that is part of the schema.
#[test]
fn white_space_in_json_is_asked_for() {
    let spaced = |pattern: &str| json!({"type": "object", "x-guidance": {"whitespace_pattern": pattern}});
    let (schema, any) = (json!({"type": "object"}), r"[\x20\x0A\x0D\x09]{1,21}");
    for (extra, expected) in [
        (json!({"guided_json": schema}), schema.clone()),
        (json!({"guided_json": schema, "guided_whitespace_pattern": "\n"}), spaced("\n")),
        (
            json!({"response_format": {"type": "json_object"}, "guided_whitespace_pattern": " ?"}),
            spaced(" ?"),
        ),
        (json!({"structured_outputs": {"json": schema, "whitespace_pattern": " "}}), spaced(" ")),
        (json!({"structured_outputs": {"json": schema, "disable_any_whitespace": true}}), schema.clone()),
        (json!({"structured_outputs": {"json": schema, "disable_any_whitespace": false}}), spaced(any)),
        (json!({"structured_outputs": {"json_object": true, "disable_any_whitespace": false}}), spaced(any)),
    ] {
        let grammar = passes(Api::Chat, extra.clone()).sampling.grammar.expect("a grammar");
        let text: serde_json::Value = serde_json::from_str(&grammar.text).expect("a schema");
        assert_eq!((grammar.kind, text), (GrammarKind::JsonSchema, expected), "{extra}");
    }
}

/// Which tokens may be drawn is said in one grammar; beside another one it has no place.
#[test]
fn tokens_that_may_be_drawn_are_a_grammar() {
    use GrammarField::{AllowedTokenIds, BadWords};
    for (extra, field, text) in [
        (json!({"allowed_token_ids": [3, 99]}), AllowedTokenIds, r#"{"allowed":[3,99]}"#),
        (json!({"bad_words": ["a", " b"]}), BadWords, r#"{"words":["a"," b"]}"#),
        (
            json!({"bad_words": ["a"], "allowed_token_ids": [0]}),
            AllowedTokenIds,
            r#"{"words":["a"],"allowed":[0]}"#,
        ),
    ] {
        for api in [Api::Completions, Api::Chat, Api::Generate] {
            let expected = Grammar { kind: GrammarKind::Tokens, field, text: text.into() };
            assert_eq!(passes(api, extra.clone()).sampling.grammar, Some(expected), "{extra}");
        }
    }
    assert_eq!(passes(Api::Chat, json!({"bad_words": [], "allowed_token_ids": null})).sampling.grammar, None);
    for (extra, param) in [
        (json!({"allowed_token_ids": []}), "allowed_token_ids"),
        (json!({"allowed_token_ids": [100]}), "allowed_token_ids"),
        (json!({"allowed_token_ids": "a"}), "allowed_token_ids"),
        (json!({"bad_words": [""]}), "bad_words"),
        (json!({"bad_words": [1]}), "bad_words"),
        (json!({"bad_words": "a"}), "bad_words"),
        (json!({"bad_words": vec!["x"; 1025]}), "bad_words"),
        (json!({"bad_words": ["a"], "guided_regex": "b"}), "bad_words"),
    ] {
        let body = body(Api::Chat, extra.clone()).to_string();
        assert_eq!(refused(Api::Chat, &body), (FaultCode::InvalidValue, Some(param.to_owned())), "{extra}");
    }
}
