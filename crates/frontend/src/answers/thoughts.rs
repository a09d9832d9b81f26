//! The reasoning of one answer: told from the answer itself, counted, and shown or not.

use crate::admission::reasoning::ReasoningPlan;
use pinion_protocol::Reasoning;
use pinion_protocol::reasoning::ReasoningFound;
use pinion_text::reasoning::{Marks, Piece, ReasoningParser};

/// Takes one answer apart.
#[derive(Debug)]
pub struct Thoughts {
    plan: ReasoningPlan,
    /// Known from the first delta on.
    parser: Option<ReasoningParser>,
    /// Tokens of the reasoning so far, its marks left out.
    tokens: u32,
}

impl Thoughts {
    /// Before the first token.
    pub fn new(plan: ReasoningPlan) -> Thoughts {
        Thoughts { plan, parser: None, tokens: 0 }
    }

    /// Tells how the answer begins: a word of the request's slot. Only the first time counts, so that an answer which
    /// goes on after the death of a role goes on where it was.
    pub fn begin(&mut self, word: u64) {
        if self.parser.is_some() {
            return;
        }
        let found = ReasoningFound::from_word(word);
        let found = found.unwrap_or(ReasoningFound { reasoning: Reasoning::None, marks_are_tokens: false });
        let by_token = found.marks_are_tokens && self.plan.by_token;
        let marks = if by_token { Marks::Tokens } else { Marks::Text };
        self.parser = Some(match found.reasoning {
            Reasoning::None => ReasoningParser::over(),
            Reasoning::Possible => ReasoningParser::new(false, marks, self.plan.call_mark),
            Reasoning::Begun => ReasoningParser::new(true, marks, self.plan.call_mark),
        });
    }

    /// Counts the tokens of a delta; its text comes afterwards.
    pub fn count(&mut self, tokens: u32, is_mark: bool) {
        if !is_mark && self.parser.as_ref().is_some_and(ReasoningParser::is_thinking) {
            self.tokens = self.tokens.saturating_add(tokens);
        }
    }

    /// Tokens of the reasoning so far.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// More text, or a mark that was a token; `say` gets what is certain and to be shown.
    pub fn push(&mut self, text: &str, is_mark: bool, say: &mut dyn FnMut(Piece<'_>)) {
        let mut say = shown(self.plan.is_shown, say);
        match &mut self.parser {
            None => say(Piece::Text(text)),
            Some(parser) if is_mark => parser.push_mark(text, &mut say),
            Some(parser) => parser.push(text, &mut say),
        }
    }

    /// The text is complete.
    pub fn finish(&mut self, say: &mut dyn FnMut(Piece<'_>)) {
        let mut say = shown(self.plan.is_shown, say);
        if let Some(parser) = &mut self.parser {
            parser.finish(&mut say);
        }
    }
}

/// `say` for what is to be shown.
fn shown<'a>(is_shown: bool, say: &'a mut dyn FnMut(Piece<'_>)) -> impl FnMut(Piece<'_>) + 'a {
    move |piece| {
        if is_shown || matches!(piece, Piece::Text(_)) {
            say(piece);
        }
    }
}
