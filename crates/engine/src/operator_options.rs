//! What the forward of libtorch's operators is told.

use pinion_config::{Config, Dtype, PrefillAttention};
use pinion_model::KvSize;
use pinion_model::operators::{OperatorDevice, OperatorDtype, OperatorKv, OperatorOptions, OperatorPrefill};

/// The CUDA device that serves.
pub(crate) const DEVICE: u32 = 0;

/// As configured, and one line in the log that says so.
pub(crate) fn operator_options(config: &Config) -> OperatorOptions {
    let device = match &config.cuda {
        None => OperatorDevice::Cpu,
        Some(_) => OperatorDevice::Cuda(DEVICE),
    };
    match config.cuda.as_ref().and_then(|cuda| cuda.beyond_object.as_deref()) {
        Some(reason) => tracing::info!(?device, "libtorch's operators compute the model: {reason}"),
        None => tracing::info!(?device, "libtorch's operators compute the model"),
    }
    let share = config.cuda.as_ref().and_then(|cuda| cuda.kv_share);
    OperatorOptions {
        device,
        dtype: match config.dtype {
            Dtype::Fp32 => OperatorDtype::F32,
            Dtype::Bf16 => OperatorDtype::Bf16,
            Dtype::Fp16 => OperatorDtype::F16,
        },
        threads: config.engine_threads,
        block_size: config.block_size,
        kv: match share {
            Some(share) => OperatorKv::FreeShare(share as f32),
            None => OperatorKv::Size(KvSize::Blocks(config.kv_blocks)),
        },
        max_model_len: Some(config.max_model_len),
        max_rows: config.max_num_seqs,
        max_tokens: config.max_num_batched_tokens,
        prefill: match config.prefill_attention {
            PrefillAttention::Auto => OperatorPrefill::Auto,
            PrefillAttention::Sdpa => OperatorPrefill::Sdpa,
            PrefillAttention::Plain => OperatorPrefill::Plain,
        },
    }
}
