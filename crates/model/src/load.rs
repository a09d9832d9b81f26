//! From a folder and options to a [`Model`].

use crate::config_json;
use crate::fake::{FakeModel, FakeOptions, FakeShape};
use crate::{AttentionKernel, LinearKind, Model, PoolingKind, Quantization};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What computes the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// The model in the folder, on the CPU.
    #[default]
    Native,
    /// The deterministic fake; takes vocabulary, context length and end-of-sequence id from the folder's config.json.
    Fake,
}

/// Which dtype to compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DtypeChoice {
    /// bf16 where the CPU has instructions for it, else f32. Never f16: on CPU it is many times slower than either.
    #[default]
    Auto,
    /// IEEE single precision.
    F32,
    /// bfloat16; refused at load on a CPU without the instructions.
    Bf16,
}

/// Size of the KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvSize {
    /// A number of blocks.
    Blocks(u32),
    /// As many whole blocks as fit in this many bytes.
    Bytes(u64),
}

/// How the threads of the kernels work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TeamPlan {
    /// How long a thread looks for work before it sleeps.
    pub spin: Duration,
    /// A CPU for each thread, where they stay; empty: anywhere in the process's set.
    pub cpus: Vec<usize>,
}

/// Everything that [`load`] can be told.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelOptions {
    /// What computes the tokens.
    pub backend: Backend,
    /// What it computes in.
    pub dtype: DtypeChoice,
    /// Keep K and V as integers of 8 bits with a scale for each row of a head, not in the dtype of the activations.
    pub int8_kv: bool,
    /// Threads inside one step, at least 1.
    pub threads: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Size of the KV pool.
    pub kv: KvSize,
    /// Keep only the window of layers that have one, in this number of window blocks; `None`: all KV. Goes with a
    /// number of blocks, and does nothing where no layer has a window below the longest sequence.
    pub window_blocks: Option<u32>,
    /// Longest sequence that is served; without one, the model's default. Some rotations depend on it.
    pub max_model_len: Option<u32>,
    /// Bring the KV pool into memory at load, not when its blocks are first used.
    pub prefault: bool,
    /// How the products hold their weights.
    pub linear: LinearKind,
    /// Weights of products as integers, the head's too; `linear` is for those that are not.
    pub quantization: Quantization,
    /// Vector kernels or their plain Rust twins.
    pub attention: AttentionKernel,
    /// Sum what a generated token sees in spans, which the threads share.
    pub split_contexts: bool,
    /// Run the kernels on threads of our own where they do every product; `None`: on libgomp's, or on those of an
    /// earlier model of this process. libtorch has one thread from then on, so a process with such a model has no
    /// other.
    pub team: Option<TeamPlan>,
    /// Draw the tokens of a step on all threads.
    pub parallel_sampling: bool,
    /// Give a vector for each prompt, made so, instead of tokens.
    pub pooling: Option<PoolingKind>,
    /// Step time of the fake backend.
    pub fake: FakeOptions,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            backend: Backend::Native,
            dtype: DtypeChoice::Auto,
            int8_kv: false,
            threads: 1,
            block_size: 16,
            kv: KvSize::Blocks(1024),
            window_blocks: None,
            max_model_len: None,
            prefault: true,
            linear: LinearKind::Auto,
            quantization: Quantization::None,
            attention: AttentionKernel::Vector,
            split_contexts: true,
            team: None,
            parallel_sampling: false,
            pooling: None,
            fake: FakeOptions::default(),
        }
    }
}

