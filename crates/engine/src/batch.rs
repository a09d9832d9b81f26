//! From a plan to the model's flat batch, in reused buffers.

use pinion_model::{Row, SampleParams, StepBatch};
use pinion_protocol::Sampling;
use pinion_scheduler::Scheduler;

/// One step's tokens, positions, rows and block tables. No allocation: every buffer starts at its largest size.
#[derive(Debug)]
pub(crate) struct Batch {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    rows: Vec<Row>,
    blocks: Vec<u32>,
}

impl Batch {
    pub(crate) fn new(row_count_max: usize, token_count_max: usize, block_count_max: usize) -> Batch {
        Batch {
            tokens: Vec::with_capacity(token_count_max),
            positions: Vec::with_capacity(token_count_max),
            rows: Vec::with_capacity(row_count_max),
            blocks: Vec::with_capacity(block_count_max),
        }
    }

    /// Replaces the batch by the scheduler's current plan.
    pub(crate) fn fill(&mut self, scheduler: &Scheduler) {
        self.tokens.clear();
        self.positions.clear();
        self.rows.clear();
        self.blocks.clear();
        for planned in &scheduler.current_plan().rows {
            let view = scheduler.row(planned);
            self.rows.push(Row {
                slot: planned.lane,
                query_start: self.tokens.len() as u32,
                query_len: planned.len,
                context_len: planned.start + planned.len,
                prompt_len: view.prompt_tokens,
                blocks_start: self.blocks.len() as u32,
                blocks_len: view.blocks.len() as u32,
                sample: planned.draw.map(|index| sample_params(view.sampling, index)),
            });
            self.tokens.extend_from_slice(view.tokens);
            self.positions.extend(planned.start..planned.start + planned.len);
            self.blocks.extend_from_slice(view.blocks);
        }
    }

    pub(crate) fn as_step(&self) -> StepBatch<'_> {
        StepBatch { tokens: &self.tokens, positions: &self.positions, rows: &self.rows, blocks: &self.blocks }
    }
}

/// `index` counts the generated tokens from 0 and is all that the draw depends on besides the seed, so a request that
/// is resumed, preempted or batched differently draws the same.
fn sample_params(sampling: &Sampling, index: u32) -> SampleParams {
    SampleParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k.unwrap_or(0),
        top_p: sampling.top_p,
        seed: sampling.seed,
        position: u64::from(index),
    }
}
