//! The fields that say what the whole text must look like: OpenAI's `response_format`, and vLLM's `guided_*` and
//! `structured_outputs`.
//!
//! Called by [`crate::admission`] only. Shapes and sizes are checked here; whether a schema, an expression or a grammar
//! makes sense is the tokenizer's to say, which compiles it.

use crate::admission::json::{Fields, check_depth, wrong_type};
use crate::admission::schemas::close;
use crate::admission::{Api, Limits, token_id};
use pinion_protocol::limits::{GRAMMAR_BYTES_MAX, GRAMMAR_CHOICES_MAX};
use pinion_protocol::{Fault, Grammar, GrammarField, GrammarKind};
use serde_json::{Value, json};

/// vLLM's field for white space in JSON, which is compact without it.
const SPACE: &str = "guided_whitespace_pattern";

/// Characters of a schema's name, as OpenAI has it.
const SCHEMA_NAME_CHARS_MAX: usize = 64;

/// vLLM's fields: where the grammar is, and how it is written there.
const GUIDED: [(GrammarField, GrammarKind); 4] = [
    (GrammarField::GuidedJson, GrammarKind::JsonSchema),
    (GrammarField::GuidedRegex, GrammarKind::Regex),
    (GrammarField::GuidedChoice, GrammarKind::Choice),
    (GrammarField::GuidedGrammar, GrammarKind::Lark),
];
/// The same as members of `structured_outputs`.
const STRUCTURED: [(&str, GrammarKind); 4] = [
    ("json", GrammarKind::JsonSchema),
    ("regex", GrammarKind::Regex),
    ("choice", GrammarKind::Choice),
    ("grammar", GrammarKind::Lark),
];
/// Members of `structured_outputs` that would change the text and are not supported.
const STRUCTURED_REFUSED: [&str; 1] = ["structural_tag"];
/// White space in one place of a JSON text where any is allowed: a line break and the indentation of ten levels. Weak
/// models take all of it.
const ANY_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,21}";

/// The one grammar of a request, if it has one. `/generate` has none: `check_unsupported` refuses its fields.
pub(crate) fn grammar(api: Api, fields: &mut Fields) -> Result<Option<Grammar>, Fault> {
    if api == Api::Generate {
        return Ok(None);
    }
    let mut found = response_format(fields)?;
    for (field, kind) in GUIDED {
        if let Some(value) = fields.take(field.name()) {
            put(&mut found, written(field, field.name(), kind, value, close)?)?;
        }
    }
    if let Some(mut members) = fields.object(GrammarField::StructuredOutputs.name())? {
        put(&mut found, structured_outputs(&mut members)?)?;
    }
    match fields.take(SPACE) {
        None => Ok(found),
        Some(Value::String(pattern)) => spaced(found, SPACE, &pattern).map(Some),
        Some(other) => Err(wrong_type(SPACE, "an expression", &other)),
    }
}

/// The JSON grammar with white space that matches `pattern`. `name` is the field that has it.
fn spaced(grammar: Option<Grammar>, name: &str, pattern: &str) -> Result<Grammar, Fault> {
    let misplaced = || Fault::field(name, format!("{name} is only for JSON and JSON schemas"));
    let Grammar { kind, field, text } = grammar.ok_or_else(misplaced)?;
    let mut schema: Value = match kind {
        GrammarKind::JsonObject => json!({"type": "object"}),
        GrammarKind::JsonSchema => serde_json::from_str(&text).map_err(|_| misplaced())?,
        GrammarKind::Regex | GrammarKind::Choice | GrammarKind::Lark | GrammarKind::Tokens => {
            return Err(misplaced());
        }
    };
    if pattern.is_empty() {
        return Err(Fault::field(name, format!("{name} must not be empty")));
    }
    schema["x-guidance"] = json!({"whitespace_pattern": pattern});
    bounded(field, name, GrammarKind::JsonSchema, schema.to_string())
}

/// Keeps a grammar if it is the first.
fn put(found: &mut Option<Grammar>, grammar: Grammar) -> Result<(), Fault> {
    if let Some(first) = found {
        let (first, second) = (first.field.name(), grammar.field.name());
        let message = if first == second {
            format!("{first} must have exactly one of json, regex, choice, grammar and json_object")
        } else {
            format!("{second} and {first} exclude each other: a text can follow one of them")
        };
        return Err(Fault::field(second, message));
    }
    *found = Some(grammar);
    Ok(())
}

