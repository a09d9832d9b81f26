//! A list of calls as Llama 4 writes it, character by character: `[f(a=1, b="x"), g()]`. The values are Python's
//! literals, and leave as JSON.

use super::scan::{is_name, is_space};
use super::spelled::{Said, escape, python_word, quote};
use pinion_protocol::limits::FUNCTION_NAME_BYTES_MAX;

/// Brackets open at a time in one value.
const DEPTH_MAX: usize = 64;
/// Bytes of a number or a word.
const WORD_BYTES_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before a call.
    Call,
    Name,
    /// Before an argument, or the end of the call.
    Argument,
    Key,
    /// Before a value, or the end of the innermost bracket.
    Value,
    Text {
        quote: char,
    },
    /// Behind a backslash.
    Escape {
        quote: char,
    },
    /// A character by its number, of which `left` digits are missing.
    Code {
        quote: char,
        left: u8,
        code: u32,
    },
    Word,
    /// Behind a value.
    Behind,
    /// Behind a call.
    Next,
}

/// How far one list has been read.
#[derive(Debug)]
pub(super) struct PythonScan {
    at: At,
    name: String,
    /// A key, or a value that is a number or a word.
    word: String,
    /// Brackets that are open in the value, by what closes them here.
    open: Vec<char>,
    /// A comma has come, which JSON has only if something follows.
    comma: bool,
    /// What comes next in the innermost bracket is a key.
    is_key: bool,
    /// Arguments of this call.
    arguments: usize,
    /// Nothing of this call has been told: it may be none.
    is_untold: bool,
    /// Calls that have been told.
    told: usize,
}

impl PythonScan {
    /// A scan that begins behind the bracket that opens the list of calls.
    pub(super) fn new() -> PythonScan {
        PythonScan {
            at: At::Call,
            name: String::new(),
            word: String::new(),
            open: Vec::new(),
            comma: false,
            is_key: false,
            arguments: 0,
            is_untold: true,
            told: 0,
        }
    }

    /// The function's name, once it is known.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a call has been told.
    pub(super) fn is_told(&self) -> bool {
        self.told > 0
    }

    pub(super) fn step(&mut self, c: char, out: &mut String) -> Said {
        match self.at {
            At::Call | At::Name => self.name_of(c),
            At::Argument => match c {
                _ if is_space(c) => self.flow(),
                ')' => self.end_call(out),
                _ if c.is_alphabetic() || c == '_' => {
                    self.word.clear();
                    self.word.push(c);
                    self.at = At::Key;
                    self.flow()
                }
                _ => self.wrong(),
            },
            At::Key => self.key(c, out),
            At::Value => self.value(c, out),
            At::Text { .. } | At::Escape { .. } | At::Code { .. } => self.text(c, out),
            At::Word if is_word(c) && self.word.len() < WORD_BYTES_MAX => {
                self.word.push(c);
                Said::Flow
            }
            At::Word => {
                self.end_word(out);
                self.at = At::Behind;
                self.behind(c, out)
            }
            At::Behind => self.behind(c, out),
            At::Next => match c {
                _ if is_space(c) => Said::Flow,
                ',' => {
                    self.at = At::Call;
                    Said::Flow
                }
                ']' => Said::Done,
                _ => Said::GiveUp,
            },
        }
    }

    fn name_of(&mut self, c: char) -> Said {
        match (self.at, c) {
            (At::Call, ']') if self.is_told() => Said::Done,
            (At::Call, _) if is_space(c) => Said::Hold,
            (At::Call, _) if is_name(c) => {
                self.name.clear();
                self.name.push(c);
                self.at = At::Name;
                Said::Hold
            }
            (At::Name, '(') => {
                (self.at, self.arguments, self.is_untold) = (At::Argument, 0, true);
                Said::Hold
            }
            (At::Name, _) if is_name(c) && self.name.len() < FUNCTION_NAME_BYTES_MAX => {
                self.name.push(c);
                Said::Hold
            }
            _ => self.wrong(),
        }
    }

    /// What a character of a call is that fits.
    fn flow(&self) -> Said {
        if self.is_untold { Said::Hold } else { Said::Flow }
    }

    /// What one is that does not.
    fn wrong(&self) -> Said {
        if self.is_told() { Said::GiveUp } else { Said::Refuse }
    }

    /// The call is one.
    fn begin(&mut self, out: &mut String) -> Said {
        if !std::mem::replace(&mut self.is_untold, false) {
            return Said::Flow;
        }
        self.told += 1;
        out.push('{');
        Said::Begin
    }

