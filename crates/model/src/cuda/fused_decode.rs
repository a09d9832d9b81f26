//! The fused decode step in the engine: one kernel from token ids to logits for steps of up to eight rows, in place of
//! the calls of `forward`. Kernel and reasons: docs/design/0008-fused-decode.md.

use super::forward::{Forward, Kind, activation_of};
use super::inputs::Layout;
use super::memory::SPLITS_MAX;
use super::weights::{Block, Linear, Norm};
use super::{CudaOptions, DecodePath};
use pinion_cuda::{
    BiasedWeight, CudaError, DecodeBuffers, DecodeLayer, DecodeModel, DecodePlan, DecodeShape, DecodeSplit,
    DecodeStep, DecodeTables, GEMV_ROWS_MAX, Graph, Stream,
};

/// The model as the kernel wants it, and a plan for each decode bucket that it takes.
#[derive(Debug)]
pub(super) struct FusedDecode {
    model: DecodeModel,
    plans: Vec<DecodePlan>,
}

fn linear(of: &Linear) -> BiasedWeight {
    BiasedWeight { weight: of.weight, bias: of.bias }
}

fn norm(of: &Norm) -> BiasedWeight {
    BiasedWeight { weight: of.weight, bias: of.bias }
}

/// How many parts the context of each row is split into: a block of threads for each part, or fewer, as a second round
/// would take as long as the first.
pub fn fused_splits(plan: &DecodePlan, heads: u32) -> u32 {
    (plan.blocks / (plan.rows * heads)).clamp(1, SPLITS_MAX)
}

impl FusedDecode {
    /// Checks the weights, uploads the table of layers and plans the buckets. The cache's memory has been taken.
    ///
    /// # Errors
    /// The device has no cooperative launches, or too little shared memory for the model's rows.
    pub(super) fn new(stream: &Stream, forward: &Forward, buckets: &[u32]) -> Result<Self, CudaError> {
        let (shape, weights) = (&forward.shape, &forward.weights);
        let sizes = DecodeShape {
            hidden: shape.hidden,
            inner: shape.inner,
            heads: shape.heads,
            vocab: shape.vocab,
            positions: shape.positions,
            block_size: forward.block_size,
            activation: activation_of(shape),
            epsilon: shape.epsilon as f32,
            dtype: forward.dtype,
        };
        let tables = DecodeTables {
            tokens: weights.token_embedding,
            positions: weights.position_embedding,
            norm_final: norm(&weights.norm_final),
            head: weights.head,
        };
        let layer = |(index, block): (usize, &Block)| DecodeLayer {
            norm: norm(&block.norm_attention),
            qkv: linear(&block.qkv),
            projection: linear(&block.attention_out),
            norm_mlp: norm(&block.norm_mlp),
            up: linear(&block.up),
            down: linear(&block.down),
            cache: forward.layer_cache(index),
            scale: shape.score_scale(index as u32),
        };
        let layers: Vec<DecodeLayer> = weights.blocks.iter().enumerate().map(layer).collect();
        let model = DecodeModel::new(stream, sizes, tables, &layers)?;
        let planned = buckets.iter().filter(|&&rows| rows <= GEMV_ROWS_MAX);
        let plans = planned.map(|&rows| model.plan(stream, rows)).collect::<Result<_, _>>()?;
        Ok(FusedDecode { model, plans })
    }

    /// The plan for a decode step of this number of rows, padding included, if it can be one kernel.
    pub(super) fn plan(&self, rows: u32) -> Option<&DecodePlan> {
        self.plans.iter().find(|plan| plan.rows == rows)
    }

    /// Queues the step over what is in the input memory, up to the logits.
    pub(super) fn run(
        &self,
        stream: &Stream,
        forward: &Forward,
        layout: Layout,
        plan: &DecodePlan,
    ) -> Result<(), CudaError> {
        let memory = &forward.memory;
        let inputs = |index: usize| memory.inputs.part(layout.token_array(index), 4 * layout.tokens);
        let buffers = DecodeBuffers {
            residual: memory.residual,
            qkv: memory.qkv,
            attended: memory.attended,
            inner: memory.inner,
            logits: memory.logits,
        };
        let splits = fused_splits(plan, forward.shape.heads);
        let split = DecodeSplit { splits, partials: memory.partials, counters: memory.counters };
        let step = DecodeStep {
            tokens: inputs(0),
            positions: inputs(1),
            lanes: inputs(2),
            tables: memory.tables,
            table_stride: forward.table_stride,
            lane_tokens: memory.lane_tokens,
            buffers,
            split: (splits > 1).then_some(split),
            stamps: None,
        };
        stream.decode_step(&self.model, plan, &step)
    }
}

impl Forward {
    /// Prepares the fused step for the buckets that it takes, if it is asked for. The cache's memory has been taken.
    pub(super) fn plan_fused(
        &mut self,
        stream: &Stream,
        options: &CudaOptions,
        buckets: &[u32],
    ) -> Result<(), CudaError> {
        if options.decode == DecodePath::Fused {
            self.fused_decode = Some(FusedDecode::new(stream, self, buckets)?);
        }
        Ok(())
    }

    /// The fused step's kernel for a decode step of this size, if it is one.
    pub(super) fn fused_plan(&self, layout: Layout) -> Option<(&FusedDecode, &DecodePlan)> {
        let fused = self.fused_decode.as_ref()?;
        Some((fused, fused.plan(layout.tokens as u32)?))
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
}
