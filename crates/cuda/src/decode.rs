//! The fused decode step: a model's weights as the kernel wants them, checked once; its plan; its launch.
//!
//! Start at [`DecodeModel::new`]. Everything that does not change from step to step is checked and uploaded there; a
//! [`DecodeStep`] then names only what a step reads and writes. Design: docs/design/0008-fused-decode.md.

use super::device::{CudaError, Stream};
use super::kernels::raw;
use super::launch::{Lengths, address};
use super::memory::Span;
use super::{CudaActivation, CudaDtype, DecodeSplit, GEMV_ROWS_MAX, TokenBatch};

/// Sizes of a model whose decode step can be one kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeShape {
    /// Width of the residual: heads times their size.
    pub hidden: u32,
    /// Width between the products of the MLP.
    pub inner: u32,
    /// Heads of queries, keys and values alike.
    pub heads: u32,
    /// Rows of the token embedding and of the head.
    pub vocab: u32,
    /// Rows of the position embedding.
    pub positions: u32,
    /// Tokens of a cache block.
    pub block_size: u32,
    /// Of the MLP.
    pub activation: CudaActivation,
    /// Added to variances.
    pub epsilon: f32,
    /// Of weights, activations and cache.
    pub dtype: CudaDtype,
}

/// A weight and what is added: a norm's scale and shift, or a linear layer \[out, in\] and its bias.
#[derive(Debug, Clone, Copy)]
pub struct BiasedWeight {
    /// \[width\] or \[out, in\].
    pub weight: Span,
    /// \[width\] or \[out\].
    pub bias: Span,
}

/// One transformer block.
#[derive(Debug, Clone, Copy)]
pub struct DecodeLayer {
    /// Before attention.
    pub norm: BiasedWeight,
    /// \[3, hidden, hidden\].
    pub qkv: BiasedWeight,
    /// \[hidden, hidden\].
    pub projection: BiasedWeight,
    /// Before the MLP.
    pub norm_mlp: BiasedWeight,
    /// \[inner, hidden\].
    pub up: BiasedWeight,
    /// \[hidden, inner\].
    pub down: BiasedWeight,
    /// \[blocks, heads, 2, block_size, head_dim\].
    pub cache: Span,
    /// Factor on the scores.
    pub scale: f32,
}

/// What is not in a layer.
#[derive(Debug, Clone, Copy)]
pub struct DecodeTables {
    /// \[vocab, hidden\].
    pub tokens: Span,
    /// \[positions, hidden\].
    pub positions: Span,
    /// After the last layer.
    pub norm_final: BiasedWeight,
    /// \[vocab, hidden\].
    pub head: Span,
}

/// A checked model with the table of its layers on the device.
#[derive(Debug, Clone, Copy)]
pub struct DecodeModel {
    shape: DecodeShape,
    tables: DecodeTables,
    layers: Span,
    layer_count: u32,
    barrier: Span,
}

/// How a step of a given number of rows is laid out on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodePlan {
    /// Rows of the step.
    pub rows: u32,
    /// Blocks of threads; at most as many as planned, or the launch is refused.
    pub blocks: u32,
    /// How far ahead weights are fetched; at most as far as planned.
    pub group_slots: u32,
    /// Shared memory of a block.
    pub shared_bytes: u32,
}

/// What a step writes on its way, each \[rows, ..\] and overwritten.
#[derive(Debug, Clone, Copy)]
pub struct DecodeBuffers {
    /// \[rows, hidden\]; the sum of all layers at the end.
    pub residual: Span,
    /// \[rows, 3, hidden\].
    pub qkv: Span,
    /// \[rows, hidden\].
    pub attended: Span,
    /// \[rows, inner\].
    pub inner: Span,
    /// f32 \[rows, vocab\]: the result.
    pub logits: Span,
}

/// One step: the next token of each row, which are of different lanes.
#[derive(Debug, Clone, Copy)]
pub struct DecodeStep {
    /// u32 \[rows\]; [`super::FUTURE_TOKEN`] takes the lane's.
    pub tokens: Span,
    /// u32 \[rows\]; [`super::NO_LANE`] is padding.
    pub lanes: Span,
    /// u32 \[rows\].
    pub positions: Span,
    /// u32 \[lanes, table_stride\].
    pub tables: Span,
    /// Entries of a lane's table.
    pub table_stride: u32,
    /// u32 \[lanes\]: what each lane sampled last.
    pub lane_tokens: Span,
    /// What it writes.
    pub buffers: DecodeBuffers,
    /// Whether the context is split.
    pub split: Option<DecodeSplit>,
    /// Where each block notes when it was where, [`DecodeModel::stamp_bytes`]; see [`Stamp`].
    pub stamps: Option<Span>,
}

/// The phases of a layer; the head is one more behind the last.
pub const DECODE_PHASES: [&str; 5] = ["qkv", "attention", "projection", "up", "down"];

