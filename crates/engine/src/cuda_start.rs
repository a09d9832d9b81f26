//! The CUDA engine as a pipeline, if this build has it.

use pinion_config::{Config, CudaConfig};
use pinion_model::{LoadError, Pipeline};
use pinion_worker::Recorder;

/// Opens the device and loads the model. The device queues steps itself, so overlap needs no thread: it is how many steps
/// the loop launches before it takes results. Spans of the model's steps are recorded without overlap only: with it, no
/// thread of ours knows when one begins.
#[cfg(feature = "torch")]
pub(crate) fn start(
    config: &Config,
    cuda: &CudaConfig,
    recorder: Recorder,
) -> Result<Box<dyn Pipeline>, LoadError> {
    use crate::recorded::Recorded;
    use pinion_model::Inline;
    let model = pinion_model::cuda::load_cuda(&config.model_dir, &options(config, cuda))?;
    let decode = if cuda.fused_decode { "fused" } else { "graph" };
    tracing::info!(device = model.device_name(), decode, "the model is on the GPU");
    if config.scheduling.overlap {
        return Ok(Box::new(model));
    }
    Ok(Box::new(Inline::new(Box::new(Recorded::new(Box::new(model), recorder)))))
}

#[cfg(feature = "torch")]
fn options(config: &Config, cuda: &CudaConfig) -> pinion_model::cuda::CudaOptions {
    use pinion_config::Dtype;
    use pinion_model::KvSize;
    use pinion_model::cuda::{CudaDtype, CudaKv, CudaOptions, DecodePath, PrefillAttention};
    CudaOptions {
        object: cuda.object.clone(),
        device: 0,
        products: None,
        dtype: match config.dtype {
            Dtype::Fp32 => CudaDtype::F32,
            Dtype::Bf16 => CudaDtype::Bf16,
            Dtype::Fp16 => CudaDtype::F16,
        },
        block_size: config.block_size,
        kv: match cuda.kv_share {
            Some(share) => CudaKv::FreeShare(share as f32),
            None => CudaKv::Size(KvSize::Blocks(config.kv_blocks)),
        },
        max_rows: config.max_num_seqs,
        max_tokens: config.max_num_batched_tokens,
        graphs: cuda.graphs,
        fused: cuda.fused,
        prefill: if cuda.prefill_on_tensor_cores { PrefillAttention::Auto } else { PrefillAttention::Plain },
        decode: if cuda.fused_decode { DecodePath::Fused } else { DecodePath::Graph },
    }
}

#[cfg(not(feature = "torch"))]
pub(crate) fn start(_: &Config, _: &CudaConfig, _: Recorder) -> Result<Box<dyn Pipeline>, LoadError> {
    Err(LoadError::Options { reason: "this build serves on the CPU only; use --device cpu".into() })
}
