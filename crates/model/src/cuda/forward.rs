//! The layers on the device: `GPT2LMHeadModel` of transformers' models/gpt2/modeling_gpt2.py, kernel by kernel. The
//! same calls run a step at once or are captured into a graph.

use super::fused_decode::FusedDecode;
use super::gpt2_shape::Gpt2Shape;
use super::inputs::{Filled, Layout};
use super::memory::{Memory, Sizes, splits};
use super::weights::{Block, Linear, Norm, Weights};
use super::{CudaKv, CudaOptions, PRODUCT_CANDIDATES, backend};
use crate::load::{KvSize, LoadError};
use pinion_cuda::{
    Append, Attention, BiasActivation, CHANGE_BYTES, CudaActivation, CudaDtype, CudaError, DRAW_BYTES,
    DecodeSplit, Embed, Gather, NormKind, Prefill, Product, ProductMethod, Sample, Span, Stream, TokenBatch,
    UpdateTables,
};

/// Everything that the layers run on.
#[derive(Debug)]
pub(super) struct Forward {
    pub(super) shape: Gpt2Shape,
    pub(super) weights: Weights,
    pub(super) memory: Memory,
    pub(super) dtype: CudaDtype,
    pub(super) block_size: u32,
    pub(super) table_stride: u32,
    pub(super) lanes: u32,
    /// The cache: `[layers, blocks, heads, 2, block_size, head_dim]`.
    pub(super) cache: Span,
    pub(super) fused: bool,
    /// Whether prompt chunks go to the tensor-core kernel.
    pub(super) tiled: bool,
    /// The kernel that runs small decode steps whole, if it is asked for.
    pub(super) fused_decode: Option<FusedDecode>,
    /// Algorithms that are timed for each product's shape.
    candidates: u32,
    multiprocessors: u32,
}

/// The activation of the MLP, as the kernels name it.
pub(super) fn activation_of(shape: &Gpt2Shape) -> CudaActivation {
    match shape.activation {
        pinion_ops::Activation::None => CudaActivation::None,
        pinion_ops::Activation::GeluTanh => CudaActivation::GeluTanh,
        pinion_ops::Activation::GeluErf => CudaActivation::GeluErf,
    }
}

/// Whether a step has only decode rows, padded to a bucket, or anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Decode,
    Mixed(Filled),
}

impl Forward {
    /// Takes the memory of a step and prepares what kernels rely on. The cache is set by the caller.
    pub(super) fn new(
        stream: &Stream,
        shape: Gpt2Shape,
        weights: Weights,
        options: &CudaOptions,
        sizes: &Sizes,
    ) -> Result<Forward, CudaError> {
        let device = stream.device();
        let memory = Memory::new(device, &shape, options, sizes)?;
        // Counters start at zero; tables and lane tokens are never read before they are written, but zeros are in
        // range.
        for span in [memory.counters, memory.tables, memory.lane_tokens] {
            stream.fill(span, 0)?;
        }
        let empty = memory.counters.part(0, 0);
        Ok(Forward {
            tiled: options.prefill.on_tensor_cores(options.dtype, shape.head_dim()),
            candidates: if options.measured_products { PRODUCT_CANDIDATES } else { 1 },
            shape,
            weights,
            memory,
            dtype: options.dtype,
            block_size: options.block_size,
            table_stride: sizes.table_stride,
            lanes: options.max_rows,
            cache: empty,
            fused: options.fused,
            fused_decode: None,
            multiprocessors: device.facts().multiprocessors.max(1),
        })
    }

