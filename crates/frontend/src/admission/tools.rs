//! `tools` and `tool_choice`: what a chat's template is told of them, what its text must be, and how calls are found in
//! it.
//!
//! - `none`: the template sees no tools, and the text is text.
//! - `auto`: the template sees them, and calls are found in the text in the format that the model was trained on. With
//!   `response_format` the text is that or calls (`answer_or_call`).
//! - `required` or a function: a grammar makes the text a list of calls, or one function's arguments.
//!
//! Called by [`crate::admission`] only; [`crate::answers::calls`] finds the calls.

use crate::admission::answer_or_call::{Callable, answer_or_call};
use crate::admission::json::{Fields, quoted, wrong_type};
use crate::admission::messages::function_name;
use crate::admission::schemas::close;
use crate::limits::{FORCED_CALLS_MAX, TOOLS_BYTES_MAX, TOOLS_MAX};
use pinion_protocol::limits::GRAMMAR_BYTES_MAX;
use pinion_protocol::{Fault, Grammar, GrammarField, GrammarKind};
use pinion_text::tools::{CallFormat, Shape};
use serde_json::{Map, Value, json};

/// How calls are read where the model is free to make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallReading {
    /// They are found in the text.
    Format(CallFormat),
    /// The operator wants them left in the text.
    AsText,
    /// The format in which this model writes them is unknown.
    Unknown,
}

/// How the calls of one answer are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPlan {
    /// What the text is.
    pub shape: Shape,
    /// The request's functions.
    pub names: Vec<String>,
    /// Parameters of each of them that cannot be text.
    pub json_parameters: Vec<Vec<String>>,
    /// More calls than this are dropped.
    pub calls_max: usize,
    /// Ids have nine letters, which Mistral's templates want of the calls that they are shown.
    pub short_ids: bool,
}

/// What a request's tools come to.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Tools {
    /// For the template.
    pub(crate) offered: Option<Value>,
    /// How calls are found.
    pub(crate) plan: Option<CallPlan>,
    /// The JSON schema that the text must follow.
    pub(crate) schema: Option<Value>,
}

/// References and alternatives within each other that are followed to a parameter's type.
const REFERENCES_MAX: usize = 8;

/// Whether a value is of the right type.
type Fits = fn(&Value) -> bool;

enum Choice {
    None,
    Auto,
    Required,
    Function(String),
}

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
pub(crate) fn tools(fields: &mut Fields, reading: CallReading) -> Result<Tools, Fault> {
    let items = items(fields)?;
    let names = names(&items)?;
    let is_parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let choice = choice(fields, &names)?;
    let calls_max = if is_parallel { usize::MAX } else { 1 };
    let json_parameters: Vec<Vec<String>> = items.iter().map(json_parameters).collect();
    let short_ids = reading == CallReading::Format(CallFormat::Mistral);
    let plan = |shape, names| Some(CallPlan { shape, names, json_parameters, calls_max, short_ids });
    Ok(match choice {
        Choice::None => Tools::default(),
        Choice::Auto => {
            let plan = match reading {
                CallReading::Format(format) => plan(Shape::Free(format), names),
                CallReading::AsText => None,
                CallReading::Unknown => return Err(unknown_format()),
            };
            Tools { plan, offered: Some(items.into()), schema: None }
        }
        Choice::Required => Tools {
            schema: Some(list_schema(&items, &names, is_parallel)?),
            plan: plan(Shape::List, names),
            offered: Some(items.into()),
        },
        Choice::Function(name) => {
            let at = names.iter().position(|known| *known == name).unwrap_or_default();
            Tools {
                schema: Some(parameters(at, &items[at])?),
                plan: plan(Shape::Arguments(name), names),
                offered: Some(items.into()),
            }
        }
    })
}

fn unknown_format() -> Fault {
    let message = "tool_choice \"auto\" is not served here: the model's chat template does not show how it writes tool \
                   calls; use \"required\", \"none\" or a function, or start the service with --tool-call-parser";
    Fault::field("tool_choice", message)
}

fn items(fields: &mut Fields) -> Result<Vec<Value>, Fault> {
    let items = match fields.take("tools") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong_type("tools", "an array of tools", &other)),
    };
    if items.len() > TOOLS_MAX {
        let message = format!("tools may have at most {TOOLS_MAX} entries, got {}", items.len());
        return Err(Fault::field("tools", message));
    }
    let bytes: usize = items.iter().map(|item| item.to_string().len()).sum();
    if bytes > TOOLS_BYTES_MAX {
        let message = format!("tools may have at most {TOOLS_BYTES_MAX} bytes, got {bytes}");
        return Err(Fault::field("tools", message));
    }
    Ok(items)
}

