//! What goes into one model step and what comes out of it.
//!
//! A step is one flat, variable-length batch: all query tokens of all rows stand one after another, so a prefill chunk
//! and decode rows share a step without padding. Nothing here knows about tch.

use crate::FUTURE_TOKEN;
use crate::WindowInfo;
use crate::logprobs::Logprob;
use crate::sampler::SampleParams;
use crate::shaping::RowShaping;
use std::fmt;

/// Query tokens of a row whose successors, known because they are the prompt's, are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scored {
    /// The first of them, counted from the row's first query token.
    pub first: u32,
    /// How many there are, at least 1.
    pub len: u32,
    /// The token that follows the row's last query token; read only if that one is scored.
    pub after: u32,
    /// How many of the likeliest tokens to report beside each, at most [`crate::ALTERNATIVES_MAX`].
    pub alternatives: u32,
}

/// One sequence's part of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Small stable index of the sequence; it is the same in every step of the sequence's stay in the engine.
    pub slot: u32,
    /// Index of this row's first query token in [`StepBatch::tokens`].
    pub query_start: u32,
    /// Number of query tokens, at least 1. Rows cover `tokens` without gap or overlap, in order.
    pub query_len: u32,
    /// Sequence length in tokens after this step; the row's queries are the last `query_len` of them.
    pub context_len: u32,
    /// Tokens at positions below this are the client's prompt, the rest were generated (and may be fed again after a
    /// preemption or a resume).
    pub prompt_len: u32,
    /// Index in [`StepBatch::blocks`] of this row's first block.
    pub blocks_start: u32,
    /// Number of blocks; they cover at least `context_len` tokens.
    pub blocks_len: u32,
    /// How to sample the next token, or `None` for a prefill chunk that is not the last.
    pub sample: Option<SampleParams>,
    /// Which successors to score, if the request asks for its prompt's logprobs.
    pub scored: Option<Scored>,
}

impl Row {
    /// The row's query tokens as a range over [`StepBatch::tokens`] and [`StepBatch::positions`].
    pub fn query_range(&self) -> std::ops::Range<usize> {
        self.query_start as usize..self.query_start as usize + self.query_len as usize
    }

    /// The row's block table as a range over [`StepBatch::blocks`].
    pub fn block_range(&self) -> std::ops::Range<usize> {
        self.blocks_start as usize..self.blocks_start as usize + self.blocks_len as usize
    }

    /// The scored query tokens as a range over [`StepBatch::tokens`]; empty if there are none.
    pub fn scored_range(&self) -> std::ops::Range<usize> {
        let (first, len) = self.scored.map_or((0, 0), |scored| (scored.first, scored.len));
        let begin = self.query_start as usize + first as usize;
        begin..begin + len as usize
    }

    /// Whether the prompt is computed when this row is.
    pub(crate) fn ends_prompt(&self) -> bool {
        self.context_len >= self.prompt_len
    }

    /// Whether this row computes prompt positions or recomputes dropped ones, as opposed to one decode token.
    pub fn is_prefill(&self) -> bool {
        self.query_len > 1 || self.context_len <= self.prompt_len
    }
}

/// A part of one block that is copied to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block to read.
    pub from: u32,
    /// The block to write.
    pub to: u32,
    /// Positions, from the first on; at most the block size.
    pub tokens: u32,
}

/// Where layers with a window have their KV, in a model that keeps only the window of it
/// ([`ModelInfo::window`](crate::ModelInfo::window)).
#[derive(Debug, Clone, Copy)]
pub struct WindowTables<'a> {
    /// The window block of each entry of [`StepBatch::blocks`]; [`NO_WINDOW_BLOCK`] where no query token of the row
    /// sees one of its positions.
    pub blocks: &'a [u32],
    /// What is copied between window blocks before the rows are computed, in this order.
    pub copies: &'a [BlockCopy],
}

impl WindowTables<'_> {
    /// For a model all of whose layers keep all KV.
    pub const NONE: Self = Self { blocks: &[], copies: &[] };
}

/// An entry of [`WindowTables::blocks`] that is not read.
pub const NO_WINDOW_BLOCK: u32 = u32::MAX;

