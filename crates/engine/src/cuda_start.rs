//! The CUDA engine as a pipeline.

use crate::recorded_device::RecordedDevice;
use pinion_config::{Config, CudaConfig, Dtype};
use pinion_model::cuda::{CudaDtype, CudaKv, CudaOptions, DecodePath, PrefillAttention, load_cuda};
use pinion_model::{KvSize, LoadError, Pipeline};
use pinion_worker::Recorder;

/// Opens the device and loads the model. The device queues steps itself, so overlap needs no thread: it is how many
/// steps the loop launches before it takes results.
pub(crate) fn start(
    config: &Config,
    cuda: &CudaConfig,
    recorder: Recorder,
) -> Result<Box<dyn Pipeline>, LoadError> {
    let model = load_cuda(&config.model_dir, &options(config, cuda))?;
    let decode = if cuda.fused_decode { "fused" } else { "graph" };
    tracing::info!(device = model.device_name(), decode, "the model is on the GPU");
    Ok(Box::new(RecordedDevice::new(model, config.scheduling.overlap, recorder)))
}

fn options(config: &Config, cuda: &CudaConfig) -> CudaOptions {
    CudaOptions {
        object: cuda.object.clone(),
        device: 0,
        products: None,
        dtype: match config.dtype {
            Dtype::Fp32 => CudaDtype::F32,
            Dtype::Bf16 => CudaDtype::Bf16,
            Dtype::Fp16 => CudaDtype::F16,
        },
        load_threads: config.engine_threads,
        block_size: config.block_size,
        kv: match cuda.kv_share {
            Some(share) => CudaKv::FreeShare(share as f32),
            None => CudaKv::Size(KvSize::Blocks(config.kv_blocks)),
        },
        max_model_len: Some(config.max_model_len),
        max_rows: config.max_num_seqs,
        max_tokens: config.max_num_batched_tokens,
        graphs: cuda.graphs,
        mixed_graphs: cuda.mixed_graphs,
        dependent_launch: cuda.dependent_launch,
        fused: cuda.fused,
        prefill: if cuda.prefill_on_tensor_cores { PrefillAttention::Auto } else { PrefillAttention::Plain },
        decode: if cuda.fused_decode { DecodePath::Fused } else { DecodePath::Graph },
        measured_products: cuda.gemm_measured,
        shaped_on_device: cuda.shaped_on_device,
        scored_on_device: cuda.scored_on_device,
        masked_on_device: cuda.masked_on_device,
    }
}
