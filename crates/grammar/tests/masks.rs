//! The mask of a prefix is the set of tokens that the grammar takes one by one, and what is drawn from masks is what
//! the grammar describes.

#![allow(clippy::unwrap_used)] // a failed unwrap here is a failed test

mod words;

use pinion_grammar::{MarkIds, Next, Vocabulary, Words};
use pinion_protocol::{GrammarKind, Reasoning, StopIds};
use pinion_random::Random;
use regex::Regex;
use serde_json::{Value, json};
use words::{EOS, allowed, draw, grammar, vocabulary, words};

const SEEDS: u64 = 12;

/// Kinds and texts without an own check: for the mask alone.
fn grammars() -> Vec<(GrammarKind, String)> {
    let lark = "start: item (\",\" item)*\nitem: NAME \"=\" (NUMBER | list)\nlist: \"[\" [item (\";\" item)*] \"]\"\n\
                NAME: /[a-z]{1,4}/\nNUMBER: /-?[0-9]+(\\.[0-9]+)?/";
    let mut all: Vec<_> = expressions().iter().map(|text| (GrammarKind::Regex, (*text).to_owned())).collect();
    all.extend(all_schemas().map(|(schema, _)| (GrammarKind::JsonSchema, schema.to_string())));
    all.push((GrammarKind::Choice, json!(["yes", "no", "maybe not", "é\"\\/\n", "日本語"]).to_string()));
    all.push((GrammarKind::Lark, lark.to_owned()));
    all.push((GrammarKind::Lark, "start: \"(\" start \")\" | \"x\"".to_owned()));
    all
}

fn expressions() -> [&'static str; 14] {
    [
        "[ab]+",
        "a?b?c?",
        "(yes|no|maybe)",
        "[0-9]{3}-[0-9]{4}",
        "^[a-z]+$",
        "\\d{4}-(0[1-9]|1[0-2])-[0-3]\\d",
        "(ab|ba)*c",
        ".{0,5}",
        "[^\"\\\\]{2,6}",
        "é+a?",
        "a/b\\.c",
        "(a|b)*a(a|b){3}",
        "x*",
        "[\\w]+@[a-z]+\\.(com|org)",
    ]
}

type Check = fn(&Value) -> bool;

fn all_schemas() -> impl Iterator<Item = (Value, Check)> {
    schemas().into_iter().chain(nested_schemas())
}

/// Schemas, and by hand what makes a value one of theirs.
fn schemas() -> Vec<(Value, Check)> {
    vec![
        (json!({"type": "integer", "minimum": -5, "maximum": 120}), |v| {
            // JSON has a -0, which is no integer of Rust's.
            v.as_f64().is_some_and(|n| n.fract() == 0.0 && (-5.0..=120.0).contains(&n))
        }),
        (json!({"type": "boolean"}), Value::is_boolean),
        (json!({"type": "null"}), Value::is_null),
        (json!({"type": "string", "minLength": 2, "maxLength": 5}), |v| {
            v.as_str().is_some_and(|s| (2..=5).contains(&s.chars().count()))
        }),
        (json!({"type": "string", "pattern": "^[ab]{2,4}$"}), |v| {
            v.as_str()
                .is_some_and(|s| (2..=4).contains(&s.len()) && s.bytes().all(|b| b == b'a' || b == b'b'))
        }),
        (json!({"enum": ["red", "green", 3, null, {"a": 1}]}), |v| {
            [json!("red"), json!("green"), json!(3), json!(null), json!({"a": 1})].contains(v)
        }),
        (json!({"const": {"b": [1, 2], "a": "x"}}), |v| *v == json!({"b": [1, 2], "a": "x"})),
        (json!({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}), |v| {
            v.as_array().is_some_and(|a| (1..=3).contains(&a.len()) && a.iter().all(Value::is_boolean))
        }),
    ]
}

