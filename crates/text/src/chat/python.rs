//! What Jinja templates take from Python and the template library does otherwise: `json.dumps`, the whitespace
//! that `str.strip` takes off, what counts as a sequence, and a few methods.

use minijinja::filters;
use minijinja::value::{Kwargs, Rest, StringInput, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter};
use std::fmt::Write;

/// Nesting that [`tojson`] follows; a JSON body cannot be nested deeper than 128.
const JSON_DEPTH_MAX: usize = 200;
/// Spaces of one level of indentation.
const INDENT_MAX: usize = 1000;
/// Digits of a width in a format.
const WIDTH_DIGITS_MAX: usize = 4;

/// Replaces what differs from jinja2 as transformers sets it up.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", tojson);
    environment.add_filter("indent", indent);
    environment.add_filter("format", format);
    environment
        .add_filter("trim", |value: String, chars: Option<String>| strip(&value, chars.as_deref(), BOTH));
    environment.add_filter("string", |value: Value| match value.kind() {
        ValueKind::String => value,
        _ => Value::from(written(&value).unwrap_or_else(|| value.to_string())),
    });
    // The library refuses these of an undefined value.
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.kind() {
            ValueKind::Undefined => Ok(0),
            _ => filters::length(value),
        });
    }
    environment.add_filter("items", |value: &Value| match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        _ => filters::items(value),
    });
    environment.add_filter("first", |value: &Value| match value.kind() {
        ValueKind::Undefined => Ok(Value::UNDEFINED),
        _ => filters::first(value),
    });
    environment.add_filter("last", |value: Value| match value.kind() {
        ValueKind::Undefined => Ok(Value::UNDEFINED),
        _ => filters::last(value),
    });
    environment.set_formatter(|out, state, value| match written(value) {
        Some(text) => Ok(out.write_str(&text)?),
        None => escape_formatter(out, state, value),
    });
    environment.add_test("sequence", |value: &Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), Seq | Map | String | Undefined)
    });
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Seq | Map | String | Iterable | Undefined)
    });
    environment.add_test("number", |value: &Value| value.is_number() || value.kind() == ValueKind::Bool);
    environment.set_unknown_method_callback(method);
}

/// jinja2's `indent` with a bounded width.
fn indent(
    text: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let named: Option<usize> = kwargs.peek("width")?;
    match width.or(named) {
        Some(width) if width > INDENT_MAX => Err(too_wide()),
        _ => filters::indent(text, width, first, blank, kwargs),
    }
}

/// jinja2's `format` with bounded widths.
fn format(state: &mut State, form: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    bounded_widths(form)?;
    filters::format(state, form, args)
}

/// Refuses a format with a number of more digits than any sensible width has.
fn bounded_widths(form: &Value) -> Result<(), Error> {
    let is_no_digit = |c: char| !c.is_ascii_digit();
    let text = form.as_str().unwrap_or_default();
    match text.split(is_no_digit).any(|digits| digits.len() > WIDTH_DIGITS_MAX) {
        true => Err(too_wide()),
        false => Ok(()),
    }
}

fn too_wide() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a width is too large")
}

/// `str(value)`, where the library writes something else and has not made it a string already.
fn written(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).ok().map(|number| match number {
                n if n.is_nan() => "nan".to_owned(),
                n if n.is_infinite() => if n > 0.0 { "inf" } else { "-inf" }.to_owned(),
                n => float(n),
            })
        }
        _ => None,
    }
}

fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let ends = Ends { start: name != "rstrip", end: name != "lstrip" };
            Ok(Value::from(strip(text, chars, ends)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "format" => {
            bounded_widths(value)?;
            minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
        }
        "split" if args.is_empty() => {
            let words = text.split(is_space).filter(|word| !word.is_empty());
            Ok(words.map(Value::from).collect())
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

#[derive(Clone, Copy)]
struct Ends {
    start: bool,
    end: bool,
}

const BOTH: Ends = Ends { start: true, end: true };

fn strip(text: &str, chars: Option<&str>, ends: Ends) -> String {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if ends.start { text.trim_start_matches(goes) } else { text };
    if ends.end { text.trim_end_matches(goes) } else { text }.to_owned()
}

/// `str.isspace`: Unicode's white space and the four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `json.dumps(x, ensure_ascii, indent, separators, sort_keys)` in the argument order of transformers.
fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let argument = |index: usize, name: &str| -> Result<Value, Error> {
        match args.get(index) {
            Some(value) => Ok(value.clone()),
            None => Ok(kwargs.get::<Option<Value>>(name)?.unwrap_or_default()),
        }
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_true();
    let indent = indentation(&argument(1, "indent")?)?;
    let separators = argument(2, "separators")?;
    let sort_keys = argument(3, "sort_keys")?.is_true();
    kwargs.assert_all_used()?;
    let item = if indent.is_some() { "," } else { ", " };
    let (item, key) = match separators.kind() {
        ValueKind::Undefined | ValueKind::None => (item.to_owned(), ": ".to_owned()),
        _ => (separators.get_item_by_index(0)?.to_string(), separators.get_item_by_index(1)?.to_string()),
    };
    let mut writer = JsonWriter { out: String::new(), ensure_ascii, indent, item, key, sort_keys };
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn indentation(indent: &Value) -> Result<Option<String>, Error> {
    match indent.kind() {
        ValueKind::Undefined | ValueKind::None => Ok(None),
        ValueKind::String => Ok(Some(indent.to_string())),
        ValueKind::Bool => Ok(Some(" ".repeat(usize::from(indent.is_true())))),
        _ => match i64::try_from(indent.clone())? {
            width if width > INDENT_MAX as i64 => Err(too_wide()),
            width => Ok(Some(" ".repeat(usize::try_from(width).unwrap_or(0)))),
        },
    }
}

fn failed(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {}", reason.into()))
}

struct JsonWriter {
    out: String,
    ensure_ascii: bool,
    /// One level's indentation; `None` for everything on one line.
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

impl JsonWriter {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > JSON_DEPTH_MAX {
            return Err(failed(format!("nested deeper than {JSON_DEPTH_MAX}")));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.array(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            kind => return Err(failed(format!("{kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
        } else {
            self.out.push_str(&float(f64::try_from(value.clone())?));
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a String does not fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn array(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut count = 0;
        self.out.push('[');
        for item in value.try_iter()?.checked() {
            self.separate(count, depth + 1);
            self.value(&item?, depth + 1)?;
            count += 1;
        }
        self.close(count, depth, ']');
        Ok(())
    }

    fn object(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys = value.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>()?;
        if self.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        for (index, key) in keys.iter().enumerate() {
            self.separate(index, depth + 1);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                    self.out.push('"');
                    self.value(key, depth + 1)?;
                    self.out.push('"');
                }
                kind => return Err(failed(format!("{kind} cannot be a key"))),
            }
            self.out.push_str(&self.key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close(keys.len(), depth, '}');
        Ok(())
    }

    fn separate(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push_str(&self.item);
        }
        self.new_line(depth);
    }

    fn close(&mut self, count: usize, depth: usize, bracket: char) {
        if count > 0 {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }
}

/// `repr` of a float: the shortest digits that read back as the same number, with an exponent from 1e16 on and
/// below 1e-4.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let magnitude = number.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        // From Python's `json.dumps`.
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5e-3, "-0.0025"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (1e-7, "1e-07"),
            (123_456_789.125, "123456789.125"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (1.25e22, "1.25e+22"),
            (f64::MAX, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::NAN, "NaN"),
        ];
        for (number, expected) in cases {
            assert_eq!(float(number), expected);
        }
    }
}
