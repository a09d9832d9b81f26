//! A request inside the scheduler.

use crate::plan::Company;
use pinion_protocol::frontend_inbox::{FinishReason, Finished};
use pinion_protocol::{Claim, RequestId, Sampling, StopIds};
use std::ops::Range;

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// In the queue, without blocks. It did not fit when this many blocks were available (0: not tried yet).
    Waiting { refused_at: u32 },
    /// In the running set.
    Running {
        /// Its index below `max_num_seqs`, kept while it runs.
        lane: u32,
    },
}

/// How far a sequence has come since it last started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// No token has been sampled.
    Prefill,
    /// The prompt is computed, but no token could be sampled: the grammar's mask is late.
    AwaitingMask,
    /// At least one token has been sampled, so its blocks are registered in the prefix cache.
    Sampled,
}

/// A request's tokens and the blocks that hold their KV. `ids` and `blocks` have their final capacity from admission
/// on, so that they never reallocate.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    pub(crate) claim: Claim,
    /// Its tenant's index in the table.
    pub(crate) tenant: u32,
    pub(crate) sampling: Sampling,
    /// The prompt, then the generated tokens.
    pub(crate) ids: Vec<u32>,
    pub(crate) prompt_tokens: u32,
    /// Generated tokens that came with the request when it was resumed.
    pub(crate) resumed_tokens: u32,
    /// Length of `ids` at which the request ends.
    pub(crate) length_max: u32,
    /// Tokens whose KV is in `blocks`, or will be when the outstanding steps are done.
    pub(crate) computed: u32,
    /// Tokens that outstanding steps sample. They follow `ids`, and their values are not known yet.
    pub(crate) in_flight: u32,
    pub(crate) blocks: Vec<u32>,
    /// Number of leading `blocks` that came from the prefix cache or are registered in it.
    pub(crate) registered: u32,
    /// The block that the beginning of the first own block was copied from, and its contents then.
    pub(crate) copied_from: Option<(u32, u64)>,
    pub(crate) progress: Progress,
    /// Prompt tokens that the first start found in the prefix cache.
    pub(crate) cached_tokens: u32,
    pub(crate) state: State,
    /// Prompt tokens whose logprobs have been reported; all of them if none are requested.
    pub(crate) reported: u32,
    /// Index in the order of arrival.
    pub(crate) ordinal: u64,
    pub(crate) arrived_ns: u64,
    /// Starts of all requests before this one arrived.
    pub(crate) starts_before: u64,
    /// It has had a row in a step.
    pub(crate) had_row: bool,
    pub(crate) preemptions: u32,
    /// Preemptions for a request of higher priority.
    pub(crate) priority_preemptions: u32,
    pub(crate) company: Company,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceState {
    /// In the queue.
    Waiting,
    /// In the queue again.
    Preempted,
    /// It runs; no token has been sampled since it started.
    Prefill,
    /// It runs; its prompt is computed, and the mask of its first token is late.
    AwaitingMask,
    /// It runs, and tokens have been sampled.
    Decode,
}

impl Sequence {
    /// How far it is.
    pub(crate) fn summary(&self) -> SequenceState {
        match (self.state, self.progress) {
            (State::Waiting { .. }, _) if self.preemptions > 0 => SequenceState::Preempted,
            (State::Waiting { .. }, _) => SequenceState::Waiting,
            (State::Running { .. }, Progress::Prefill) => SequenceState::Prefill,
            (State::Running { .. }, Progress::AwaitingMask) => SequenceState::AwaitingMask,
            (State::Running { .. }, Progress::Sampled) => SequenceState::Decode,
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    pub(crate) fn lane(&self) -> Option<u32> {
        match self.state {
            State::Running { lane } => Some(lane),
            State::Waiting { .. } => None,
        }
    }

    /// Length in tokens, including tokens in flight.
    pub(crate) fn len(&self) -> u32 {
        self.ids.len() as u32 + self.in_flight
    }

    /// Whether the outstanding steps bring it to its last token, whatever they sample; or, if it only wants its prompt
    /// scored, to the last scored token.
    pub(crate) fn completes(&self) -> bool {
        let only_scored = self.length_max == self.prompt_tokens;
        self.len() >= self.length_max && (!only_scored || self.pending() == 0)
    }

    /// Whether the host must know a token in flight before the next one can be sampled. Biases and banned ids depend on
    /// the number of tokens only. Penalties depend on the tokens, but the model has the last one before the host does.
    pub(crate) fn waits_for_token(&self) -> bool {
        self.in_flight > 0 && self.sampling.waits_for_output()
    }

    /// Tokens without KV: 1 in decode, more in prefill.
    pub(crate) fn pending(&self) -> u32 {
        self.len() - self.computed
    }

    /// Whether logprobs of prompt tokens are still to be reported. Then every position is computed and none comes from
    /// the prefix cache.
    pub(crate) fn lacks_prompt_logprobs(&self) -> bool {
        self.reported < self.prompt_tokens
    }

    /// The prompt tokens whose logprobs a row of `len` tokens at `start` reports: each position scores the token after
    /// it, and position 0 also reports the prompt's first token. Tokens reported before a preemption are left out.
    pub(crate) fn report(&self, start: u32, len: u32) -> Range<u32> {
        let begin = if start == 0 { 0 } else { start + 1 };
        let end = (start + len + 1).min(self.prompt_tokens);
        self.reported.max(begin).min(end)..end
    }

    /// Whether the next sampled token will register its blocks in the prefix cache.
    pub(crate) fn will_share(&self) -> bool {
        self.progress == Progress::Prefill
            && self.length_max > self.prompt_tokens
            && !self.lacks_prompt_logprobs()
    }

    /// Whether only its last token lacks KV, so that its next row is a decode row.
    pub(crate) fn decodes(&self) -> bool {
        self.computed > 0 && self.pending() == 1
    }

    /// Whether a token is sampled after a row of the next `len` tokens. A request that generates nothing has none.
    pub(crate) fn samples_after(&self, len: u32) -> bool {
        len == self.pending() && self.len() < self.length_max
    }

    /// Generated tokens whose values are known.
    pub(crate) fn generated(&self) -> u32 {
        self.ids.len() as u32 - self.prompt_tokens
    }

    /// The finish reason, if the request ends with its last token.
    pub(crate) fn end(&self, stop_ids: &StopIds) -> Option<FinishReason> {
        let before = self.generated().checked_sub(1);
        let last = self.ids.last().copied();
        let stops =
            last.zip(before).is_some_and(|(token, before)| self.sampling.ends_at(token, before, stop_ids));
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
