//! What an answer shows of its prompt: its text ahead of the answer's (`echo`), and the scores of its tokens.
//!
//! The text is known before the request begins; the scores come from the engine, each token's once and in order, before
//! anything that is generated. They are kept as they came until they are shown.

use pinion_protocol::frontend_inbox::Delta;
use pinion_protocol::prompt_scores::{PromptScore, decode_prompt_scores};
use pinion_protocol::scores::Score;
use pinion_protocol::{Fault, FaultCode};

/// Tokens of a prompt that share one chunk of a stream.
const TOKENS_PER_CHUNK: u32 = 64;

/// See the module's head.
#[derive(Debug, Default)]
pub struct PromptPart {
    /// The text that was not said yet.
    text: String,
    /// Whether scores come.
    scored: bool,
    /// Likeliest tokens to show beside each, if a stream says the scores.
    alternatives: usize,
    /// Scores of tokens that were not said yet, as they came.
    bytes: Vec<u8>,
    /// Tokens whose scores have come.
    tokens: u32,
    /// Those of them that are in `bytes`.
    unsaid: u32,
    /// Characters of the tokens that were said.
    offset: usize,
    /// A stream has said all of it.
    said: bool,
}

/// A piece of the prompt for a stream.
pub struct Piece {
    /// Its text.
    pub text: String,
    /// Its tokens' scores.
    pub scores: Vec<PromptScore>,
    /// Characters before it.
    pub offset: usize,
}

impl PromptPart {
    /// `text` goes ahead of the answer; `scored` says that the engine was asked for scores.
    pub fn new(text: String, scored: bool, alternatives: usize) -> PromptPart {
        PromptPart { text, scored, alternatives, ..PromptPart::default() }
    }

    /// Likeliest tokens to show beside each.
    pub fn alternatives(&self) -> usize {
        self.alternatives
    }

    /// Whether the score of the token at `index` is the next one, or came before, ahead of a restart.
    pub fn follows(&self, index: u32) -> bool {
        index < self.tokens || (index == self.tokens && self.scored && !self.said)
    }

    /// Takes the score of one token, which [`PromptPart::follows`]. One that came before changes nothing.
    pub fn take(&mut self, delta: &Delta<'_>) {
        if delta.header.first_sequence == self.tokens {
            self.bytes.extend_from_slice(delta.score_bytes);
            self.tokens += 1;
            self.unsaid += 1;
        }
    }

    /// Whether the prompt's text is shown.
    pub fn has_text(&self) -> bool {
        !self.text.is_empty()
    }

    /// Bytes of the text that is shown.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Bytes that the scores take.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether scores of every token of the prompt came, if they were asked for.
    pub fn is_complete(&self, prompt_tokens: u32) -> bool {
        !self.scored || self.tokens == prompt_tokens
    }

    /// The next piece for a stream: when enough tokens are there, or whatever is left if this is the `last` one.
    /// Errors: scores that are none.
    pub fn next_piece(&mut self, last: bool) -> Result<Option<Piece>, Fault> {
        if self.unsaid < TOKENS_PER_CHUNK && !(last && (self.unsaid > 0 || !self.text.is_empty())) {
            return Ok(None);
        }
        let scores = self.scores()?;
        let begin = self.offset;
        let mut shown = ShownText::new(&self.text, begin == 0);
        self.offset += scores.iter().map(|score| shown.pass(&score.score.drawn)).sum::<usize>();
        let end = self.text.len() - if last { 0 } else { shown.rest().len() };
        let rest = self.text.split_off(end);
        let text = std::mem::replace(&mut self.text, rest);
        (self.unsaid, self.bytes) = (0, Vec::new());
        Ok(Some(Piece { text, scores, offset: begin }))
    }

    /// All that was not said. Errors: scores that are none.
    pub fn rest(&mut self) -> Result<(String, Vec<PromptScore>), Fault> {
        let scores = self.scores()?;
        self.bytes = Vec::new();
        Ok((std::mem::take(&mut self.text), scores))
    }