/// One step's input, borrowed from the engine's reused buffers.
#[derive(Debug, Clone, Copy)]
pub struct StepBatch<'a> {
    /// Query token ids of all rows, \[tokens\]. A [`FUTURE_TOKEN`](crate::FUTURE_TOKEN) is put in place by the
    /// [`Pipeline`](crate::Pipeline) before a [`Model`](crate::Model) sees the batch.
    pub tokens: &'a [u32],
    /// Position of each query token in its sequence, \[tokens\]: `context_len - query_len + i` for a row's i-th token.
    pub positions: &'a [u32],
    /// The rows, in the order of their tokens.
    pub rows: &'a [Row],
    /// Block tables of all rows; a row names its range.
    pub blocks: &'a [u32],
    /// What is copied within the KV cache before the rows are computed, in this order.
    pub copies: &'a [BlockCopy],
    /// The same for layers that keep their window only.
    pub windows: WindowTables<'a>,
    /// What the rows' requests do to their logits; asked only for rows that sample.
    pub shaping: &'a dyn RowShaping,
}

/// The limits a batch is checked against.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// Longest sequence in tokens.
    pub max_context: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Block ids are below this.
    pub block_count: u32,
    /// What layers with a window keep, if not all KV.
    pub window: Option<WindowInfo>,
}

impl StepBatch<'_> {
    /// Checks every index in the batch against the limits. O(tokens + blocks), no allocation.
    ///
    /// # Errors
    /// [`StepError::BadBatch`] names the first row at fault (or row 0 when the batch as a whole is malformed).
    pub fn check(&self, limits: &BatchLimits) -> Result<(), StepError> {
        let bad = |row: usize, reason: &'static str| Err(StepError::BadBatch { row, reason });
        if self.positions.len() != self.tokens.len() {
            return bad(0, "tokens and positions differ in length");
        }
        let within = |copy: &BlockCopy| {
            copy.from.max(copy.to) < limits.block_count && copy.tokens <= limits.block_size
        };
        if !self.copies.iter().all(within) {
            return bad(0, "a copy out of range");
        }
        let mut next = 0usize;
        for (index, row) in self.rows.iter().enumerate() {
            if row.query_len == 0 {
                return bad(index, "a row without query tokens");
            }
            if row.query_start as usize != next {
                return bad(index, "rows do not cover the tokens in order");
            }
            next += row.query_len as usize;
            if next > self.tokens.len() {
                return bad(index, "query range past the end of the tokens");
            }
            if row.context_len < row.query_len {
                return bad(index, "context shorter than the query");
            }
            if row.context_len > limits.max_context {
                return bad(index, "context longer than the model allows");
            }
            let Some(blocks) = self.blocks.get(row.block_range()) else {
                return bad(index, "block range past the end of the block tables");
            };
            if (blocks.len() as u64) * u64::from(limits.block_size) < u64::from(row.context_len) {
                return bad(index, "block table does not cover the context");
            }
            if blocks.iter().any(|&block| block >= limits.block_count) {
                return bad(index, "block id out of range");
            }
            let first = row.context_len - row.query_len;
            let range = row.query_range();
            if self.positions[range.clone()].iter().zip(first..).any(|(&have, want)| have != want) {
                return bad(index, "positions do not end at the context length");
            }
            if self.tokens[range.clone()].iter().any(|&token| token >= limits.vocab_size) {
                return bad(index, "token id out of the vocabulary");
            }
            if row.scored_range().end > range.end {
                return bad(index, "scored range past the end of the row");
            }
            if row.scored.is_some_and(|scored| scored.after >= limits.vocab_size) {
                return bad(index, "scored token out of the vocabulary");
            }
        }
        if next != self.tokens.len() {
            return bad(self.rows.len(), "tokens after the last row");
        }
        limits.window.map_or(Ok(()), |window| self.check_windows(window, limits.block_size))
    }

    /// The same for the window tables: each position that a row sees or writes has a window block.
    fn check_windows(&self, window: WindowInfo, block_size: u32) -> Result<(), StepError> {
        let bad = |row: usize, reason: &'static str| Err(StepError::BadBatch { row, reason });
        let WindowTables { blocks, copies } = self.windows;
        if blocks.len() != self.blocks.len() {
            return bad(0, "window tables and block tables differ in length");
        }
        let within = |copy: &BlockCopy| copy.from.max(copy.to) < window.blocks && copy.tokens <= block_size;
        if !copies.iter().all(within) {
            return bad(0, "a copy between window blocks out of range");
        }
        for (index, row) in self.rows.iter().enumerate() {
            let first_seen = (row.context_len - row.query_len + 1).saturating_sub(window.tokens);
            let read = first_seen / block_size..row.context_len.div_ceil(block_size);
            let entries = &blocks[row.block_range()][read.start as usize..read.end as usize];
            if entries.iter().any(|&block| block >= window.blocks) {
                return bad(index, "a position within the window has no window block");
            }
        }
        Ok(())
    }
}

