//! Checks of JSON that every API shares: depth before anything recurses, and values as error messages quote them.

use crate::limits::QUOTED_BYTES_MAX;
use pinion_protocol::limits::{FUNCTION_NAME_BYTES_MAX, JSON_DEPTH_MAX};
use pinion_protocol::{Fault, FaultCode};
use serde_json::Value;

/// Refuses nesting over [`JSON_DEPTH_MAX`] by looking at brackets outside strings, before anything recurses.
pub fn check_depth(body: &[u8]) -> Result<(), Fault> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for &byte in body {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                if depth > JSON_DEPTH_MAX {
                    let message = format!("JSON is nested deeper than {JSON_DEPTH_MAX} levels");
                    return Err(Fault::new(FaultCode::InvalidValue, message));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// A value as it may stand in an error message: short.
pub fn quoted(value: &Value) -> String {
    let text = match value {
        Value::Array(_) => return "an array".to_owned(),
        Value::Object(_) => return "an object".to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    };
    if text.len() <= QUOTED_BYTES_MAX {
        return text;
    }
    let end = (0..=QUOTED_BYTES_MAX).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    format!("{}...", text.get(..end).unwrap_or_default())
}

/// The fault of a field that is not of the wanted type.
pub fn wrong_type(name: &str, wanted: &str, got: &Value) -> Fault {
    Fault::field(name, format!("{name} must be {wanted}, got {}", quoted(got)))
}

/// The whole number that a JSON number is, also where it was written as `256.0`.
pub fn as_integer(value: &Value) -> Option<i128> {
    /// Above it a float says no certain number.
    const EXACT_MAX: f64 = (1u64 << 53) as f64;
    let written_out = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() <= EXACT_MAX;
    written_out.or_else(|| value.as_f64().filter(is_whole).map(|number| number as i128))
}

/// A function's name, as OpenAI has them, and with dots.
pub fn function_name<'a>(field: &str, name: &'a Value) -> Result<&'a str, Fault> {
    let letters = |name: &&str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    let fits = |name: &&str| (1..=FUNCTION_NAME_BYTES_MAX).contains(&name.len());
    name.as_str().filter(letters).filter(fits).ok_or_else(|| {
        let wanted =
            format!("from 1 to {FUNCTION_NAME_BYTES_MAX} letters, digits, underscores, dashes and dots");
        wrong_type(field, &wanted, name)
    })
}
