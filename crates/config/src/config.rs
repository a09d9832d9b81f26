//! [`Config`]: every decision made. No "auto", no option, no file left to read; the roles receive it as it is.

use crate::chat_template::ChatTemplate;
use crate::choices::{
    AttentionKind, Backend, Dtype, Ipc, KvDtype, LinearKind, PrefillAttention, Quantization, ReasoningParser,
    ToolCallParser,
};
use crate::cpu_plan::CpuPlan;
use crate::cuda::CudaConfig;
use crate::fairness::Fairness;
use crate::fake::Fake;
use crate::generation::SamplingDefaults;
use crate::kv_events::KvEvents;
use crate::lifecycle::Lifecycle;
use crate::model_facts::ModelFacts;
use crate::observe::Observe;
use crate::pooling::Pooling;
use crate::scheduling::Scheduling;
use crate::secret::ApiKeys;
use crate::torch_kernels::TorchKernels;
use pinion_protocol::WindowKv;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

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
    /// What layers with a window keep, if not all KV. Older recordings do not say it.
    #[serde(default)]
    pub window_kv: Option<WindowKv>,
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
    /// What K and V are in memory. Older recordings do not say it.
    #[serde(default)]
    pub kv_dtype: KvDtype,
    /// How the model pools, if it does: then it generates no text. Older recordings do not say it.
    #[serde(default)]
    pub pooling: Option<Pooling>,
    /// How tool calls are found.
    pub tool_call_parser: ToolCallParser,
    /// How reasoning is found.
    pub reasoning_parser: ReasoningParser,
    /// How tokens are drawn where a request does not say it.
    pub sampling_defaults: SamplingDefaults,
    /// What the launcher logs before it starts a role: what of the model's folder is ignored,
    /// and what watching several frontends does not show.
    #[serde(skip)]
    pub warnings: Vec<String>,
    /// What chats are rendered by, if not by the model's own template. Older recordings do not say it.
    #[serde(default)]
    pub chat_template: Option<ChatTemplate>,
    /// Requests with an unknown field are refused. Older recordings do not say it.
    #[serde(default)]
    pub strict_fields: bool,
    /// How attention runs.
    pub attention: AttentionKind,
    /// Contexts are summed in spans, which the threads share. Older recordings do not say it.
    #[serde(default)]
    pub split_contexts: bool,
    /// All threads draw tokens. Older recordings do not say it.
    #[serde(default)]
    pub parallel_sampling: bool,
    /// How that of prompt chunks does, on a GPU and with libtorch's operators. Older recordings do not say it.
    #[serde(default)]
    pub prefill_attention: PrefillAttention,
    /// Kernels of the CUDA object between libtorch's operators. Older recordings do not say it.
    #[serde(default)]
    pub torch_kernels: TorchKernels,
    /// What the fake backend does beside giving tokens.
    pub fake: Fake,
    /// Frontend processes.
    pub frontends: u16,
    /// Tokenizer processes.
    pub tokenizers: u16,
    /// Detokenizer processes.
    pub detokenizers: u16,
    /// Request slots of one frontend.
    pub max_inflight: u32,
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Bytes waiting for one slow reader before its request is cancelled.
    pub stream_buffer_bytes_max: usize,
    /// A write to a client that makes no progress for this long ends the connection, in ms.
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
    /// Path below which a proxy serves the service, without a slash at its end; empty: none.
    #[serde(default)]
    pub root_path: String,
    /// A silent stream gets a comment after this time, in ms; 0 is never.
    pub keep_alive_ms: u64,
    /// What each frontend keeps of the answers of `/v1/responses`.
    pub responses: ResponseStore,
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
    /// Where changes of the prefix cache are published, if they are. Older recordings do not say it.
    #[serde(default)]
    pub kv_events: Option<KvEvents>,
}

impl Config {
    /// Bytes of the KV cache, window blocks included.
    pub fn kv_cache_bytes(&self) -> u64 {
        let per_token = self.model.kv_bytes_per_token(self.dtype, self.kv_dtype);
        let block_tokens = u64::from(self.block_size);
        let whole = u64::from(self.kv_blocks) * block_tokens * per_token;
        let (Some(kept), Some(of_model)) = (self.window_kv, self.model.window) else { return whole };
        let in_window = per_token / u64::from(self.model.layers) * u64::from(of_model.layers);
        let blocks = u64::from(self.kv_blocks) * (per_token - in_window);
        (blocks + u64::from(kept.blocks) * in_window) * block_tokens
    }
}
