//! What a scheduler works within and what it is given.

use pinion_protocol::{Claim, Fault, RequestId, Sampling};

/// The sizes that a scheduler works within, fixed for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most sequences in the running set.
    pub max_num_seqs: u32,
    /// Most tokens in one step. The running set is never larger than this either.
    pub max_num_batched_tokens: u32,
    /// Most requests, running and waiting together.
    pub max_requests: u32,
    /// Longest sequence in tokens.
    pub max_model_len: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks in the pool.
    pub block_count: u32,
    /// The token that ends a text.
    pub eos: Option<u32>,
}

impl Limits {
    /// Most sequences that run at once: each of them gets at least one token in every step.
    pub(crate) fn running_max(&self) -> u32 {
        self.max_num_seqs.min(self.max_num_batched_tokens)
    }
}

/// A request as it arrives.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Whose it is.
    pub id: RequestId,
    /// How important it is, and on whose account it runs.
    pub claim: Claim,
    /// How to draw, and how many.
    pub sampling: Sampling,
    /// Prompt ids, then ids that were already generated elsewhere.
    pub ids: Vec<u32>,
    /// How many of `ids` are the prompt; at least 1.
    pub prompt_tokens: u32,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The same request is here already and goes on undisturbed.
    Duplicate,
    /// It cannot run; the client is told why.
    Fault(Fault),
}