impl StepBatch<'_> {
    /// Whether the row stands on a token that the step before draws.
    pub(crate) fn is_ahead(&self, row: &Row) -> bool {
        self.tokens.get(row.query_range()).and_then(<[u32]>::last) == Some(&FUTURE_TOKEN)
    }

    /// The token that follows the scored query token at `index` of [`StepBatch::tokens`].
    pub(crate) fn successor(&self, row: &Row, scored: &Scored, index: usize) -> u32 {
        let next = index + 1;
        if next < row.query_range().end { self.tokens[next] } else { scored.after }
    }
}

/// What one row of a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOutcome {
    /// The sampled token.
    Token(u32),
    /// The row did not ask for a sample.
    None,
    /// The row drew nothing: its mask says that the text is complete.
    Complete,
    /// The row drew nothing: its mask is not known yet. Its KV is computed.
    Late,
    /// The row drew nothing: its mask will never be known.
    Unmasked,
    /// The row's logits hold a NaN or an infinity; other rows are unaffected.
    NonFinite,
}

/// Scores of consecutive prompt tokens.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct PromptScores<'a> {
    /// For each token its own logprob, then those of the likeliest at its place; the same number for each.
    pub logprobs: &'a [Logprob],
    /// For each token its place among all, from 1 for the likeliest; tokens that are as likely share the best place.
    pub ranks: &'a [u32],
}

/// A step's result, reused from step to step.
#[derive(Debug, Default, Clone)]
pub struct StepOutput {
    /// One outcome per row, in row order.
    pub rows: Vec<RowOutcome>,
    /// Logprobs of all rows that ask for them, one row after the other.
    pub(crate) logprobs: Vec<Logprob>,
    /// Logprobs of prompt tokens of all rows that have some scored, one row after the other.
    pub(crate) prompt_logprobs: Vec<Logprob>,
    /// The rank of each scored prompt token among all, from 1.
    pub(crate) prompt_ranks: Vec<u32>,
    /// Where each row's prompt logprobs and ranks end, for rows up to the last that has some.
    prompt_ends: Vec<(usize, usize)>,
    /// Where each row's logprobs end; the rows of a model that reports none are not there.
    logprob_ends: Vec<usize>,
    /// The vectors of all rows that end a prompt for a model that pools, one after the other.
    pub(crate) pooled: Vec<f32>,
    /// Where each row's vector ends, for rows up to the last that has one.
    pooled_ends: Vec<usize>,
}

impl StepOutput {
    /// An output with room for `row_count` rows.
    pub fn with_capacity(row_count: usize) -> Self {
        Self {
            rows: Vec::with_capacity(row_count),
            logprob_ends: Vec::with_capacity(row_count),
            ..Self::default()
        }
    }

