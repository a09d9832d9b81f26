//! [`Config`]: every decision made. No "auto", no option, no file left to read; the roles receive it as it is.

use crate::cpu_plan::CpuPlan;
use crate::cuda::CudaConfig;
use crate::fairness::Fairness;
use crate::fake::Fake;
use crate::lifecycle::Lifecycle;
use crate::observe::Observe;
use crate::scheduling::Scheduling;
use crate::secret::ApiKeys;
use pinion_protocol::StopIds;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

/// The backend that computes the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backend {
    /// A real model on libtorch.
    Torch,
    /// Deterministic tokens from a hash, with a programmable step time and no libtorch.
    Fake,
}

impl Backend {
    /// Its name on the command line and in paths.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Torch => "torch",
            Backend::Fake => "fake",
        }
    }
}

/// Type of weights, activations and KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dtype {
    /// 32-bit floating point.
    Fp32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision, on GPUs.
    Fp16,
}

impl Dtype {
    /// Bytes of one number.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Fp32 => 4,
            Dtype::Bf16 | Dtype::Fp16 => 2,
        }
    }
}

/// What the data edges between the roles are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ipc {
    /// Rings in shared memory.
    Ring,
    /// `ipc-channel`, as control of the ablation.
    Channel,
}

/// How the model's linear layers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinearKind {
    /// Weights reordered for the CPU's matrix units once at load.
    Packed,
    /// Weights as they stand in the file.
    Plain,
}

/// Whether the model's weights become integers while they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quantization {
    /// They stay in the compute dtype.
    None,
    /// 8 bits, a scale for each output.
    Int8,
    /// 4 bits in groups, the head in 8 bits.
    Int4,
}

impl Quantization {
    /// As the option spells it.
    pub fn name(self) -> &'static str {
        match self {
            Quantization::None => "none",
            Quantization::Int8 => "int8",
            Quantization::Int4 => "int4",
        }
    }
}

/// Which attention kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttentionKind {
    /// The vectorised one.
    Vector,
    /// Its plain twin, for comparison.
    Twin,
}

/// How tool calls are found in what the model writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolCallParser {
    /// As the chat template shows, which frontends read.
    Auto,
    /// `<tool_call>{..}</tool_call>`.
    Hermes,
    /// A bare JSON object.
    Llama3Json,
    /// `[TOOL_CALLS]..`.
    Mistral,
    /// `<tool_call><function=..>`.
    Qwen3Coder,
    /// `[f(a=1)]`.
    Pythonic,
    /// They stay in the text.
    None,
}

impl ToolCallParser {
    pub(crate) fn of(name: Option<&str>) -> ToolCallParser {
        match name {
            Some("hermes") => ToolCallParser::Hermes,
            Some("llama3_json") => ToolCallParser::Llama3Json,
            Some("mistral") => ToolCallParser::Mistral,
            Some("qwen3_coder") => ToolCallParser::Qwen3Coder,
            Some("pythonic") => ToolCallParser::Pythonic,
            Some("none") => ToolCallParser::None,
            _ => ToolCallParser::Auto,
        }
    }
}

/// How a model's reasoning is told from its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReasoningParser {
    /// As the chat template shows, which frontends read.
    Auto,
    /// It stands between `<think>` and `</think>`.
    Think,
    /// It stays in the text.
    None,
}

impl ReasoningParser {
    pub(crate) fn of(name: Option<&str>) -> ReasoningParser {
        match name {
            Some("think") => ReasoningParser::Think,
            Some("none") => ReasoningParser::None,
            _ => ReasoningParser::Auto,
        }
    }
}

/// What the model folder says about the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// Longest sequence in tokens, prompt and output together.
    pub max_context: u32,
    /// The same unless the operator asks for another length.
    pub default_context: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Ids that end a text: all that the folder names.
    pub stop_ids: StopIds,
    /// Transformer layers.
    pub layers: u32,
    /// Heads of keys and values.
    pub kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Width of the residual stream.
    pub hidden: u32,
}

impl ModelFacts {
    /// Bytes of keys and values of one token over all layers.
    pub fn kv_bytes_per_token(&self, dtype: Dtype) -> u64 {
        2 * u64::from(self.layers) * u64::from(self.kv_heads) * u64::from(self.head_dim) * dtype.bytes()
    }
}

/// How tokens are drawn for requests that do not say so themselves: generation_config.json of the model folder, unless
/// the operator wants none of it. Each value is in the range that requests have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingDefaults {
    /// 0 is greedy.
    pub temperature: Option<f64>,
    /// Smallest probability mass kept.
    pub top_p: Option<f64>,
    /// Most likely tokens kept; 0 keeps everything.
    pub top_k: Option<u32>,
    /// Least share of the likeliest token's probability.
    pub min_p: Option<f64>,
    /// Of tokens in the prompt or the output.
    pub repetition_penalty: Option<f64>,
    /// Tokens of an answer for which neither the request nor its route names a number.
    pub max_new_tokens: Option<u32>,
}

