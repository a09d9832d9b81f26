//! One vocabulary for the timeline: the stages and counters of a request's slot.

/// Boundaries of a request's life. Each stamp is written once, by one role, in CLOCK_MONOTONIC nanoseconds,
/// into the request's slot; 0 means not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Stage {
    /// Frontend: the request's head was parsed.
    Received = 0,
    /// Frontend: body admitted and submitted to a tokenizer.
    Submitted = 1,
    /// Tokenizer: took the request from its inbox.
    TokenizeBegin = 2,
    /// Tokenizer: ids ready, handed to the engine's ring.
    TokenizeEnd = 3,
    /// Engine: took the request from its inbox.
    EngineReceived = 4,
    /// Engine: first planned into a step.
    FirstScheduled = 5,
    /// Engine: first token published.
    FirstToken = 6,
    /// Engine: last token published and KV released.
    LastToken = 7,
    /// Detokenizer: first text delta sent.
    FirstText = 8,
    /// Detokenizer: last text delta sent.
    LastText = 9,
    /// Frontend: first body bytes handed to the socket.
    FirstWrite = 10,
    /// Frontend: last body bytes handed to the socket.
    LastWrite = 11,
}

impl Stage {
    /// All stages in the order of a request's life.
    pub const ALL: [Stage; 12] = [
        Stage::Received,
        Stage::Submitted,
        Stage::TokenizeBegin,
        Stage::TokenizeEnd,
        Stage::EngineReceived,
        Stage::FirstScheduled,
        Stage::FirstToken,
        Stage::LastToken,
        Stage::FirstText,
        Stage::LastText,
        Stage::FirstWrite,
        Stage::LastWrite,
    ];
}

/// Counters in a request's slot, each written by one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Tokenizer: prompt length in tokens.
    PromptTokens = 0,
    /// Engine: prompt tokens found in the prefix cache.
    CachedTokens = 1,
    /// Engine: tokens generated.
    GeneratedTokens = 2,
    /// Engine: times the request was preempted.
    Preemptions = 3,
}

const _: () = assert!(Stage::ALL.len() <= crate::limits::STAGE_COUNT);