fn response_format(fields: &mut Fields) -> Result<Option<Grammar>, Fault> {
    const FIELD: GrammarField = GrammarField::ResponseFormat;
    let at = |mut fault: Fault, member: &str| {
        fault.param = Some(format!("{}.{member}", FIELD.name()));
        fault
    };
    let Some(mut format) = fields.object(FIELD.name())? else { return Ok(None) };
    let kind = format.string("type").map_err(|fault| at(fault, "type"))?;
    match kind.as_deref() {
        Some("text") => Ok(None),
        Some("json_object") => match format.take("schema") {
            // As llama-server, Together and Fireworks have it; one that says nothing still wants an object.
            Some(schema) if schema != json!({}) => {
                schema_of_format(schema).map(Some).map_err(|fault| at(fault, "schema"))
            }
            _ => Ok(Some(any_object(FIELD))),
        },
        Some("json_schema") => {
            let missing = |member| at(Fault::field(member, format!("{member} is required")), member);
            let schema = format.object("json_schema").map_err(|fault| at(fault, "json_schema"))?;
            // The short form that llama-server documents.
            if let (None, Some(short)) = (&schema, format.take("schema")) {
                return schema_of_format(short).map(Some).map_err(|fault| at(fault, "schema"));
            }
            let schema = json_schema(schema.ok_or_else(|| missing("json_schema"))?);
            schema.map(Some).map_err(|fault| {
                let member = fault.param.clone().unwrap_or_default();
                at(fault, &format!("json_schema.{member}"))
            })
        }
        Some(_) | None => {
            let wanted = "type must be text, json_object or json_schema";
            Err(at(Fault::field("type", wanted), "type"))
        }
    }
}

/// `{"name": ..., "schema": {...}, "strict": ...}`. The schema holds whether `strict` or not. Faults name the member.
fn json_schema(mut members: Fields) -> Result<Grammar, Fault> {
    let name = members.string("name")?.ok_or_else(|| Fault::field("name", "name is required"))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > SCHEMA_NAME_CHARS_MAX || !name.chars().all(plain) {
        let message = format!("name must be 1 to {SCHEMA_NAME_CHARS_MAX} letters, digits, _ or -");
        return Err(Fault::field("name", message));
    }
    members.boolean("strict")?;
    schema_of_format(members.take("schema").ok_or_else(|| Fault::field("schema", "schema is required"))?)
}

/// The member `schema` of a `response_format`, wherever it stands.
fn schema_of_format(mut schema: Value) -> Result<Grammar, Fault> {
    if !schema.is_object() {
        return Err(wrong_type("schema", "an object", &schema));
    }
    close(&mut schema);
    bounded(GrammarField::ResponseFormat, "schema", GrammarKind::JsonSchema, schema.to_string())
}

fn structured_outputs(members: &mut Fields) -> Result<Grammar, Fault> {
    const FIELD: GrammarField = GrammarField::StructuredOutputs;
    let full = |member: &str| format!("{}.{member}", FIELD.name());
    for member in STRUCTURED_REFUSED {
        if members.take(member).is_some_and(|value| value != Value::Bool(false)) {
            let name = full(member);
            return Err(Fault::field(
                &name,
                format!("this value of {name} is not supported by this version"),
            ));
        }
    }
    let mut switch = |member: &str| {
        let value = members.boolean(member);
        value.map_err(|fault| Fault { param: Some(full(member)), ..fault })
    };
    let is_compact = switch("disable_any_whitespace")?;
    let is_closed = switch("disable_additional_properties")?.unwrap_or(true);
    let mut found = None;
    for (member, kind) in STRUCTURED {
        if let Some(value) = members.take(member) {
            let close: fn(&mut Value) = if is_closed { close } else { |_: &mut Value| {} };
            put(&mut found, written(FIELD, &full(member), kind, value, close)?)?;
        }
    }
    let any =
        members.boolean("json_object").map_err(|fault| Fault { param: Some(full("json_object")), ..fault });
    if any?.unwrap_or(false) {
        put(&mut found, any_object(FIELD))?;
    }
    let found = found.ok_or_else(|| {
        let message = "structured_outputs must have one of json, regex, choice, grammar and json_object";
        Fault::field(FIELD.name(), message)
    })?;
    match (members.take("whitespace_pattern"), is_compact) {
        (None, None | Some(true)) => Ok(found),
        // It says nothing of what is no JSON.
        (None, Some(false)) if !matches!(found.kind, GrammarKind::JsonObject | GrammarKind::JsonSchema) => {
            Ok(found)
        }
        (None, Some(false)) => spaced(Some(found), &full("disable_any_whitespace"), ANY_SPACE),
        (Some(Value::String(pattern)), None | Some(false)) => {
            spaced(Some(found), &full("whitespace_pattern"), &pattern)
        }
        (Some(Value::String(_)), Some(true)) => {
            let name = full("whitespace_pattern");
            Err(Fault::field(&name, format!("{name} and disable_any_whitespace exclude each other")))
        }
        (Some(other), _) => Err(wrong_type(&full("whitespace_pattern"), "an expression", &other)),
    }
}

