//! From a plan to the model's flat batch, in reused buffers.

use crate::constraints::Constraints;
use pinion_model::{
    BlockCopy, FUTURE_TOKEN, Row, RowShaping, SampleParams, Scored, Shaping, StepBatch, WindowTables,
};
use pinion_protocol::grammar::GrammarKind;
use pinion_protocol::{Sampling, StopIds};
use pinion_scheduler::{PlanRow, RowView, Scheduler};

// Entries without a window block are passed on as they are.
const _: () = assert!(pinion_scheduler::NO_WINDOW_BLOCK == pinion_model::NO_WINDOW_BLOCK);

/// One step's tokens, positions, rows and block tables. No allocation: every buffer starts at its largest size.
#[derive(Debug)]
pub(crate) struct Batch {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    rows: Vec<Row>,
    blocks: Vec<u32>,
    copies: Vec<BlockCopy>,
    window_blocks: Vec<u32>,
    window_copies: Vec<BlockCopy>,
}

impl Batch {
    /// `has_windows`: layers with a window have window blocks.
    pub(crate) fn new(
        row_count_max: usize,
        token_count_max: usize,
        block_count_max: usize,
        has_windows: bool,
    ) -> Batch {
        let of_windows = |count| if has_windows { count } else { 0 };
        Batch {
            tokens: Vec::with_capacity(token_count_max),
            positions: Vec::with_capacity(token_count_max),
            rows: Vec::with_capacity(row_count_max),
            blocks: Vec::with_capacity(block_count_max),
            copies: Vec::with_capacity(row_count_max),
            window_blocks: Vec::with_capacity(of_windows(block_count_max)),
            window_copies: Vec::with_capacity(of_windows(row_count_max)),
        }
    }

    /// Replaces the batch by the scheduler's current plan.
    pub(crate) fn fill(&mut self, scheduler: &Scheduler) {
        self.tokens.clear();
        self.positions.clear();
        self.rows.clear();
        self.blocks.clear();
        self.copies.clear();
        self.copies.extend(scheduler.current_plan().copies.iter().map(block_copy));
        self.window_blocks.clear();
        self.window_copies.clear();
        self.window_copies.extend(scheduler.current_plan().window_copies.iter().map(block_copy));
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
                scored: scored(planned, &view),
            });
            self.tokens.extend_from_slice(view.tokens);
            let unknown = planned.len as usize - view.tokens.len();
            self.tokens.extend(std::iter::repeat_n(FUTURE_TOKEN, unknown));
            self.positions.extend(planned.start..planned.start + planned.len);
            self.blocks.extend_from_slice(view.blocks);
            self.window_blocks.extend_from_slice(view.windows);
        }
    }

    /// `shaping` belongs to the plan that the batch was filled from.
    pub(crate) fn as_step<'a>(&'a self, shaping: &'a PlanShaping<'a>) -> StepBatch<'a> {
        StepBatch {
            tokens: &self.tokens,
            positions: &self.positions,
            rows: &self.rows,
            blocks: &self.blocks,
            copies: &self.copies,
            windows: WindowTables { blocks: &self.window_blocks, copies: &self.window_copies },
            shaping,
        }
    }
}

/// What the requests of the current plan do to their logits, looked up where their tokens are.
pub(crate) struct PlanShaping<'a> {
    pub(crate) scheduler: &'a Scheduler,
    pub(crate) constraints: &'a Constraints,
    pub(crate) stop_ids: &'a StopIds,
}

impl std::fmt::Debug for PlanShaping<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanShaping").field("stop_ids", &self.stop_ids).finish_non_exhaustive()
    }
}

impl RowShaping for PlanShaping<'_> {
    fn shaping(&self, row: usize) -> Option<Shaping<'_>> {
        let planned = self.scheduler.current_plan().rows.get(row)?;
        let generated = planned.draw?;
        let view = self.scheduler.row(planned);
        let sampling = view.sampling;
        let mask = self.constraints.mask(planned.id);
        if mask.is_none() && !sampling.shapes_logits(generated) {
            return None;
        }
        // A request that does not look at its output may run before all of it is known.
        let read = if sampling.reads_output() { view.ids } else { &[] };
        let (prompt, output) = read.split_at_checked(view.prompt_tokens as usize).unwrap_or_default();
        let waits = generated < sampling.min_tokens;
        // Rules about tokens have no end.
        let has_end = sampling.grammar.as_ref().is_some_and(|grammar| grammar.kind != GrammarKind::Tokens);
        Some(Shaping {
            prompt,
            output,
            repetition_penalty: sampling.repetition_penalty,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            bias: &sampling.logit_bias,
            // A grammar allows the end wherever its text may end; a request that ignores it goes on while it can.
            banned_ends: match sampling.ignore_eos {
                true if mask.is_some() && has_end => self.stop_ids.as_slice(),
                false if waits => self.stop_ids.as_slice(),
                true | false => &[],
            },
            banned_ids: if waits { &sampling.stop_token_ids } else { &[] },
            mask,
        })
    }
}

