//! The scheduler's limits and its input.

use pinion_protocol::{Claim, Fault, FaultCode, RequestId, Sampling, StopIds};

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

    /// The length at which a request ends, if it can run at all.
    pub(crate) fn length_max(&self, request: &Request) -> Result<u32, Fault> {
        let (prompt, ids) = (u64::from(request.prompt_tokens), request.ids.len() as u64);
        if prompt == 0 || prompt > ids {
            return Err(Fault::new(FaultCode::Internal, "an admitted request has no prompt"));
        }
        let context = u64::from(self.max_model_len);
        let pool = u64::from(self.block_count) * u64::from(self.block_size);
        let too_long = |message: String| Err(Fault::new(FaultCode::ContextLengthExceeded, message));
        let wanted = match request.sampling.max_tokens {
            Some(max_tokens) => prompt + u64::from(max_tokens),
            None => context.min(pool).max(prompt + 1),
        };
        if wanted > context {
            return too_long(format!("prompt and output need {wanted} tokens; the context holds {context}"));
        }
        if wanted > pool {
            return too_long(format!("prompt and output need {wanted} tokens; the KV cache holds {pool}"));
        }
        if ids > wanted {
            let message = format!("{ids} prompt and resumed tokens are more than the {wanted} asked for");
            return Err(Fault::new(FaultCode::Internal, message));
        }
        Ok(wanted as u32)
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
