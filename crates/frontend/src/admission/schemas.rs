//! JSON schemas as clients mean them: an object that names its members has no others.
//!
//! JSON Schema lets every object have members that it does not name, unless it says `"additionalProperties": false`.
//! Few write that, and a model that may invent members does not stop: vLLM and OpenAI close such objects, and so do we.
//! A schema that says anything about other members keeps its word.

use serde_json::Value;

/// Words by which an object says something about members that it does not name, or takes them from elsewhere.
const SPEAKS_OF_OTHERS: [&str; 14] = [
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "unevaluatedProperties",
    "dependentSchemas",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "$ref",
    "$dynamicRef",
];
/// Words whose members are schemas.
const NAMED_SCHEMAS: [&str; 3] = ["properties", "$defs", "definitions"];
/// Words that hold a schema, or a list of them.
const SCHEMAS: [&str; 5] = ["items", "prefixItems", "anyOf", "oneOf", "additionalProperties"];

/// Closes every object of a schema that names members and says nothing of others. A schema that puts objects together
/// (`allOf` of several) stays as it is: each part would exclude the members of the others.
pub(crate) fn close(schema: &mut Value) {
    if !puts_together(schema) {
        close_all(schema);
    }
}

fn puts_together(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.iter().any(|(name, value)| {
            let is_several = name == "allOf" && value.as_array().is_some_and(|parts| parts.len() > 1);
            is_several || (name == "allOf" && members.contains_key("properties")) || puts_together(value)
        }),
        Value::Array(items) => items.iter().any(puts_together),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn close_all(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    let names_members = members.get("properties").is_some_and(Value::is_object);
    let speaks = SPEAKS_OF_OTHERS.iter().any(|word| members.contains_key(*word));
    for (name, value) in members.iter_mut() {
        match (name.as_str(), value) {
            (name, Value::Object(named)) if NAMED_SCHEMAS.contains(&name) => {
                named.values_mut().for_each(close_all);
            }
            // The alternatives add to what the object names itself.
            ("anyOf" | "oneOf", _) if names_members => {}
            (name, value) if SCHEMAS.contains(&name) => match value {
                Value::Array(items) => items.iter_mut().for_each(close_all),
                one => close_all(one),
            },
            _ => {}
        }
    }
    if names_members && !speaks {
        members.insert("additionalProperties".to_owned(), false.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_that_name_their_members_are_closed() {
        let closed = |mut schema: Value| {
            close(&mut schema);
            schema
        };
        let point = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
        let mut shut = point.clone();
        shut["additionalProperties"] = false.into();
        for (open, expected) in [
            (point.clone(), shut.clone()),
            (json!({"items": point}), json!({"items": shut})),
            (json!({"anyOf": [point, {"type": "null"}]}), json!({"anyOf": [shut, {"type": "null"}]})),
            (
                json!({"$defs": {"p": point}, "$ref": "#/$defs/p"}),
                json!({"$defs": {"p": shut}, "$ref": "#/$defs/p"}),
            ),
            (
                json!({"properties": {"p": point, "properties": {"type": "string"}}}),
                json!({"properties": {"p": shut, "properties": {"type": "string"}}, "additionalProperties": false}),
            ),
            (
                json!({"additionalProperties": point, "properties": {}}),
                json!({"additionalProperties": shut, "properties": {}}),
            ),
        ] {
            assert_eq!(closed(open), expected);
        }
        for unchanged in [
            json!({"type": "object"}),
            json!({"type": "object", "properties": {"a": {}}, "additionalProperties": true}),
            json!({"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}}),
            json!({"allOf": [point, {"properties": {"y": {}}}]}),
            json!({"properties": {"kind": {}}, "oneOf": [point]}),
            json!({"const": point}),
            json!(true),
        ] {
            assert_eq!(closed(unchanged.clone()), unchanged);
        }
    }
}
