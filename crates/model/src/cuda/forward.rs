//! A step on the device, kernel by kernel: embeddings, layers, head, sampler, as the CPU's `decoder` has them. The same
//! calls run a step at once or are captured into a graph.

use super::cache::KvCache;
use super::fused_decode::FusedDecode;
use super::inputs::{Filled, Layout};
use super::layer::StepPart;
use super::memory::{Memory, Sizes, splits};
use super::shape::Shape;
use super::weights::Weights;
use super::{CudaOptions, DecodePath, PRODUCT_CANDIDATES, backend};
use crate::load::LoadError;
use half::{bf16, f16};
use pinion_cuda::{
    CHANGE_BYTES, CudaActivation, CudaDtype, CudaError, DRAW_BYTES, DecodePlan, DecodeSplit, Embed, Gather,
    Graph, Product, ProductMethod, Sample, Scale, Span, Stream, TokenBatch, UpdateTables,
};

/// Everything that the layers run on.
#[derive(Debug)]
pub(super) struct Forward {
    pub(super) shape: Shape,
    pub(super) weights: Weights,
    pub(super) memory: Memory,
    pub(super) dtype: CudaDtype,
    pub(super) block_size: u32,
    pub(super) table_stride: u32,
    pub(super) lanes: u32,
    pub(super) cache: KvCache,
    pub(super) fused_norms: bool,
    pub(super) fused_products: bool,
    /// Whether prompt chunks go to the tensor-core kernel.
    pub(super) tiled: bool,
    /// Algorithms that are timed for each product's shape.
    pub(super) candidates: u32,
    /// The kernel that runs small decode steps whole, if it is asked for.
    fused_decode: Option<FusedDecode>,
    multiprocessors: u32,
}

/// The number nearest to `value` that the dtype has.
fn rounded(value: f32, dtype: CudaDtype) -> f32 {
    match dtype {
        CudaDtype::F32 => value,
        CudaDtype::Bf16 => bf16::from_f32(value).to_f32(),
        CudaDtype::F16 => f16::from_f32(value).to_f32(),
    }
}

/// Whether a step has only decode rows, padded to a bucket, or anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Decode,
    Mixed(Filled),
}

impl Forward {
    /// Takes the memory of a step and the cache, and prepares what kernels rely on.
    pub(super) fn new(
        stream: &Stream,
        shape: Shape,
        weights: Weights,
        options: &CudaOptions,
        sizes: &Sizes,
    ) -> Result<Forward, LoadError> {
        let device = stream.device();
        let memory = Memory::new(device, &shape, options, sizes).map_err(backend)?;
        // Counters start at zero; tables and lane tokens are never read before they are written, but zeros are in
        // range.
        for span in [memory.counters, memory.tables, memory.lane_tokens] {
            stream.fill(span, 0).map_err(backend)?;
        }
        let cache = KvCache::take(stream, &shape, options)?;
        Ok(Forward {
            tiled: shape.is_tuned()
                && options.prefill.on_tensor_cores(options.dtype, shape.model.attention.head_dim),
            candidates: if options.measured_products { PRODUCT_CANDIDATES } else { 1 },
            shape,
            weights,
            memory,
            dtype: options.dtype,
            block_size: options.block_size,
            table_stride: sizes.table_stride,
            lanes: options.max_rows,
            cache,
            fused_norms: options.fused_norms,
            fused_products: options.fused_products,
            fused_decode: None,
            multiprocessors: device.facts().multiprocessors.max(1),
        })
    }

    /// Prepares the fused step for the buckets that it takes, if it is asked for.
    pub(super) fn plan_fused(
        &mut self,
        stream: &Stream,
        options: &CudaOptions,
        buckets: &[u32],
    ) -> Result<(), LoadError> {
        if options.decode == DecodePath::Graph {
            return Ok(());
        }
        self.fused_decode = Some(FusedDecode::new(stream, self, buckets).map_err(backend)?);
        Ok(())
    }

