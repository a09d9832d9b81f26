//! Models over Hugging Face folders, the sampler, and the deterministic fake.
//!
//! Start at [`Model`] (one step over a flat batch), [`Pipeline`] (how the engine drives one), [`load`] and
//! [`StepBatch`]. [`FakeModel`], the sampler and the CUDA engine need no libtorch; with the default feature `torch` off
//! nothing here links it. This crate does not schedule, does not own requests and does not know the other processes.

mod batch;
#[cfg_attr(not(feature = "torch"), allow(dead_code, reason = "the CUDA engine takes no packed weights"))]
mod checkpoint;
mod config_json;
pub mod cuda;
#[cfg(feature = "torch")]
mod decoder;
mod fake;
#[cfg_attr(not(feature = "torch"), allow(dead_code, reason = "the CUDA engine takes no packed weights"))]
mod gguf;
#[cfg(feature = "torch")]
mod host_sampler;
#[cfg(feature = "torch")]
mod kv_cache;
#[cfg(feature = "torch")]
mod layers;
mod load;
mod logprobs;
pub mod op_trace;
pub mod operators;
mod owned_batch;
mod pipeline;
mod pooling;
#[cfg_attr(not(feature = "torch"), allow(dead_code, reason = "the CUDA engine takes no packed weights"))]
mod prequantized;
#[cfg(feature = "torch")]
mod rotation;
mod sampler;
mod shaping;
#[cfg(feature = "torch")]
mod warm_up;
mod weigh;
#[cfg(feature = "torch")]
mod weights;

pub use batch::{
    BatchLimits, BlockCopy, NO_WINDOW_BLOCK, PromptScores, Row, RowOutcome, Scored, StepBatch, StepError,
    StepOutput, WindowTables,
};
pub use fake::{
    FAKE_VECTOR_WIDTH, FakeModel, FakeOptions, FakeShape, fake_repeating_token, fake_token, fake_vector,
};
#[cfg(feature = "torch")]
pub use host_sampler::HostSampler;
pub use load::{
    Backend, DtypeChoice, KvSize, LoadError, LoadEvent, ModelOptions, TeamPlan, load, load_watched,
};
pub use logprobs::{ALTERNATIVES_MAX, Logprob};
pub use owned_batch::OwnedBatch;
pub use pinion_ops::{AttentionKernel, LinearKind, Quantization};
pub use pipeline::{FUTURE_TOKEN, Inline, Pipeline, STEP_DEADLINE, STEP_DEADLINE_MAX, Task, Threaded};
pub use pooling::PoolingKind;
pub use sampler::{SampleParams, Sampler};
pub use shaping::{MaskState, RowShaping, Shaping, TokenMask, Unshaped};
pub use weigh::{StoredWeights, weigh};

/// What the engine needs to know about a loaded model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// A `model_type` of config.json, or `"fake"`.
    pub family: &'static str,
    /// Activation and KV dtype, and that of weights but for `packed`: `"f32"`, `"bf16"`, or `"none"` for the fake.
    pub dtype: &'static str,
    /// Longest sequence in tokens, prompt and output together.
    pub max_context: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// End-of-sequence id, if the model's config names one.
    pub eos: Option<u32>,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks in the pool; block ids are below this.
    pub block_count: u32,
    /// Bytes of one KV block over all layers, but for those whose KV is in window blocks.
    pub kv_block_bytes: u64,
    /// What layers with a window keep, if not all KV.
    pub window: Option<WindowInfo>,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Type of the products' weights where they are packed by us: `"f32"`, `"bf16"` or `"f16"`.
    pub packed: Option<&'static str>,
    /// Numbers of the vector that the model gives for each prompt instead of tokens, if it pools.
    pub vector_width: Option<u32>,
}

/// The KV of layers with a window, where they keep only that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowInfo {
    /// Positions that a query of these layers sees at most, its own included.
    pub tokens: u32,
    /// Window blocks in the pool; ids of window blocks are below this.
    pub blocks: u32,
    /// Bytes of one window block over these layers.
    pub block_bytes: u64,
}

/// Memory of the device that a model runs on, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceMemory {
    /// Weights.
    pub weights: u64,
    /// The KV cache.
    pub cache: u64,
    /// Everything else that was taken: activations, inputs, block tables, workspaces.
    pub activations: u64,
    /// Page-locked memory of the host, through which inputs and results travel.
    pub staging: u64,
    /// Free memory of the device, for all its processes.
    pub free: u64,
}

impl ModelInfo {
    /// The limits that a batch for this model must keep.
    pub fn batch_limits(&self) -> BatchLimits {
        BatchLimits {
            max_context: self.max_context,
            vocab_size: self.vocab_size,
            block_size: self.block_size,
            block_count: self.block_count,
            window: self.window,
        }
    }
}

/// The largest shapes that the engine will send, for [`Model::warm_up`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmUp {
    /// Most rows in a step.
    pub max_rows: u32,
    /// Most query tokens in a step.
    pub max_tokens: u32,
}

/// One loaded model with its KV pool. A model is driven by one thread; it may use threads of its own inside a step.
pub trait Model: Send {
    /// Facts about the model, fixed at load.
    fn info(&self) -> &ModelInfo;

    /// Runs one step: writes the KV of every query token, attends, samples for the rows that ask, and scores the prompt
    /// tokens of those that ask for that. A model that pools gives each row that ends a prompt its vector, and draws
    /// nothing. `out.rows` gets one outcome per row. A row's result does not depend on the
    /// other rows, but for the last bits: a matrix product may sum in another order when the batch has another size.
    ///
    /// # Errors
    /// See [`StepError`]; a row with non-finite logits is an outcome, not an error.
    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError>;

    /// Like [`Model::step`] but instead of sampling writes the logits of the rows that have `sample`, one after
    /// another: \[sampling rows, vocab_size\]. For tests and tools.
    ///
    /// # Errors
    /// See [`StepError`].
    fn logits(&mut self, batch: &StepBatch<'_>, out: &mut Vec<f32>) -> Result<(), StepError>;

    /// Runs representative shapes so that the first request meets warm caches and allocators. Overwrites KV blocks, so
    /// it is called before any request is admitted.
    ///
    /// # Errors
    /// See [`StepError`].
    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError>;

    /// What of a device's memory is taken for what, if the model runs on one.
    fn device_memory(&self) -> Option<DeviceMemory> {
        None
    }
}