    fn key(&mut self, c: char, out: &mut String) -> Said {
        match c {
            '=' => {
                let said = self.begin(out);
                if self.arguments > 0 {
                    out.push_str(", ");
                }
                self.arguments += 1;
                quote(&self.word, out);
                out.push_str(": ");
                (self.at, self.comma, self.is_key) = (At::Value, false, false);
                return said;
            }
            _ if is_space(c) => {}
            _ if (c.is_alphanumeric() || c == '_') && self.word.len() < WORD_BYTES_MAX => self.word.push(c),
            _ => return self.wrong(),
        }
        self.flow()
    }

    fn value(&mut self, c: char, out: &mut String) -> Said {
        if is_space(c) {
            return Said::Flow;
        }
        if self.open.last() == Some(&closing(c)) && ")]}".contains(c) {
            self.comma = false;
            return self.close(out);
        }
        if std::mem::take(&mut self.comma) {
            out.push_str(", ");
        }
        match c {
            '"' | '\'' => {
                out.push('"');
                self.at = At::Text { quote: c };
            }
            '[' | '(' | '{' if self.open.len() < DEPTH_MAX => {
                out.push(if c == '{' { '{' } else { '[' });
                self.is_key = c == '{';
                self.open.push(closing(c));
            }
            _ if is_word(c) => {
                self.word.clear();
                self.word.push(c);
                self.at = At::Word;
            }
            _ => return Said::GiveUp,
        }
        Said::Flow
    }

    fn close(&mut self, out: &mut String) -> Said {
        match self.open.pop() {
            Some(bracket) => out.push(bracket),
            None => return Said::GiveUp,
        }
        // A bracket within a dictionary is a value there.
        (self.at, self.is_key) = (At::Behind, false);
        Said::Flow
    }

    fn behind(&mut self, c: char, out: &mut String) -> Said {
        match (c, self.open.last()) {
            _ if is_space(c) => {}
            (',', None) => self.at = At::Argument,
            (')', None) => return self.end_call(out),
            // A set is not JSON.
            (',' | '}', Some('}')) if self.is_key => return Said::GiveUp,
            (',', Some(open)) => (self.is_key, self.at, self.comma) = (*open == '}', At::Value, true),
            (':', Some('}')) if self.is_key => {
                out.push_str(": ");
                (self.is_key, self.at, self.comma) = (false, At::Value, false);
            }
            (')' | ']' | '}', Some(open)) if *open == closing(c) => return self.close(out),
            _ => return Said::GiveUp,
        }
        Said::Flow
    }

    fn end_call(&mut self, out: &mut String) -> Said {
        let said = self.begin(out);
        out.push('}');
        self.at = At::Next;
        said
    }

    fn text(&mut self, c: char, out: &mut String) -> Said {
        match self.at {
            At::Text { quote } if c == quote => {
                out.push('"');
                self.at = At::Behind;
            }
            At::Text { quote } if c == '\\' => self.at = At::Escape { quote },
            At::Escape { quote } => {
                self.at = At::Text { quote };
                match c {
                    'n' => escape('\n', out),
                    't' => escape('\t', out),
                    'r' => escape('\r', out),
                    '\\' | '\'' | '"' => escape(c, out),
                    '\n' => {}
                    'x' => self.at = At::Code { quote, left: 2, code: 0 },
                    'u' => self.at = At::Code { quote, left: 4, code: 0 },
                    'U' => self.at = At::Code { quote, left: 8, code: 0 },
                    // Python keeps a backslash that means nothing.
                    _ => {
                        escape('\\', out);
                        escape(c, out);
                    }
                }
            }
            At::Code { quote, left, code } => {
                let Some(digit) = c.to_digit(16) else { return Said::GiveUp };
                let code = code << 4 | digit;
                if left > 1 {
                    self.at = At::Code { quote, left: left - 1, code };
                } else {
                    escape(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), out);
                    self.at = At::Text { quote };
                }
            }
            _ => escape(c, out),
        }
        Said::Flow
    }

    /// A number as it is, a word that Python knows, or else a string.
    fn end_word(&mut self, out: &mut String) {
        let number = self.word.replace('_', "");
        let is_number = !self.word.starts_with(|c: char| c.is_alphabetic())
            && serde_json::from_str::<serde::de::IgnoredAny>(&number).is_ok();
        match python_word(&self.word) {
            _ if self.is_key => quote(&self.word, out),
            Some(word) => out.push_str(word),
            None if is_number => out.push_str(&number),
            None => quote(&self.word, out),
        }
    }
}

/// What closes a bracket, as JSON has it. A tuple is a list there.
fn closing(bracket: char) -> char {
    if matches!(bracket, '{' | '}') { '}' } else { ']' }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | '.')
}