    /// The fused step's kernel for a decode step of this size, if it is one.
    fn fused_plan(&self, layout: Layout) -> Option<(&FusedDecode, &DecodePlan)> {
        let fused = self.fused_decode.as_ref()?;
        Some((fused, fused.plan(layout.tokens as u32)?))
    }

    /// x *= factor, over `[rows, hidden]`.
    pub(super) fn multiply(&self, stream: &Stream, rows: u32, x: Span, factor: f32) -> Result<(), CudaError> {
        let count = u64::from(rows) * u64::from(self.shape.model.hidden);
        stream.scale(&Scale { x, count, factor, divisor: 1.0, soft_cap: None, dtype: self.dtype })
    }

    /// Brings the device's block tables up to date. Not part of a graph: there may be nothing to do.
    pub(super) fn update_tables(&self, stream: &Stream, layout: Layout, count: u32) -> Result<(), CudaError> {
        if count == 0 {
            return Ok(());
        }
        stream.update_tables(&UpdateTables {
            updates: self.memory.inputs.part(layout.updates(), 12 * count as usize),
            tables: self.memory.tables,
            count,
            lanes: self.lanes,
            table_stride: self.table_stride,
        })
    }

    /// Queues a whole step over what is in the input memory: embeddings, layers, head, sampler.
    pub(super) fn run(&self, stream: &Stream, layout: Layout, kind: Kind) -> Result<(), CudaError> {
        if let Some((fused, plan)) = self.fused_plan(layout).filter(|_| kind == Kind::Decode) {
            fused.run(stream, self, layout, plan)?;
            return self.sample(stream, layout);
        }
        self.layers(stream, layout, kind)?;
        self.head(stream, layout, kind)
    }

