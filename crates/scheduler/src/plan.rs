//! The values that go between the scheduler and the one who runs the model.

use pinion_protocol::frontend_inbox::Finished;
use pinion_protocol::{FaultCode, RequestId, Sampling};
use std::ops::Range;

/// What a step computes. Rows that decode one token stand first, then prefill chunks, each group oldest
/// first; the rows together never hold more tokens than the budget.
#[derive(Debug, Clone, Default)]
pub struct StepPlan {
    /// Number of the step, from 1. An empty plan has the number of the last step that was not empty.
    pub step: u64,
    /// One row for each sequence that takes part.
    pub rows: Vec<PlanRow>,
    /// What is copied within the KV cache before the rows are computed, in this order.
    pub copies: Vec<BlockCopy>,
    /// Tokens of all rows.
    pub token_count: u32,
    /// Prompt tokens of all rows whose logprobs are reported.
    pub score_count: u32,
    /// Requests that gave their blocks back while this step was planned.
    pub preempted_count: u32,
    /// Time since the oldest waiting request arrived, in ns; 0 if none waits.
    pub oldest_waiting_ns: u64,
}

impl StepPlan {
    /// An empty plan with room for so many rows.
    pub(crate) fn with_capacity(rows: usize) -> StepPlan {
        StepPlan { rows: Vec::with_capacity(rows), copies: Vec::with_capacity(rows), ..StepPlan::default() }
    }
}

/// The beginning of a block that one sequence gets from another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block to read.
    pub from: u32,
    /// The block to write; nobody else holds it.
    pub to: u32,
    /// Positions to copy, from the first on.
    pub tokens: u32,
}

/// One sequence's part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanRow {
    /// Whose it is.
    pub id: RequestId,
    /// Index of the sequence in the scheduler's table.
    pub(crate) key: u32,
    /// The sequence's place in the order of arrival; it tells a later holder of the same key apart.
    pub(crate) ordinal: u64,
    /// Index below `max_num_seqs` that the sequence keeps while it runs.
    pub lane: u32,
    /// Position of the first token to compute.
    pub start: u32,
    /// Tokens to compute, at least 1.
    pub len: u32,
    /// Index among the generated tokens of the one to sample after this row; `None` for a prefill chunk that is not
    /// the last.
    pub draw: Option<u32>,
    /// Index of the first prompt token whose logprob this row reports: the model's for that token after those before it.
    /// The very first token of a prompt has none and is reported as itself.
    pub report_start: u32,
    /// Prompt tokens that it reports.
    pub report_len: u32,
    /// Whether the request takes part in a step for the first time.
    pub first: bool,
}

impl PlanRow {
    /// Indices of the prompt tokens whose logprobs this row reports.
    pub fn report(&self) -> Range<u32> {
        self.report_start..self.report_start + self.report_len
    }
}

/// What the model needs to know about a row beside the row itself, borrowed from the scheduler.
#[derive(Debug, Clone, Copy)]
pub struct RowView<'a> {
    /// Ids of the tokens to compute. The last one is missing if an outstanding step draws it.
    pub tokens: &'a [u32],
    /// All known ids of the sequence: the prompt, then what was generated.
    pub ids: &'a [u32],
    /// The sequence's block table; it covers the sequence up to the end of the row.
    pub blocks: &'a [u32],
    /// How to draw.
    pub sampling: &'a Sampling,
    /// Length of the client's prompt.
    pub prompt_tokens: u32,
}

/// What a row of the plan came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowResult {
    /// The sampled token.
    Token(u32),
    /// Computed, and nothing to sample.
    Computed,
    /// Computed, but no token could be drawn yet: the row comes again with its last token.
    Again,
    /// Nothing may be drawn any more: the text is complete.
    Complete,
    /// The row failed; it ends its own request and no other.
    Failed(FaultCode),
}

/// A token that a commit has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Whose it is.
    pub id: RequestId,
    /// Index of the row that drew it.
    pub row: u32,
    /// The token.
    pub token: u32,
    /// Index among the generated tokens, from 0.
    pub sequence: u32,
    /// The first one that this engine generated for the request.
    pub first: bool,
    /// The last one: the request has ended with it.
    pub last: bool,
    /// It is the end-of-sequence token and ended the request.
    pub eos: bool,
}

/// What a step had in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Rows.
    pub rows: u32,
    /// Tokens of the rows that do not decode.
    pub prefill_tokens: u32,
}

/// What shared the steps that a request took part in, itself included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Company {
    /// Steps.
    pub steps: u32,
    /// Their rows, added up.
    pub rows_sum: u64,
    /// Rows of the largest.
    pub rows_max: u32,
    /// Their prefill tokens, added up.
    pub prefill_sum: u64,
    /// Prefill tokens of the step that had the most.
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

impl StepPlan {
    /// What the step has in it. A row of one token that draws decodes, or costs as much as if it did.
    pub fn load(&self) -> StepLoad {
        let decodes = self.rows.iter().filter(|row| row.len == 1 && row.draw.is_some()).count() as u32;
        StepLoad { rows: self.rows.len() as u32, prefill_tokens: self.token_count - decodes }
    }
}

/// A request that has left the scheduler; its blocks are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// What the frontend is told.
    pub finished: Finished,
    /// Times the request gave its blocks back and was computed again.
    pub preemptions: u32,
    /// What shared its steps.
    pub company: Company,
    /// Whether an [`Event`] with `last` has said so already.
    pub announced: bool,
}
