//! The fused decode step in the engine: one kernel from token ids to logits for steps of up to eight rows, in place of
//! the calls of `forward`. Kernel and reasons: docs/design/0008-fused-decode.md.

use super::forward::Forward;
use super::inputs::Layout;
use super::memory::SPLITS_MAX;
use super::weights::{Layer, Linear, Norm};
use pinion_cuda::{
    BiasedWeight, CudaError, DecodeBuffers, DecodeLayer, DecodeModel, DecodePlan, DecodeShape, DecodeSplit,
    DecodeStep, DecodeTables, GEMV_ROWS_MAX, Stream,
};

/// The model as the kernel wants it, and a plan for each decode bucket that it takes.
#[derive(Debug)]
pub(super) struct FusedDecode {
    model: DecodeModel,
    plans: Vec<DecodePlan>,
}

fn linear(of: &Linear) -> BiasedWeight {
    BiasedWeight { weight: of.weight, bias: of.bias.expect("every product of a model that fits has a bias") }
}

fn norm(of: &Norm) -> BiasedWeight {
    match *of {
        Norm::Layer { weight, bias } => BiasedWeight { weight, bias },
        Norm::Rms(_) => unreachable!("a model that fits has layer norms"),
    }
}

fn layer(index: usize, of: &Layer, forward: &Forward) -> DecodeLayer {
    let norm_of =
        |of: &Option<Norm>| norm(of.as_ref().expect("a model that fits has norms before both halves"));
    DecodeLayer {
        norm: norm_of(&of.attention_norm),
        qkv: linear(&of.qkv),
        projection: linear(&of.out),
        norm_mlp: norm_of(&of.mlp_norm),
        up: linear(&of.up),
        down: linear(&of.down),
        cache: forward.cache.layer(index),
        scale: forward.shape.model.layers[index].scale,
    }
}

/// How many parts the context of each row is split into: a block of threads for each part, or fewer, as a second round
/// would take as long as the first.
pub fn fused_splits(plan: &DecodePlan, heads: u32) -> u32 {
    (plan.blocks / (plan.rows * heads)).clamp(1, SPLITS_MAX)
}

impl FusedDecode {
    /// Checks the weights, uploads the table of layers and plans the buckets.
    ///
    /// # Errors
    /// The device has no cooperative launches, or too little shared memory for the model's rows.
    pub(super) fn new(stream: &Stream, forward: &Forward, buckets: &[u32]) -> Result<Self, CudaError> {
        let (model, weights) = (&forward.shape.model, &forward.weights);
        let (positions, position_count) =
            weights.position_embedding.expect("a model that fits has learned positions");
        let sizes = DecodeShape {
            hidden: model.hidden,
            inner: model.mlp.inner,
            heads: model.attention.heads,
            vocab: model.vocab,
            positions: position_count,
            block_size: forward.block_size,
            activation: forward.shape.product_activation(),
            epsilon: model.norm.epsilon as f32,
            dtype: forward.dtype,
        };
        let tables = DecodeTables {
            tokens: weights.token_embedding,
            positions,
            norm_final: norm(&weights.norm_final),
            head: weights.head,
        };
        let layers: Vec<DecodeLayer> =
            weights.layers.iter().enumerate().map(|(index, of)| layer(index, of, forward)).collect();
        let planned_model = DecodeModel::new(stream, sizes, tables, &layers)?;
        let planned = buckets.iter().filter(|&&rows| rows <= GEMV_ROWS_MAX);
        let plans = planned.map(|&rows| planned_model.plan(stream, rows)).collect::<Result<_, _>>()?;
        Ok(FusedDecode { model: planned_model, plans })
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
        let splits = fused_splits(plan, forward.shape.model.attention.heads);
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
