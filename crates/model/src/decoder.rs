//! A decoder on the CPU, attending over the paged KV in place: the one forward, which interprets an
//! [`Architecture`](pinion_architecture::Architecture). libtorch has a part in it where it does the products, and in
//! capped logits.
//!
//! Mirrors `LlamaForCausalLM` in transformers' models/llama/modeling_llama.py, and where the architecture says so
//! models/gpt2, gemma2, olmo2 and granite. Activations are `[tokens, hidden]` with the query tokens of all rows one
//! after another; only the last token of a row that samples meets the head, and the tokens of a prompt whose logprobs
//! are wanted, a few at a time.

use crate::batch::{StepBatch, StepError, StepOutput};
use crate::config_json;
use crate::host_sampler::{HostSampler, score_prompts};
use crate::kv_cache::{KvCache, KvSizes, Tables};
use crate::layers::{Activations, Layers};
use crate::load::{DtypeChoice, LoadError, LoadEvent, ModelOptions, TeamPlan};
use crate::pooling::{self, Pooler};
use crate::rotation::Rotations;
use crate::warm_up::run_warm_up;
use crate::weights::Weights;
use crate::{Model, ModelInfo, WarmUp};
use pinion_ops::attention::{Batch, Launch};
use pinion_ops::team::{self, TeamOptions};
use pinion_ops::tensor::{TensorError, keep_freed_memory, set_threads};
use pinion_ops::{Dtype, KernelLevel, Matrix, supports_bf16};
use std::path::Path;
use tch::Tensor;