    /// Takes the cache's memory, zeroed; gives the number of blocks and the bytes of each over all layers.
    pub(super) fn take_cache(
        &mut self,
        stream: &Stream,
        options: &CudaOptions,
    ) -> Result<(u32, u64), LoadError> {
        let device = stream.device();
        let token_elements = 2 * u64::from(self.shape.layers) * u64::from(self.shape.hidden);
        let block_bytes = token_elements * u64::from(options.block_size) * options.dtype.size() as u64;
        let block_count = match options.kv {
            CudaKv::Size(size) => size.block_count(block_bytes)?,
            CudaKv::FreeShare(share) => {
                let free = device.facts().free_bytes.saturating_sub(device.counts().allocated_bytes);
                KvSize::Bytes((free as f64 * f64::from(share)) as u64).block_count(block_bytes)?
            }
        };
        let bytes =
            usize::try_from(u64::from(block_count) * block_bytes).map_err(|_| LoadError::Options {
                reason: format!(
                    "{block_count} KV blocks of {block_bytes} bytes are more than memory can have"
                ),
            })?;
        self.cache = device.alloc(bytes).map_err(backend)?;
        stream.fill(self.cache, 0).map_err(backend)?;
        stream.synchronize().map_err(backend)?;
        Ok((block_count, block_bytes))
    }

    /// One layer of the cache.
    pub(super) fn layer_cache(&self, layer: usize) -> Span {
        let layer_bytes = self.cache.bytes() / self.shape.layers as usize;
        self.cache.part(layer * layer_bytes, layer_bytes)
    }

