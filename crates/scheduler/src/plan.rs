//! The values that pass between the scheduler and the engine.

use crate::speculation::Drafts;
use crate::step_cost::StepWork;
use pinion_protocol::frontend_inbox::Finished;
use pinion_protocol::{FaultCode, RequestId, Sampling};
use std::ops::Range;

/// One step. Decode rows come first, then rows of drafts, then prefill chunks, each group oldest first. The rows
/// together never hold more tokens than the budget.
#[derive(Debug, Clone, Default)]
pub struct StepPlan {
    /// Number of the step, from 1. An empty plan has the number of the last step that was not empty.
    pub step: u64,
    /// One row per sequence in the step, and one for each draft.
    pub rows: Vec<PlanRow>,
    /// Copies within the KV cache to make before the rows are computed, in this order.
    pub copies: Vec<BlockCopy>,
    /// The same between window blocks, where layers with a window keep only that.
    pub window_copies: Vec<BlockCopy>,
    /// Tokens of all rows.
    pub token_count: u32,
    /// Prompt tokens of all rows whose logprobs are reported.
    pub score_count: u32,
    /// Requests that were preempted while this step was planned.
    pub preempted_count: u32,
    /// Time since the oldest waiting request arrived, in ns; 0 if none waits.
    pub oldest_waiting_ns: u64,
    /// With [`crate::Policy::step_time`]: what its time depends on.
    pub work: StepWork,
    /// The time that it is predicted to take, in ns; `None` while too few steps like it have run.
    pub predicted_ns: Option<u64>,
    /// The time within which prompt tokens joined its decode rows, in ns; 0 while that of prompt tokens is not known.
    /// `None`: it has no decode rows, or no limit.
    pub budget_ns: Option<u64>,
}

impl StepPlan {
    /// An empty plan with capacity for `rows` rows.
    fn with_capacity(rows: usize) -> StepPlan {
        let room = || Vec::with_capacity(rows);
        StepPlan {
            rows: Vec::with_capacity(rows),
            copies: room(),
            window_copies: room(),
            ..StepPlan::default()
        }
    }

    /// Empties it; the number and the capacity stay.
    fn clear(&mut self) {
        let StepPlan { step, mut rows, mut copies, mut window_copies, .. } = std::mem::take(self);
        rows.clear();
        copies.clear();
        window_copies.clear();
        *self = StepPlan { step, rows, copies, window_copies, ..StepPlan::default() };
    }

    /// Tokens of the rows of drafts.
    pub fn draft_count(&self) -> u32 {
        self.rows.iter().filter(|row| row.draft > 0).count() as u32
    }

    /// The step's size. A row of one token that is sampled counts as a decode row; it costs the same.
    pub fn load(&self) -> StepLoad {
        let decodes = self.rows.iter().filter(|row| row.len == 1 && row.draw.is_some()).count() as u32;
        StepLoad { rows: self.rows.len() as u32, prefill_tokens: self.token_count - decodes }
    }
}

/// The last plan, and the one before it while both are outstanding: without a commit.
#[derive(Debug)]
pub(crate) struct Plans {
    last: StepPlan,
    earlier: StepPlan,
    /// 0, 1 or 2.
    outstanding: u32,
}

impl Plans {
    /// Empty plans with capacity for `rows` rows.
    pub(crate) fn new(rows: usize) -> Plans {
        Plans { last: StepPlan::with_capacity(rows), earlier: StepPlan::with_capacity(rows), outstanding: 0 }
    }

    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    pub(crate) fn last(&self) -> &StepPlan {
        &self.last
    }

    /// The last plan, to fill it after [`Plans::begin`].
    pub(crate) fn last_mut(&mut self) -> &mut StepPlan {
        &mut self.last
    }

    /// The oldest outstanding plan, else the last one.
    pub(crate) fn oldest(&self) -> &StepPlan {
        if self.outstanding == 2 { &self.earlier } else { &self.last }
    }

    /// Empties the last plan to be filled again; an outstanding one becomes the earlier one. At most one is.
    pub(crate) fn begin(&mut self) {
        if self.outstanding == 1 {
            std::mem::swap(&mut self.last, &mut self.earlier);
            self.last.step = self.earlier.step;
        }
        self.last.clear();
    }

    /// The last plan is filled: it is outstanding now. One without rows is dropped, and `None` returned.
    pub(crate) fn launch(&mut self) -> Option<&StepPlan> {
        if self.last.rows.is_empty() {
            if self.outstanding == 1 {
                std::mem::swap(&mut self.last, &mut self.earlier);
            }
            return None;
        }
        self.last.step += 1;
        self.outstanding += 1;
        Some(&self.last)
    }

    /// The oldest outstanding plan has its commit.
    pub(crate) fn committed(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }
}

