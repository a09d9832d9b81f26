//! Whether an answer begins with the model's reasoning, which stands between two marks ahead of the answer itself.

/// What stands before the reasoning; a model may leave it to its prompt.
pub const REASONING_OPEN: &str = "<think>";
/// What stands behind it.
pub const REASONING_CLOSE: &str = "</think>";

/// What the beginning of an answer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Reasoning {
    /// No reasoning is looked for.
    #[default]
    None = 0,
    /// Reasoning, if [`REASONING_OPEN`] comes first.
    Possible = 1,
    /// Reasoning: the prompt ends inside it.
    Begun = 2,
}

impl Reasoning {
    pub(crate) fn from_bits(bits: u32) -> Option<Reasoning> {
        [Reasoning::None, Reasoning::Possible, Reasoning::Begun].into_iter().find(|r| *r as u32 == bits)
    }
}

/// What a tokenizer found out about a chat's answer, as one word of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningFound {
    /// How it begins.
    pub reasoning: Reasoning,
    /// Each mark is one token of the vocabulary.
    pub marks_are_tokens: bool,
}

impl ReasoningFound {
    /// Never 0, which is what a slot says before.
    pub fn to_word(self) -> u64 {
        1 + u64::from(self.reasoning as u32) + (u64::from(self.marks_are_tokens) << 8)
    }

    /// The same again, or `None` if nothing was written.
    pub fn from_word(word: u64) -> Option<ReasoningFound> {
        let bits = u32::try_from(word & 0xff).ok()?.checked_sub(1)?;
        Some(ReasoningFound { reasoning: Reasoning::from_bits(bits)?, marks_are_tokens: word & 0x100 != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_nothing_is_nothing() {
        for reasoning in [Reasoning::None, Reasoning::Possible, Reasoning::Begun] {
            for marks_are_tokens in [false, true] {
                let found = ReasoningFound { reasoning, marks_are_tokens };
                assert_eq!(ReasoningFound::from_word(found.to_word()), Some(found));
            }
        }
        assert_eq!(ReasoningFound::from_word(0), None);
        assert_eq!(ReasoningFound::from_word(9), None);
    }
}
