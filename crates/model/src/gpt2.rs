//! GPT-2 on libtorch, attending over the paged KV in place.
//!
//! Mirrors `GPT2LMHeadModel` in transformers' models/gpt2/modeling_gpt2.py. Activations are `[tokens, hidden]` with the
//! query tokens of all rows one after another; only the last token of a row that samples meets the head,
//! and the tokens of a prompt whose logprobs are wanted, a few at a time.

use crate::batch::{RowOutcome, StepBatch, StepError, StepOutput};
use crate::config_json::ConfigJson;
use crate::gpt2_shape::Gpt2Shape;
use crate::gpt2_weights::{Block, Gpt2Weights, Norm};
use crate::load::{DtypeChoice, LoadError, ModelOptions};
use crate::sampler::Sampler;
use crate::warm_up::run_warm_up;
use crate::{Model, ModelInfo, WarmUp};
use pinion_ops::attention::{Batch, CheckedBatch, Launch};
use pinion_ops::tensor::{
    AttentionPlan, TensorError, attend_qkv, copy_to_f32, keep_freed_memory, kind_of, set_threads,
};
use pinion_ops::{Dtype, KernelLevel, KvPool, KvShape, supports_bf16};
use std::path::Path;
use tch::{Device, Tensor};

/// Prompt tokens that meet the head at once: its logits, `[64, vocab]`, are 13 MB for GPT-2's vocabulary.
const SCORED_TOKENS_PER_PRODUCT: usize = 64;

/// A loaded GPT-2 with its KV pool.
#[derive(Debug)]
pub(crate) struct Gpt2 {
    info: ModelInfo,
    weights: Gpt2Weights,
    layers: Layers,
    arrays: Arrays,
    sampler: Sampler,
    logits: Vec<f32>,
}

/// What the layers run with, apart from their weights.
#[derive(Debug)]
struct Layers {
    shape: Gpt2Shape,
    dtype: Dtype,
    pool: KvPool,
    plan: AttentionPlan,
    /// Attention output of one layer, `[capacity, hidden]`, overwritten by each.
    attended: Tensor,
}

/// The batch as the kernels and the embeddings take it; reused from step to step.
#[derive(Debug, Default)]
struct Arrays {
    query_start: Vec<u32>,
    context_len: Vec<u32>,
    prompt_len: Vec<u32>,
    table_start: Vec<u32>,
    tokens: Vec<i64>,
    positions: Vec<i64>,
    /// Index of the last query token of each row that samples.
    sampled: Vec<i64>,
}

impl Arrays {
    fn fill(&mut self, batch: &StepBatch<'_>) {
        self.query_start.clear();
        self.query_start.push(0);
        self.query_start.extend(batch.rows.iter().map(|row| row.query_start + row.query_len));
        self.context_len.clear();
        self.context_len.extend(batch.rows.iter().map(|row| row.context_len));
        self.prompt_len.clear();
        self.prompt_len.extend(batch.rows.iter().map(|row| row.prompt_len));
        self.table_start.clear();
        self.table_start.extend(batch.rows.iter().map(|row| row.blocks_start));
        self.tokens.clear();
        self.tokens.extend(batch.tokens.iter().map(|&token| i64::from(token)));
        self.positions.clear();
        self.positions.extend(batch.positions.iter().map(|&position| i64::from(position)));
        let sampling = batch.rows.iter().filter(|row| row.sample.is_some());
        self.sampled.clear();
        self.sampled.extend(sampling.map(|row| i64::from(row.query_start + row.query_len) - 1));
    }
}

fn step_error(error: TensorError) -> StepError {
    StepError::Backend { operation: error.operation, message: error.message }
}

fn load_error(operation: &'static str) -> impl Fn(tch::TchError) -> LoadError {
    move |error| LoadError::Backend { operation, message: TensorError::from(error).message }
}

fn resolve_dtype(choice: DtypeChoice) -> Result<Dtype, LoadError> {
    match choice {
        DtypeChoice::F32 => Ok(Dtype::F32),
        DtypeChoice::Auto => Ok(if supports_bf16() { Dtype::Bf16 } else { Dtype::F32 }),
        DtypeChoice::Bf16 if supports_bf16() => Ok(Dtype::Bf16),
        DtypeChoice::Bf16 => {
            let reason =
                "this CPU has no bf16 instructions (avx512_bf16 or amx_bf16); use f32 or auto".into();
            Err(LoadError::Options { reason })
        }
    }
}

