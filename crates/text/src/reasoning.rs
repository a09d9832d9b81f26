//! Where a model's reasoning ends and its answer begins.
//!
//! [`ReasoningParser`] is a state machine over characters and marks: however the text is cut into pieces, the same
//! reasoning and the same answer come out. Where the vocabulary has the marks as tokens only those tokens are marks,
//! and a model may write about them; otherwise they are found in the text. Newlines around both parts are their frame
//! and not shown.

pub use pinion_protocol::reasoning::{REASONING_CLOSE as CLOSE, REASONING_OPEN as OPEN};

/// White space that may stand before an opening mark, in bytes; past it the text is an answer.
const LEAD_BYTES_MAX: usize = 256;

/// How marks are told from text that looks like them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// They are tokens, and come by [`ReasoningParser::push_mark`].
    Tokens,
    /// They stand in the text.
    Text,
}

/// A piece of what a model wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Of its reasoning.
    Thought(&'a str),
    /// Of its answer.
    Text(&'a str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space has come, which is held.
    Start,
    Thinking,
    /// There is no reasoning: nothing has come.
    Over,
    /// Behind the closing mark, before the answer's first character.
    Behind,
    Text,
}

/// Takes one answer apart.
#[derive(Debug)]
pub struct ReasoningParser {
    state: State,
    marks: Marks,
    /// A tool call that begins with this ends the reasoning too.
    call_mark: Option<&'static str>,
    /// What may become a mark.
    held: String,
    /// Line ends of the reasoning that are shown only if more of it follows.
    newlines: u32,
    has_thought: bool,
    /// Said, but not handed over yet.
    out: String,
    out_is_thought: bool,
}

impl ReasoningParser {
    /// `begun`: the prompt ends inside the reasoning. `call_mark` is what stands before a tool call, if one may come.
    pub fn new(begun: bool, marks: Marks, call_mark: Option<&'static str>) -> ReasoningParser {
        ReasoningParser {
            state: if begun { State::Thinking } else { State::Start },
            marks,
            call_mark,
            held: String::new(),
            newlines: 0,
            has_thought: false,
            out: String::new(),
            out_is_thought: false,
        }
    }

    /// For an answer without reasoning: all of it is text, but for a closing mark ahead of it.
    pub fn over() -> ReasoningParser {
        ReasoningParser { state: State::Over, ..ReasoningParser::new(false, Marks::Tokens, None) }
    }

    /// Whether what comes next is reasoning, as far as is known.
    pub fn is_thinking(&self) -> bool {
        self.state == State::Thinking
    }

    /// Takes more text.
    pub fn push(&mut self, text: &str, say: &mut dyn FnMut(Piece<'_>)) {
        for c in text.chars() {
            match self.state {
                State::Start => self.start(c, say),
                State::Thinking => self.thinking(c, say),
                State::Behind => self.behind(c, say),
                State::Over | State::Text => {
                    self.state = State::Text;
                    self.emit(c, false, say);
                }
            }
        }
        self.hand_over(say);
    }

    /// Takes a mark that was a token.
    pub fn push_mark(&mut self, mark: &str, say: &mut dyn FnMut(Piece<'_>)) {
        match self.state {
            State::Start if mark == OPEN => self.enter(State::Thinking),
            // Some models close what their prompt has closed.
            State::Start | State::Over | State::Behind if mark == CLOSE => self.enter(State::Behind),
            State::Thinking if mark == CLOSE => {
                self.think_held(say);
                self.enter(State::Behind);
            }
            // Some open what their prompt has opened.
            State::Thinking if !self.has_thought && self.held.is_empty() => {}
            State::Thinking => {
                self.think_held(say);
                mark.chars().for_each(|c| self.think(c, say));
            }
            State::Start | State::Over | State::Behind | State::Text => {
                self.answer_held(say);
                mark.chars().for_each(|c| self.emit(c, false, say));
            }
        }
        self.hand_over(say);
    }

    /// The answer is complete: what is held back is no mark.
    pub fn finish(&mut self, say: &mut dyn FnMut(Piece<'_>)) {
        match self.state {
            State::Thinking => self.think_held(say),
            State::Start | State::Over | State::Behind | State::Text => self.answer_held(say),
        }
        self.hand_over(say);
    }

    fn enter(&mut self, state: State) {
        self.held.clear();
        self.newlines = 0;
        self.state = state;
    }

    fn start(&mut self, c: char, say: &mut dyn FnMut(Piece<'_>)) {
        self.held.push(c);
        let begun = self.held.trim_start();
        let may_open = begun.is_empty() || (self.marks == Marks::Text && OPEN.starts_with(begun));
        if begun == OPEN && may_open {
            self.enter(State::Thinking);
        } else if !may_open || self.held.len() > LEAD_BYTES_MAX {
            self.answer_held(say);
        }
    }

    fn thinking(&mut self, c: char, say: &mut dyn FnMut(Piece<'_>)) {
        self.held.push(c);
        let close = (self.marks == Marks::Text).then_some(CLOSE);
        while !self.held.is_empty() {
            if Some(self.held.as_str()) == close {
                return self.enter(State::Behind);
            }
            if Some(self.held.as_str()) == self.call_mark {
                self.newlines = 0;
                return self.answer_held(say);
            }
            let may_end = |mark: &str| mark.starts_with(self.held.as_str());
            if [close, self.call_mark].into_iter().flatten().any(may_end) {
                return;
            }
            let first = self.held.remove(0);
            self.think(first, say);
        }
    }

    fn behind(&mut self, c: char, say: &mut dyn FnMut(Piece<'_>)) {
        if c == '\n' && self.held.is_empty() {
            return;
        }
        self.held.push(c);
        if self.marks == Marks::Text && CLOSE.starts_with(self.held.as_str()) {
            // A second one belongs to the first.
            if self.held == CLOSE {
                self.held.clear();
            }
            return;
        }
        self.answer_held(say);
    }

    fn think_held(&mut self, say: &mut dyn FnMut(Piece<'_>)) {
        let held = std::mem::take(&mut self.held);
        held.chars().for_each(|c| self.think(c, say));
    }

    fn think(&mut self, c: char, say: &mut dyn FnMut(Piece<'_>)) {
        if c == '\n' {
            self.newlines += u32::from(self.has_thought);
            return;
        }
        for _ in 0..std::mem::take(&mut self.newlines) {
            self.emit('\n', true, say);
        }
        self.has_thought = true;
        self.emit(c, true, say);
    }

    /// What is held is text of the answer, and so is all that follows.
    fn answer_held(&mut self, say: &mut dyn FnMut(Piece<'_>)) {
        self.state = State::Text;
        let held = std::mem::take(&mut self.held);
        held.chars().for_each(|c| self.emit(c, false, say));
    }

    fn emit(&mut self, c: char, is_thought: bool, say: &mut dyn FnMut(Piece<'_>)) {
        if is_thought != self.out_is_thought {
            self.hand_over(say);
            self.out_is_thought = is_thought;
        }
        self.out.push(c);
    }

    fn hand_over(&mut self, say: &mut dyn FnMut(Piece<'_>)) {
        if self.out.is_empty() {
            return;
        }
        say(if self.out_is_thought { Piece::Thought(&self.out) } else { Piece::Text(&self.out) });
        self.out.clear();
    }
}
