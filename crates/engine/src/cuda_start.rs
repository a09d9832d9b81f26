//! The CUDA engine as a pipeline.

use crate::load_progress::LoadProgress;
use crate::options::step_deadline;
use crate::recorded_device::RecordedDevice;
use pinion_config::{Config, CudaConfig, CudaModel, Dtype, PrefillAttention as Attention};
use pinion_model::cuda::{
    CudaDtype, CudaKv, CudaOptions, DecodePath, PrefillAttention, check_cuda, load_cuda_watched,
};
use pinion_model::{KvSize, LoadError, Pipeline, STEP_DEADLINE};
use pinion_protocol::{Peer, Role};
use pinion_worker::Recorder;
use std::path::PathBuf;
use std::time::Duration;

/// How long an engine on a core of its own looks for the end of a step before it sleeps: longer than most steps, so
/// that only a long prompt pays for the wake-up.
const STEP_SPIN: Duration = Duration::from_millis(20);

/// Opens the device and loads the model. The device queues steps itself, so overlap needs no thread: it is how many
/// steps the loop launches before it takes results.
pub(crate) fn start(
    config: &Config,
    cuda: &CudaConfig,
    recorder: Recorder,
) -> Result<Box<dyn Pipeline>, LoadError> {
    let loaded = {
        let mut progress = LoadProgress::new();
        load_cuda_watched(&config.model_dir, &options(config, cuda), &mut |event| progress.hear(event))
    };
    let model = loaded.map_err(with_way_out)?;
    let decode = if cuda.fused_decode { "fused" } else { "graph" };
    tracing::info!(device = model.device_name(), decode, "our CUDA object computes the model");
    Ok(Box::new(RecordedDevice::new(model, config.scheduling.overlap, recorder)))
}

/// As the CPU plan says of the first engine; `--spin-us 0` keeps every role from spinning.
fn owns_its_core(config: &Config) -> bool {
    let engine = Peer { role: Role::Engine, index: 0 };
    config.cpu_plan.placement(engine).is_some_and(|placement| placement.spin_us > 0)
}

/// What the CUDA engine does not take may be served without it.
fn with_way_out(error: LoadError) -> LoadError {
    match error {
        LoadError::Options { reason } => {
            LoadError::Options { reason: format!("{reason}; --device cpu serves without the GPU") }
        }
        other => other,
    }
}

/// Why the CUDA engine does not take this model, if it does not. No device is opened.
pub(crate) fn refusal(model: &CudaModel) -> Option<String> {
    check_cuda(&model.folder, &options_of(model)).err().map(|error| with_way_out(error).to_string())
}

/// Those that decide whether a model is taken; everything else is off or at its smallest.
fn options_of(model: &CudaModel) -> CudaOptions {
    CudaOptions {
        object: PathBuf::new(),
        device: 0,
        products: None,
        dtype: match model.dtype {
            Dtype::Fp32 => CudaDtype::F32,
            Dtype::Bf16 => CudaDtype::Bf16,
            Dtype::Fp16 => CudaDtype::F16,
        },
        load_threads: 1,
        block_size: model.block_size,
        kv: CudaKv::Size(KvSize::Blocks(1)),
        max_model_len: Some(model.max_model_len),
        max_rows: model.max_num_seqs,
        max_tokens: model.max_num_batched_tokens,
        graphs: false,
        mixed_graphs: false,
        dependent_launch: false,
        fused_norms: false,
        fused_products: false,
        prefill: PrefillAttention::Plain,
        decode: if model.fused_decode { DecodePath::Fused } else { DecodePath::Graph },
        measured_products: false,
        shaped_on_device: false,
        scored_on_device: false,
        masked_on_device: false,
        spin: Duration::ZERO,
        step_deadline: STEP_DEADLINE,
    }
}

fn options(config: &Config, cuda: &CudaConfig) -> CudaOptions {
    CudaOptions {
        object: cuda.object.clone(),
        products: cuda.products.clone(),
        load_threads: config.engine_threads,
        kv: match cuda.kv_share {
            Some(share) => CudaKv::FreeShare(share as f32),
            None => CudaKv::Size(KvSize::Blocks(config.kv_blocks)),
        },
        graphs: cuda.graphs,
        mixed_graphs: cuda.mixed_graphs,
        dependent_launch: cuda.dependent_launch,
        fused_norms: cuda.fused_norms,
        fused_products: cuda.fused_products,
        prefill: match config.prefill_attention {
            Attention::Plain => PrefillAttention::Plain,
            // The config refuses the second with the object.
            Attention::Auto | Attention::Sdpa => PrefillAttention::Auto,
        },
        measured_products: cuda.gemm_measured,
        shaped_on_device: cuda.shaped_on_device,
        scored_on_device: cuda.scored_on_device,
        masked_on_device: cuda.masked_on_device,
        spin: if owns_its_core(config) { STEP_SPIN } else { Duration::ZERO },
        step_deadline: step_deadline(config.lifecycle.stuck_timeout_ms),
        ..options_of(&CudaModel::of(config, cuda))
    }
}
