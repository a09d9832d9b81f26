//! The forward of libtorch's own operators, on any device that libtorch has: CUDA tensors, or those of the CPU.
//!
//! It interprets the same [`Architecture`](pinion_architecture::Architecture) as the tuned forwards and calls none of
//! our kernels: it is what they are compared with on one device, and it runs what they do not take. Quantised
//! checkpoints are unpacked to the compute dtype. A step has some twenty operations for each layer and attention for
//! each row by itself; it is written to be right. docs/design/0016-libtorch-operators.md says what is still to come.

mod attention;
mod forward;
mod weights;

use crate::batch::{StepBatch, StepError, StepOutput};
use crate::config_json;
use crate::host_sampler::{draw_rows, score_prompts};
use crate::load::{KvSize, LoadError};
use crate::sampler::Sampler;
use crate::warm_up::run_warm_up;
use crate::{Model, ModelInfo, WarmUp};
use forward::{Forward, Inputs};
use pinion_ops::tensor::TensorError;
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// Where the tensors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorDevice {
    /// In this process's memory.
    Cpu,
    /// On this CUDA device, by libtorch's numbers.
    Cuda(u32),
}

impl OperatorDevice {
    fn tensors(self) -> Device {
        match self {
            Self::Cpu => Device::Cpu,
            Self::Cuda(index) => Device::Cuda(index as usize),
        }
    }
}

/// Type of weights, activations and cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorDtype {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

/// Everything that [`load_operators`] can be told.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorOptions {
    /// Where the model is computed.
    pub device: OperatorDevice,
    /// In what.
    pub dtype: OperatorDtype,
    /// Threads of the host that unpack weights, at least 1.
    pub threads: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Size of the KV cache.
    pub kv: KvSize,
    /// Longest sequence that is served; without one, the model's default.
    pub max_model_len: Option<u32>,
}

impl OperatorOptions {
    fn kind(&self) -> Kind {
        match self.dtype {
            OperatorDtype::F32 => Kind::Float,
            OperatorDtype::Bf16 => Kind::BFloat16,
            OperatorDtype::F16 => Kind::Half,
        }
    }

    fn check(&self) -> Result<(), LoadError> {
        let refuse = |reason: String| Err(LoadError::Options { reason });
        if self.block_size == 0 || self.block_size > 1024 {
            return refuse(format!("block size {} is not in 1..=1024", self.block_size));
        }
        if self.threads == 0 {
            return refuse("the weights need at least 1 thread".into());
        }
        if let OperatorDevice::Cuda(index) = self.device {
            let found = tch::Cuda::device_count();
            if i64::from(index) >= found {
                return refuse(format!(
                    "libtorch finds {found} CUDA devices, so there is no device {index}; its own CUDA build and a driver are needed"
                ));
            }
        }
        Ok(())
    }
}

fn backend(error: TensorError) -> LoadError {
    LoadError::Backend { operation: error.operation, message: error.message }
}

fn tensor_error(error: tch::TchError) -> LoadError {
    backend(error.into())
}

fn step_error(error: TensorError) -> StepError {
    StepError::Backend { operation: error.operation, message: error.message }
}

/// A loaded decoder with its cache.
#[derive(Debug)]
struct OperatorDecoder {
    info: ModelInfo,
    forward: Forward,
    sampler: Sampler,
    logits: Vec<f32>,
}

/// Loads the model in `folder` onto a device of libtorch.
///
/// # Errors
/// See [`LoadError`].
pub fn load_operators(folder: &Path, options: &OperatorOptions) -> Result<Box<dyn Model>, LoadError> {
    options.check()?;
    let model = config_json::architecture(folder)?;
    if options.dtype == OperatorDtype::F16 && !model.fits_f16 {
        let reason = format!(
            "model_type {:?} has activations beyond the range of fp16; use --dtype bf16",
            model.family
        );
        return Err(LoadError::Options { reason });
    }
    let _no_grad = tch::no_grad_guard();
    let max_context = options.max_model_len.unwrap_or(model.context.default).min(model.context.max);
    let element = options.kind().elt_size_in_bytes() as u64;
    let kv_block_bytes =
        2 * element * model.layers.len() as u64 * u64::from(options.block_size) * u64::from(model.kv_width());
    let block_count = options.kv.block_count(kv_block_bytes)?;
    let weights = weights::Weights::read(folder, &model, max_context, options)?;
    let info = ModelInfo {
        family: model.family,
        dtype: match options.dtype {
            OperatorDtype::F32 => "f32",
            OperatorDtype::Bf16 => "bf16",
            OperatorDtype::F16 => "f16",
        },
        max_context,
        vocab_size: model.vocab,
        eos: model.stop_ids.first().copied(),
        block_size: options.block_size,
        block_count,
        kv_block_bytes,
        weight_bytes: weights.bytes,
        packed: None,
    };
    Ok(Box::new(OperatorDecoder {
        sampler: Sampler::new(model.vocab as usize),
        logits: Vec::new(),
        forward: Forward::new(model, weights, options, block_count)?,
        info,
    }))
}

impl OperatorDecoder {
    /// Runs the layers and the head; leaves `[sampling rows, vocab]` in `self.logits` and gives the last layer's
    /// output, `[tokens, hidden]`, if there are rows.
    fn run(&mut self, batch: &StepBatch<'_>) -> Result<Option<Tensor>, StepError> {
        batch.check(&self.info.batch_limits())?;
        let _no_grad = tch::no_grad_guard();
        for copy in batch.copies {
            self.forward.copy_block(copy).map_err(step_error)?;
        }
        self.logits.clear();
        if batch.rows.is_empty() {
            return Ok(None);
        }
        let inputs = Inputs::new(batch, &self.forward).map_err(step_error)?;
        let hidden = self.forward.layers(&inputs).map_err(step_error)?;
        self.forward.sampled(&hidden, &inputs, &mut self.logits).map_err(step_error)?;
        Ok(Some(hidden))
    }
}

impl Model for OperatorDecoder {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        out.clear();
        let hidden = self.run(batch)?;
        let vocab = self.info.vocab_size as usize;
        draw_rows(&mut self.sampler, vocab, batch, out, &mut self.logits);
        let Some(hidden) = hidden.filter(|_| batch.rows.iter().any(|row| row.scored.is_some())) else {
            return Ok(());
        };
        let _no_grad = tch::no_grad_guard();
        let forward = &self.forward;
        score_prompts(&mut self.sampler, vocab, batch, out, &mut self.logits, |begin, len, logits| {
            let some =
                hidden.f_narrow(0, begin as i64, len as i64).map_err(|error| step_error(error.into()))?;
            forward.head(&some, logits).map_err(step_error)
        })
    }

    fn logits(&mut self, batch: &StepBatch<'_>, out: &mut Vec<f32>) -> Result<(), StepError> {
        self.run(batch)?;
        out.clear();
        out.extend_from_slice(&self.logits);
        Ok(())
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        run_warm_up(self, shapes)
    }
}