/// Checks every tool; the names of their functions, each once.
fn names(items: &[Value]) -> Result<Vec<String>, Fault> {
    let mut names: Vec<String> = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let at = |field: &str| format!("tools[{index}].{field}");
        if item.get("type").and_then(Value::as_str) != Some("function") {
            let kind = item.get("type").unwrap_or(&Value::Null);
            return Err(wrong_type(&at("type"), "\"function\"", kind));
        }
        let function = match item.get("function") {
            Some(Value::Object(function)) => function,
            other => return Err(wrong_type(&at("function"), "an object", other.unwrap_or(&Value::Null))),
        };
        let member = |name: &str| function.get(name).filter(|value| !value.is_null());
        let name = function_name(&at("function.name"), member("name").unwrap_or(&Value::Null))?;
        if names.iter().any(|other| other == name) {
            let field = at("function.name");
            return Err(Fault::field(&field, format!("{field}: there is another function \"{name}\"")));
        }
        let kinds: [(&str, &str, Fits); 3] = [
            ("description", "a string", Value::is_string),
            ("parameters", "an object", Value::is_object),
            ("strict", "a boolean", Value::is_boolean),
        ];
        for (field, wanted, fits) in kinds {
            if let Some(wrong) = member(field).filter(|value| !fits(value)) {
                return Err(wrong_type(&at(&format!("function.{field}")), wanted, wrong));
            }
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// `tool_choice`; without tools it can only say that none is wanted.
fn choice(fields: &mut Fields, names: &[String]) -> Result<Choice, Fault> {
    let value = match fields.take("tool_choice") {
        None if names.is_empty() => return Ok(Choice::None),
        None => return Ok(Choice::Auto),
        Some(value) => value,
    };
    let choice = match &value {
        Value::String(word) => match word.as_str() {
            "none" => return Ok(Choice::None),
            "auto" => Choice::Auto,
            "required" => Choice::Required,
            _ => return Err(not_a_choice(&value)),
        },
        Value::Object(_) if value.get("type").and_then(Value::as_str) == Some("function") => {
            let name = value.get("function").and_then(|function| function.get("name"));
            let field = "tool_choice.function.name";
            Choice::Function(function_name(field, name.unwrap_or(&Value::Null))?.to_owned())
        }
        _ => return Err(not_a_choice(&value)),
    };
    match &choice {
        // Clients with an empty list send it: nothing can be called.
        Choice::Auto if names.is_empty() => Ok(Choice::None),
        _ if names.is_empty() => {
            Err(Fault::field("tool_choice", "tool_choice is allowed only with tools, but for none and auto"))
        }
        Choice::Function(name) if !names.contains(name) => {
            let field = "tool_choice.function.name";
            Err(Fault::field(field, format!("{field}: there is no function \"{name}\" in tools")))
        }
        _ => Ok(choice),
    }
}

fn not_a_choice(value: &Value) -> Fault {
    let wanted = "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ..}}";
    Fault::field("tool_choice", format!("tool_choice must be {wanted}, got {}", quoted(value)))
}

/// The parameters of a function whose values cannot be text.
fn json_parameters(item: &Value) -> Vec<String> {
    let schema = item.get("function").and_then(|function| function.get("parameters"));
    let Some(schema) = schema else { return Vec::new() };
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let of_json = properties.filter(|(_, property)| !allows_text(property, schema, REFERENCES_MAX));
    of_json.map(|(name, _)| name.clone()).collect()
}

/// Whether a string may have this schema, as far as can be told; what says nothing allows it. `references` more may be
/// followed into `root`.
fn allows_text(schema: &Value, root: &Value, references: usize) -> bool {
    let is_string = |kind: &Value| kind == "string";
    if let Some(kind) = schema.get("type") {
        return kind.as_array().map_or_else(|| is_string(kind), |kinds| kinds.iter().any(is_string));
    }
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return references == 0 || target.is_none_or(|target| allows_text(target, root, references - 1));
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values.iter().any(Value::is_string);
    }
    if let Some(value) = schema.get("const") {
        return value.is_string();
    }
    let alternatives = ["anyOf", "oneOf"].into_iter().find_map(|name| schema.get(name)?.as_array());
    alternatives
        .is_none_or(|all| references == 0 || all.iter().any(|one| allows_text(one, root, references - 1)))
}

/// The schema of a function's arguments: always an object.
fn parameters(index: usize, item: &Value) -> Result<Value, Fault> {
    let mut schema = match item.get("function").and_then(|function| function.get("parameters")) {
        Some(Value::Object(schema)) => schema.clone(),
        _ => return Ok(json!({"type": "object", "properties": {}, "additionalProperties": false})),
    };
    // They name the schema; inside another one they would name that.
    schema.shift_remove("$schema");
    schema.shift_remove("$id");
    match schema.get("type") {
        Some(Value::String(kind)) if kind == "object" => {}
        None => {
            schema.insert("type".to_owned(), "object".into());
        }
        Some(other) => {
            let field = format!("tools[{index}].function.parameters.type");
            return Err(wrong_type(&field, "\"object\"", other));
        }
    }
    let mut schema = Value::Object(schema);
    close(&mut schema);
    Ok(schema)
}

/// The schema of a list of calls: of one, or of at least one.
fn list_schema(items: &[Value], names: &[String], is_parallel: bool) -> Result<Value, Fault> {
    let (mut definitions, mut calls) = (Map::new(), Vec::with_capacity(items.len()));
    for (index, (item, name)) in items.iter().zip(names).enumerate() {
        let mut schema = parameters(index, item)?;
        let place = format!("#/$defs/{index}");
        move_references(&mut schema, &place);
        definitions.insert(index.to_string(), schema);
        calls.push(json!({
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": {"$ref": place}},
            "required": ["name", "parameters"],
            "additionalProperties": false,
        }));
    }
    let mut schema = json!({"type": "array", "minItems": 1, "items": {"anyOf": calls}, "$defs": definitions});
    schema["maxItems"] = if is_parallel { FORCED_CALLS_MAX } else { 1 }.into();
    Ok(schema)
}

impl Tools {
    /// The grammar of the text: that of a forced call, or else what the fields want. A `response_format` is about what
    /// is said, so it stands beside tools: a forced call says nothing, and a model that may call does one or the other.
    pub(crate) fn grammar(&mut self, written: Option<Grammar>) -> Result<Option<Grammar>, Fault> {
        if let Some(schema) = self.schema.take() {
            return forced(&schema, written).map(Some);
        }
        let (Some(plan), Some(Value::Array(items))) = (&self.plan, &self.offered) else { return Ok(written) };
        match (written, &plan.shape) {
            (Some(answer), Shape::Free(format)) if answer.field == GrammarField::ResponseFormat => {
                let functions = items.iter().zip(&plan.names).enumerate();
                let callables = functions.map(|(index, (item, name))| {
                    let is_strict = item.pointer("/function/strict") == Some(&Value::Bool(true));
                    Callable { name, arguments: parameters(index, item).ok().filter(|_| is_strict) }
                });
                let callables: Vec<Callable<'_>> = callables.collect();
                Ok(Some(answer_or_call(answer, *format, &callables, plan.calls_max > 1)))
            }
            (written, _) => Ok(written),
        }
    }
}

/// The grammar of a forced call. Errors: the request has a grammar of its own, which the text would have to follow too.
fn forced(schema: &Value, written: Option<Grammar>) -> Result<Grammar, Fault> {
    if let Some(written) = written.filter(|written| written.field != GrammarField::ResponseFormat) {
        let name = written.field.name();
        let message = format!("tool_choice forces a call, and {name} wants another text");
        return Err(Fault::field("tool_choice", message));
    }
    let text = schema.to_string();
    if text.len() > GRAMMAR_BYTES_MAX {
        let message = format!(
            "the parameters of tools may have at most {GRAMMAR_BYTES_MAX} bytes where a call is forced, got {}",
            text.len()
        );
        return Err(Fault::field("tools", message));
    }
    Ok(Grammar { kind: GrammarKind::JsonSchema, field: GrammarField::Tools, text: text.into() })
}

/// A schema has moved to `place` inside another one, and so has what its references point to.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(members) => {
            for (name, value) in members {
                match (name.as_str(), value) {
                    ("$ref", Value::String(reference)) if reference.starts_with('#') => {
                        *reference = format!("{place}{}", &reference[1..]);
                    }
                    // Data, not schemas.
                    ("const" | "enum" | "default" | "examples", _) => {}
                    (_, value) => move_references(value, place),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| move_references(item, place)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Tools, Fault> {
        let mut fields = Fields::parse(body.to_string().as_bytes())?;
        tools(&mut fields, CallReading::Format(CallFormat::Hermes))
    }

    #[test]
    fn parameters_that_cannot_be_text() {
        let schema = json!({"properties": {"text": {"type": "string"}, "count": {"type": "integer"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "any": {}, "kind": {"$ref": "#/$defs/kind"},
            "node": {"$ref": "#/$defs/node"}, "list": {"type": "array"}, "either": {"type": ["integer", "null"]},
            "both": {"type": ["integer", "string"]}, "loop": {"$ref": "#/properties/loop"}, "one": {"const": 1}},
            "$defs": {"kind": {"enum": ["a", "b"]}, "node": {"type": "object"}}});
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
        let plan = read(json!({"tools": [tool]})).unwrap().plan.unwrap();
        assert_eq!(plan.json_parameters, [["count", "node", "list", "either", "one"]]);
    }

    #[test]
    fn ids_are_short_where_a_template_wants_them_so_however_the_call_came() {
        let tool = json!({"type": "function", "function": {"name": "f"}});
        let named = json!({"type": "function", "function": {"name": "f"}});
        for (format, short_ids) in [(CallFormat::Mistral, true), (CallFormat::Hermes, false)] {
            for choice in [json!("auto"), json!("required"), named.clone()] {
                let body = json!({"tools": [tool], "tool_choice": choice});
                let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
                let plan = tools(&mut fields, CallReading::Format(format)).unwrap().plan.unwrap();
                assert_eq!(plan.short_ids, short_ids, "{choice}");
            }
        }
    }

    #[test]
    fn a_forced_call_has_the_schema_of_its_arguments() {
        let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
        let node = json!({"$schema": "s", "$id": "i", "properties": {"$ref": {"type": "string"}, "next": {"$ref": "#"},
            "x": {"$ref": "#/$defs/x"}, "y": {"enum": [{"$ref": "#"}]}}, "$defs": {"x": {"type": "integer"}}});
        let list = [tool("f", node), json!({"type": "function", "function": {"name": "g"}})];
        let empty = json!({"type": "object", "properties": {}, "additionalProperties": false});
        let named = json!({"type": "function", "function": {"name": "g"}});
        assert_eq!(read(json!({"tools": list, "tool_choice": named})).unwrap().schema, Some(empty.clone()));
        let named = json!({"type": "function", "function": {"name": "f"}});
        let alone = json!({"properties": {"$ref": {"type": "string"}, "next": {"$ref": "#"}, "x": {"$ref": "#/$defs/x"},
            "y": {"enum": [{"$ref": "#"}]}}, "$defs": {"x": {"type": "integer"}}, "type": "object",
            "additionalProperties": false});
        assert_eq!(read(json!({"tools": list, "tool_choice": named})).unwrap().schema, Some(alone));
        let call = |name: &str, place: &str| {
            json!({"type": "object", "properties": {"name": {"const": name}, "parameters": {"$ref": place}},
                "required": ["name", "parameters"], "additionalProperties": false})
        };
        let moved = json!({"properties": {"$ref": {"type": "string"}, "next": {"$ref": "#/$defs/0"},
            "x": {"$ref": "#/$defs/0/$defs/x"}, "y": {"enum": [{"$ref": "#"}]}}, "$defs": {"x": {"type": "integer"}},
            "type": "object", "additionalProperties": false});
        let expected = json!({"type": "array", "minItems": 1, "maxItems": 1,
            "items": {"anyOf": [call("f", "#/$defs/0"), call("g", "#/$defs/1")]}, "$defs": {"0": moved, "1": empty}});
        let body = json!({"tools": list, "tool_choice": "required", "parallel_tool_calls": false});
        assert_eq!(read(body).unwrap().schema, Some(expected));
        // Nothing is said of members, so any may come; a list of none leaves none.
        let named = json!({"type": "function", "function": {"name": "f"}});
        let schema = |parameters: Value| {
            read(json!({"tools": [tool("f", parameters)], "tool_choice": named})).unwrap().schema.unwrap()
        };
        assert_eq!(schema(json!({"type": "object"})), json!({"type": "object"}));
        assert_eq!(schema(json!({})), json!({"type": "object"}));
        assert_eq!(schema(json!({"type": "object", "properties": {}})), empty);
        let fault = read(json!({"tools": [tool("f", json!({"type": "array"}))], "tool_choice": "required"}));
        assert_eq!(fault.unwrap_err().param.as_deref(), Some("tools[0].function.parameters.type"));
    }
}
