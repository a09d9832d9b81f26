//! One vocabulary for the timeline: the stages and counters of a request's slot, and the parts that the stages
//! divide a request's time into.

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

/// What a request spends its time on. The parts follow one another without a gap and without overlap, so that
/// together they are the time from the parsed head to the last bytes; each ends at a [`Stage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Part {
    /// Frontend: reading the body, checking it, sending it on, once the roles that it needs serve.
    Admission = 0,
    /// Waiting for a tokenizer.
    TokenizerQueue = 1,
    /// Tokenizer: template, encode, checks.
    Tokenize = 2,
    /// Waiting for the engine to take it: a step is under way.
    EngineInbox = 3,
    /// Waiting in the engine for a first place in a step.
    Queue = 4,
    /// From the first step to the first token.
    Prefill = 5,
    /// From the first token to the last, preemptions and the deaths of roles included.
    Decode = 6,
    /// From the last token to the last text.
    Detokenize = 7,
    /// From the last text to the last bytes handed to the socket.
    Write = 8,
}

impl Part {
    /// All, in the order of a request's life.
    pub const ALL: [Part; 9] = [
        Part::Admission,
        Part::TokenizerQueue,
        Part::Tokenize,
        Part::EngineInbox,
        Part::Queue,
        Part::Prefill,
        Part::Decode,
        Part::Detokenize,
        Part::Write,
    ];

    /// Label in metrics, timings and traces.
    pub fn name(self) -> &'static str {
        match self {
            Part::Admission => "admission",
            Part::TokenizerQueue => "tokenizer_queue",
            Part::Tokenize => "tokenize",
            Part::EngineInbox => "engine_inbox",
            Part::Queue => "queue",
            Part::Prefill => "prefill",
            Part::Decode => "decode",
            Part::Detokenize => "detokenize",
            Part::Write => "write",
        }
    }

    /// The stage at which it ends; it begins where the part before it ended, the first at [`Stage::Received`].
    pub fn ends_at(self) -> Stage {
        match self {
            Part::Admission => Stage::Submitted,
            Part::TokenizerQueue => Stage::TokenizeBegin,
            Part::Tokenize => Stage::TokenizeEnd,
            Part::EngineInbox => Stage::EngineReceived,
            Part::Queue => Stage::FirstScheduled,
            Part::Prefill => Stage::FirstToken,
            Part::Decode => Stage::LastToken,
            Part::Detokenize => Stage::LastText,
            Part::Write => Stage::LastWrite,
        }
    }
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
    /// Engine: steps that the request took part in.
    Steps = 4,
    /// Engine: rows of those steps, added up.
    BatchRowsSum = 5,
    /// Engine: rows of the largest of them.
    BatchRowsMax = 6,
    /// Engine: prompt tokens of all requests in those steps, added up.
    BatchPrefillSum = 7,
    /// Engine: prompt tokens of the step that had the most.
    BatchPrefillMax = 8,
    /// Frontend: times the request went on after the death of a role.
    Resumptions = 9,
    /// Tokenizer: how the answer of a chat begins, a [`crate::reasoning::ReasoningFound`].
    Reasoning = 10,
    /// Engine: drafts of the request's next tokens that steps have verified.
    Drafts = 11,
    /// Engine: those of them that were sampled.
    AcceptedDrafts = 12,
}

impl Counter {
    /// All, in the order of their numbers.
    pub const ALL: [Counter; 13] = [
        Counter::PromptTokens,
        Counter::CachedTokens,
        Counter::GeneratedTokens,
        Counter::Preemptions,
        Counter::Steps,
        Counter::BatchRowsSum,
        Counter::BatchRowsMax,
        Counter::BatchPrefillSum,
        Counter::BatchPrefillMax,
        Counter::Resumptions,
        Counter::Reasoning,
        Counter::Drafts,
        Counter::AcceptedDrafts,
    ];
}

const _: () = assert!(Stage::ALL.len() <= crate::limits::STAGE_COUNT);
const _: () = assert!(Counter::ALL.len() <= crate::limits::COUNTER_COUNT);
