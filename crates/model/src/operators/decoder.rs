//! A loaded model of operators: its device, its memory, its steps.

use super::draws::DeviceDraws;
use super::network::{Inputs, Network};
use super::paged::Kernels;
use super::weights::Weights;
use super::{OperatorDevice, OperatorDtype, OperatorKv, OperatorOptions, OperatorPrefill};
use crate::batch::{StepBatch, StepError, StepOutput};
use crate::config_json;
use crate::host_sampler::{HostSampler, score_prompts};
use crate::load::{KvSize, LoadError, LoadEvent, tell_ignored};
use crate::warm_up::run_warm_up;
use crate::{DeviceMemory, Model, ModelInfo, WarmUp};
use pinion_architecture::{Architecture, beyond_cuda_attention};
use pinion_ops::device::{cuda_memory, open_cuda};
use pinion_ops::tensor::{TensorError, copy_to_f32, keep_freed_memory, set_threads};
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// Tokens of a step that the object's kernels take: a block of the grid for each.
const STEP_TOKENS_MAX: u32 = 65_535;

pub(super) fn tensors_of(device: OperatorDevice) -> Device {
    match device {
        OperatorDevice::Cpu => Device::Cpu,
        OperatorDevice::Cuda(index) => Device::Cuda(index as usize),
    }
}

pub(super) fn kind_of(dtype: OperatorDtype) -> Kind {
    match dtype {
        OperatorDtype::F32 => Kind::Float,
        OperatorDtype::Bf16 => Kind::BFloat16,
        OperatorDtype::F16 => Kind::Half,
    }
}

pub(super) fn backend(error: TensorError) -> LoadError {
    LoadError::Backend { operation: error.operation, message: error.message }
}

fn step_error(error: TensorError) -> StepError {
    StepError::Backend { operation: error.operation, message: error.message }
}

/// Makes the device usable by this process, as its first use of libtorch.
pub(super) fn open(device: OperatorDevice) -> Result<(), LoadError> {
    let OperatorDevice::Cuda(index) = device else { return Ok(()) };
    let refuse = |message: String| Err(LoadError::Backend { operation: "libtorch on the GPU", message });
    if let Err(reason) = open_cuda() {
        return refuse(format!(
            "{reason}: deploy/launch.sh --device cuda --backend torch sets libtorch up for CUDA, or use --device cpu"
        ));
    }
    let found = tch::Cuda::device_count();
    if i64::from(index) < found {
        return Ok(());
    }
    refuse(format!(
        "libtorch finds {found} CUDA devices, so there is no device {index}: install NVIDIA driver 580 or newer, and give this machine or container a GPU"
    ))
}

/// A loaded model with its cache.
#[derive(Debug)]
struct OperatorDecoder {
    info: ModelInfo,
    network: Network,
    device: OperatorDevice,
    sampler: HostSampler,
    /// What the host samples from.
    logits: Vec<f32>,
    /// The object's sampler, if the model runs with its kernels.
    draws: Option<DeviceDraws>,
}

/// What a step with rows computed.
struct Ran {
    /// The last layer's output, `[tokens, hidden]`.
    hidden: Tensor,
    /// fp32 `[sampling rows, vocab]`, if there are some.
    logits: Option<Tensor>,
}

/// Copies logits to the host.
fn bring(logits: &Tensor, to: &mut Vec<f32>) -> Result<(), TensorError> {
    copy_to_f32(&logits.f_to_device(Device::Cpu)?, to)
}

