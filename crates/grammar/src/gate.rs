//! When a grammar begins: at once, or behind the model's reasoning, which may be any text.

use pinion_protocol::Reasoning;
use pinion_protocol::reasoning::{REASONING_CLOSE, REASONING_OPEN};
use pinion_text::TextCodec;

/// The marks of reasoning, where each is one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkIds {
    /// [`REASONING_OPEN`].
    pub open: u32,
    /// [`REASONING_CLOSE`].
    pub close: u32,
}

impl MarkIds {
    /// Those of a vocabulary, if it has both.
    pub fn of(codec: &TextCodec) -> Option<MarkIds> {
        Some(MarkIds { open: codec.mark_id(REASONING_OPEN)?, close: codec.mark_id(REASONING_CLOSE)? })
    }
}

/// How far a text is from its grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// The text may begin with an opening mark, or with the grammar's first token.
    Start(MarkIds),
    /// Behind this token the grammar begins.
    Token(u32),
    /// Behind this text it begins; the last bytes of the text so far.
    Text(Vec<u8>),
    /// It has begun.
    Open,
}

/// What a token is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// Part of the reasoning.
    Reasoning,
    /// A token of the grammar.
    Grammar,
}

impl Gate {
    pub(crate) fn new(reasoning: Reasoning, marks: Option<MarkIds>) -> Gate {
        match (reasoning, marks) {
            (Reasoning::Begun, Some(marks)) => Gate::Token(marks.close),
            (Reasoning::Begun, None) => Gate::Text(Vec::with_capacity(2 * REASONING_CLOSE.len())),
            (Reasoning::Possible, Some(marks)) => Gate::Start(marks),
            // No single token can open it, so a mask cannot leave it the choice.
            (Reasoning::Possible, None) | (Reasoning::None, _) => Gate::Open,
        }
    }

    /// Takes a token that spells `bytes`.
    ///
    /// # Errors
    /// The reasoning ends within the token, and something follows there that the grammar has not seen.
    pub(crate) fn pass(&mut self, token: u32, bytes: &[u8]) -> Result<Passage, String> {
        match self {
            Gate::Open => return Ok(Passage::Grammar),
            Gate::Start(marks) if token == marks.open => *self = Gate::Token(marks.close),
            Gate::Start(_) => {
                *self = Gate::Open;
                return Ok(Passage::Grammar);
            }
            Gate::Token(close) if token == *close => *self = Gate::Open,
            Gate::Token(_) => {}
            Gate::Text(tail) => {
                tail.extend_from_slice(bytes);
                let close = REASONING_CLOSE.as_bytes();
                let found = tail.windows(close.len()).position(|window| window == close);
                if let Some(at) = found {
                    let is_clean = tail[at + close.len()..].iter().all(|byte| *byte == b'\n');
                    *self = Gate::Open;
                    return match is_clean {
                        true => Ok(Passage::Reasoning),
                        false => Err("the answer begins within the token that ends the reasoning".to_owned()),
                    };
                }
                let kept = tail.len().min(close.len() - 1);
                tail.drain(..tail.len() - kept);
            }
        }
        Ok(Passage::Reasoning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: MarkIds = MarkIds { open: 1, close: 2 };

    #[test]
    fn a_mark_that_is_a_token_opens_the_gate_and_its_spelling_does_not() {
        let mut gate = Gate::new(Reasoning::Begun, Some(MARKS));
        assert_eq!(gate.pass(9, b"</think>"), Ok(Passage::Reasoning));
        assert_eq!(gate.pass(2, b"</think>"), Ok(Passage::Reasoning));
        assert_eq!(gate.pass(9, b"{"), Ok(Passage::Grammar));
    }

    #[test]
    fn an_answer_may_begin_with_reasoning_or_without() {
        let mut gate = Gate::new(Reasoning::Possible, Some(MARKS));
        assert_eq!(gate.clone().pass(9, b"{"), Ok(Passage::Grammar));
        assert_eq!(gate.pass(1, b"<think>"), Ok(Passage::Reasoning));
        assert_eq!(gate, Gate::Token(2));
        assert_eq!(Gate::new(Reasoning::None, Some(MARKS)), Gate::Open);
    }

    #[test]
    fn a_mark_in_the_text_is_found_however_it_is_cut() {
        let text = b"a</</think>\n\n";
        for first in 0..text.len() {
            for second in first..text.len() {
                let mut gate = Gate::new(Reasoning::Begun, None);
                for piece in [&text[..first], &text[first..second], &text[second..]] {
                    if gate == Gate::Open {
                        assert!(piece.iter().all(|byte| *byte == b'\n'), "{first} {second}");
                    } else {
                        assert_eq!(gate.pass(9, piece), Ok(Passage::Reasoning), "{first} {second}");
                    }
                }
                assert_eq!(gate, Gate::Open, "{first} {second}");
            }
        }
        let mut gate = Gate::new(Reasoning::Begun, None);
        assert!(gate.pass(9, b"</think>{").is_err());
    }
}
