//! Text in pieces in, text and calls out.

use super::format::CallFormat;
use super::pythonic::PythonScan;
use super::scan::{Scan, Verdict, is_name, is_space};
use super::spelled::Said;
use super::xml::XmlScan;
use pinion_protocol::limits::FUNCTION_NAME_BYTES_MAX;

/// Calls of one answer that are looked for; what looks like more of them is text.
pub const CALLS_MAX: usize = 128;
/// Bytes that may be held back because they may become a call; past it they are text.
pub const HELD_BYTES_MAX: usize = 16 << 10;

/// Bytes between a name and its arguments in Mistral's short form.
const TAGS_BYTES_MAX: usize = 128;
const CLOSE: &str = "</tool_call>";

/// What the text is expected to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Text, in which there may be calls.
    Free(CallFormat),
    /// A JSON array of calls and nothing else.
    List,
    /// The arguments of one call of this function, and nothing else.
    Arguments(String),
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Text that belongs to no call.
    Text(&'a str),
    /// A call begins.
    Call {
        /// The function.
        name: &'a str,
    },
    /// More of the last call's arguments, as the model wrote them.
    Arguments(&'a str),
}

#[derive(Debug)]
enum State {
    /// White space at the beginning of the answer or behind a call, which is held back.
    Edge,
    Text,
    /// This number of bytes of the mark have come.
    Mark(usize),
    /// Behind Mistral's mark.
    Opening,
    /// Mistral's short form: a name, and what stands between it and the arguments.
    Short {
        name: String,
        tags: String,
    },
    Call(Scan),
    Xml(XmlScan),
    Python(PythonScan),
    /// Behind a call; this number of bytes of the closing mark have come.
    Behind(usize),
    /// All of it is arguments.
    Bare,
}

/// Finds calls in one answer.
#[derive(Debug)]
pub struct CallParser {
    shape: Shape,
    /// Functions that a call without a mark must name, to be one.
    known: Vec<String>,
    /// Parameters of these functions that are not text, where a format does not say it.
    json_parameters: Vec<Vec<String>>,
    calls_max: usize,
    state: State,
    /// The attempt at a call began with a mark.
    marked: bool,
    /// The calls stand in a list.
    listed: bool,
    /// What may become a call.
    held: String,
    /// Characters that are looked at again, the last one first.
    again: Vec<char>,
    /// Calls of the list that is being read, where arguments are spelled anew.
    calls_of_list: usize,
    /// What one character added to the arguments; empty between two.
    arguments: String,
    /// Said, but not handed over yet.
    out: String,
    out_is_arguments: bool,
    calls: usize,
}

impl CallParser {
    /// `known` are the functions of the request; calls past the first `calls_max` are dropped.
    pub fn new(shape: Shape, known: Vec<String>, calls_max: usize) -> CallParser {
        let state = if matches!(shape, Shape::Arguments(_)) { State::Bare } else { State::Edge };
        CallParser {
            shape,
            known,
            json_parameters: Vec::new(),
            calls_max,
            state,
            marked: false,
            listed: false,
            held: String::new(),
            again: Vec::new(),
            calls_of_list: 0,
            arguments: String::new(),
            out: String::new(),
            out_is_arguments: false,
            calls: 0,
        }
    }

    /// The parameters of each known function that are not text. Only formats that do not say it ask for them.
    pub fn typed(self, json_parameters: Vec<Vec<String>>) -> CallParser {
        CallParser { json_parameters, ..self }
    }

    /// Calls found so far and not dropped.
    pub fn calls(&self) -> usize {
        self.calls.min(self.calls_max)
    }

    /// Takes more text.
    pub fn push(&mut self, text: &str, say: &mut dyn FnMut(Part<'_>)) {
        for c in text.chars() {
            self.again.push(c);
            while let Some(c) = self.again.pop() {
                self.step(c, say);
            }
        }
        self.hand_over(say);
    }

    /// The answer is complete: what is held back is no call any more. The unfinished end of a call is not text, and
    /// neither is the beginning of one where nothing but calls can be.
    pub fn finish(&mut self, say: &mut dyn FnMut(Part<'_>)) {
        let is_text = match &self.state {
            State::Edge => self.calls == 0,
            State::Call(scan) => !scan.is_told() && self.shape != Shape::List,
            State::Xml(scan) => !scan.is_told(),
            State::Python(scan) => !scan.is_told(),
            State::Text | State::Mark(_) | State::Opening | State::Short { .. } => true,
            State::Behind(_) | State::Bare => false,
        };
        let held = std::mem::take(&mut self.held);
        if is_text {
            held.chars().for_each(|c| self.emit(c, false, say));
        }
        self.state = State::Text;
        self.hand_over(say);
    }

    fn step(&mut self, c: char, say: &mut dyn FnMut(Part<'_>)) {
        if self.held.len() >= HELD_BYTES_MAX {
            return self.refuse(c, State::Text, say);
        }
        match self.state {
            State::Bare => self.bare(c, say),
            State::Edge => self.edge(c, say),
            State::Text if self.begins_mark(c) => self.hold(c, State::Mark(1)),
            State::Text => self.emit(c, false, say),
            State::Mark(matched) => self.mark(c, matched, say),
            State::Opening if self.shape == Shape::Free(CallFormat::Pythonic) => match c {
                '[' => self.hold(c, State::Python(PythonScan::new())),
                _ if is_space(c) => self.held.push(c),
                _ => self.refuse(c, State::Text, say),
            },
            State::Opening => match c {
                '[' => self.open_list(c),
                _ if is_space(c) => self.held.push(c),
                _ if is_name(c) => self.hold(c, State::Short { name: c.to_string(), tags: String::new() }),
                _ => self.refuse(c, State::Text, say),
            },
            State::Short { .. } => self.short(c, say),
            State::Call(_) => self.call(c, say),
            State::Xml(_) | State::Python(_) => self.spelled(c, say),
            State::Behind(matched) => self.behind(c, matched, say),
        }
    }

    fn bare(&mut self, c: char, say: &mut dyn FnMut(Part<'_>)) {
        if self.calls == 0
            && let Shape::Arguments(name) = &self.shape
        {
            let name = name.clone();
            self.tell(&name, say);
        }
        self.emit(c, true, say);
    }

    /// At the beginning, or directly behind a call: a call may begin without a mark, and white space before one is its
    /// frame.
    fn edge(&mut self, c: char, say: &mut dyn FnMut(Part<'_>)) {
        let is_open = self.calls < CALLS_MAX;
        match (&self.shape, c) {
            _ if is_space(c) => self.held.push(c),
            (Shape::Free(CallFormat::Llama3Json), '{') if is_open => {
                self.marked = false;
                self.begin_call();
                self.again.push(c);
            }
            (Shape::Free(CallFormat::Pythonic), '[') if is_open => {
                self.marked = false;
                self.hold(c, State::Python(PythonScan::new()));
            }
            (Shape::List, '[') if self.calls == 0 => {
                self.marked = true;
                self.open_list(c);
            }
            _ if self.begins_mark(c) => self.hold(c, State::Mark(1)),
            _ => self.refuse(c, State::Text, say),
        }
    }

    fn begins_mark(&self, c: char) -> bool {
        let Shape::Free(format) = self.shape else { return false };
        self.calls < CALLS_MAX && format.mark().starts_with(c)
    }

    fn mark(&mut self, c: char, matched: usize, say: &mut dyn FnMut(Part<'_>)) {
        let Shape::Free(format) = self.shape else { return self.refuse(c, State::Text, say) };
        let mark = format.mark();
        if !mark[matched..].starts_with(c) {
            return self.refuse(c, State::Text, say);
        }
        self.hold(c, State::Mark(matched + 1));
        if matched + 1 == mark.len() {
            self.marked = true;
            self.listed = false;
            match format {
                CallFormat::Hermes | CallFormat::Llama3Json => self.begin_call(),
                CallFormat::Qwen3Coder => self.state = State::Xml(XmlScan::new()),
                CallFormat::Mistral | CallFormat::Pythonic => self.state = State::Opening,
            }
        }
    }

    fn open_list(&mut self, c: char) {
        self.held.push(c);
        self.listed = true;
        self.begin_call();
    }

    fn begin_call(&mut self) {
        self.state = State::Call(Scan::new());
    }

    /// Mistral's short form up to its arguments: `name{`, `name[ARGS]{`, `name[CALL_ID]id[ARGS]{`.
    fn short(&mut self, c: char, say: &mut dyn FnMut(Part<'_>)) {
        let State::Short { name, tags } = &mut self.state else { return };
        match c {
            '{' if tags.is_empty() || (tags.starts_with('[') && tags.ends_with("[ARGS]")) => {
                let name = std::mem::take(name);
                self.tell(&name, say);
                self.state = State::Call(Scan::bare(name));
                self.emit(c, true, say);
            }
            '[' | ']' if tags.len() < TAGS_BYTES_MAX => tags.push(c),
            _ if is_name(c) && tags.is_empty() && name.len() < FUNCTION_NAME_BYTES_MAX => name.push(c),
            _ if is_name(c) && (1..TAGS_BYTES_MAX).contains(&tags.len()) => tags.push(c),
            _ => return self.refuse(c, State::Text, say),
        }
        if matches!(self.state, State::Short { .. }) {
            self.held.push(c);
        }
    }

    fn call(&mut self, c: char, say: &mut dyn FnMut(Part<'_>)) {
        let State::Call(scan) = &mut self.state else { return };
        let verdict = scan.step(c);
        let is_named = matches!(verdict, Verdict::Begin | Verdict::BeginLate);
        if is_named && !self.marked && !self.known.iter().any(|known| known == scan.name()) {
            return self.refuse(c, State::Text, say);
        }
        match verdict {
            Verdict::Hold => self.held.push(c),
            Verdict::Refuse => self.refuse(c, State::Text, say),
            Verdict::Begin => {
                let name = scan.name().to_owned();
                self.tell(&name, say);
                self.emit(c, true, say);
            }
            Verdict::BeginLate => {
                let (name, arguments) = (scan.name().to_owned(), scan.take_early());
                self.tell(&name, say);
                arguments.chars().for_each(|c| self.emit(c, true, say));
            }
            Verdict::Flow => {
                // The short form has nothing behind its arguments.
                let is_over = scan.ends_with_arguments();
                self.emit(c, true, say);
                if is_over {
                    self.state = State::Edge;
                }
            }
            Verdict::Done => {
                self.held.clear();
                self.state = State::Behind(0);
            }
        }
    }

    /// A call whose arguments are spelled anew.
    fn spelled(&mut self, c: char, say: &mut dyn FnMut(Part<'_>)) {
        let mut arguments = std::mem::take(&mut self.arguments);
        let (said, name, is_list) = match &mut self.state {
            State::Xml(scan) => (scan.step(c, &mut arguments), scan.name(), false),
            State::Python(scan) => (scan.step(c, &mut arguments), scan.name(), true),
            _ => return,
        };
        if said == Said::Begin {
            let name = name.to_owned();
            let function = self.known.iter().position(|known| *known == name);
            if (is_list && function.is_none()) || self.calls >= CALLS_MAX {
                arguments.clear();
                self.arguments = arguments;
                // The first call of a list decides whether it is one.
                return match self.calls_of_list {
                    0 => self.refuse(c, State::Text, say),
                    _ => self.give_up(c, say),
                };
            }
            self.calls_of_list += 1;
            if let (State::Xml(scan), Some(at)) = (&mut self.state, function) {
                scan.type_parameters(self.json_parameters.get(at).map_or(&[], Vec::as_slice));
            }
            self.tell(&name, say);
        }
        arguments.chars().for_each(|c| self.emit(c, true, say));
        arguments.clear();
        self.arguments = arguments;
        match said {
            Said::Refuse => return self.refuse(c, State::Text, say),
            Said::Hold => return self.held.push(c),
            Said::Begin | Said::Flow => return,
            Said::Done if matches!(self.state, State::Xml(_)) => self.state = State::Behind(0),
            Said::Done => self.state = State::Edge,
            Said::GiveUp => return self.give_up(c, say),
        }
        self.calls_of_list = 0;
        self.held.clear();
    }

    /// A list of calls goes on in a way that cannot be read: what was told stands, and the rest is text.
    fn give_up(&mut self, c: char, say: &mut dyn FnMut(Part<'_>)) {
        self.hand_over(say);
        self.calls_of_list = 0;
        self.state = State::Text;
        self.again.push(c);
        let held = std::mem::take(&mut self.held);
        self.again.extend(held.chars().rev());
    }

    /// Behind a call: what closes it, or what leads to the next.
    fn behind(&mut self, c: char, matched: usize, say: &mut dyn FnMut(Part<'_>)) {
        let is_hermes = matches!(self.shape, Shape::Free(CallFormat::Hermes | CallFormat::Qwen3Coder));
        let is_llama = self.shape == Shape::Free(CallFormat::Llama3Json);
        match c {
            _ if matched == 0 && is_space(c) => self.held.push(c),
            ',' if self.listed => self.lead_on(c),
            ']' if self.listed => {
                self.listed = false;
                self.held.clear();
                self.state = State::Edge;
            }
            ';' if is_llama => self.lead_on(c),
            _ if is_hermes && CLOSE[matched..].starts_with(c) => {
                self.hold(c, State::Behind(matched + 1));
                if matched + 1 == CLOSE.len() {
                    self.held.clear();
                    self.state = State::Edge;
                }
            }
            _ => self.refuse(c, State::Edge, say),
        }
    }

    fn lead_on(&mut self, c: char) {
        self.held.push(c);
        self.begin_call();
    }

    fn hold(&mut self, c: char, state: State) {
        self.held.push(c);
        self.state = state;
    }

    /// A call has been found; what was held is its frame.
    fn tell(&mut self, name: &str, say: &mut dyn FnMut(Part<'_>)) {
        self.hand_over(say);
        self.held.clear();
        self.calls += 1;
        if self.calls <= self.calls_max {
            say(Part::Call { name });
        }
    }

    /// What is held is no call. Its first character is text; the others are looked at again.
    fn refuse(&mut self, c: char, then: State, say: &mut dyn FnMut(Part<'_>)) {
        // The edge says nothing by itself: it gives its white space to the text, or a call's end to the edge.
        let speaks = !matches!(self.state, State::Edge | State::Behind(_));
        self.state = then;
        self.again.push(c);
        let held = std::mem::take(&mut self.held);
        let mut characters = held.chars();
        if speaks && let Some(first) = characters.next() {
            self.emit(first, false, say);
        }
        self.again.extend(characters.rev());
    }

    fn emit(&mut self, c: char, is_arguments: bool, say: &mut dyn FnMut(Part<'_>)) {
        if is_arguments && self.calls > self.calls_max {
            return;
        }
        if is_arguments != self.out_is_arguments {
            self.hand_over(say);
            self.out_is_arguments = is_arguments;
        }
        self.out.push(c);
    }

    fn hand_over(&mut self, say: &mut dyn FnMut(Part<'_>)) {
        if self.out.is_empty() {
            return;
        }
        say(if self.out_is_arguments { Part::Arguments(&self.out) } else { Part::Text(&self.out) });
        self.out.clear();
    }
}