    fn activations(&self, tokens: u32) -> usize {
        tokens as usize * self.shape.hidden as usize * self.dtype.size()
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

    /// Embeddings and layers. Of a step that has not only decode rows, no more of `layout` than its tokens counts.
    pub(super) fn layers(&self, stream: &Stream, layout: Layout, kind: Kind) -> Result<(), CudaError> {
        let tokens = layout.tokens as u32;
        let inputs = |index: usize| self.memory.inputs.part(layout.token_array(index), 4 * layout.tokens);
        stream.embed(&Embed {
            tokens: inputs(0),
            positions: inputs(1),
            lanes: inputs(2),
            lane_tokens: self.memory.lane_tokens,
            token_table: self.weights.token_embedding,
            position_table: Some(self.weights.position_embedding),
            out: self.memory.residual,
            count: tokens,
            width: self.shape.hidden,
            vocab: self.shape.vocab,
            positions_max: self.shape.positions,
            dtype: self.dtype,
        })?;
        let batch = TokenBatch {
            lanes: inputs(2),
            positions: inputs(1),
            tables: self.memory.tables,
            tokens,
            table_stride: self.table_stride,
            heads: self.shape.heads,
            kv_heads: self.shape.heads,
            head_dim: self.shape.head_dim(),
            block_size: self.block_size,
            dtype: self.dtype,
        };
        let mut before: Option<Linear> = None;
        for (layer, block) in self.weights.blocks.iter().enumerate() {
            self.block(stream, layer, block, before, &batch, layout, kind)?;
            before = Some(block.down);
        }
        Ok(())
    }

    /// `GPT2Block.forward`. The sum of the block before is still apart, in `delta`, and joins with the first norm.
    #[allow(clippy::too_many_arguments, reason = "one call site; a struct would only rename them")]
    fn block(
        &self,
        stream: &Stream,
        layer: usize,
        block: &Block,
        before: Option<Linear>,
        batch: &TokenBatch,
        layout: Layout,
        kind: Kind,
    ) -> Result<(), CudaError> {
        let (memory, tokens) = (&self.memory, batch.tokens);
        self.add_norm(stream, tokens, before, &block.norm_attention)?;
        self.linear(stream, tokens, &block.qkv, memory.normed, memory.qkv, CudaActivation::None)?;
        self.attend(stream, layer, batch, layout, kind)?;
        self.unbiased(stream, tokens, &block.attention_out, memory.attended)?;
        self.add_norm(stream, tokens, Some(block.attention_out), &block.norm_mlp)?;
        self.linear(stream, tokens, &block.up, memory.normed, memory.inner, activation_of(&self.shape))?;
        self.unbiased(stream, tokens, &block.down, memory.inner)
    }

    /// y = activation(x . weight^T + bias).
    fn linear(
        &self,
        stream: &Stream,
        tokens: u32,
        linear: &Linear,
        x: Span,
        y: Span,
        activation: CudaActivation,
    ) -> Result<(), CudaError> {
        let args = self.product(tokens, linear, x, y);
        if self.fused {
            return stream.product(&Product { bias: Some(linear.bias), activation, ..args });
        }
        stream.product(&args)?;
        let bias = |bias, activation| BiasActivation {
            x: y,
            bias,
            rows: tokens,
            width: linear.outputs,
            dtype: self.dtype,
            activation,
        };
        stream.bias_activation(&bias(Some(linear.bias), CudaActivation::None))?;
        match activation {
            CudaActivation::None => Ok(()),
            activation => stream.bias_activation(&bias(None, activation)),
        }
    }

    fn product(&self, tokens: u32, linear: &Linear, x: Span, y: Span) -> Product {
        Product {
            x,
            weight: linear.weight,
            bias: None,
            y,
            m: tokens,
            n: linear.outputs,
            k: linear.inputs,
            dtype: self.dtype,
            y_dtype: self.dtype,
            activation: CudaActivation::None,
            method: ProductMethod::Auto,
            accumulate: false,
            candidates: self.candidates,
        }
    }

    /// delta = x . weight^T; the bias joins with the residual sum.
    fn unbiased(&self, stream: &Stream, tokens: u32, linear: &Linear, x: Span) -> Result<(), CudaError> {
        stream.product(&self.product(tokens, linear, x, self.memory.delta))
    }

    /// residual += delta + bias of `before`; normed = norm(residual).
    fn add_norm(
        &self,
        stream: &Stream,
        tokens: u32,
        before: Option<Linear>,
        norm: &Norm,
    ) -> Result<(), CudaError> {
        let whole = self.norm_args(tokens, norm, self.memory.residual, Some(self.memory.normed));
        match before {
            None => stream.norm(&whole),
            Some(before) if self.fused => {
                let (delta, delta_bias) = (Some(self.memory.delta), Some(before.bias));
                stream.norm(&pinion_cuda::Norm { delta, delta_bias, ..whole })
            }
            Some(before) => {
                self.add(stream, tokens, before, norm)?;
                stream.norm(&whole)
            }
        }
    }

    /// residual += delta + bias of `before`, and nothing else. The norm's weights are named but not read.
    fn add(&self, stream: &Stream, tokens: u32, before: Linear, norm: &Norm) -> Result<(), CudaError> {
        let (delta, delta_bias) = (Some(self.memory.delta), Some(before.bias));
        let args = self.norm_args(tokens, norm, self.memory.residual, None);
        stream.norm(&pinion_cuda::Norm { delta, delta_bias, ..args })
    }

    fn norm_args(&self, rows: u32, norm: &Norm, x: Span, out: Option<Span>) -> pinion_cuda::Norm {
        pinion_cuda::Norm {
            x,
            delta: None,
            delta_bias: None,
            weight: norm.weight,
            bias: Some(norm.bias),
            out,
            rows,
            width: self.shape.hidden,
            epsilon: self.shape.epsilon as f32,
            dtype: self.dtype,
            kind: NormKind::Layer,
        }
    }

    /// `GPT2Attention` between its two products, for one layer.
    fn attend(
        &self,
        stream: &Stream,
        layer: usize,
        batch: &TokenBatch,
        layout: Layout,
        kind: Kind,
    ) -> Result<(), CudaError> {
        let memory = &self.memory;
        let cache = self.layer_cache(layer);
        let hidden = self.activations(1);
        // qkv is [tokens, 3, heads, head_dim].
        let (k, v, stride) = (memory.qkv.from(hidden), memory.qkv.from(2 * hidden), 3 * self.shape.hidden);
        let mut args = Attention {
            batch: *batch,
            q: memory.qkv,
            q_stride: stride,
            append: None,
            cache,
            out: memory.attended,
            out_stride: self.shape.hidden,
            queries: None,
            split: None,
            scale: self.shape.score_scale(layer as u32),
        };
        let filled = match kind {
            Kind::Decode => {
                args.split = self.split(batch.tokens);
                args.append = Some((k, v, stride));
                return stream.attention(&args);
            }
            Kind::Mixed(filled) => filled,
        };
        stream.kv_append(&Append { batch: *batch, k, v, cache, stride })?;
        if filled.singles > 0 {
            let queries = memory.inputs.part(layout.token_array(3), 4 * filled.singles as usize);
            args.queries = Some((queries, filled.singles));
            args.split = self.split(filled.singles);
            stream.attention(&args)?;
        }
        if filled.tiles > 0 {
            stream.prefill_attention(&Prefill {
                batch: *batch,
                q: args.q,
                q_stride: stride,
                cache,
                out: args.out,
                out_stride: args.out_stride,
                tiles: memory.inputs.part(layout.tiles(), 8 * filled.tiles as usize),
                count: filled.tiles,
                scale: args.scale,
            })?;
        }
        Ok(())
    }

    /// How the contexts of a number of queries are split. There is room for as many queries as a step may have rows;
    /// more of them fill the device without splits.
    fn split(&self, queries: u32) -> Option<DecodeSplit> {
        let memory = &self.memory;
        let splits = splits(queries, self.shape.heads, self.multiprocessors);
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
        let before = self.weights.blocks.last().map(|block| block.down);
        let final_norm = &self.weights.norm_final;
        let normed = if kind == Kind::Decode {
            self.add_norm(stream, tokens, before, final_norm)?;
            memory.normed
        } else {
            if let Some(before) = before {
                self.add(stream, tokens, before, final_norm)?;
            }
            if rows == 0 {
                return Ok(());
            }
            stream.gather(&Gather {
                x: memory.residual,
                index: memory.inputs.part(layout.sampled(), 4 * layout.rows),
                out: memory.last,
                count: rows,
                width: self.shape.hidden,
                rows: tokens,
                dtype: self.dtype,
            })?;
            stream.norm(&self.norm_args(rows, final_norm, memory.last, Some(memory.last_normed)))?;
            memory.last_normed
        };
        stream.product(&self.head_product(normed, rows))?;
        self.sample(stream, layout)
    }

    /// The sampler over the step's logits.
    fn sample(&self, stream: &Stream, layout: Layout) -> Result<(), CudaError> {
        let (memory, rows) = (&self.memory, layout.rows as u32);
        if self.shape.vocab > pinion_cuda::SAMPLE_VOCAB_MAX {
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
            vocab: self.shape.vocab,
            lanes: self.lanes,
        })
    }

