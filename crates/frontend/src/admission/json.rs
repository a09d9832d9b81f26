//! A JSON body as a bag of optional fields whose readers check type and range and name the field at fault.
//!
//! It knows no API: which fields exist, and what they mean, is in [`crate::admission`]. `null` is the same as
//! absent everywhere, as OpenAI's clients send it.

pub use pinion_api::json::{as_integer, check_depth, quoted, wrong_type};
use pinion_protocol::{Fault, FaultCode};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// The members of a JSON object that have not been read yet.
pub struct Fields(Map<String, Value>);

#[cfg(test)]
thread_local! {
    static TAKEN: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// The names that were taken on this thread since the last call.
#[cfg(test)]
pub(crate) fn taken_names() -> Vec<String> {
    TAKEN.take()
}

impl Fields {
    /// The members of an object that was parsed already.
    pub fn of(members: Map<String, Value>) -> Fields {
        Fields(members)
    }

    /// The members that have not been read.
    pub fn into_members(self) -> Map<String, Value> {
        self.0
    }

    /// Parses a body. Errors: nesting, syntax, not an object.
    pub fn parse(body: &[u8]) -> Result<Fields, Fault> {
        check_depth(body)?;
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields(map)),
            Ok(other) => {
                let message = format!("the body must be a JSON object, got {}", quoted(&other));
                Err(Fault::new(FaultCode::InvalidValue, message))
            }
            Err(error) => {
                Err(Fault::new(FaultCode::InvalidValue, format!("the body is not valid JSON: {error}")))
            }
        }
    }

    /// Takes a field out; `null` is absent.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        #[cfg(test)]
        TAKEN.with_borrow_mut(|taken| taken.push(name.to_owned()));
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Adds a field.
    pub fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// What has not been read and is not `null`.
    pub fn rest(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.as_str(), value))
    }

    /// A field that is there and not `null`; it stays.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Whether a field is there and not `null`; it stays.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A boolean.
    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>, Fault> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(name, "a boolean", &other)),
        }
    }

    /// A string.
    pub fn string(&mut self, name: &str) -> Result<Option<String>, Fault> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(name, "a string", &other)),
        }
    }

    /// A whole number in `range`.
    pub fn integer(&mut self, name: &str, range: RangeInclusive<i128>) -> Result<Option<i128>, Fault> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match as_integer(&value) {
            Some(whole) if range.contains(&whole) => Ok(Some(whole)),
            _ => {
                let wanted = format!("an integer from {} to {}", range.start(), range.end());
                Err(wrong_type(name, &wanted, &value))
            }
        }
    }

    /// A finite number for which `accepts` holds; `wanted` says in words what that is.
    pub fn number(
        &mut self,
        name: &str,
        wanted: &str,
        accepts: fn(f64) -> bool,
    ) -> Result<Option<f64>, Fault> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().filter(|number| number.is_finite() && accepts(*number)) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong_type(name, wanted, &value)),
        }
    }

    /// An object.
    pub fn object(&mut self, name: &str) -> Result<Option<Fields>, Fault> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields(map))),
            Some(other) => Err(wrong_type(name, "an object", &other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_api::limits::QUOTED_BYTES_MAX;
    use pinion_protocol::limits::JSON_DEPTH_MAX;

    #[test]
    fn depth_counts_brackets_but_not_those_in_strings() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        assert!(Fields::parse(nested(JSON_DEPTH_MAX).as_bytes()).is_ok());
        assert!(Fields::parse(nested(JSON_DEPTH_MAX + 1).as_bytes()).is_err());
        let in_string = format!("{{\"a\":\"\\\"{}\"}}", "[{".repeat(100));
        assert!(Fields::parse(in_string.as_bytes()).is_ok());
        let hostile = "[".repeat(1 << 20);
        assert!(Fields::parse(hostile.as_bytes()).is_err());
    }

    #[test]
    fn bodies_that_are_not_json_objects_are_refused() {
        for body in [
            "",
            " ",
            "[]",
            "null",
            "3",
            "\"x\"",
            "{",
            "{\"a\":1e999}",
            "{\"a\":NaN}",
            "\u{feff}{}",
            "{\"a\":\"\\ud800\"}",
        ] {
            assert!(Fields::parse(body.as_bytes()).is_err(), "{body:?}");
        }
        assert!(Fields::parse(b"{\"a\":\"\xff\"}").is_err());
        assert!(
            Fields::parse(b"{\"a\":1,\"a\":2}").is_ok(),
            "duplicate keys are legal JSON; the last one counts"
        );
    }

    #[test]
    fn numbers_are_typed_and_ranged() {
        let get =
            |text: &str| Fields::parse(format!("{{\"n\":{text}}}").as_bytes()).unwrap().integer("n", 1..=9);
        assert_eq!(get("null"), Ok(None));
        for (written, whole) in [("9", 9), ("9.0", 9), ("0.5e1", 5), ("1e0", 1)] {
            assert_eq!(get(written), Ok(Some(whole)), "{written}");
        }
        for bad in [
            "0",
            "-0",
            "10",
            "-1",
            "1.5",
            "1e2",
            "1e300",
            "\"1\"",
            "true",
            "[]",
            "{}",
            "99999999999999999999999",
        ] {
            let fault = get(bad).unwrap_err();
            assert_eq!(fault.param.as_deref(), Some("n"), "{bad}");
        }
    }

    #[test]
    fn a_long_value_is_cut_at_a_character() {
        let text = quoted(&Value::String("é".repeat(400)));
        assert!(text.len() < QUOTED_BYTES_MAX + 4 && text.ends_with("..."), "{text}");
    }
}