    /// A stream has said everything; gives the characters of its tokens.
    pub fn close(&mut self) -> usize {
        self.said = true;
        self.offset
    }

    /// Whether a stream has said everything.
    pub fn is_said(&self) -> bool {
        self.said
    }

    fn scores(&self) -> Result<Vec<PromptScore>, Fault> {
        decode_prompt_scores(&self.bytes).map_err(|error| Fault::new(FaultCode::Internal, error.to_string()))
    }
}

/// The fault of a request whose prompt's scores did not all come.
pub fn lost() -> Fault {
    Fault::new(FaultCode::Internal, "a part of the prompt's logprobs was lost inside the service")
}

/// A text beside the tokens that show it.
pub struct ShownText<'a> {
    rest: std::str::Chars<'a>,
    /// A token may have a space here that the text does not have: nothing was passed since the beginning, or since a
    /// special token, but spaces.
    begins: bool,
}

impl<'a> ShownText<'a> {
    /// `begins` says that nothing is before it.
    pub fn new(text: &'a str, begins: bool) -> ShownText<'a> {
        ShownText { rest: text.chars(), begins }
    }

    /// Passes what a token shows of it and gives its characters. A special token shows its name or nothing, and a space
    /// at the beginning, or behind a special token, may be the tokenizer's own.
    pub fn pass(&mut self, score: &Score) -> usize {
        let text = self.rest.as_str();
        let shown = std::str::from_utf8(&score.bytes).unwrap_or_default();
        let own_space = |shown: &str| shown.strip_prefix(' ').is_some_and(|rest| text.starts_with(rest));
        let (chars, begins) = if score.special {
            (if text.starts_with(shown) { shown.chars().count() } else { 0 }, true)
        } else if self.begins && !text.starts_with(shown) && own_space(shown) {
            (shown.chars().count() - 1, false)
        } else {
            (chars_begun(&score.bytes), self.begins && shown.bytes().all(|byte| byte == b' '))
        };
        self.begins = begins;
        self.rest.by_ref().take(chars).for_each(drop);
        chars
    }

    /// What no token has shown yet.
    pub fn rest(&self) -> &'a str {
        self.rest.as_str()
    }
}

/// Characters that begin in a token's bytes: over the tokens of a text they add up to its characters, also where one
/// has its bytes in several tokens.
pub fn chars_begun(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the tokens show of the text, in characters of each.
    fn passed(text: &str, tokens: &[&str]) -> Vec<usize> {
        let mut shown = ShownText::new(text, true);
        let score = |token: &&str| Score {
            token: 0,
            logprob: 0.0,
            bytes: token.as_bytes().to_vec(),
            special: token.starts_with("<s"),
        };
        tokens.iter().map(|token| shown.pass(&score(token))).collect()
    }

    #[test]
    fn tokens_count_what_the_text_has_of_them() {
        for (text, tokens, expected) in [
            ("The cat", &["The", " cat"][..], &[3, 4][..]),
            // The tokenizer's own space, with its beginning-of-sequence token shown or not.
            ("The cat", &["<s>", " The", " cat"], &[0, 3, 4]),
            ("<s>[INST] hi", &["<s>", " [", "INST", "]", " hi"], &[3, 1, 4, 1, 3]),
            ("<s> The", &["<s>", " The"], &[3, 4]),
            // It is one more than those that were written.
            (" The", &["  ", "The"], &[1, 3]),
            (" The", &[" ", " The"], &[1, 3]),
            ("a b", &["a", " b"], &[1, 2]),
            ("hé", &[" h", "é"], &[1, 1]),
            ("", &["<s>"], &[0]),
        ] {
            let counts = passed(text, tokens);
            assert_eq!(counts, expected, "{text:?} {tokens:?}");
            assert_eq!(counts.iter().sum::<usize>(), text.chars().count(), "{text:?} {tokens:?}");
        }
    }
}
