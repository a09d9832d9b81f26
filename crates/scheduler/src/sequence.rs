//! One request inside the scheduler.

use crate::plan::Company;
use pinion_protocol::frontend_inbox::{FinishReason, Finished};
use pinion_protocol::{Claim, RequestId, Sampling};
use std::ops::Range;

/// A request's tokens and the blocks that hold their KV. `ids` and `blocks` have their final capacity from admission
/// on, so that growing them never allocates.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    pub(crate) claim: Claim,
    /// Its tenant's place in the table.
    pub(crate) tenant: u32,
    pub(crate) sampling: Sampling,
    /// The prompt, then the generated tokens.
    pub(crate) ids: Vec<u32>,
    pub(crate) prompt_tokens: u32,
    /// Generated tokens that the request brought along.
    pub(crate) resumed_tokens: u32,
    /// Length of `ids` at which the request ends.
    pub(crate) length_max: u32,
    /// The first `computed` tokens have their KV in `blocks`, or will have it when the outstanding steps are done.
    pub(crate) computed: u32,
    /// Tokens that outstanding steps draw: they follow `ids`, and nobody here knows them yet.
    pub(crate) drawing: u32,
    pub(crate) blocks: Vec<u32>,
    /// The first so many of `blocks` have been offered to the prefix cache, or came from it.
    pub(crate) registered: u32,
    /// Where the beginning of the block after those from the cache was copied from, and what that held.
    pub(crate) copied_from: Option<(u32, u64)>,
    /// A token was drawn since it last started.
    pub(crate) drawn: bool,
    /// Its first draw came to nothing so far, however complete its prompt is.
    pub(crate) put_off: bool,
    /// Prompt tokens that the first start found in the prefix cache.
    pub(crate) cached_tokens: u32,
    /// Index in the running set's batch slots; `None` while waiting.
    pub(crate) lane: Option<u32>,
    /// Prompt tokens whose logprobs have been reported; all of them if nobody asks.
    pub(crate) reported: u32,
    /// Position in the order of arrival.
    pub(crate) ordinal: u64,
    pub(crate) arrived_ns: u64,
    /// Starts of any request before this one arrived.
    pub(crate) starts_before: u64,
    pub(crate) scheduled_before: bool,
    /// With so few blocks available it was found not to fit.
    pub(crate) refused_at: u32,
    pub(crate) preemptions: u32,
    /// How many of them were in favour of a more important one.
    pub(crate) outranked: u32,
    pub(crate) company: Company,
}

impl Sequence {
    /// Length in tokens, those that outstanding steps draw included.
    pub(crate) fn len(&self) -> u32 {
        self.ids.len() as u32 + self.drawing
    }

    /// Whether the outstanding steps take it to its last token, whatever they draw; or to the last one that is scored, if
    /// none is drawn.
    pub(crate) fn completes(&self) -> bool {
        let only_scored = self.length_max == self.prompt_tokens;
        self.len() >= self.length_max && (!only_scored || self.pending() == 0)
    }

    /// Whether its next draw needs a token that an outstanding step draws: the one place that says whose logits depend
    /// on what the host knows. Biases and banned ids depend on how many tokens there are, not on which; penalties on all of
    /// them, but the model knows the last one before the host does.
    pub(crate) fn waits_for_token(&self) -> bool {
        self.drawing > 0 && self.sampling.waits_for_output()
    }

    /// Tokens whose KV is missing: 1 when decoding, more during prefill.
    pub(crate) fn pending(&self) -> u32 {
        self.len() - self.computed
    }

    /// Whether logprobs of prompt tokens are still owed. Then every position is computed and none comes from the cache.
    pub(crate) fn owes_prompt_logprobs(&self) -> bool {
        self.reported < self.prompt_tokens
    }

    /// The prompt tokens that a row of `len` tokens from `start` on reports: its own first one if that begins the prompt,
    /// and those that follow each position of the row, but for what an earlier row said before a preemption.
    pub(crate) fn report(&self, start: u32, len: u32) -> Range<u32> {
        let begin = if start == 0 { 0 } else { start + 1 };
        let end = (start + len + 1).min(self.prompt_tokens);
        self.reported.max(begin).min(end)..end
    }

    /// Whether its next token makes what it computes findable.
    pub(crate) fn will_share(&self) -> bool {
        !self.drawn && !self.put_off && self.length_max > self.prompt_tokens && !self.owes_prompt_logprobs()
    }

    /// Whether all but the last token are computed: one token more and the next can be drawn.
    pub(crate) fn decodes(&self) -> bool {
        self.computed > 0 && self.pending() == 1
    }

    /// Whether a row of the next `len` tokens ends with a draw. One that may generate nothing only has its prompt scored.
    pub(crate) fn draws_after(&self, len: u32) -> bool {
        len == self.pending() && self.len() < self.length_max
    }

    /// Generated tokens that are here.
    pub(crate) fn generated(&self) -> u32 {
        self.ids.len() as u32 - self.prompt_tokens
    }

    /// Why the request ends here, if it does.
    pub(crate) fn end(&self, eos: Option<u32>) -> Option<FinishReason> {
        let before = self.generated().checked_sub(1);
        let last = self.ids.last().copied();
        let stops = last.zip(before).is_some_and(|(token, before)| self.sampling.ends_at(token, before, eos));
        if stops {
            Some(FinishReason::Stop)
        } else if self.ids.len() as u32 >= self.length_max {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    pub(crate) fn finished(&self, reason: FinishReason) -> Finished {
        Finished {
            id: self.id,
            reason,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            generated_tokens: self.generated(),
        }
    }
}
