//! From the resolved config to a loaded model and an engine around it.

use crate::cuda_start;
use crate::engine::{Engine, Sizes};
use crate::load_progress::LoadProgress;
use crate::operator_options::operator_options;
use crate::recorded::Recorded;
use pinion_config::{
    AdmissionKind, AttentionKind, Backend, Config, CpuPlan, Dtype, Exit, KvDtype, LinearKind, PoolingKind,
    Quantization, SpeculationKind, StepTimeKind,
};
use pinion_grammar::{Grammars, Words};
use pinion_model::operators::load_operators;
use pinion_model::{
    AttentionKernel, DtypeChoice, FakeOptions, Inline, KvSize, LoadError, LoadEvent, Model, ModelInfo,
    ModelOptions, Pipeline, STEP_DEADLINE, STEP_DEADLINE_MAX, TeamPlan, Threaded, WarmUp, WindowInfo,
    load_watched,
};
use pinion_os::process::limit_behind;
use pinion_protocol::{Role, WindowKv};
use pinion_scheduler::{Admission, Limits, Policy, StepTime};
use pinion_text::TextCodec;
use pinion_worker::Recorder;
use std::time::Duration;

// The config sizes rings by the width that the fake model's vectors have.
const _: () = assert!(pinion_config::FAKE_VECTOR_WIDTH == pinion_model::FAKE_VECTOR_WIDTH);

/// Threads that spin where the plan lets them, each on a core of its own where the engine has those.
fn team_plan(plan: &CpuPlan) -> Option<TeamPlan> {
    let place = plan.placements.iter().find(|place| place.peer.role == Role::Engine && place.thread_team)?;
    let spin = Duration::from_micros(place.step_spin_us().into());
    Some(TeamPlan { spin, cpus: place.thread_cpus.clone() })
}

/// What the model is told.
pub fn model_options(config: &Config) -> ModelOptions {
    ModelOptions {
        backend: match config.backend {
            Backend::Native | Backend::Operators => pinion_model::Backend::Native,
            Backend::Fake => pinion_model::Backend::Fake,
        },
        dtype: match config.dtype {
            Dtype::Fp32 => DtypeChoice::F32,
            // The config refuses fp16 on the CPU.
            Dtype::Bf16 | Dtype::Fp16 => DtypeChoice::Bf16,
        },
        int8_kv: config.kv_dtype == KvDtype::Int8,
        threads: config.engine_threads,
        block_size: config.block_size,
        kv: KvSize::Blocks(config.kv_blocks),
        window_blocks: config.window_kv.map(|window| window.blocks),
        max_model_len: Some(config.max_model_len),
        prefault: config.jitter_control,
        linear: match config.linear {
            LinearKind::Auto => pinion_model::LinearKind::Auto,
            LinearKind::Packed => pinion_model::LinearKind::Packed,
            LinearKind::OneDnn => pinion_model::LinearKind::OneDnn,
            LinearKind::Plain => pinion_model::LinearKind::Plain,
        },
        quantization: match config.quantization {
            Quantization::Checkpoint => pinion_model::Quantization::Checkpoint,
            Quantization::None => pinion_model::Quantization::None,
            Quantization::Int8 => pinion_model::Quantization::Int8,
            Quantization::Int4 => pinion_model::Quantization::Int4,
        },
        attention: match config.attention {
            AttentionKind::Vector => AttentionKernel::Vector,
            AttentionKind::Twin => AttentionKernel::Twin,
        },
        split_contexts: config.split_contexts,
        team: team_plan(&config.cpu_plan),
        parallel_sampling: config.parallel_sampling,
        pooling: config.pooling.as_ref().map(|pooling| match pooling.kind {
            PoolingKind::Last => pinion_model::PoolingKind::Last,
            PoolingKind::Mean => pinion_model::PoolingKind::Mean,
        }),
        fake: FakeOptions {
            step_us: config.fake.step_us as f64,
            prefill_us_per_token: config.fake.prefill_us_per_token as f64,
            fatal_token: config.fake.fatal_token,
        },
    }
}

