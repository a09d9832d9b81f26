//! A model whose draws show every parameter of a request.

use super::{Random, pipeline, small};
use pinion_engine::{Engine, Sizes};
use pinion_model::{
    FakeModel, FakeOptions, FakeShape, Model, ModelInfo, RowOutcome, Sampler, StepBatch, StepError,
    StepOutput, WarmUp,
};
use pinion_protocol::StopIds;

/// Ids that the hashed model knows; the ids of prompts stay below it too.
pub const HASHED_VOCABULARY: u32 = 64;

/// Logits are a hash of the last token and its position, so they depend on the row alone, to the last bit. With a
/// period it is the position within that, and greedy texts go round in circles. The fake inside checks the batch.
pub struct Hashed {
    inner: FakeModel,
    info: ModelInfo,
    sampler: Sampler,
    logits: Vec<f32>,
    period: u32,
}

/// A config for a recording. Any does: the engine of a replay is made by the test.
pub fn config() -> pinion_config::Config {
    let facts = pinion_config::ModelFacts {
        max_context: 64,
        default_context: 64,
        vocab_size: HASHED_VOCABULARY,
        stop_ids: StopIds::NONE,
        layers: 1,
        kv_heads: 1,
        head_dim: 1,
        hidden: 1,
        window: None,
    };
    let machine = pinion_config::Machine::detect();
    let backend = pinion_config::Backend::Fake;
    pinion_config::Config::with_defaults(std::path::Path::new("/"), facts, backend, &machine)
        .expect("defaults are a config")
}

impl Hashed {
    pub fn engine(overlap: bool) -> Engine {
        Hashed::engine_ending_with(small().limits.stop_ids, overlap)
    }

    pub fn engine_ending_with(stop_ids: StopIds, overlap: bool) -> Engine {
        let mut sizes = small();
        sizes.limits.stop_ids = stop_ids;
        Engine::new(pipeline(Hashed::model(&sizes), overlap), sizes)
    }

    pub fn model(sizes: &Sizes) -> Box<dyn Model> {
        Hashed::with_period(sizes, u32::MAX)
    }

    pub fn with_period(sizes: &Sizes, period: u32) -> Box<dyn Model> {
        let shape = FakeShape {
            vocab_size: HASHED_VOCABULARY,
            max_context: sizes.limits.max_model_len,
            eos: sizes.limits.stop_ids.first(),
            block_size: sizes.limits.block_size,
            block_count: sizes.limits.block_count,
        };
        let inner = FakeModel::new(shape, FakeOptions::default());
        let (info, sampler) = (inner.info().clone(), Sampler::new(HASHED_VOCABULARY as usize));
        Box::new(Hashed { inner, info, sampler, logits: Vec::new(), period })
    }
}

impl Model for Hashed {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        self.inner.step(batch, &mut StepOutput::default())?;
        out.clear();
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(params) = &row.sample else {
                out.push(RowOutcome::None);
                continue;
            };
            let last = row.query_range().end - 1;
            let place = batch.positions[last] % self.period;
            let mut random = Random::new(u64::from(batch.tokens[last]) << 32 | u64::from(place));
            self.logits.clear();
            self.logits.extend((0..HASHED_VOCABULARY).map(|_| random.below(4000) as f32 / 1000.0));
            self.sampler.draw_row(&mut self.logits, params, batch.shaping.shaping(index), out);
        }
        Ok(())
    }

    fn logits(&mut self, batch: &StepBatch<'_>, out: &mut Vec<f32>) -> Result<(), StepError> {
        self.inner.logits(batch, out)
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        self.inner.warm_up(shapes)
    }
}
