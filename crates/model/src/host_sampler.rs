//! Tokens and scores of prompt tokens from logits on the host, for the forwards on libtorch.

use crate::batch::{RowOutcome, StepBatch, StepError, StepOutput};
use crate::op_trace;
use crate::sampler::Sampler;

/// Prompt tokens that meet the head at once: its logits, `[64, vocab]`, are 13 MB for GPT-2's vocabulary.
const SCORED_TOKENS_PER_PRODUCT: usize = 64;

/// Scores the prompt tokens of the rows that ask. `head` puts the logits of some consecutive query tokens, the first's
/// index and their number, into the buffer. A row with a number that is not finite fails.
pub(crate) fn score_prompts(
    sampler: &mut Sampler,
    vocab: usize,
    batch: &StepBatch<'_>,
    out: &mut StepOutput,
    logits: &mut Vec<f32>,
    mut head: impl FnMut(usize, usize, &mut Vec<f32>) -> Result<(), StepError>,
) -> Result<(), StepError> {
    for (index, row) in batch.rows.iter().enumerate() {
        let Some(scored) = &row.scored else { continue };
        let range = row.scored_range();
        for begin in range.clone().step_by(SCORED_TOKENS_PER_PRODUCT) {
            head(begin, SCORED_TOKENS_PER_PRODUCT.min(range.end - begin), logits)?;
            for (at, logits) in (begin..).zip(logits.chunks_exact(vocab)) {
                let token = batch.successor(row, scored, at);
                if !sampler.score_known(logits, token, scored.alternatives, out) {
                    out.rows[index] = RowOutcome::NonFinite;
                }
            }
        }
        out.end_prompt_scores(index);
    }
    Ok(())
}

/// Draws for the rows of a step that sample, from `[sampling rows, vocab]`.
pub(crate) fn draw_rows(
    sampler: &mut Sampler,
    vocab: usize,
    batch: &StepBatch<'_>,
    out: &mut StepOutput,
    logits: &mut [f32],
) {
    let _range = op_trace::range(op_trace::SAMPLE);
    let mut rows = logits.chunks_exact_mut(vocab);
    for (index, row) in batch.rows.iter().enumerate() {
        let Some(params) = &row.sample else {
            out.push(RowOutcome::None);
            continue;
        };
        let logits = rows.next().expect("the head gave one row of logits for each sampling row");
        sampler.draw_row(logits, params, batch.shaping.shaping(index), out);
    }
}
