//! The scheduler's limits and its input.

use pinion_protocol::{Claim, Fault, RequestId, Sampling, StopIds};

/// The scheduler's limits. They do not change.
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
    /// The tokens that end a text.
    pub stop_ids: StopIds,
}

impl Limits {
    /// Most sequences that run at once. Each gets at least one token in every step.
    pub(crate) fn running_max(&self) -> u32 {
        self.max_num_seqs.min(self.max_num_batched_tokens)
    }
}

/// A request as it arrives.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Its id.
    pub id: RequestId,
    /// Tenant, weight and priority.
    pub claim: Claim,
    /// Sampling parameters and the number of tokens.
    pub sampling: Sampling,
    /// Prompt ids, then ids that were already generated elsewhere.
    pub ids: Vec<u32>,
    /// How many of `ids` are the prompt; at least 1.
    pub prompt_tokens: u32,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The scheduler has this request already; that one is not affected.
    Duplicate,
    /// It cannot run. The fault is the client's answer.
    Fault(Fault),
}