    /// The graph of a decode step, replayed once. None for a fused step on a driver that captures no cooperative
    /// launch: the step has run without one by now, and its two launches can go on doing so.
    pub(super) fn capture(&self, stream: &Stream, layout: Layout) -> Result<Option<Graph>, CudaError> {
        match stream.capture(|| self.run(stream, layout, Kind::Decode)) {
            Ok(graph) => stream.replay(&graph).map(|()| Some(graph)),
            Err(_) if self.fused_plan(layout).is_some() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Embeddings and layers. Of a step that has not only decode rows, no more of `layout` than its tokens counts.
    pub(super) fn layers(&self, stream: &Stream, layout: Layout, kind: Kind) -> Result<(), CudaError> {
        let (model, tokens) = (&self.shape.model, layout.tokens as u32);
        let inputs = |index: usize| self.memory.inputs.part(layout.token_array(index), 4 * layout.tokens);
        let (position_table, positions_max) = self.weights.position_embedding.unzip();
        stream.embed(&Embed {
            tokens: inputs(0),
            positions: inputs(1),
            lanes: inputs(2),
            lane_tokens: self.memory.lane_tokens,
            token_table: self.weights.token_embedding,
            position_table,
            out: self.memory.residual,
            count: tokens,
            width: model.hidden,
            vocab: model.vocab,
            positions_max: positions_max.unwrap_or(0),
            dtype: self.dtype,
        })?;
        if let Some(factor) = model.embedding_multiplier {
            self.multiply(stream, tokens, self.memory.residual, rounded(factor, self.dtype))?;
        }
        let batch = TokenBatch {
            lanes: inputs(2),
            positions: inputs(1),
            tables: self.memory.tables,
            tokens,
            table_stride: self.table_stride,
            heads: model.attention.heads,
            kv_heads: model.attention.kv_heads,
            head_dim: model.attention.head_dim,
            block_size: self.block_size,
            dtype: self.dtype,
        };
        let step = StepPart { batch, layout, kind };
        let mut before = None;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            before = Some(self.layer(stream, index, layer, before, &step)?);
        }
        Ok(())
    }

    /// How the contexts of a number of queries are split. There is room for as many queries as a step may have rows;
    /// more of them fill the device without splits.
    pub(super) fn split(&self, queries: u32) -> Option<DecodeSplit> {
        let memory = &self.memory;
        let splits = splits(queries, self.shape.model.attention.heads, self.multiprocessors);
        (splits > 1 && queries <= self.lanes).then_some(DecodeSplit {
            splits,
            partials: memory.partials,
            counters: memory.counters,
        })
    }

    /// The last norm, the head and the sampler, for the last token of each sampling row.
    pub(super) fn head(&self, stream: &Stream, layout: Layout, kind: Kind) -> Result<(), CudaError> {
        let (tokens, rows) = (layout.tokens as u32, layout.rows as u32);
        let memory = &self.memory;
        let before = self.weights.layers.last().map(|layer| self.after(layer));
        let final_norm = &self.weights.norm_final;
        let normed = if kind == Kind::Decode {
            self.add_norm(stream, tokens, before, Some(final_norm))?
        } else {
            self.add(stream, tokens, before)?;
            if rows == 0 {
                return Ok(());
            }
            stream.gather(&Gather {
                x: memory.residual,
                index: memory.inputs.part(layout.sampled(), 4 * layout.rows),
                out: memory.last,
                count: rows,
                width: self.shape.model.hidden,
                rows: tokens,
                dtype: self.dtype,
            })?;
            self.norm(stream, rows, final_norm, memory.last, memory.last_normed)?;
            memory.last_normed
        };
        self.logits(stream, normed, rows)?;
        self.sample(stream, layout)
    }

    /// The head's product, and what the head does to its logits.
    fn logits(&self, stream: &Stream, normed: Span, rows: u32) -> Result<(), CudaError> {
        let model = &self.shape.model;
        stream.product(&Product {
            x: normed,
            weight: self.weights.head,
            bias: None,
            y: self.memory.logits,
            m: rows,
            n: model.vocab,
            k: model.hidden,
            dtype: self.dtype,
            y_dtype: CudaDtype::F32,
            activation: CudaActivation::None,
            method: ProductMethod::Auto,
            accumulate: false,
            candidates: self.candidates,
        })?;
        if (model.head.divisor, model.head.soft_cap) == (None, None) {
            return Ok(());
        }
        stream.scale(&Scale {
            x: self.memory.logits,
            count: u64::from(rows) * u64::from(model.vocab),
            factor: 1.0,
            divisor: model.head.divisor.unwrap_or(1.0),
            soft_cap: model.head.soft_cap,
            dtype: CudaDtype::F32,
        })
    }

    /// The sampler over the step's logits.
    fn sample(&self, stream: &Stream, layout: Layout) -> Result<(), CudaError> {
        let (memory, rows) = (&self.memory, layout.rows as u32);
        if self.shape.model.vocab > pinion_cuda::SAMPLE_VOCAB_MAX {
            return Ok(()); // every row is the host's
        }
        stream.sample(&Sample {
            logits: memory.logits,
            draws: memory.inputs.part(layout.draws(), layout.rows * DRAW_BYTES),
            sampled: memory.sampled,
            lane_tokens: memory.lane_tokens,
            changes: Some((memory.changes, (memory.changes.bytes() / CHANGE_BYTES) as u32)),
            masks: None,
            rows,
            logits_rows: rows,
            vocab: self.shape.model.vocab,
            lanes: self.lanes,
        })
    }

    /// Logits of `count` consecutive query tokens of the step that ran last, in place of those of its rows.
    pub(super) fn score(&self, stream: &Stream, first: usize, count: u32) -> Result<(), CudaError> {
        let row_bytes = self.shape.model.hidden as usize * self.dtype.size();
        let x = self.memory.residual.from(first * row_bytes);
        self.norm(stream, count, &self.weights.norm_final, x, self.memory.last_normed)?;
        self.logits(stream, self.memory.last_normed, count)
    }
}
