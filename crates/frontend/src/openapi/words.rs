//! JSON schemas as people say them: "whole number from 1 to 20", "list of up to 16: text of 1 to 256 characters".
//! Null is left out, because it means absent everywhere.

use serde_json::Value;

/// How deep members are listed: a schema may hold itself.
const DEPTH_MAX: usize = 6;
/// How many members of an object are named.
const NAMED_MAX: usize = 8;

/// The schema behind a reference, or the schema itself.
pub(super) fn resolved<'a>(schema: &'a Value, document: &'a Value) -> &'a Value {
    let pointer = schema.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix('#'));
    pointer.and_then(|pointer| document.pointer(pointer)).unwrap_or(schema)
}

/// A schema in words.
pub(super) fn words(schema: &Value, document: &Value) -> String {
    if schema["$ref"] == "#/components/schemas/TokenId" {
        let target = resolved(schema, document);
        return format!("token id up to {}", target["maximum"]);
    }
    let schema = resolved(schema, document);
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> =
            values.iter().filter(|value| !value.is_null()).map(Value::to_string).collect();
        return if values.is_empty() { "nothing but null".to_owned() } else { values.join(" or ") };
    }
    if let Some(value) = schema.get("const") {
        return value.to_string();
    }
    if let Some(parts) = schema["anyOf"].as_array() {
        let parts = parts.iter().filter(|part| part["type"] != "null");
        return parts.map(|part| words(part, document)).collect::<Vec<_>>().join(", or ");
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => {
            kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect()
        }
        _ => Vec::new(),
    };
    let parts: Vec<String> = kinds.iter().map(|kind| of_kind(kind, schema, document)).collect();
    match parts.is_empty() {
        true if schema["properties"].is_object() => object(schema),
        true => "any JSON".to_owned(),
        false => parts.join(" or "),
    }
}

fn of_kind(kind: &str, schema: &Value, document: &Value) -> String {
    match kind {
        "boolean" => "true or false".to_owned(),
        "integer" => format!("whole number{}", range(schema)),
        "number" => format!("number{}", range(schema)),
        "string" => text(schema),
        "array" => {
            let count = count(&schema["minItems"], &schema["maxItems"]);
            let of = if count.is_empty() { "list of".to_owned() } else { format!("list of{count}:") };
            let item = &schema["items"];
            if item.is_null() { "list".to_owned() } else { format!("{of} {}", words(item, document)) }
        }
        "object" => object(schema),
        other => other.to_owned(),
    }
}

/// Bounds that a reader wants to know: those of the number's type itself are none.
fn range(schema: &Value) -> String {
    let wide = |value: &Value| value.as_f64().is_none_or(|number| number.abs() >= f64::from(i32::MAX));
    let (min, max) = (&schema["minimum"], &schema["maximum"]);
    let above = &schema["exclusiveMinimum"];
    match (wide(min), wide(above), wide(max)) {
        (false, _, false) => format!(" from {min} to {max}"),
        (false, _, true) => format!(" from {min}"),
        (true, false, false) => format!(" above {above}, up to {max}"),
        (true, true, false) => format!(" up to {max}"),
        (true, ..) => String::new(),
    }
}

/// ` 1 to 16`, ` up to 16`, ` at least 1`.
fn count(min: &Value, max: &Value) -> String {
    match (min.as_u64().filter(|min| *min > 0), max.as_u64()) {
        (Some(min), Some(max)) => format!(" {min} to {max}"),
        (None, Some(max)) => format!(" up to {max}"),
        (Some(min), None) => format!(" at least {min}"),
        (None, None) => String::new(),
    }
}

fn text(schema: &Value) -> String {
    if let Some(pattern) = schema["pattern"].as_str() {
        return format!("text like {pattern}");
    }
    match count(&schema["minLength"], &schema["maxLength"]) {
        none if none.is_empty() || none == " at least 1" => "text".to_owned(),
        count => format!("text of{count} characters"),
    }
}

fn object(schema: &Value) -> String {
    let Some(properties) = schema["properties"].as_object() else {
        return "object".to_owned();
    };
    let mut names: Vec<&str> = properties.keys().map(String::as_str).take(NAMED_MAX).collect();
    if properties.len() > NAMED_MAX {
        names.push("…");
    }
    format!("object with {}", names.join(", "))
}

/// Every member below a schema, as `choices[].text`, with its type in words.
pub(super) fn members(schema: &Value, document: &Value, path: &str, out: &mut Vec<(String, String)>) {
    let schema = resolved(schema, document);
    if path.matches(['.', '[']).count() >= DEPTH_MAX {
        return;
    }
    if let Some(properties) = schema["properties"].as_object() {
        for (name, inner) in properties {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            out.push((path.clone(), words(inner, document)));
            members(inner, document, &path, out);
        }
    } else if schema["items"].is_object() {
        members(&schema["items"], document, &format!("{path}[]"), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_read_as_sentences() {
        let document = json!({"components": {"schemas": {
            "TokenId": {"type": "integer", "minimum": 0, "maximum": 99}, "Name": {"enum": ["tiny", null]},
        }}});
        for (schema, expected) in [
            (json!({"type": ["boolean", "null"]}), "true or false"),
            (json!({"type": ["integer", "null"], "minimum": 1, "maximum": 20}), "whole number from 1 to 20"),
            (json!({"type": "integer", "minimum": 1, "maximum": i32::MAX}), "whole number from 1"),
            (json!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX}), "whole number"),
            (
                json!({"type": "number", "exclusiveMinimum": 0.0, "maximum": 1.0}),
                "number above 0.0, up to 1.0",
            ),
            (json!({"enum": ["none", "auto", null]}), "\"none\" or \"auto\""),
            (json!({"enum": [null]}), "nothing but null"),
            (json!({"$ref": "#/components/schemas/Name"}), "\"tiny\""),
            (json!({"$ref": "#/components/schemas/TokenId"}), "token id up to 99"),
            (
                json!({"anyOf": [{"type": "string", "minLength": 1, "maxLength": 256}, {"type": "null"},
                    {"type": "array", "maxItems": 16, "items": {"type": "string"}}]}),
                "text of 1 to 256 characters, or list of up to 16: text",
            ),
            (json!({"type": ["object", "string", "null"]}), "object or text"),
            (json!({"type": "object", "properties": {"a": {}, "b": {}}}), "object with a, b"),
        ] {
            assert_eq!(words(&schema, &document), expected, "{schema}");
        }
    }

    #[test]
    fn members_are_named_by_their_whole_path() {
        let schema = json!({"properties": {"choices": {"type": "array", "items": {"type": "object",
            "properties": {"text": {"type": "string"}}}}}});
        let mut found = Vec::new();
        members(&schema, &Value::Null, "", &mut found);
        let expected = [("choices", "list of object with text"), ("choices[].text", "text")];
        assert_eq!(found, expected.map(|(path, kind)| (path.to_owned(), kind.to_owned())));
    }
}