    fn head_product(&self, normed: Span, rows: u32) -> Product {
        Product {
            x: normed,
            weight: self.weights.head,
            bias: None,
            y: self.memory.logits,
            m: rows,
            n: self.shape.vocab,
            k: self.shape.hidden,
            dtype: self.dtype,
            y_dtype: CudaDtype::F32,
            activation: CudaActivation::None,
            method: ProductMethod::Auto,
            accumulate: false,
            candidates: self.candidates,
        }
    }

    /// Logits of `count` consecutive query tokens of the step that ran last, in place of those of its rows.
    pub(super) fn score(&self, stream: &Stream, first: usize, count: u32) -> Result<(), CudaError> {
        let x = self.memory.residual.from(self.activations(first as u32));
        stream.norm(&self.norm_args(count, &self.weights.norm_final, x, Some(self.memory.last_normed)))?;
        stream.product(&self.head_product(self.memory.last_normed, count))
    }

    /// Copies the beginning of a block in every layer. Whole blocks: what lies behind the beginning is written before
    /// it is read.
    pub(super) fn copy_block(&self, stream: &Stream, from: u32, to: u32) -> Result<(), CudaError> {
        let layer_bytes = self.cache.bytes() / self.shape.layers as usize;
        let tokens = 2 * self.shape.hidden as usize * self.block_size as usize;
        let block_bytes = tokens * self.dtype.size();
        for layer in 0..self.shape.layers as usize {
            let block =
                |block: u32| self.cache.part(layer * layer_bytes + block as usize * block_bytes, block_bytes);
            stream.copy(block(to), block(from))?;
        }
        Ok(())
    }
}
