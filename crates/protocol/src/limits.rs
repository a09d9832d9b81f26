//! Every fixed limit, with its unit. What an operator may change lives in the config; what must hold for
//! the records to make sense lives here.

/// Processes of one role, at most.
pub const PEERS_PER_ROLE_MAX: u16 = 16;
/// Request slots of one frontend, at most (a slot index is 16 bits wide).
pub const SLOTS_MAX: u32 = 32_768;
/// Stages of the timeline kept in a slot.
pub const STAGE_COUNT: usize = 16;
/// Counters kept in a slot.
pub const COUNTER_COUNT: usize = 16;
/// Gauges on a status page.
pub const GAUGE_COUNT: usize = 88;
/// Tokens in one KV block.
pub const BLOCK_TOKENS_MAX: usize = 256;
/// Bytes of one record of changes of the prefix cache.
pub const CACHE_RECORD_BYTES_MAX: usize = 32 << 10;
/// Stop strings of one request.
pub const STOP_STRINGS_MAX: usize = 16;
/// Bytes of one stop string.
pub const STOP_STRING_BYTES_MAX: usize = 256;
/// Rows one engine step can carry.
pub const STEP_EVENTS_MAX: usize = 1024;
/// Rows of one engine step with drafts: from about there on a CPU's step takes in proportion to its rows.
pub const DRAFT_STEP_ROWS_MAX: u32 = 8;
/// Largest vocabulary accepted from a model folder.
pub const VOCAB_MAX: u32 = 1 << 20;
/// Largest context accepted from a model folder, in tokens.
pub const CONTEXT_MAX: u32 = 1 << 20;
/// Temperatures above this only waste randomness.
pub const TEMPERATURE_MAX: f32 = 100.0;
/// A repetition penalty nearer to 0 than this, or larger than the next, leaves nothing of the model.
pub const REPETITION_PENALTY_MIN: f32 = 0.01;
/// See [`REPETITION_PENALTY_MIN`].
pub const REPETITION_PENALTY_MAX: f32 = 100.0;
/// Largest magnitude of a frequency or presence penalty, as OpenAI has it.
pub const ADDITIVE_PENALTY_MAX: f32 = 2.0;
/// Largest magnitude of one logit bias, as OpenAI has it.
pub const LOGIT_BIAS_MAX: f32 = 100.0;
/// Tokens that one request may bias.
pub const LOGIT_BIAS_ENTRIES_MAX: usize = 1024;
/// Alternatives reported with each token, as OpenAI has it for chats and vLLM for completions.
pub const LOGPROB_ALTERNATIVES_MAX: u32 = 20;
/// Scores of prompt tokens in one record from an engine.
pub const PROMPT_SCORES_PER_RECORD_MAX: usize = 32;
/// Bytes of text and scores that may wait in a detokenizer to leave as one delta.
pub const DELTA_WAITING_BYTES_MAX: usize = 512;
/// Tokens of a stream that leave together, at most.
pub const STREAM_INTERVAL_MAX: u32 = 128;
/// Bytes of a token's text in its score; longer ones are cut.
pub const SCORE_TEXT_BYTES_MAX: usize = 256;
/// Stop ids of one request.
pub const STOP_TOKEN_IDS_MAX: usize = 128;
/// Token ids of which each one ends a model's text.
pub const MODEL_STOP_IDS_MAX: usize = 32;
/// Bytes of a grammar: a JSON schema, a regular expression, choices or Lark.
pub const GRAMMAR_BYTES_MAX: usize = 64 << 10;
/// Strings of one `guided_choice`.
pub const GRAMMAR_CHOICES_MAX: usize = 1024;
/// Bytes of one chat template render or detail text in a rejection.
pub const DETAIL_BYTES_MAX: usize = 512;
/// Weight of a tenant's part of the service.
pub const TENANT_WEIGHT_MAX: u32 = 1000;
/// Bytes of a `user` that names a tenant.
pub const USER_BYTES_MAX: usize = 512;
/// Choices of one HTTP request: its prompts times `n`.
pub const CHOICES_MAX: usize = 128;
/// Chat messages in one request.
pub const MESSAGES_MAX: usize = 4096;
/// Bytes of a function's name. OpenAI has 64, Anthropic 128.
pub const FUNCTION_NAME_BYTES_MAX: usize = 128;
/// Nesting of a JSON body.
pub const JSON_DEPTH_MAX: usize = 32;
/// Bytes of log lines that may wait in a process to be written, and as many that are being written. Lines beyond them
/// are dropped and counted.
pub const LOG_BUFFER_BYTES: usize = 128 << 10;