/// What is noted of a phase, as u64 \[phases, 4, blocks\] in clocks of the block's multiprocessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stamp {
    /// The phase begins.
    Begun,
    /// The rows are in shared memory. Attention notes nothing here.
    Brought,
    /// The block has done its part and told the others.
    Done,
    /// All others have.
    Passed,
}

/// Stamps of a phase.
const STAMPS: usize = 4;

const OPERATION: &str = "fused decode step";
const NOTHING: Span = Span { address: 0, bytes: 0 };

impl DecodeModel {
    /// Checks the weights against the shape, and uploads the table of layers.
    ///
    /// # Errors
    /// An operand that is too short or not aligned, or the driver's error.
    pub fn new(
        stream: &Stream,
        shape: DecodeShape,
        tables: DecodeTables,
        layers: &[DecodeLayer],
    ) -> Result<DecodeModel, CudaError> {
        let [hidden, inner, vocab] = [shape.hidden, shape.inner, shape.vocab].map(|axis| axis as usize);
        let size = shape.dtype.size();
        let biased = |lengths: Lengths, name, of: &BiasedWeight, outputs: usize, inputs: usize| {
            lengths.need(name, of.weight, &[outputs, inputs], size).need(name, of.bias, &[outputs], size)
        };
        let lengths = Lengths::of(OPERATION)
            .need("the token embedding", tables.tokens, &[vocab, hidden], size)
            .need("the position embedding", tables.positions, &[shape.positions as usize, hidden], size)
            .need("the head", tables.head, &[vocab, hidden], size);
        biased(lengths, "the final norm", &tables.norm_final, hidden, 1).done()?;
        let mut table = Vec::new();
        for layer in layers {
            let lengths = biased(Lengths::of(OPERATION), "norm", &layer.norm, hidden, 1);
            let lengths = biased(lengths, "norm_mlp", &layer.norm_mlp, hidden, 1);
            let lengths = biased(lengths, "qkv", &layer.qkv, 3 * hidden, hidden);
            let lengths = biased(lengths, "projection", &layer.projection, hidden, hidden);
            let lengths = biased(lengths, "up", &layer.up, inner, hidden);
            biased(lengths, "down", &layer.down, hidden, inner).done()?;
            layer.write(&mut table);
        }
        let device = stream.device();
        let (span, barrier) = (device.alloc(table.len())?, device.alloc(4)?);
        stream.upload(span, &table)?;
        stream.fill(barrier, 0)?;
        stream.synchronize()?;
        Ok(DecodeModel { shape, tables, layers: span, layer_count: layers.len() as u32, barrier })
    }

    /// How a step of `rows` rows runs on the stream's device. Not while the stream is captured.
    ///
    /// # Errors
    /// A shape that the kernel does not take, or a device whose blocks have too little shared memory for it.
    pub fn plan(&self, stream: &Stream, rows: u32) -> Result<DecodePlan, CudaError> {
        let buffers = DecodeBuffers {
            residual: NOTHING,
            qkv: NOTHING,
            attended: NOTHING,
            inner: NOTHING,
            logits: NOTHING,
        };
        let step = DecodeStep {
            tokens: NOTHING,
            lanes: NOTHING,
            positions: NOTHING,
            tables: NOTHING,
            table_stride: 1,
            lane_tokens: NOTHING,
            buffers,
            split: None,
            stamps: None,
        };
        let args = self.raw(&step, &DecodePlan { rows, blocks: 0, group_slots: 0, shared_bytes: 0 });
        let mut plan = raw::DecodePlan { blocks: 0, group_slots: 0, shared_bytes: 0 };
        let device = stream.device();
        // SAFETY: the function reads the sizes in `args`, none of its addresses, and writes `plan`.
        let code = unsafe { (device.symbols().decode_plan)(&raw const args, &raw mut plan) };
        device.check("planning the fused decode step", code)?;
        let raw::DecodePlan { blocks, group_slots, shared_bytes } = plan;
        Ok(DecodePlan { rows, blocks, group_slots, shared_bytes })
    }

    fn head_dim(&self) -> u32 {
        self.shape.hidden / self.shape.heads.max(1)
    }

    /// Bytes of the stamps of a step.
    pub fn stamp_bytes(&self, plan: &DecodePlan) -> usize {
        let phases = DECODE_PHASES.len() * self.layer_count as usize + 1;
        phases * STAMPS * plan.blocks as usize * 8
    }

    fn batch(&self, step: &DecodeStep, rows: u32) -> TokenBatch {
        TokenBatch {
            lanes: step.lanes,
            positions: step.positions,
            tables: step.tables,
            tokens: rows,
            table_stride: step.table_stride,
            heads: self.shape.heads,
            kv_heads: self.shape.heads,
            head_dim: self.head_dim(),
            block_size: self.shape.block_size,
            dtype: self.shape.dtype,
        }
    }