/// The device is open.
pub(super) fn load(
    folder: &Path,
    options: &OperatorOptions,
    watch: &mut dyn FnMut(LoadEvent<'_>),
) -> Result<Box<dyn Model>, LoadError> {
    tell_ignored(folder, true, watch)?;
    let model = config_json::architecture(folder)?;
    check(&model, options)?;
    set_threads(options.threads);
    keep_freed_memory();
    let _no_grad = tch::no_grad_guard();
    let max_context = options.max_model_len.unwrap_or(model.context.default).min(model.context.max);
    let element = kind_of(options.dtype).elt_size_in_bytes() as u64;
    let kv_block_bytes =
        2 * element * model.layers.len() as u64 * u64::from(options.block_size) * u64::from(model.kv_width());
    let sequence_blocks = max_context.div_ceil(options.block_size);
    let block_count = match options.kv {
        OperatorKv::Size(size) => size.block_count(kv_block_bytes)?,
        // For the largest steps, by which their memory is measured.
        OperatorKv::FreeShare(_) => {
            options.max_tokens.div_ceil(options.block_size).min(sequence_blocks).max(1)
        }
    };
    let kernels = kernels(&model, max_context, options, watch)?;
    let draws = options.kernels.as_ref().filter(|_| kernels.is_some());
    let draws = draws.map(|wanted| DeviceDraws::new(wanted, model.vocab, options.max_rows));
    let weights = Weights::read(folder, &model, max_context, options, watch)?;
    let info = ModelInfo {
        family: model.family,
        dtype: options.dtype.name(),
        max_context,
        vocab_size: model.vocab,
        eos: model.stop_ids.first().copied(),
        block_size: options.block_size,
        block_count,
        kv_block_bytes,
        window: None,
        weight_bytes: weights.bytes,
        packed: None,
        vector_width: None,
    };
    let mut decoder = OperatorDecoder {
        sampler: HostSampler::new(model.vocab as usize, 1),
        logits: Vec::new(),
        draws,
        network: Network::new(model, weights, kernels, options, block_count)?,
        device: options.device,
        info,
    };
    if let OperatorKv::FreeShare(share) = options.kv {
        decoder.take_share(share, sequence_blocks, options)?;
    }
    Ok(Box::new(decoder))
}

fn check(model: &Architecture, options: &OperatorOptions) -> Result<(), LoadError> {
    let refuse = |reason: String| Err(LoadError::Options { reason });
    if options.block_size == 0 || options.block_size > 1024 {
        return refuse(format!("block size {} is not in 1..=1024", options.block_size));
    }
    if options.threads == 0 {
        return refuse("the model needs at least 1 thread".into());
    }
    if options.dtype == OperatorDtype::F16 && !model.fits_f16 {
        return refuse(format!(
            "model_type {:?} has activations beyond the range of fp16; use --dtype bf16",
            model.family
        ));
    }
    if options.prefill == OperatorPrefill::Sdpa && options.kernels.is_some() {
        let reason = "--prefill-attention sdpa is libtorch's own attention; use --torch-kernels off with it";
        return refuse(reason.into());
    }
    if options.prefill == OperatorPrefill::Sdpa && model.attention.soft_cap.is_some() {
        return refuse(format!(
            "model_type {:?} caps its attention scores, which scaled_dot_product_attention cannot; use --prefill-attention auto or plain",
            model.family
        ));
    }
    Ok(())
}

/// The object's kernels, if they are asked for and take the model's heads.
fn kernels(
    model: &Architecture,
    max_context: u32,
    options: &OperatorOptions,
    watch: &mut dyn FnMut(LoadEvent<'_>),
) -> Result<Option<Kernels>, LoadError> {
    let Some(wanted) = &options.kernels else { return Ok(None) };
    let element_bytes = kind_of(options.dtype).elt_size_in_bytes() as u64;
    let too_many = (options.max_tokens > STEP_TOKENS_MAX)
        .then(|| format!("the object's kernels take steps of at most {STEP_TOKENS_MAX} tokens"));
    let reason = match beyond_cuda_attention(model, element_bytes).or(too_many) {
        Some(reason) => reason,
        None => match Kernels::open(wanted, model, options, max_context) {
            Ok(kernels) => return Ok(Some(kernels)),
            Err(error) if wanted.may_do_without => error.to_string(),
            Err(error) => return Err(backend(error)),
        },
    };
    if !wanted.may_do_without {
        return Err(LoadError::Options { reason: format!("{reason}; use --torch-kernels off") });
    }
    watch(LoadEvent::WithoutKernels(&reason));
    Ok(None)
}

impl OperatorDecoder {
    /// Makes the cache as large as a share of what the largest steps leave free.
    fn take_share(
        &mut self,
        share: f32,
        sequence_blocks: u32,
        options: &OperatorOptions,
    ) -> Result<(), LoadError> {
        let failed = |message: String| LoadError::Backend { operation: "sizing the KV cache", message };
        let OperatorDevice::Cuda(index) = self.device else {
            return Err(failed("a share of free memory is one of a CUDA device's".into()));
        };
        let shapes = WarmUp { max_rows: options.max_rows, max_tokens: options.max_tokens };
        run_warm_up(self, &shapes).map_err(|error| failed(error.to_string()))?;
        let free = cuda_memory(index).map_err(failed)?.free;
        let blocks = KvSize::of_share(free, share, self.info.kv_block_bytes, sequence_blocks)?;
        self.network.take_cache(blocks)?;
        self.info.block_count = blocks;
        Ok(())
    }

    /// Runs the layers and the head, if there are rows.
    fn run(&mut self, batch: &StepBatch<'_>) -> Result<Option<Ran>, StepError> {
        batch.check(&self.info.batch_limits())?;
        let _no_grad = tch::no_grad_guard();
        for copy in batch.copies {
            self.network.copy_block(copy).map_err(step_error)?;
        }
        if batch.rows.is_empty() {
            return Ok(None);
        }
        let inputs = Inputs::new(batch, &self.network).map_err(step_error)?;
        let hidden = self.network.layers(&inputs).map_err(step_error)?;
        let logits = self.network.sampled(&hidden, &inputs).map_err(step_error)?;
        Ok(Some(Ran { hidden, logits }))
    }

    /// Tokens of the rows that sample: drawn on the device, or from a copy of the logits.
    fn draw(
        &mut self,
        batch: &StepBatch<'_>,
        logits: Option<&Tensor>,
        out: &mut StepOutput,
    ) -> Result<(), TensorError> {
        let _no_grad = tch::no_grad_guard();
        if let (Some(logits), Some(draws), Some(stream)) = (logits, &mut self.draws, self.network.stream()?) {
            return draws.draw(&stream, logits, self.sampler.own(), batch, out);
        }
        self.logits.clear();
        logits.map_or(Ok(()), |logits| bring(logits, &mut self.logits))?;
        self.sampler.draw_rows(batch, out, &mut self.logits);
        Ok(())
    }
}

impl Model for OperatorDecoder {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        out.clear();
        let ran = self.run(batch)?;
        self.draw(batch, ran.as_ref().and_then(|ran| ran.logits.as_ref()), out).map_err(step_error)?;
        let vocab = self.info.vocab_size as usize;
        let Some(Ran { hidden, .. }) = ran.filter(|_| batch.rows.iter().any(|row| row.scored.is_some()))
        else {
            return Ok(());
        };
        let _no_grad = tch::no_grad_guard();
        let network = &self.network;
        score_prompts(self.sampler.own(), vocab, batch, out, &mut self.logits, |begin, len, logits| {
            let some =
                hidden.f_narrow(0, begin as i64, len as i64).map_err(|error| step_error(error.into()))?;
            network.head(&some).and_then(|found| bring(&found, logits)).map_err(step_error)
        })
    }

    fn logits(&mut self, batch: &StepBatch<'_>, out: &mut Vec<f32>) -> Result<(), StepError> {
        let ran = self.run(batch)?;
        out.clear();
        match ran.and_then(|ran| ran.logits) {
            Some(logits) => bring(&logits, out).map_err(step_error),
            None => Ok(()),
        }
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        run_warm_up(self, shapes)
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        let OperatorDevice::Cuda(index) = self.device else { return None };
        let found = cuda_memory(index).ok()?;
        let (weights, cache) =
            (self.info.weight_bytes, u64::from(self.info.block_count) * self.info.kv_block_bytes);
        let activations = found.reserved.saturating_sub(weights + cache);
        Some(DeviceMemory { weights, cache, activations, staging: 0, free: found.free })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_free_memory_holds_at_least_one_sequence() {
        assert_eq!(KvSize::of_share(1000, 0.5, 10, 50), Ok(50));
        assert_eq!(KvSize::of_share(1009, 1.0, 10, 1), Ok(100));
        let error = KvSize::of_share(8 << 20, 0.5, 1 << 20, 5).unwrap_err();
        assert!(error.to_string().contains("8 MiB free, of which 0.5"), "{error}");
    }
}
