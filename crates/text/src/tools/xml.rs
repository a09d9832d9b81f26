//! One call as Qwen 3 Coder writes it, character by character:
//!
//! ```text
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! ```
//!
//! A value is text, but for parameters that the function's schema wants otherwise. Text leaves as it comes; any other
//! value when it is complete, as the JSON that it is, or as a string if it is none.

use super::scan::{is_name, is_space};
use super::spelled::{Said, escape, python_word, quote};
use pinion_protocol::limits::FUNCTION_NAME_BYTES_MAX;

/// Bytes of a tag.
const TAG_BYTES_MAX: usize = 256;
/// Bytes of a value that is not text; a longer one is a string.
const VALUE_BYTES_MAX: usize = 64 << 10;
const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const VALUE_END: &str = "</parameter>";
const END: &str = "</function>";

#[derive(Debug)]
enum At {
    /// Bytes of [`FUNCTION`] that have come.
    Function(usize),
    Name,
    /// Between parameters.
    Inside,
    /// In a tag between parameters.
    Tag(String),
    Value,
}

/// How far one call has been read.
#[derive(Debug)]
pub(super) struct XmlScan {
    at: At,
    name: String,
    /// Parameters that are not text, once the name is known.
    json_parameters: Vec<String>,
    parameters: usize,
    /// The value so far, if it is not text.
    json: Option<String>,
    is_fresh: bool,
    /// A line end that is part of the value only if more of it follows.
    newline: bool,
    /// Bytes of [`VALUE_END`] that have come.
    matched: usize,
}

impl XmlScan {
    /// Before the function's tag.
    pub(super) fn new() -> XmlScan {
        XmlScan {
            at: At::Function(0),
            name: String::new(),
            json_parameters: Vec::new(),
            parameters: 0,
            json: None,
            is_fresh: false,
            newline: false,
            matched: 0,
        }
    }

    /// The function's name, once it is known.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Which parameters are not text.
    pub(super) fn type_parameters(&mut self, json_parameters: &[String]) {
        self.json_parameters = json_parameters.to_vec();
    }

    /// Whether the call has been told.
    pub(super) fn is_told(&self) -> bool {
        !matches!(self.at, At::Function(_) | At::Name)
    }

    pub(super) fn step(&mut self, c: char, out: &mut String) -> Said {
        match &mut self.at {
            At::Function(0) if is_space(c) => Said::Hold,
            At::Function(matched) => {
                if !FUNCTION[*matched..].starts_with(c) {
                    return Said::Refuse;
                }
                *matched += 1;
                if *matched == FUNCTION.len() {
                    self.at = At::Name;
                }
                Said::Hold
            }
            At::Name => match c {
                '>' if !self.name.is_empty() => {
                    self.at = At::Inside;
                    out.push('{');
                    Said::Begin
                }
                _ if is_name(c) && self.name.len() < FUNCTION_NAME_BYTES_MAX => {
                    self.name.push(c);
                    Said::Hold
                }
                _ => Said::Refuse,
            },
            // What stands between parameters means nothing.
            At::Inside => {
                if c == '<' {
                    self.at = At::Tag(c.to_string());
                }
                Said::Flow
            }
            At::Tag(tag) => {
                tag.push(c);
                if c == '>' {
                    let tag = std::mem::take(tag);
                    return self.tag(&tag, out);
                }
                if tag.len() > TAG_BYTES_MAX {
                    self.at = At::Inside;
                }
                Said::Flow
            }
            At::Value => {
                self.value(c, out);
                Said::Flow
            }
        }
    }

    fn tag(&mut self, tag: &str, out: &mut String) -> Said {
        self.at = At::Inside;
        if tag == END {
            out.push('}');
            return Said::Done;
        }
        let Some(key) = tag.strip_prefix(PARAMETER).and_then(|key| key.strip_suffix('>')) else {
            return Said::Flow;
        };
        if self.parameters > 0 {
            out.push_str(", ");
        }
        self.parameters += 1;
        quote(key.trim(), out);
        out.push_str(": ");
        let is_text = !self.json_parameters.iter().any(|parameter| parameter == key.trim());
        if is_text {
            out.push('"');
        }
        self.json = (!is_text).then(String::new);
        (self.at, self.is_fresh, self.newline, self.matched) = (At::Value, true, false, 0);
        Said::Flow
    }

    fn value(&mut self, c: char, out: &mut String) {
        if VALUE_END[self.matched..].starts_with(c) {
            self.matched += 1;
            if self.matched == VALUE_END.len() {
                self.end_value(out);
                self.at = At::Inside;
            }
            return;
        }
        let begun = std::mem::take(&mut self.matched);
        VALUE_END[..begun].chars().for_each(|c| self.add(c, out));
        if VALUE_END.starts_with(c) {
            self.matched = 1;
        } else {
            self.add(c, out);
        }
    }

    /// The line end behind the opening tag and the one before the closing tag are their frame.
    fn add(&mut self, c: char, out: &mut String) {
        let is_fresh = std::mem::replace(&mut self.is_fresh, false);
        if c == '\n' && is_fresh {
            return;
        }
        if std::mem::replace(&mut self.newline, c == '\n') {
            self.put('\n', out);
        }
        if c != '\n' {
            self.put(c, out);
        }
    }

    fn put(&mut self, c: char, out: &mut String) {
        let Some(value) = &mut self.json else { return escape(c, out) };
        value.push(c);
        if value.len() > VALUE_BYTES_MAX {
            out.push('"');
            value.chars().for_each(|c| escape(c, out));
            self.json = None;
        }
    }

    fn end_value(&mut self, out: &mut String) {
        let Some(value) = self.json.take() else { return out.push('"') };
        let value = value.trim();
        if serde_json::from_str::<serde::de::IgnoredAny>(value).is_ok() {
            out.push_str(value);
        } else if let Some(word) = python_word(value) {
            out.push_str(word);
        } else {
            quote(value, out);
        }
    }
}