    fn raw(&self, step: &DecodeStep, plan: &DecodePlan) -> raw::Decode {
        let (shape, buffers, rows) = (&self.shape, &step.buffers, plan.rows);
        let row_bytes = u64::from(shape.hidden) * shape.dtype.size() as u64;
        let qkv = buffers.qkv.address;
        raw::Decode {
            embed: raw::Embed {
                tokens: step.tokens.address,
                positions: step.positions.address,
                lanes: step.lanes.address,
                lane_tokens: step.lane_tokens.address,
                token_table: self.tables.tokens.address,
                position_table: self.tables.positions.address,
                out: buffers.residual.address,
                count: rows,
                width: shape.hidden,
                vocab: shape.vocab,
                positions_max: shape.positions,
                dtype: shape.dtype.code(),
            },
            attention: raw::Attention {
                batch: self.batch(step, rows).raw(),
                q: qkv,
                k: qkv + row_bytes,
                v: qkv + 2 * row_bytes,
                cache: 0,
                out: buffers.attended.address,
                queries: 0,
                partials: address(step.split.map(|split| split.partials)),
                counters: address(step.split.map(|split| split.counters)),
                q_stride: 3 * shape.hidden,
                kv_stride: 3 * shape.hidden,
                out_stride: shape.hidden,
                count: rows,
                splits: step.split.map_or(1, |split| split.splits),
                append: 1,
                scale: 0.0,
            },
            layers: self.layers.address,
            norm_final_weight: self.tables.norm_final.weight.address,
            norm_final_bias: self.tables.norm_final.bias.address,
            head: self.tables.head.address,
            inner_rows: buffers.inner.address,
            logits: buffers.logits.address,
            barrier: self.barrier.address,
            stamps: address(step.stamps),
            layer_count: self.layer_count,
            hidden: shape.hidden,
            inner: shape.inner,
            vocab: shape.vocab,
            blocks: plan.blocks,
            group_slots: plan.group_slots,
            activation: shape.activation.code(),
            epsilon: shape.epsilon,
        }
    }
}

impl DecodeLayer {
    /// Appends the layer as the kernel reads it: `PinionCudaDecodeLayer` of pinion_cuda.h.
    fn write(&self, to: &mut Vec<u8>) {
        for pair in [self.norm, self.qkv, self.projection, self.norm_mlp, self.up, self.down] {
            to.extend_from_slice(&pair.weight.address.to_le_bytes());
            to.extend_from_slice(&pair.bias.address.to_le_bytes());
        }
        to.extend_from_slice(&self.cache.address.to_le_bytes());
        to.extend_from_slice(&self.scale.to_le_bytes());
        to.extend_from_slice(&[0; 4]);
    }
}

impl Stream {
    /// Runs a whole decode step, from token ids to logits, as one cooperative kernel. The plan is one of
    /// [`DecodeModel::plan`], or one with fewer blocks or slots.
    ///
    /// # Errors
    /// An operand that is too short, more blocks than the device holds at once, or the driver's error.
    pub fn decode_step(
        &self,
        model: &DecodeModel,
        plan: &DecodePlan,
        step: &DecodeStep,
    ) -> Result<(), CudaError> {
        let (shape, rows, size) = (&model.shape, plan.rows as usize, model.shape.dtype.size());
        let [hidden, inner, vocab] = [shape.hidden, shape.inner, shape.vocab].map(|axis| axis as usize);
        if plan.rows == 0 || plan.rows > GEMV_ROWS_MAX {
            return Err(CudaError {
                operation: OPERATION,
                message: format!("{rows} rows are not 1 to {GEMV_ROWS_MAX}"),
            });
        }
        let mut lengths = model
            .batch(step, plan.rows)
            .lengths(OPERATION)
            .need("tokens", step.tokens, &[rows], 4)
            .need("residual", step.buffers.residual, &[rows, hidden], size)
            .need("qkv", step.buffers.qkv, &[rows, 3, hidden], size)
            .need("attended", step.buffers.attended, &[rows, hidden], size)
            .need("inner", step.buffers.inner, &[rows, inner], size)
            .need("logits", step.buffers.logits, &[rows, vocab], 4);
        if let Some(split) = &step.split {
            let [heads, splits] = [shape.heads, split.splits].map(|axis| axis as usize);
            let parts = [rows, heads, splits, model.head_dim() as usize + 2];
            lengths = lengths.need("partials", split.partials, &parts, 4).need(
                "counters",
                split.counters,
                &[rows, heads],
                4,
            );
        }
        if let Some(stamps) = step.stamps {
            lengths = lengths.need("stamps", stamps, &[model.stamp_bytes(plan)], 1);
        }
        lengths.done()?;
        self.launch(OPERATION, self.device().symbols().decode_step, &model.raw(step, plan))
    }
}