fn block_copy(copy: &pinion_scheduler::BlockCopy) -> BlockCopy {
    BlockCopy { from: copy.from, to: copy.to, tokens: copy.tokens }
}

/// A prompt's token is scored at the position before it, so the first one is not.
fn scored(row: &PlanRow, view: &RowView<'_>) -> Option<Scored> {
    let report = row.report();
    let begin = report.start.max(1);
    if begin >= report.end {
        return None;
    }
    Some(Scored {
        first: begin - 1 - row.start,
        len: report.end - begin,
        after: view.ids.get((row.start + row.len) as usize).copied().unwrap_or(0),
        alternatives: view.sampling.prompt_logprobs.unwrap_or(0),
    })
}

/// `index` counts the generated tokens from 0 and is all that the draw depends on besides the seed, so a request that
/// is resumed, preempted or batched differently draws the same.
fn sample_params(sampling: &Sampling, index: u32) -> SampleParams {
    SampleParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k.unwrap_or(0),
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        logprobs: sampling.logprobs,
        seed: sampling.seed,
        position: u64::from(index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_protocol::{Claim, RequestId};
    use pinion_scheduler::{Limits, Request, RowResult};

    /// A resumed request of two prompt tokens and one generated token: its next draw has index 1.
    #[test]
    fn rows_carry_prompt_length_and_draw_index() {
        let limits = Limits {
            max_num_seqs: 2,
            max_num_batched_tokens: 8,
            max_requests: 2,
            max_model_len: 16,
            block_size: 2,
            block_count: 8,
            stop_ids: StopIds::NONE,
        };
        let sampling = Sampling {
            temperature: 0.5,
            top_k: Some(3),
            top_p: 0.9,
            min_p: 0.1,
            logprobs: Some(4),
            seed: 42,
            max_tokens: Some(9),
            ..Sampling::default()
        };
        let id = RequestId { frontend: 0, slot: 0, generation: 1 };
        let mut scheduler = Scheduler::new(limits);
        scheduler
            .admit(Request { id, claim: Claim::default(), sampling, ids: vec![5, 6, 7], prompt_tokens: 2 }, 0)
            .unwrap();
        let mut batch = Batch::new(2, 8, 8, false);
        let params = SampleParams {
            temperature: 0.5,
            top_k: 3,
            top_p: 0.9,
            min_p: 0.1,
            logprobs: Some(4),
            seed: 42,
            position: 0,
        };
        let draw = |position| Some(SampleParams { position, ..params });

        scheduler.plan(0);
        batch.fill(&scheduler);
        assert_eq!((&batch.tokens[..], &batch.positions[..]), (&[5, 6, 7][..], &[0, 1, 2][..]));
        let row = batch.rows[0];
        assert_eq!((row.query_len, row.context_len, row.prompt_len, row.blocks_len), (3, 3, 2, 2));
        assert_eq!(row.sample, draw(1));

        scheduler.commit(&[RowResult::Token(8)]);
        scheduler.plan(0);
        batch.fill(&scheduler);
        assert_eq!((&batch.tokens[..], &batch.positions[..]), (&[8][..], &[3][..]));
        let row = batch.rows[0];
        assert_eq!((row.query_len, row.context_len, row.prompt_len, row.blocks_len), (1, 4, 2, 2));
        assert_eq!(row.sample, draw(2));

        // Before that step's token is known: the next row stands on it.
        assert!(scheduler.plan(0).is_some());
        batch.fill(&scheduler);
        assert_eq!((&batch.tokens[..], &batch.positions[..]), (&[FUTURE_TOKEN][..], &[4][..]));
        let row = batch.rows[0];
        assert_eq!((row.query_len, row.context_len, row.prompt_len, row.blocks_len), (1, 5, 2, 3));
        assert_eq!(row.sample, draw(3));
    }
}
