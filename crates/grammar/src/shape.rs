//! What is refused before the library sees it: shapes whose cost its fuel does not bound.

use crate::limits::{
    LARK_RULES_MAX, MULTIPLE_OF_MAX, PATTERN_PROPERTIES_MAX, PROPERTIES_MAX, REPETITIONS_MAX,
};
use serde_json::{Deserializer, Value};
use std::collections::BTreeSet;

/// Counts over one grammar.
#[derive(Default)]
struct Counts {
    factors: BTreeSet<u64>,
    factor_sum: u64,
    patterns: usize,
    properties: usize,
    repetitions: usize,
}

/// Checks a regular expression.
pub(crate) fn check_regex(expression: &str) -> Result<(), String> {
    Counts { repetitions: repetitions(expression), ..Counts::default() }.verdict()
}

/// Checks a JSON schema.
pub(crate) fn check_schema(schema: &Value) -> Result<(), String> {
    let mut counts = Counts::default();
    counts.add(schema);
    counts.verdict()
}

/// Checks a Lark grammar, the schemas in its `%json` parts included.
pub(crate) fn check_lark(text: &str) -> Result<(), String> {
    let rules = text.bytes().filter(|byte| matches!(byte, b'\n' | b'|')).count();
    if rules > LARK_RULES_MAX {
        return Err(format!("has {rules} lines and alternatives; at most {LARK_RULES_MAX} are allowed"));
    }
    let mut counts = Counts { repetitions: repetitions(text), ..Counts::default() };
    // The word may stand in a text of a schema, so the JSON behind it may go on past the next one. A schema is counted
    // twice at worst, and never left out.
    for (at, word) in text.match_indices("%json") {
        let rest = &text[at + word.len()..];
        if let Some(Ok(schema)) = Deserializer::from_str(rest).into_iter::<Value>().next() {
            counts.add(&schema);
        }
    }
    counts.verdict()
}

impl Counts {
    /// Looks at every member of every object, whether it stands where a schema is expected or not.
    fn add(&mut self, value: &Value) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    let count = member.as_object().map_or(0, serde_json::Map::len);
                    match name.as_str() {
                        "multipleOf" => {
                            let factor = factor(member);
                            self.factors.insert(factor);
                            self.factor_sum = self.factor_sum.saturating_add(factor);
                        }
                        "patternProperties" => {
                            self.patterns += count;
                            let names = member.as_object().into_iter().flat_map(|member| member.keys());
                            self.repetitions += names.map(|name| repetitions(name)).sum::<usize>();
                        }
                        "pattern" | "whitespace_pattern" => {
                            self.repetitions += member.as_str().map_or(0, repetitions)
                        }
                        "properties" => self.properties += count,
                        _ => {}
                    }
                    self.add(member);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn verdict(&self) -> Result<(), String> {
        let product = self.factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor));
        if product.max(self.factor_sum) > MULTIPLE_OF_MAX {
            return Err(format!(
                "the numbers in multipleOf are too large: the digits of the different ones may multiply to \
                 {MULTIPLE_OF_MAX}, and those of all add up to it"
            ));
        }
        if self.patterns > PATTERN_PROPERTIES_MAX {
            let got = self.patterns;
            return Err(format!("has {got} patternProperties; at most {PATTERN_PROPERTIES_MAX} are allowed"));
        }
        if self.properties > PROPERTIES_MAX {
            return Err(format!("has {} properties; at most {PROPERTIES_MAX} are allowed", self.properties));
        }
        if self.repetitions > REPETITIONS_MAX {
            let got = self.repetitions;
            return Err(format!(
                "has {got} repetitions in expressions; at most {REPETITIONS_MAX} are allowed"
            ));
        }
        Ok(())
    }
}

/// The digits of a number as one whole number, the point and the power of ten left out: 2.50 counts as 25. At least 1.
fn factor(value: &Value) -> u64 {
    let text = value.to_string();
    let digits = text.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    match digits.trim_matches('0') {
        "" => 1,
        digits => digits.parse().unwrap_or(u64::MAX),
    }
}

/// Repetitions in an expression: a brace counts if a number follows it.
fn repetitions(expression: &str) -> usize {
    let bytes = expression.as_bytes();
    let next = |at: usize| bytes.get(at + 1).copied().unwrap_or_default();
    let repeats = |(at, byte): (usize, &u8)| match byte {
        b'?' | b'*' | b'+' => true,
        b'{' => next(at).is_ascii_digit() || next(at) == b',',
        _ => false,
    };
    bytes.iter().enumerate().filter(|entry| repeats(*entry)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn factors_are_digits() {
        for (text, expected) in [
            ("1000000", 1),
            ("0.01", 1),
            ("2.50", 25),
            ("1e300", 1),
            ("999983", 999_983),
            ("0", 1),
            ("\"x\"", 1),
        ] {
            let value = serde_json::from_str(text).unwrap();
            assert_eq!(factor(&value), expected, "{text}");
        }
    }

    #[test]
    fn a_brace_counts_only_before_a_number() {
        for (text, expected) in [("a{3}b{,2}", 2), ("{\"a\": 1}", 0), ("a?b*c+", 3), ("{", 0), ("", 0)] {
            assert_eq!(repetitions(text), expected, "{text}");
        }
    }

    #[test]
    fn members_count_wherever_they_stand() {
        let nested = json!({"anyOf": [{"multipleOf": 97}, {"items": {"multipleOf": 103}}]});
        assert!(check_schema(&nested).is_err());
        assert!(check_schema(&json!({"multipleOf": 97})).is_ok());
        assert!(check_lark("start: %json {\"multipleOf\": 99999.99}").is_err());
        assert!(check_lark("start: %json {\"multipleOf\": 5} \"multipleOf\"").is_ok());
        assert!(check_lark("start: %json {\"default\": \"%json\", \"multipleOf\": 99999.99}").is_err());
        assert!(check_lark("start: \"%json\" %json {\"multipleOf\": 99999.99}").is_err());
    }
}