/// `allowed_token_ids` and `bad_words`, which no grammar can stand beside: both say which tokens may be drawn.
pub(crate) fn limited(
    grammar: Option<Grammar>,
    fields: &mut Fields,
    limits: &Limits,
) -> Result<Option<Grammar>, Fault> {
    const IDS: GrammarField = GrammarField::AllowedTokenIds;
    const WORDS: GrammarField = GrammarField::BadWords;
    let (mut rules, mut field) = (json!({}), None);
    match fields.take(WORDS.name()) {
        None => {}
        Some(Value::Array(words)) if words.is_empty() => {}
        Some(Value::Array(words)) => {
            checked_choices(WORDS.name(), words.clone())?;
            (rules["words"], field) = (words.into(), Some(WORDS));
        }
        Some(other) => return Err(wrong_type(WORDS.name(), "an array of strings", &other)),
    }
    match fields.take(IDS.name()) {
        None => {}
        Some(Value::Array(ids)) if !ids.is_empty() => {
            ids.iter().try_for_each(|id| token_id(IDS.name(), id, limits).map(drop))?;
            (rules["allowed"], field) = (ids.into(), Some(IDS));
        }
        Some(other) => return Err(wrong_type(IDS.name(), "an array of token ids that is not empty", &other)),
    }
    match (grammar, field) {
        (grammar, None) => Ok(grammar),
        (None, Some(field)) => bounded(field, field.name(), GrammarKind::Tokens, rules.to_string()).map(Some),
        (Some(grammar), Some(field)) => {
            let (name, other) = (field.name(), grammar.field.name());
            Err(Fault::field(name, format!("{name} and {other} exclude each other")))
        }
    }
}

fn any_object(field: GrammarField) -> Grammar {
    Grammar { kind: GrammarKind::JsonObject, field, text: "".into() }
}

/// A grammar as vLLM's fields have it: `name` is what the client called it, `close` says what becomes of a schema's
/// objects.
fn written(
    field: GrammarField,
    name: &str,
    kind: GrammarKind,
    value: Value,
    close: fn(&mut Value),
) -> Result<Grammar, Fault> {
    let text = match (kind, value) {
        (GrammarKind::JsonSchema, mut schema @ Value::Object(_)) => {
            close(&mut schema);
            schema.to_string()
        }
        // A schema may come as text; whether it is JSON is said here, as for all other JSON.
        (GrammarKind::JsonSchema, Value::String(text)) => parsed_schema(name, &text, close)?,
        (GrammarKind::JsonSchema, other) => return Err(wrong_type(name, "a JSON schema", &other)),
        (GrammarKind::Choice, Value::Array(choices)) => checked_choices(name, choices)?,
        (GrammarKind::Choice, other) => return Err(wrong_type(name, "an array of strings", &other)),
        (_, Value::String(text)) if !text.is_empty() => text,
        (_, other) => return Err(wrong_type(name, "a string that is not empty", &other)),
    };
    bounded(field, name, kind, text)
}

fn parsed_schema(name: &str, text: &str, close: fn(&mut Value)) -> Result<String, Fault> {
    let not_json = |reason: String| Fault::field(name, format!("{name} is not a JSON schema: {reason}"));
    check_depth(text.as_bytes()).map_err(|fault| not_json(fault.message))?;
    let mut schema: Value = serde_json::from_str(text).map_err(|error| not_json(error.to_string()))?;
    close(&mut schema);
    if schema.is_object() { Ok(schema.to_string()) } else { Err(wrong_type(name, "a JSON schema", &schema)) }
}

fn checked_choices(name: &str, choices: Vec<Value>) -> Result<String, Fault> {
    if choices.is_empty() || choices.len() > GRAMMAR_CHOICES_MAX {
        let message = format!("{name} must have 1 to {GRAMMAR_CHOICES_MAX} strings, got {}", choices.len());
        return Err(Fault::field(name, message));
    }
    let text = |choice: &Value| choice.as_str().is_some_and(|choice| !choice.is_empty());
    match choices.iter().find(|choice| !text(choice)) {
        Some(other) => Err(wrong_type(name, "made of strings that are not empty", other)),
        None => Ok(Value::Array(choices).to_string()),
    }
}

fn bounded(field: GrammarField, name: &str, kind: GrammarKind, text: String) -> Result<Grammar, Fault> {
    if text.len() > GRAMMAR_BYTES_MAX {
        let message = format!("{name} may have at most {GRAMMAR_BYTES_MAX} bytes, got {}", text.len());
        return Err(Fault::field(name, message));
    }
    Ok(Grammar { kind, field, text: text.into() })
}
