//! What the forward of libtorch's operators is told.

use pinion_config::{Config, Dtype, PrefillAttention, TorchKernels};
use pinion_model::KvSize;
use pinion_model::operators::{
    OperatorDevice, OperatorDtype, OperatorKernels, OperatorKv, OperatorOptions, OperatorPrefill,
};

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
        kernels: kernels(config),
    }
}

/// Kernels of the CUDA object, and one line in the log about them.
fn kernels(config: &Config) -> Option<OperatorKernels> {
    let (object, may_do_without) = match &config.torch_kernels {
        TorchKernels::Off => return None,
        TorchKernels::LeftOut(reason) => {
            tracing::info!("attention and sampling are done without the CUDA object's kernels: {reason}");
            return None;
        }
        TorchKernels::On { object, may_do_without } => (object.clone(), *may_do_without),
    };
    tracing::info!("attention, KV append and the sampler are kernels of {}", object.display());
    let cuda = config.cuda.as_ref();
    Some(OperatorKernels {
        object,
        may_do_without,
        shaped_on_device: cuda.is_none_or(|cuda| cuda.shaped_on_device),
        scored_on_device: cuda.is_none_or(|cuda| cuda.scored_on_device),
        masked_on_device: cuda.is_none_or(|cuda| cuda.masked_on_device),
    })
}
