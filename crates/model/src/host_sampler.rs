//! Tokens and scores of prompt tokens from logits on the host, for the forwards on libtorch.

use crate::batch::{RowOutcome, StepBatch, StepError, StepOutput};
use crate::logprobs::{ALTERNATIVES_MAX, Logprob};
use crate::op_trace;
use crate::sampler::{SampleParams, Sampler};
use crate::shaping::Shaping;
use pinion_ops::team::deal;

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

/// Rows of a step that are handed out together.
const ROWS_PER_DEAL: usize = 64;

/// Rows of fewer logits than this in all are drawn by the calling thread: to hand them out takes longer than to draw.
const DEALT_LOGITS: usize = 1 << 17;

/// Draws the tokens of a step on the host, its rows dealt out over the kernels' threads. A draw depends on its row
/// alone, so it is the same on each of them.
#[derive(Debug)]
pub struct HostSampler {
    vocab: usize,
    /// One for each thread, at least one.
    samplers: Vec<Sampler>,
    /// What came of the rows that were handed out.
    drawn: Vec<Drawn>,
}

/// What came of one row.
#[derive(Debug)]
struct Drawn {
    outcome: RowOutcome,
    /// Empty if the row did not ask.
    logprobs: Vec<Logprob>,
}

/// One row to be drawn.
struct RowDraw<'a> {
    logits: &'a mut [f32],
    params: &'a SampleParams,
    shaping: Option<Shaping<'a>>,
    drawn: &'a mut Drawn,
}

impl HostSampler {
    /// A sampler for rows of `vocab` logits, on as many threads as the kernels run on, or on one.
    pub fn new(vocab: usize, threads: u32) -> Self {
        let drawn =
            || Drawn { outcome: RowOutcome::None, logprobs: Vec::with_capacity(ALTERNATIVES_MAX + 1) };
        Self {
            vocab,
            samplers: (0..threads.max(1)).map(|_| Sampler::new(vocab)).collect(),
            drawn: (0..ROWS_PER_DEAL).map(|_| drawn()).collect(),
        }
    }

    /// The calling thread's own.
    pub(crate) fn own(&mut self) -> &mut Sampler {
        &mut self.samplers[0]
    }

    /// Draws for the rows of a step that sample, from `[sampling rows, vocab]`, which change. No allocation but for the
    /// growth of `out`.
    pub fn draw_rows(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput, logits: &mut [f32]) {
        let _range = op_trace::range(op_trace::SAMPLE);
        let is_dealt = self.samplers.len() > 1 && logits.len() > self.vocab && logits.len() >= DEALT_LOGITS;
        let mut logits = logits.chunks_exact_mut(self.vocab);
        let mut next = || logits.next().expect("the head gave one row of logits for each sampling row");
        if !is_dealt {
            for (index, row) in batch.rows.iter().enumerate() {
                match &row.sample {
                    Some(params) => {
                        self.samplers[0].draw_row(next(), params, batch.shaping.shaping(index), out);
                    }
                    None => out.push(RowOutcome::None),
                }
            }
            return;
        }
        for (group, rows) in batch.rows.chunks(ROWS_PER_DEAL).enumerate() {
            let mut draws: [Option<RowDraw<'_>>; ROWS_PER_DEAL] = [const { None }; ROWS_PER_DEAL];
            for (at, (row, drawn)) in rows.iter().zip(&mut self.drawn).enumerate() {
                drawn.outcome = RowOutcome::None;
                drawn.logprobs.clear();
                draws[at] = row.sample.as_ref().map(|params| RowDraw {
                    logits: next(),
                    params,
                    shaping: batch.shaping.shaping(group * ROWS_PER_DEAL + at),
                    drawn,
                });
            }
            deal(&mut self.samplers, &mut draws[..rows.len()], |sampler, draw| {
                let Some(RowDraw { logits, params, shaping, drawn }) = draw else { return };
                drawn.outcome = sampler.draw_scored(logits, params, *shaping, &mut drawn.logprobs);
            });
            for drawn in &self.drawn[..rows.len()] {
                out.push_with(drawn.outcome, &drawn.logprobs);
            }
        }
    }
}
