//! How one answer is made: complete before its request is sent to any role.

use super::{Form, WaitingScores};
use crate::answers::calls::Calls;
use crate::answers::extras::Extras;
use crate::answers::openai::TokenStyle;
use crate::answers::prompt_part::PromptPart;
use crate::answers::thoughts::Thoughts;

/// How one answer is made of what the roles say.
pub struct AnswerPlan {
    /// How it leaves.
    pub form: Form,
    /// What it shows of its prompt, if anything.
    pub prompt: Option<PromptPart>,
    /// Token ids and counts that it shows.
    pub extras: Option<Extras>,
    /// How it writes tokens beside their scores.
    pub style: TokenStyle,
    /// Finds tool calls in the text, if there may be any.
    pub calls: Option<Calls>,
    /// Tells reasoning from the answer, if there may be any.
    pub thoughts: Option<Thoughts>,
    /// Counts the scores that wait for it.
    pub waiting: WaitingScores,
}

impl From<Form> for AnswerPlan {
    /// The text alone.
    fn from(form: Form) -> AnswerPlan {
        AnswerPlan {
            form,
            prompt: None,
            extras: None,
            style: TokenStyle::default(),
            calls: None,
            thoughts: None,
            waiting: WaitingScores::default(),
        }
    }
}