/// How the scheduler chooses.
fn policy(config: &Config) -> Policy {
    let scheduling = &config.scheduling;
    Policy {
        prefix_cache: scheduling.prefix_cache,
        prefix_partial: scheduling.prefix_partial,
        prefix_wait: scheduling.prefix_wait,
        admission: match scheduling.admission {
            AdmissionKind::Fifo => Admission::Fifo,
            AdmissionKind::Pack => Admission::Pack,
            AdmissionKind::Shortest => Admission::Shortest,
            AdmissionKind::Deadline => {
                Admission::Deadline { target_ns: scheduling.ttft_target_ms.saturating_mul(1_000_000) }
            }
        },
        prefill_chunk_tokens_max: scheduling.prefill_chunk_size,
        prefill_rows_max: scheduling.prefill_max_batch_size,
        prefill_first_from: scheduling.prefill_priority_threshold,
        step_time: match scheduling.step_time {
            StepTimeKind::Off => StepTime::Unbounded,
            StepTimeKind::Auto => StepTime::Auto,
            StepTimeKind::Micros(us) => StepTime::Target { ns: u64::from(us) * 1000 },
        },
        pools: config.pooling.is_some(),
        speculation: scheduling.speculation == SpeculationKind::Ngram,
        ..Policy::default()
    }
}

/// Sizes for a loaded model. The end-of-sequence ids are the config's, which all roles share.
pub fn sizes(config: &Config, info: &ModelInfo) -> Sizes {
    Sizes {
        limits: Limits {
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            max_requests: u32::from(config.frontends) * config.max_inflight,
            max_model_len: config.max_model_len.min(info.max_context),
            block_size: info.block_size,
            block_count: info.block_count,
            stop_ids: config.model.stop_ids,
        },
        policy: Policy {
            window: info.window.map(|window| WindowKv { tokens: window.tokens, blocks: window.blocks }),
            ..policy(config)
        },
        command_budget: config.command_budget,
        fill_to_target: config.scheduling.fill_to_target,
        detokenizer_count: config.detokenizers,
    }
}

/// After what time the engine gives up a step: not before the launcher gives up the engine, because with
/// `--stuck-timeout` an operator says how long a step may take. At 0, where no step is stuck, after a day.
pub(crate) fn step_deadline(stuck_timeout_ms: u64) -> Duration {
    match stuck_timeout_ms {
        0 => STEP_DEADLINE_MAX,
        ms => STEP_DEADLINE.max(Duration::from_millis(ms)),
    }
}

/// Loads the model: on a thread of its own for overlap, or else on this one.
fn start(config: &Config, recorder: Recorder) -> Result<Box<dyn Pipeline>, LoadError> {
    let operators = (config.backend == Backend::Operators).then(|| operator_options(config));
    if let (Some(cuda), None) = (&config.cuda, &operators) {
        return cuda_start::start(config, cuda, recorder);
    }
    let (folder, options) = (config.model_dir.clone(), model_options(config));
    let load = move || {
        let mut progress = LoadProgress::new();
        let mut watch = |event: LoadEvent<'_>| progress.hear(event);
        let loaded = match &operators {
            Some(options) => load_operators(&folder, options, &mut watch),
            None => load_watched(&folder, &options, &mut watch),
        };
        drop(progress);
        let model: Box<dyn Model> = Box::new(Recorded::new(loaded?, recorder));
        Ok(model)
    };
    if config.scheduling.overlap {
        let threaded = Threaded::start(load, step_deadline(config.lifecycle.stuck_timeout_ms))?;
        return Ok(Box::new(threaded));
    }
    Ok(Box::new(Inline::new(load()?)))
}