/// What a load tells on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadEvent<'a> {
    /// How far the weights have come.
    Bytes {
        /// Bytes of the files that were read.
        done: u64,
        /// Bytes of all tensors.
        total: u64,
    },
    /// Tensors of the files that the model does not use.
    Unused(&'a [String]),
    /// What config.json says and the model does not have, each in words that follow the file's name.
    Ignored(&'a [String]),
    /// Why libtorch's operators compute what kernels of the CUDA object could.
    WithoutKernels(&'a str),
}

/// Why a model could not be loaded. Each names the file at fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// config.json is missing, malformed or describes something unsupported.
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The weight file is missing, truncated or malformed.
    Weights {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// One tensor is missing or has a wrong shape or dtype.
    Tensor {
        /// The weight file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The options ask for something that this build or machine cannot do.
    Options {
        /// What cannot be done, and what to ask for instead.
        reason: String,
    },
    /// The tensor library or the system refused (memory, most often).
    Backend {
        /// What was being done.
        operation: &'static str,
        /// The message.
        message: String,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config { path, reason } | Self::Weights { path, reason } => {
                write!(f, "{}: {reason}", path.display())
            }
            Self::Tensor { path, tensor, reason } => {
                write!(f, "{}: tensor {tensor}: {reason}", path.display())
            }
            Self::Options { reason } => f.write_str(reason),
            Self::Backend { operation, message } => write!(f, "{operation} failed: {message}"),
        }
    }
}

impl std::error::Error for LoadError {}

impl KvSize {
    /// Blocks in a share of the memory that a device has free; at least one sequence must fit.
    pub(crate) fn of_share(
        free: u64,
        share: f32,
        block_bytes: u64,
        sequence_blocks: u32,
    ) -> Result<u32, LoadError> {
        let bytes = (free as f64 * f64::from(share)) as u64;
        let needed = u64::from(sequence_blocks) * block_bytes;
        if bytes < needed {
            let message = format!(
                "the device has {} MiB free, of which {share} (--kv-cache-memory-share) cannot hold one sequence of \
                 --max-model-len, {} MiB: take a larger share or a shorter --max-model-len",
                free >> 20,
                needed.div_ceil(1 << 20),
            );
            return Err(LoadError::Backend { operation: "sizing the KV cache", message });
        }
        KvSize::Bytes(bytes).block_count(block_bytes)
    }

    /// The number of blocks of `block_bytes` each.
    pub(crate) fn block_count(self, block_bytes: u64) -> Result<u32, LoadError> {
        let blocks = match self {
            Self::Blocks(blocks) => u64::from(blocks),
            Self::Bytes(bytes) => bytes / block_bytes.max(1),
        };
        match u32::try_from(blocks) {
            Ok(blocks) if (1..=i32::MAX as u32).contains(&blocks) => Ok(blocks),
            Ok(_) | Err(_) => Err(LoadError::Options {
                reason: format!(
                    "the KV pool would have {blocks} blocks of {block_bytes} bytes; expected 1 to 2^31 - 1"
                ),
            }),
        }
    }
}

/// Loads the model in `folder` (config.json, safetensors) and allocates and prefaults its KV pool.
///
/// # Errors
/// See [`LoadError`]. Files are never trusted: damaged ones are errors, not panics.
pub fn load(folder: &Path, options: &ModelOptions) -> Result<Box<dyn Model>, LoadError> {
    load_watched(folder, options, &mut |_| {})
}

/// As [`load`]; `watch` hears how it goes.
///
/// # Errors
/// As [`load`].
pub fn load_watched(
    folder: &Path,
    options: &ModelOptions,
    watch: &mut dyn FnMut(LoadEvent<'_>),
) -> Result<Box<dyn Model>, LoadError> {
    if options.block_size == 0 || options.block_size > 1024 {
        let reason = format!("block size {} is not in 1..=1024", options.block_size);
        return Err(LoadError::Options { reason });
    }
    if options.threads == 0 {
        return Err(LoadError::Options { reason: "the model needs at least 1 thread".into() });
    }
    match options.backend {
        Backend::Fake => {
            let facts = pinion_architecture::facts(&config_json::keys(folder)?)
                .map_err(|reasons| config_json::fault(folder, reasons.join("; ")))?;
            let shape = FakeShape {
                vocab_size: facts.vocab,
                max_context: facts.context,
                eos: facts.stop_ids.first().copied(),
                block_size: options.block_size,
                block_count: options.kv.block_count(u64::from(options.block_size) * 8)?,
            };
            let model = FakeModel::new(shape, options.fake);
            Ok(Box::new(if options.pooling.is_some() { model.pooling() } else { model }))
        }
        Backend::Native => {
            tell_ignored(folder, options.pooling.is_none(), watch)?;
            load_torch(folder, options, watch)
        }
    }
}

/// Tells what config.json says and the model does not have.
pub(crate) fn tell_ignored(
    folder: &Path,
    generates: bool,
    watch: &mut dyn FnMut(LoadEvent<'_>),
) -> Result<(), LoadError> {
    let ignored = pinion_architecture::ignored(&config_json::keys(folder)?, generates);
    if !ignored.is_empty() {
        watch(LoadEvent::Ignored(&ignored));
    }
    Ok(())
}

#[cfg(not(feature = "torch"))]
fn load_torch(
    _: &Path,
    _: &ModelOptions,
    _: &mut dyn FnMut(LoadEvent<'_>),
) -> Result<Box<dyn Model>, LoadError> {
    Err(LoadError::Options {
        reason: "this build has no libtorch; use --device cuda or --backend fake".into(),
    })
}

#[cfg(feature = "torch")]
fn load_torch(
    folder: &Path,
    options: &ModelOptions,
    watch: &mut dyn FnMut(LoadEvent<'_>),
) -> Result<Box<dyn Model>, LoadError> {
    Ok(Box::new(crate::decoder::Decoder::load(folder, options, watch)?))
}