impl Gpt2 {
    pub(crate) fn load(
        folder: &Path,
        config: &ConfigJson,
        options: &ModelOptions,
    ) -> Result<Self, LoadError> {
        let shape = Gpt2Shape::of(config, folder)?;
        let dtype = resolve_dtype(options.dtype)?;
        let mut kv_shape = KvShape {
            layers: shape.layers as usize,
            blocks: 0,
            heads: shape.heads as usize,
            block_size: options.block_size as usize,
            head_dim: shape.head_dim() as usize,
        };
        let kv_block_bytes = kv_shape.block_bytes(dtype);
        let block_count = options.kv.block_count(kv_block_bytes)?;
        kv_shape.blocks = block_count as usize;

        set_threads(options.threads);
        keep_freed_memory();
        let _no_grad = tch::no_grad_guard();
        let weights = Gpt2Weights::read(folder, &shape, dtype, options)?;
        let mut pool = KvPool::new(kv_shape, dtype).map_err(|error| LoadError::Backend {
            operation: "allocating the KV pool",
            message: format!("{error} ({block_count} blocks of {kv_block_bytes} bytes)"),
        })?;
        if options.prefault {
            pool.prefault();
        }
        let attended = Tensor::f_empty([1, i64::from(shape.hidden)], (kind_of(dtype), Device::Cpu))
            .map_err(load_error("allocating activations"))?;
        let launch = Launch { level: KernelLevel::best(), threads: options.threads };
        let info = ModelInfo {
            family: "gpt2",
            dtype: dtype.name(),
            max_context: shape.positions,
            vocab_size: shape.vocab,
            eos: config.eos(),
            block_size: options.block_size,
            block_count,
            kv_block_bytes,
            weight_bytes: weights.bytes,
        };
        let plan = AttentionPlan { kernel: options.attention, launch, scale: 1.0 };
        Ok(Self {
            sampler: Sampler::new(shape.vocab as usize),
            logits: Vec::new(),
            arrays: Arrays::default(),
            layers: Layers { shape, dtype, pool, plan, attended },
            info,
            weights,
        })
    }

    /// Runs the layers and the head; leaves `[sampling rows, vocab]` in `self.logits` and gives the last layer's output,
    /// `[tokens, hidden]`, if there are rows.
    fn forward(&mut self, batch: &StepBatch<'_>) -> Result<Option<Tensor>, StepError> {
        batch.check(&self.info.batch_limits())?;
        for copy in batch.copies {
            self.layers.pool.copy_block(copy.from as usize, copy.to as usize, copy.tokens as usize);
        }
        if batch.rows.is_empty() {
            self.logits.clear();
            return Ok(None);
        }
        self.arrays.fill(batch);
        let arrays = &self.arrays;
        let checked = Batch {
            query_start: &arrays.query_start,
            context_len: &arrays.context_len,
            prompt_len: &arrays.prompt_len,
            table_start: &arrays.table_start,
            blocks: batch.blocks,
        };
        let checked = checked.check(self.layers.pool.shape()).map_err(|error| step_error(error.into()))?;
        let _no_grad = tch::no_grad_guard();
        run(&self.weights, &mut self.layers, arrays, &checked, &mut self.logits).map(Some).map_err(step_error)
    }

    /// Scores the prompt tokens of the rows that ask, [`SCORED_TOKENS_PER_PRODUCT`] at a time. A row with a number that is
    /// not finite fails.
    fn score_prompts(
        &mut self,
        hidden: &Tensor,
        batch: &StepBatch<'_>,
        out: &mut StepOutput,
    ) -> Result<(), StepError> {
        let _no_grad = tch::no_grad_guard();
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(scored) = &row.scored else { continue };
            let range = row.scored_range();
            for begin in range.clone().step_by(SCORED_TOKENS_PER_PRODUCT) {
                let len = SCORED_TOKENS_PER_PRODUCT.min(range.end - begin);
                // [len, hidden] to [len, vocab]
                let some =
                    hidden.f_narrow(0, begin as i64, len as i64).map_err(|error| step_error(error.into()))?;
                head(&self.weights, &self.layers, &some, &mut self.logits).map_err(step_error)?;
                for (at, logits) in (begin..).zip(self.logits.chunks_exact(self.info.vocab_size as usize)) {
                    let token = batch.successor(row, scored, at);
                    if !self.sampler.score_known(logits, token, scored.alternatives, out) {
                        out.rows[index] = RowOutcome::NonFinite;
                    }
                }
            }
            out.end_prompt_scores(index);
        }
        Ok(())
    }
}