/// Loads and warms the model, whose steps go into `recorder`. Gives the engine and one line about it for the operator.
///
/// # Errors
/// The reason, and the code that the service should exit with.
pub fn build(config: &Config, recorder: Recorder) -> Result<(Engine, String), (String, Exit)> {
    // Before the model, so that both are ready at about the same time.
    let grammars = grammars(config).map_err(|error| {
        (format!("cannot start the threads for grammars: {error}{}", limit_behind(&error)), Exit::System)
    })?;
    let mut pipeline = start(config, recorder).map_err(|error| {
        let exit = match error {
            LoadError::Options { .. } => Exit::Usage,
            LoadError::Backend { .. } if config.cuda.is_some() => Exit::Device,
            LoadError::Backend { .. } => Exit::System,
            LoadError::Config { .. } | LoadError::Weights { .. } | LoadError::Tensor { .. } => Exit::Model,
        };
        (error.to_string(), exit)
    })?;
    let info = pipeline.info().clone();
    let sizes = sizes(config, &info);
    let max_rows = sizes.policy.rows_max(&sizes.limits);
    let shapes = WarmUp { max_rows, max_tokens: config.max_num_batched_tokens };
    // The CUDA object captures its graphs and chooses its products here, which are switches of their own.
    let has_object = config.cuda.is_some() && config.backend == Backend::Native;
    if config.jitter_control || has_object {
        let exit = if config.cuda.is_some() { Exit::Device } else { Exit::Start };
        pipeline.warm_up(&shapes).map_err(|error| (format!("warm-up: {error}"), exit))?;
    }
    let summary = format!(
        "{} {}{}{}, {}{} KV blocks of {} tokens ({} MiB){}, {} thread(s), overlap {}",
        info.family,
        info.dtype,
        match (config.quantization, info.packed) {
            (Quantization::Checkpoint | Quantization::None, None) => String::new(),
            (Quantization::Checkpoint | Quantization::None, Some(form)) => {
                format!(" with packed {form} weights ({} MiB)", info.weight_bytes >> 20)
            }
            (form, _) => format!(" with {} weights ({} MiB)", form.name(), info.weight_bytes >> 20),
        },
        info.vector_width.map(|width| format!(", vectors of {width} numbers")).unwrap_or_default(),
        info.block_count,
        if config.kv_dtype == KvDtype::Int8 { " int8" } else { "" },
        info.block_size,
        (u64::from(info.block_count) * info.kv_block_bytes) >> 20,
        info.window.map(window_blocks_text).unwrap_or_default(),
        config.engine_threads,
        if pipeline.depth() > 1 { "on" } else { "off" },
    );
    Ok((Engine::new(pipeline, sizes).with_grammars(grammars), summary))
}

fn window_blocks_text(window: WindowInfo) -> String {
    let WindowInfo { tokens, blocks, block_bytes } = window;
    let mib = (u64::from(blocks) * block_bytes) >> 20;
    format!(", {blocks} blocks for layers that see {tokens} tokens ({mib} MiB)")
}

/// The threads for grammars, over the tokens of the model's folder.
fn grammars(config: &Config) -> std::io::Result<Grammars> {
    let (folder, vocab_size, stop_ids) =
        (config.model_dir.clone(), config.model.vocab_size, config.model.stop_ids);
    let words = move || {
        let codec = TextCodec::load(&folder).map_err(|error| error.to_string())?;
        Words::of(&codec, vocab_size, stop_ids)
    };
    Grammars::start(words, config.frontends as usize * config.max_inflight as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_may_take_as_long_as_the_operator_says() {
        for (stuck_timeout_ms, seconds) in [
            (0, 86_400),
            (1, 120),
            (60_000, 120),
            (120_000, 120),
            (120_500, 120),
            (600_000, 600),
            (3_600_000, 3600),
        ] {
            assert_eq!(step_deadline(stuck_timeout_ms).as_secs(), seconds, "{stuck_timeout_ms} ms");
        }
    }
}