fn nested_schemas() -> Vec<(Value, Check)> {
    vec![
        (
            json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer",
                "minimum": 0, "maximum": 9}}, "required": ["name", "age"], "additionalProperties": false}),
            |v| {
                v.as_object().is_some_and(|o| {
                    o.keys().eq(["name", "age"])
                        && o["name"].as_str().is_some_and(|s| s.chars().count() <= 4)
                        && o["age"].as_u64().is_some_and(|n| n <= 9)
                })
            },
        ),
        (
            json!({"type": "object", "properties": {"z": {"const": 1}, "a": {"const": 2}}, "additionalProperties": false}),
            |v| {
                let known = |(name, value): (&String, &Value)| match name.as_str() {
                    "z" => *value == json!(1),
                    "a" => *value == json!(2),
                    _ => false,
                };
                v.as_object().is_some_and(|o| o.iter().all(known))
            },
        ),
        (
            json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"},
                {"$ref": "#/$defs/node"}]}}, "required": ["next"], "additionalProperties": false}}}),
            |v| {
                let mut at = v;
                while let Some(node) = at.as_object() {
                    if !node.keys().eq(["next"]) {
                        return false;
                    }
                    at = &node["next"];
                }
                at.is_null() && v.is_object()
            },
        ),
        (
            json!({"anyOf": [{"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 99}, {"const": "none"}]}),
            |v| *v == json!("none") || v.as_u64().is_some_and(|n| n % 5 == 0 && n <= 99),
        ),
        (json!({"type": "string", "format": "date"}), |v| {
            v.as_str().is_some_and(|s| Regex::new(r"^\d{4}-\d\d-\d\d$").unwrap().is_match(s))
        }),
        (json!({"type": "object", "maxProperties": 2, "additionalProperties": {"type": "null"}}), |v| {
            v.as_object().is_some_and(|o| o.len() <= 2 && o.values().all(Value::is_null))
        }),
        (json!({"type": "number", "minimum": 0, "exclusiveMaximum": 1}), |v| {
            v.as_f64().is_some_and(|n| (0.0..1.0).contains(&n))
        }),
    ]
}

fn compiled(
    vocabulary: &std::sync::Arc<Vocabulary>,
    kind: GrammarKind,
    text: &str,
) -> pinion_grammar::Matcher {
    vocabulary.compile(&grammar(kind, text)).unwrap_or_else(|reason| panic!("{text}: {reason}"))
}

#[test]
fn the_mask_is_what_the_matcher_takes_token_by_token() {
    let (vocabulary, words) = (vocabulary(), words());
    let mut looks = 0;
    for (kind, text) in grammars() {
        for seed in 0..SEEDS {
            let mut matcher = compiled(&vocabulary, kind, &text);
            draw(&mut matcher, &words, &mut Random::new(seed), 25, |matcher, bits| {
                for token in 0..words.bytes.len() as u32 {
                    let alone = matcher.allows(token);
                    assert_eq!(allowed(bits, token), alone, "{text}, seed {seed}: token {token}");
                }
                looks += 1;
            });
        }
    }
    assert!(looks > 1000, "{looks} prefixes");
}

#[test]
fn what_is_drawn_is_what_the_grammar_describes() {
    let (vocabulary, words) = (vocabulary(), words());
    let mut ended = 0;
    let mut text_of = |kind, text: &str, seed| {
        let mut matcher = compiled(&vocabulary, kind, text);
        let (bytes, over) = draw(&mut matcher, &words, &mut Random::new(seed), 400, |_, _| {});
        ended += usize::from(over);
        over.then(|| String::from_utf8(bytes).unwrap())
    };
    for seed in 0..4 * SEEDS {
        for expression in expressions() {
            if let Some(text) = text_of(GrammarKind::Regex, expression, seed) {
                let whole = Regex::new(&format!("^(?:{expression})$")).unwrap();
                assert!(whole.is_match(&text), "{expression}, seed {seed}: {text:?}");
            }
        }
        for (schema, check) in all_schemas() {
            if let Some(text) = text_of(GrammarKind::JsonSchema, &schema.to_string(), seed) {
                let value: Value =
                    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{schema}: {text}: {e}"));
                assert!(check(&value), "{schema}, seed {seed}: {text}");
            }
        }
        if let Some(text) = text_of(GrammarKind::JsonObject, "", seed) {
            match serde_json::from_str::<Value>(&text) {
                Ok(value) => assert!(value.is_object(), "seed {seed}: {text}"),
                // JSON has larger numbers than an f64.
                Err(error) => {
                    assert!(error.to_string().contains("out of range"), "seed {seed}: {error}: {text}")
                }
            }
        }
        let choices = ["yes", "no", "maybe not", "é\"\\/\n", "日本語"];
        let text = text_of(GrammarKind::Choice, &json!(choices).to_string(), seed).unwrap();
        assert!(choices.contains(&text.as_str()), "seed {seed}: {text:?}");
    }
    assert!(ended > 1000, "{ended} texts ended by themselves");
}

#[test]
fn a_text_is_complete_as_soon_as_nothing_may_follow() {
    let vocabulary = vocabulary();
    let mut bits = Vec::new();
    for (expression, tokens, next) in [
        ("ab", &[97][..], Next::Tokens),
        ("ab", &[97, 98], Next::Complete),
        ("a?", &[], Next::Tokens),
        ("a?", &[97], Next::Complete),
        ("a*", &[97, 97], Next::Tokens),
        ("", &[], Next::Complete),
    ] {
        let mut matcher = compiled(&vocabulary, GrammarKind::Regex, expression);
        tokens.iter().for_each(|token| matcher.advance(*token).unwrap());
        assert_eq!(matcher.next(&mut bits), Ok(next), "{expression} after {tokens:?}");
    }
    let mut matcher = compiled(&vocabulary, GrammarKind::Regex, "a+");
    assert_eq!(matcher.next(&mut bits), Ok(Next::Tokens));
    assert!(!allowed(&bits, EOS), "the end is allowed only where the grammar accepts");
    matcher.advance(97).unwrap();
    assert_eq!(matcher.next(&mut bits), Ok(Next::Tokens));
    assert!(allowed(&bits, EOS));
    assert!(matcher.advance(98).is_err());
}

#[test]
fn a_model_without_an_end_ends_with_its_grammar() {
    let vocabulary = Vocabulary::new(Words { stop_ids: StopIds::NONE, ..words() }).unwrap();
    let mut bits = Vec::new();
    let mut matcher = compiled(&vocabulary, GrammarKind::Regex, "a?");
    assert_eq!(matcher.next(&mut bits), Ok(Next::Tokens));
    matcher.advance(97).unwrap();
    assert_eq!(matcher.next(&mut bits), Ok(Next::Complete));
}

/// Such a tokenizer does not show the space, so the text would not be what the grammar says.
#[test]
fn a_text_does_not_begin_with_a_space_that_is_not_shown() {
    let spaces = Vocabulary::new(Words { drops_first_space: true, ..words() }).unwrap();
    let begins = |expression: &str, token: u8| {
        let mut bits = Vec::new();
        compiled(&spaces, GrammarKind::Regex, expression).next(&mut bits).unwrap();
        allowed(&bits, token.into())
    };
    assert!(!begins("[ a]+", b' ') && begins("[ a]+", b'a'));
    assert!(begins(" a", b' '), "nothing else is left");
    let mut bits = Vec::new();
    compiled(&spaces, GrammarKind::Regex, "[ a]+").continuing(true).next(&mut bits).unwrap();
    assert!(allowed(&bits, b' '.into()), "behind a prompt it is shown");
}

#[test]
fn a_fork_goes_its_own_way() {
    let vocabulary = vocabulary();
    let mut first = compiled(&vocabulary, GrammarKind::Regex, "[ab]c");
    let mut second = first.fork();
    first.advance(97).unwrap();
    second.advance(98).unwrap();
    assert!(first.advance(98).is_err() && second.advance(99).is_ok());
}

#[test]
fn every_end_of_the_model_ends_a_grammar() {
    const OTHER: u32 = 300;
    let mut words = words();
    words.bytes.resize(OTHER as usize + 1, Vec::new());
    let ends = Words { stop_ids: StopIds::of([EOS, OTHER, 9999]).unwrap(), ..words };
    let vocabulary = Vocabulary::new(ends).unwrap();
    let mut bits = Vec::new();
    for end in [EOS, OTHER] {
        let mut matcher = compiled(&vocabulary, GrammarKind::Regex, "a+");
        assert_eq!(matcher.next(&mut bits), Ok(Next::Tokens));
        assert!(!allowed(&bits, end) && !matcher.allows(end), "a text that is not whole cannot end");
        matcher.advance(97).unwrap();
        assert_eq!(matcher.next(&mut bits), Ok(Next::Tokens));
        assert!(allowed(&bits, end) && matcher.allows(end), "{end}");
        assert_eq!(matcher.advance(end), Ok(()));
    }
    let mut matcher = compiled(&vocabulary, GrammarKind::Regex, "ab");
    [97, 98].iter().for_each(|token| matcher.advance(*token).unwrap());
    assert_eq!(matcher.next(&mut bits), Ok(Next::Complete), "nothing but ends may follow");
}

/// Any text may stand in the reasoning; the grammar sees what follows it.
#[test]
fn a_grammar_begins_behind_the_reasoning() {
    let (open, close) = (300, 301);
    let mut marked = words();
    marked.bytes.resize(300, Vec::new());
    marked.bytes.extend([b"<think>".to_vec(), b"</think>".to_vec()]);
    let plain = vocabulary();
    let vocabulary = Vocabulary::new(Words { marks: Some(MarkIds { open, close }), ..marked }).unwrap();
    let expression = "ab";
    let mut bits = Vec::new();
    for (vocabulary, reasoning, thoughts) in [
        (&vocabulary, Reasoning::Begun, vec![120, EOS, close]),
        (&vocabulary, Reasoning::Possible, vec![open, 120, 121, close]),
        (&vocabulary, Reasoning::Possible, vec![]),
        (&vocabulary, Reasoning::None, vec![]),
        (&plain, Reasoning::Begun, "x</think>".bytes().map(u32::from).collect()),
        (&plain, Reasoning::Possible, vec![]),
    ] {
        let mut matcher = compiled(vocabulary, GrammarKind::Regex, expression).behind(reasoning);
        for (at, token) in thoughts.iter().enumerate() {
            assert_eq!(matcher.next(&mut bits), Ok(Next::Tokens));
            assert!(allowed(&bits, *token) && matcher.allows(*token), "{reasoning:?} {token}");
            let begins = at == 0 && reasoning == Reasoning::Possible;
            assert_eq!(allowed(&bits, 122), !begins, "reasoning is any text");
            matcher.advance(*token).unwrap();
        }
        let mut matcher = matcher.fork();
        for token in [97, 98] {
            assert_eq!(matcher.next(&mut bits), Ok(Next::Tokens));
            assert!(allowed(&bits, token) && !allowed(&bits, 122), "{reasoning:?} after {thoughts:?}");
            matcher.advance(token).unwrap();
        }
        assert_eq!(matcher.next(&mut bits), Ok(Next::Complete));
    }
    let mut unmarked = compiled(&vocabulary, GrammarKind::Regex, expression).behind(Reasoning::None);
    unmarked.next(&mut bits).unwrap();
    assert!(!allowed(&bits, open), "reasoning is not looked for");
}