/// A loaded decoder with its KV pool.
#[derive(Debug)]
pub(crate) struct Decoder {
    info: ModelInfo,
    weights: Weights,
    layers: Layers,
    arrays: Arrays,
    activations: Activations,
    sampler: HostSampler,
    logits: Vec<f32>,
    pooler: Option<Pooler>,
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
    /// Window tables of all rows, if some layers keep only their window.
    window_table: Vec<u32>,
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

fn resolve_dtype(choice: DtypeChoice) -> Result<Dtype, LoadError> {
    match choice {
        DtypeChoice::F32 => Ok(Dtype::F32),
        DtypeChoice::Auto => Ok(if supports_bf16() { Dtype::Bf16 } else { Dtype::F32 }),
        DtypeChoice::Bf16 if supports_bf16() => Ok(Dtype::Bf16),
        DtypeChoice::Bf16 => {
            let reason =
                "this CPU has no bf16 instructions (avx512_bf16 or amx_bf16); use f32 or auto, which keep the weights of a bf16 checkpoint in bf16".into();
            Err(LoadError::Options { reason })
        }
    }
}

/// From here on libtorch uses the calling thread alone: what is left to it beside our products is little, and its
/// threads and ours would spin on the same cores in turns.
fn start_team(plan: &TeamPlan, threads: u32) -> Result<(), LoadError> {
    let options = TeamOptions { threads, spin: plan.spin, cpus: plan.cpus.clone() };
    team::start(options).map_err(|error| LoadError::Backend {
        operation: "starting the kernels' threads",
        message: error.to_string(),
    })?;
    set_threads(1);
    Ok(())
}

impl Decoder {
    pub(crate) fn load(
        folder: &Path,
        options: &ModelOptions,
        watch: &mut dyn FnMut(LoadEvent<'_>),
    ) -> Result<Self, LoadError> {
        let model = config_json::architecture(folder)?;
        let dtype = resolve_dtype(options.dtype)?;
        let max_context = options.max_model_len.unwrap_or(model.context.default).min(model.context.max);
        let sizes = KvSizes::new(&model, max_context, dtype, options)?;

        set_threads(options.threads);
        keep_freed_memory();
        let _no_grad = tch::no_grad_guard();
        let weights = Weights::read(folder, &model, dtype, options, watch)?;
        if let Some(plan) = options.team.as_ref().filter(|_| weights.products_are_ours()) {
            start_team(plan, options.threads)?;
        }
        let cache = KvCache::new(&model, &sizes, dtype, options)?;
        let info = ModelInfo {
            family: model.family,
            dtype: dtype.name(),
            max_context,
            vocab_size: model.vocab,
            eos: model.stop_ids.first().copied(),
            block_size: options.block_size,
            block_count: sizes.blocks,
            kv_block_bytes: sizes.block_bytes,
            window: sizes.window,
            weight_bytes: weights.bytes,
            packed: weights.packed_type(),
            vector_width: options.pooling.map(|_| model.hidden),
        };
        let sampling_threads = if options.parallel_sampling { options.threads } else { 1 };
        let launch = Launch { level: KernelLevel::best(), threads: options.threads };
        let rotations = Rotations::new(&model, max_context);
        Ok(Self {
            sampler: HostSampler::new(model.vocab as usize, sampling_threads),
            logits: Vec::new(),
            pooler: options.pooling.map(|kind| Pooler::new(kind, model.hidden as usize)),
            arrays: Arrays::default(),
            activations: Activations::new(dtype),
            layers: Layers::new(model, dtype, cache, rotations, options, launch),
            info,
            weights,
        })
    }

    /// Runs the layers and the head; leaves `[sampling rows, vocab]` in `self.logits` and, if there are rows, the last
    /// layer's output in `self.activations.hidden`.
    fn forward(&mut self, batch: &StepBatch<'_>) -> Result<(), StepError> {
        batch.check(&self.info.batch_limits())?;
        if self.pooler.is_some() {
            pooling::check(batch)?;
        }
        self.layers.cache_mut().copy(batch);
        if batch.rows.is_empty() {
            self.logits.clear();
            return Ok(());
        }
        self.arrays.fill(batch);
        self.layers.cache().window_table(batch, &mut self.arrays.window_table);
        let arrays = &self.arrays;
        let tables = Batch {
            query_start: &arrays.query_start,
            context_len: &arrays.context_len,
            prompt_len: &arrays.prompt_len,
            table_start: &arrays.table_start,
            blocks: batch.blocks,
        };
        let tables = self.layers.cache().check(tables, &arrays.window_table);
        let tables = tables.map_err(|error| step_error(error.into()))?;
        let _no_grad = tch::no_grad_guard();
        run(&self.weights, &mut self.layers, arrays, &tables, &mut self.activations).map_err(step_error)?;
        if arrays.sampled.is_empty() {
            self.logits.clear();
            return Ok(());
        }
        // [sampling rows, hidden]: `slice_indices` of `logits_to_keep`, taken before the last norm.
        let Activations { hidden, chosen, .. } = &mut self.activations;
        let sampled = arrays.sampled.iter().map(|&row| row as usize);
        chosen.gather(hidden, sampled).map_err(|error| step_error(error.into()))?;
        head(&self.weights, &self.layers, &mut self.activations, &mut self.logits).map_err(step_error)
    }

    /// Gives the rows that end a prompt their vectors, from the last layer's output.
    fn pool(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), TensorError> {
        let Some(pooler) = &mut self.pooler else { return Ok(()) };
        let Activations { hidden, chosen, normed, .. } = &mut self.activations;
        // [wanted, hidden]
        let mut wanted: &Matrix = hidden;
        if !pooler.wants_all() {
            pooler.ends(batch, &mut self.arrays.tokens);
            if self.arrays.tokens.is_empty() {
                return Ok(());
            }
            chosen.gather(hidden, self.arrays.tokens.iter().map(|&row| row as usize))?;
            wanted = chosen;
        }
        self.layers.norm(wanted, &self.weights.final_norm, normed)?;
        normed.copy_to_f32(&mut self.logits);
        pooler.pool(batch, &self.logits, out);
        Ok(())
    }
}

/// From token ids to the last layer's output.
fn run(
    weights: &Weights,
    layers: &mut Layers,
    arrays: &Arrays,
    tables: &Tables<'_>,
    activations: &mut Activations,
) -> Result<(), TensorError> {
    weights.embeddings.embed(&arrays.tokens, &arrays.positions, &mut activations.hidden)?;
    layers.begin(&mut activations.hidden, &arrays.positions);
    for (layer, layer_weights) in weights.layers.iter().enumerate() {
        layers.layer(layer, layer_weights, activations, tables)?;
    }
    Ok(())
}

/// The last norm and the head: the chosen rows `[some, hidden]` to `[some, vocab]`.
fn head(
    weights: &Weights,
    layers: &Layers,
    activations: &mut Activations,
    logits: &mut Vec<f32>,
) -> Result<(), TensorError> {
    let Activations { chosen, normed, scores, .. } = activations;
    let (head, vocab) = (layers.model().head, layers.model().vocab as usize);
    let product = weights.head.as_ref().expect("a batch for a model without a head draws nothing");
    layers.norm(chosen, &weights.final_norm, normed)?;
    product.forward(normed, scores)?;
    scores.copy_to_f32(logits);
    if let Some(divisor) = head.divisor {
        logits.iter_mut().for_each(|value| *value /= divisor);
    }
    if let Some(cap) = head.soft_cap {
        logits.iter_mut().for_each(|value| *value /= cap);
        // Row by row: libtorch computes the last elements of a tensor by other code than the rest, to other last bits.
        for row in logits.chunks_exact_mut(vocab) {
            Tensor::f_from_slice(row)?.f_tanh_()?.f_copy_data(row, vocab)?;
        }
        logits.iter_mut().for_each(|value| *value *= cap);
    }
    Ok(())
}

impl Model for Decoder {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        out.clear();
        self.forward(batch)?;
        let vocab = self.info.vocab_size as usize;
        self.sampler.draw_rows(batch, out, &mut self.logits);
        if batch.rows.is_empty() {
            return Ok(());
        }
        if self.pooler.is_some() {
            return self.pool(batch, out).map_err(step_error);
        }
        if batch.rows.iter().all(|row| row.scored.is_none()) {
            return Ok(());
        }
        let _no_grad = tch::no_grad_guard();
        let (weights, layers, activations) = (&self.weights, &self.layers, &mut self.activations);
        score_prompts(self.sampler.own(), vocab, batch, out, &mut self.logits, |begin, len, logits| {
            // [len, hidden] to [len, vocab]
            let Activations { hidden, chosen, .. } = activations;
            chosen.gather(hidden, begin..begin + len).map_err(|error| step_error(error.into()))?;
            head(weights, layers, activations, logits).map_err(step_error)
        })
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