/// `GPT2Model.forward` and the head of `GPT2LMHeadModel.forward`.
fn run(
    weights: &Gpt2Weights,
    layers: &mut Layers,
    arrays: &Arrays,
    batch: &CheckedBatch<'_>,
    logits: &mut Vec<f32>,
) -> Result<Tensor, TensorError> {
    let tokens = Tensor::f_from_slice(&arrays.tokens)?;
    let positions = Tensor::f_from_slice(&arrays.positions)?;
    // inputs_embeds + position_embeds: [tokens, hidden]
    let mut hidden = weights.token_embedding.f_index_select(0, &tokens)?;
    let _ = hidden.f_add_(&weights.position_embedding.f_index_select(0, &positions)?)?;
    layers.reserve(batch.tokens())?;
    for (layer, block) in weights.blocks.iter().enumerate() {
        hidden = layers.block(layer, block, hidden, batch)?;
    }
    if arrays.sampled.is_empty() {
        logits.clear();
        return Ok(hidden);
    }
    // [sampling rows, hidden]: `slice_indices` of `logits_to_keep`, taken before the last norm.
    let last = hidden.f_index_select(0, &Tensor::f_from_slice(&arrays.sampled)?)?;
    head(weights, layers, &last, logits)?;
    Ok(hidden)
}

/// The last norm and the head of `GPT2LMHeadModel.forward`: `[some, hidden]` to `[some, vocab]`.
fn head(
    weights: &Gpt2Weights,
    layers: &Layers,
    hidden: &Tensor,
    logits: &mut Vec<f32>,
) -> Result<(), TensorError> {
    let normed = layers.norm(hidden, &weights.norm_final)?;
    copy_to_f32(&weights.head.forward(&normed)?, logits)
}

impl Layers {
    /// Makes `attended` at least `tokens` rows long.
    fn reserve(&mut self, tokens: usize) -> Result<(), TensorError> {
        if self.attended.size()[0] < tokens as i64 {
            let size = [tokens.next_power_of_two() as i64, i64::from(self.shape.hidden)];
            self.attended = Tensor::f_empty(size, (kind_of(self.dtype), Device::Cpu))?;
        }
        Ok(())
    }

    fn norm(&self, x: &Tensor, norm: &Norm) -> Result<Tensor, TensorError> {
        let axes = [i64::from(self.shape.hidden)];
        Ok(x.f_layer_norm(axes, Some(&norm.weight), Some(&norm.bias), self.shape.epsilon, false)?)
    }

    /// `GPT2Block.forward`: hidden `[tokens, hidden]` in and out.
    fn block(
        &mut self,
        layer: usize,
        block: &Block,
        hidden: Tensor,
        batch: &CheckedBatch<'_>,
    ) -> Result<Tensor, TensorError> {
        let normed = self.norm(&hidden, &block.norm_attention)?;
        // c_attn: [tokens, 3 * hidden], which is [tokens, 3, heads, head_dim]
        let qkv = block.qkv.forward(&normed)?;
        // [tokens, hidden], which is [tokens, heads, head_dim]
        let mut attended = self.attended.f_narrow(0, 0, batch.tokens() as i64)?;
        let plan = AttentionPlan { scale: self.shape.score_scale(layer as u32), ..self.plan };
        attend_qkv(&mut self.pool, layer, batch, &qkv, &mut attended, plan)?;
        let hidden = block.attention_out.forward_add(&attended, &hidden)?;
        // GPT2MLP: c_fc and act, then c_proj
        let normed = self.norm(&hidden, &block.norm_mlp)?;
        block.down.forward_add(&block.up.forward(&normed)?, &hidden)
    }
}

impl Model for Gpt2 {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        out.clear();
        let hidden = self.forward(batch)?;
        let mut rows = self.logits.chunks_exact_mut(self.info.vocab_size as usize);
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(params) = &row.sample else {
                out.push(RowOutcome::None);
                continue;
            };
            let logits = rows.next().expect("the head gave one row of logits for each sampling row");
            self.sampler.draw_row(logits, params, batch.shaping.shaping(index), out);
        }
        match hidden {
            Some(hidden) if batch.rows.iter().any(|row| row.scored.is_some()) => {
                self.score_prompts(&hidden, batch, out)
            }
            Some(_) | None => Ok(()),
        }
    }

    fn logits(&mut self, batch: &StepBatch<'_>, out: &mut Vec<f32>) -> Result<(), StepError> {
        self.forward(batch)?;
        out.clear();
        out.extend_from_slice(&self.logits);
        Ok(())
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        run_warm_up(self, shapes)
    }
}
