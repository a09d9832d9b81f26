//! How the reasoning of an answer is to be found.

use pinion_text::reasoning::{CLOSE, OPEN};

/// How the reasoning of a request's answers is found and shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningPlan {
    /// Clients see it.
    pub is_shown: bool,
    /// Marks that are tokens are told from text that looks like them.
    pub by_token: bool,
    /// A tool call that begins with this ends it.
    pub call_mark: Option<&'static str>,
}

impl ReasoningPlan {
    /// For an answer that these strings end. One that has a mark in it may reach across the mark, so marks are not told
    /// apart from the text then.
    pub(crate) fn new(is_shown: bool, stop: &[String], call_mark: Option<&'static str>) -> ReasoningPlan {
        let has_mark = |stop: &String| stop.contains(OPEN) || stop.contains(CLOSE);
        ReasoningPlan { is_shown, by_token: !stop.iter().any(has_mark), call_mark }
    }
}
