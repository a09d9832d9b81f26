//! One call's JSON object, character by character: `{"name": "f", "arguments": {..}}`, members in any order.

use pinion_protocol::limits::FUNCTION_NAME_BYTES_MAX;

/// Bytes of a key that is looked at; no call has longer ones.
const KEY_BYTES_MAX: usize = 32;

/// What a character means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may belong to a call.
    Hold,
    /// This is no call.
    Refuse,
    /// It begins the arguments of a call whose name is known.
    Begin,
    /// The name is known now; the arguments stood before it.
    BeginLate,
    /// It belongs to the arguments.
    Flow,
    /// It ends the object.
    Done,
}

/// Brackets that are open, outside strings.
#[derive(Clone, Copy, Debug, Default)]
struct Nesting {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Nesting {
    /// Takes a character; true if it closes what the first one opened.
    fn closes(&mut self, c: char) -> bool {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth = self.depth.saturating_add(1),
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.depth == 0
    }
}

/// Where in the object the next character stands.
#[derive(Clone, Copy, Debug)]
enum At {
    Open,
    FirstKey,
    Key,
    InKey,
    Colon,
    Value,
    InName,
    InString { escaped: bool },
    InScalar,
    InNested(Nesting),
    InArguments(Nesting),
    Next,
}

/// How far one call has been read.
#[derive(Debug)]
pub(super) struct Scan {
    at: At,
    key: String,
    name: String,
    has_name: bool,
    /// Arguments that stood before the name.
    early: Option<String>,
    /// The call has been told, with its arguments so far.
    told: bool,
    /// There is no object around the arguments.
    bare: bool,
}

impl Scan {
    /// Before the object.
    pub(super) fn new() -> Scan {
        Scan {
            at: At::Open,
            key: String::new(),
            name: String::new(),
            has_name: false,
            early: None,
            told: false,
            bare: false,
        }
    }

    /// Inside the arguments of `name`, whose first bracket has been read; nothing but they is to come.
    pub(super) fn bare(name: String) -> Scan {
        let nesting = Nesting { depth: 1, ..Nesting::default() };
        Scan { at: At::InArguments(nesting), name, has_name: true, told: true, bare: true, ..Scan::new() }
    }

    /// The function's name, once it is known.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the call has been told.
    pub(super) fn is_told(&self) -> bool {
        self.told
    }

    /// Arguments that stood before the name.
    pub(super) fn take_early(&mut self) -> String {
        self.early.take().unwrap_or_default()
    }

    /// Whether the arguments are complete and nothing stands around them.
    pub(super) fn ends_with_arguments(&self) -> bool {
        self.bare && matches!(self.at, At::Next)
    }

    pub(super) fn step(&mut self, c: char) -> Verdict {
        match self.at {
            At::Open => self.skip_to(c, '{', At::FirstKey),
            At::FirstKey | At::Key => {
                self.key.clear();
                self.skip_to(c, '"', At::InKey)
            }
            At::InKey => self.key(c),
            At::Colon => self.skip_to(c, ':', At::Value),
            At::Value => self.value(c),
            At::InName => self.in_name(c),
            At::InString { escaped } => {
                self.at = match c {
                    '"' if !escaped => At::Next,
                    _ => At::InString { escaped: c == '\\' && !escaped },
                };
                Verdict::Hold
            }
            At::InScalar if c.is_ascii_alphanumeric() || "+-.".contains(c) => Verdict::Hold,
            At::InScalar | At::Next => self.next(c),
            At::InNested(mut nesting) => {
                self.at = if nesting.closes(c) { At::Next } else { At::InNested(nesting) };
                Verdict::Hold
            }
            At::InArguments(mut nesting) => {
                self.at = if nesting.closes(c) { At::Next } else { At::InArguments(nesting) };
                if let Some(early) = &mut self.early {
                    early.push(c);
                    return Verdict::Hold;
                }
                Verdict::Flow
            }
        }
    }

    /// White space, or the one character that leads on.
    fn skip_to(&mut self, c: char, wanted: char, then: At) -> Verdict {
        if c == wanted {
            self.at = then;
            return Verdict::Hold;
        }
        if is_space(c) { Verdict::Hold } else { Verdict::Refuse }
    }

    fn key(&mut self, c: char) -> Verdict {
        match c {
            '"' => self.at = At::Colon,
            '\\' => return Verdict::Refuse,
            _ if self.key.len() + c.len_utf8() > KEY_BYTES_MAX => return Verdict::Refuse,
            _ => self.key.push(c),
        }
        Verdict::Hold
    }

    fn value(&mut self, c: char) -> Verdict {
        if is_space(c) {
            return Verdict::Hold;
        }
        let opened = Nesting { depth: 1, ..Nesting::default() };
        match (self.key.as_str(), c) {
            ("name", '"') if !self.has_name => self.at = At::InName,
            ("arguments" | "parameters", '{') if !self.told && self.early.is_none() => {
                self.at = At::InArguments(opened);
                if self.has_name {
                    self.told = true;
                    return Verdict::Begin;
                }
                self.early = Some(c.to_string());
            }
            ("name" | "arguments" | "parameters", _) => return Verdict::Refuse,
            (_, '"') => self.at = At::InString { escaped: false },
            (_, '{' | '[') => self.at = At::InNested(opened),
            (_, '-' | '0'..='9' | 't' | 'f' | 'n') => self.at = At::InScalar,
            _ => return Verdict::Refuse,
        }
        Verdict::Hold
    }

    fn in_name(&mut self, c: char) -> Verdict {
        match c {
            '"' if self.name.is_empty() => return Verdict::Refuse,
            '"' => {
                self.has_name = true;
                self.at = At::Next;
                if self.early.is_some() {
                    self.told = true;
                    return Verdict::BeginLate;
                }
            }
            _ if is_name(c) && self.name.len() < FUNCTION_NAME_BYTES_MAX => self.name.push(c),
            _ => return Verdict::Refuse,
        }
        Verdict::Hold
    }

    fn next(&mut self, c: char) -> Verdict {
        match c {
            ',' => self.at = At::Key,
            '}' if self.told => return Verdict::Done,
            _ if is_space(c) => self.at = At::Next,
            _ => return Verdict::Refuse,
        }
        Verdict::Hold
    }
}

/// JSON's white space.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// Whether a function's name may have it.
pub(super) fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}