impl SamplingDefaults {
    /// The API's own hold.
    pub const NONE: SamplingDefaults = SamplingDefaults {
        temperature: None,
        top_p: None,
        top_k: None,
        min_p: None,
        repetition_penalty: None,
        max_new_tokens: None,
    };
}

/// Answers that clients read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseStore {
    /// Their bytes, at most.
    pub bytes_max: usize,
    /// How long one is kept, in seconds.
    pub ttl_s: u64,
}

/// Everything an operator decided, or left to us and we decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port to listen on; 0 lets the kernel choose.
    pub port: u16,
    /// The Hugging Face folder.
    pub model_dir: PathBuf,
    /// The name that clients use for the model.
    pub served_model_name: String,
    /// What the folder says.
    pub model: ModelFacts,
    /// The backend.
    pub backend: Backend,
    /// The GPU's part, if the model runs on one.
    pub cuda: Option<CudaConfig>,
    /// In what type. The fake backend takes no notice.
    pub dtype: Dtype,
    /// Longest sequence served, prompt and output together; at most the model's own.
    pub max_model_len: u32,
    /// Sequences in one step.
    pub max_num_seqs: u32,
    /// Query tokens in one step, prompt chunks and decodes together; at least `max_num_seqs`.
    pub max_num_batched_tokens: u32,
    /// Tokens in one KV block.
    pub block_size: u32,
    /// KV blocks in the pool; at least one sequence of `max_model_len` fits.
    pub kv_blocks: u32,
    /// Records that the engine takes from its inboxes between two steps; 0 is all that are there.
    pub command_budget: u32,
    /// What the scheduler is told.
    pub scheduling: Scheduling,
    /// Threads of the model's kernels.
    pub engine_threads: u32,
    /// How linear layers run.
    pub linear: LinearKind,
    /// What their weights become.
    pub quantization: Quantization,
    /// How tool calls are found.
    pub tool_call_parser: ToolCallParser,
    /// How reasoning is found.
    pub reasoning_parser: ReasoningParser,
    /// How tokens are drawn where a request does not say it.
    pub sampling_defaults: SamplingDefaults,
    /// Requests with a field that nothing knows are refused. Older recordings do not say it.
    #[serde(default)]
    pub strict_fields: bool,
    /// How attention runs.
    pub attention: AttentionKind,
    /// What the fake backend does beside giving tokens.
    pub fake: Fake,
    /// Frontend processes.
    pub frontends: u16,
    /// Tokenizer processes.
    pub tokenizers: u16,
    /// Engine processes; 1.
    pub engines: u16,
    /// Detokenizer processes.
    pub detokenizers: u16,
    /// Request slots of one frontend.
    pub max_inflight: u32,
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Bytes waiting for one slow reader before its request is cancelled.
    pub stream_buffer_bytes_max: usize,
    /// A write to a client that makes no progress for so long ends the connection, in ms.
    pub write_timeout_ms: u64,
    /// A request's head must be complete in this time, in ms.
    pub header_timeout_ms: u64,
    /// A connection without a request is closed after this time, in ms.
    pub idle_timeout_ms: u64,
    /// A request's body must be complete in this time, in ms.
    pub body_timeout_ms: u64,
    /// Write stream chunks from a prepared prefix instead of a JSON serialiser.
    pub fast_sse: bool,
    /// Tokens of a stream that leave together.
    pub stream_interval: u32,
    /// Keys of which a client must have one. Only frontends get them.
    pub api_keys: ApiKeys,
    /// Whose requests share the engine, and how.
    pub fairness: Fairness,
    /// Web origins whose pages may use the API; `*` is all.
    pub cors_origins: Vec<String>,
    /// Names under which clients may address the service, besides the local ones: `*` is all, `*.NAME` those below it.
    pub allowed_hosts: Vec<String>,
    /// A silent stream gets a comment after this time, in ms; 0 is never.
    pub keep_alive_ms: u64,
    /// What each frontend keeps of the answers of `/v1/responses`.
    pub responses: ResponseStore,
    /// Show the `vllm:*` families on `/metrics`.
    pub vllm_metrics: bool,
    /// Serve the pages for people.
    pub ui: bool,
    /// Source of the seeds of requests that name none.
    pub seed: u64,
    /// Start, stop and logs.
    pub lifecycle: Lifecycle,
    /// Which role runs where.
    pub cpu_plan: CpuPlan,
    /// Roles are pinned to the plan's CPUs.
    pub pin: bool,
    /// Memory is brought in and locked and the model is warmed before a role is ready.
    pub jitter_control: bool,
    /// Every role is a thread of one process.
    pub in_process: bool,
    /// Memory of its own that a tokenizer or a detokenizer may have, in bytes.
    pub text_memory_bytes_max: u64,
    /// Roles give up the privileges that their work does not need.
    pub sandbox: bool,
    /// What carries records between the roles.
    pub ipc: Ipc,
    /// What is recorded.
    pub observe: Observe,
}