    /// Forgets the last step and keeps the buffers.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.logprobs.clear();
        self.logprob_ends.clear();
        self.prompt_logprobs.clear();
        self.prompt_ranks.clear();
        self.prompt_ends.clear();
        self.pooled.clear();
        self.pooled_ends.clear();
    }

    /// Appends a row, whose logprobs are those appended since the row before.
    pub fn push(&mut self, outcome: RowOutcome) {
        self.rows.push(outcome);
        self.logprob_ends.push(self.logprobs.len());
    }

    /// Takes the prompt scores of another output for the same rows.
    pub(crate) fn take_prompt_scores(&mut self, other: &mut StepOutput) {
        std::mem::swap(&mut self.prompt_logprobs, &mut other.prompt_logprobs);
        std::mem::swap(&mut self.prompt_ranks, &mut other.prompt_ranks);
        std::mem::swap(&mut self.prompt_ends, &mut other.prompt_ends);
    }

    /// Appends a row with the logprobs that another output has for it.
    pub(crate) fn push_with(&mut self, outcome: RowOutcome, logprobs: &[Logprob]) {
        self.logprobs.extend_from_slice(logprobs);
        self.push(outcome);
    }

    /// The logprobs of `row`: the drawn token's, then those of the likeliest; empty if the row did not ask.
    pub fn logprobs(&self, row: usize) -> &[Logprob] {
        let Some(&end) = self.logprob_ends.get(row) else { return &[] };
        let begin = row.checked_sub(1).map_or(0, |before| self.logprob_ends[before]);
        &self.logprobs[begin..end]
    }

    /// `row` has the prompt scores that were appended since the last call; rows are named in their order.
    pub(crate) fn end_prompt_scores(&mut self, row: usize) {
        let begin = self.prompt_ends.last().copied().unwrap_or_default();
        self.prompt_ends.resize(row, begin);
        self.prompt_ends.push((self.prompt_logprobs.len(), self.prompt_ranks.len()));
    }

    /// The scores of `row`'s prompt tokens, in their order.
    pub fn prompt_scores(&self, row: usize) -> PromptScores<'_> {
        let end = |row: usize| self.prompt_ends.get(row).copied();
        let Some((logprobs_end, ranks_end)) = end(row) else { return PromptScores::default() };
        let (logprobs, ranks) = row.checked_sub(1).and_then(end).unwrap_or_default();
        PromptScores {
            logprobs: &self.prompt_logprobs[logprobs..logprobs_end],
            ranks: &self.prompt_ranks[ranks..ranks_end],
        }
    }

    /// `row` has the vector that was appended since the last call; rows are named in their order.
    pub(crate) fn end_pooled(&mut self, row: usize) {
        let begin = self.pooled_ends.last().copied().unwrap_or(0);
        self.pooled_ends.resize(row, begin);
        self.pooled_ends.push(self.pooled.len());
    }

    /// The vector of `row`'s prompt; empty if the row ends none or the model does not pool.
    pub fn pooled(&self, row: usize) -> &[f32] {
        let Some(&end) = self.pooled_ends.get(row) else { return &[] };
        let begin = row.checked_sub(1).map_or(0, |before| self.pooled_ends[before]);
        &self.pooled[begin..end]
    }

    /// The token sampled for `row`, if there is one.
    pub fn token(&self, row: usize) -> Option<u32> {
        match self.rows.get(row) {
            Some(RowOutcome::Token(token)) => Some(*token),
            Some(
                RowOutcome::None
                | RowOutcome::Complete
                | RowOutcome::Late
                | RowOutcome::Unmasked
                | RowOutcome::NonFinite,
            )
            | None => None,
        }
    }
}

/// Why a step as a whole did not happen. The KV entries of the step's query tokens are then undefined; everything
/// before them is intact, so the rows can be computed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepError {
    /// The batch contradicts itself or the model's limits: a bug in the caller.
    BadBatch {
        /// Index of the row at fault.
        row: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The tensor library or a kernel reported an error.
    Backend {
        /// The operation that failed.
        operation: &'static str,
        /// Its message.
        message: String,
    },
    /// What runs the model has died or does not answer: this step has no result, and neither will any other.
    Gone {
        /// How it ended.
        reason: String,
    },
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadBatch { row, reason } => write!(f, "malformed batch at row {row}: {reason}"),
            Self::Backend { operation, message } => write!(f, "{operation} failed: {message}"),
            Self::Gone { reason } => f.write_str(reason),
        }
    }
}

impl std::error::Error for StepError {}