/// A copy of the beginning of one sequence's block into another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block to read.
    pub from: u32,
    /// The block to write; only one sequence holds it.
    pub to: u32,
    /// Positions to copy, from the first on.
    pub tokens: u32,
}

/// One sequence's part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanRow {
    /// The request.
    pub id: RequestId,
    /// Index of the sequence in the scheduler's table.
    pub(crate) key: u32,
    /// The sequence's position in the order of arrival. It tells the sequence from a later one with the same key.
    pub(crate) ordinal: u64,
    /// Index below `max_num_seqs` that the sequence keeps while it runs.
    pub lane: u32,
    /// Position of the first token to compute.
    pub start: u32,
    /// Tokens to compute, at least 1.
    pub len: u32,
    /// Index, among the generated tokens, of the token to sample after this row; `None` for a prefill chunk that is not
    /// the last.
    pub draw: Option<u32>,
    /// 0 for a row of known tokens. Else the row's token is this draft of its sequence, from 1; it lies behind the
    /// sequence's other row, and its result counts if it is what that row and the drafts before it sample.
    pub draft: u32,
    /// Index of the first prompt token whose logprob this row reports. A prompt's first token has no logprob and is
    /// reported without one.
    pub report_start: u32,
    /// Prompt tokens that this row reports.
    pub report_len: u32,
    /// Whether this is the request's first row.
    pub first: bool,
}

impl PlanRow {
    /// Indices of the prompt tokens whose logprobs this row reports.
    pub fn report(&self) -> Range<u32> {
        self.report_start..self.report_start + self.report_len
    }
}

/// What the model needs for a row beside the row itself, borrowed from the scheduler.
#[derive(Debug, Clone, Copy)]
pub struct RowView<'a> {
    /// Ids of the tokens to compute. The last one is missing if an outstanding step samples it.
    pub tokens: &'a [u32],
    /// All known ids of the sequence: the prompt, then what was generated, and for a draft the drafts up to it.
    pub ids: &'a [u32],
    /// The sequence's block table; it covers the sequence up to the end of the row.
    pub blocks: &'a [u32],
    /// The window block of each of these; [`NO_WINDOW_BLOCK`](crate::NO_WINDOW_BLOCK) for those that no token of the
    /// row sees. Empty if every layer keeps all KV.
    pub windows: &'a [u32],
    /// Sampling parameters.
    pub sampling: &'a Sampling,
    /// Length of the client's prompt.
    pub prompt_tokens: u32,
}

/// The model's result for one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowResult {
    /// The sampled token.
    Token(u32),
    /// The row was computed; there was nothing to sample.
    Computed,
    /// The row was computed, but no token could be sampled yet (a grammar mask is late): its last token is computed
    /// again.
    Again,
    /// No further token is allowed: the text is complete.
    Complete,
    /// The row failed. Its request ends; no other does.
    Failed(FaultCode),
}

/// A token that a commit produced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The request.
    pub id: RequestId,
    /// Index of the row that sampled it.
    pub row: u32,
    /// The token.
    pub token: u32,
    /// Index among the generated tokens, from 0.
    pub sequence: u32,
    /// Whether that row was one of a draft.
    pub of_draft: bool,
    /// Whether this is the first token that this engine generated for the request.
    pub first: bool,
    /// Whether the request ended with this token.
    pub last: bool,
    /// Whether it is a stop token and ended the request.
    pub eos: bool,
}

/// The size of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Rows.
    pub rows: u32,
    /// Tokens of the rows that are not decode rows.
    pub prefill_tokens: u32,
}

/// Batch statistics of one request: the sizes of the steps that it was in, its own rows included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Company {
    /// Steps.
    pub steps: u32,
    /// Sum of their rows.
    pub rows_sum: u64,
    /// Rows of the largest step.
    pub rows_max: u32,
    /// Sum of their prefill tokens.
    pub prefill_sum: u64,
    /// Prefill tokens of the step with the most.
    pub prefill_max: u32,
}

impl Company {
    pub(crate) fn join(&mut self, load: StepLoad) {
        self.steps += 1;
        self.rows_sum += u64::from(load.rows);
        self.rows_max = self.rows_max.max(load.rows);
        self.prefill_sum += u64::from(load.prefill_tokens);
        self.prefill_max = self.prefill_max.max(load.prefill_tokens);
    }
}

/// A request that has left the scheduler; its blocks are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The record for the frontend.
    pub finished: Finished,
    /// Times the request was preempted.
    pub preemptions: u32,
    /// Batch statistics.
    pub company: Company,
    /// Its drafts.
    pub drafts: Drafts,
    /// Whether an [`Event`] with `last` has announced the end already.
    pub announced: bool,
}
