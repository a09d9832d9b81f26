//! Rows that are sampled behind the step's own sampler, which leaves them out: those whose logits are read before they are
//! changed, because the request wants logprobs. Their launches are in no graph, so steps without such rows do not pay for
//! them; nothing of them waits for the host.

use super::engine::CudaGpt2;
use super::inputs::{Layout, aligned};
use super::sampling::{Source, draw};
use crate::{Logprob, StepBatch};
use pinion_ops::cuda::{
    CHANGE_BYTES, CudaError, DRAW_BYTES, Draw, SAMPLED_BYTES, SCORED_BYTES, SCORES_BYTES, Sample, Sampled,
    SampledState, Score, Scored, Scores,
};

/// Where the scores of a step of so many rows of logits stand, behind their tokens.
fn scores_at(rows: usize) -> usize {
    aligned(rows * SAMPLED_BYTES)
}

/// Bytes of the results of a step of so many rows of logits, so many of them scored.
pub(super) fn result_bytes(rows: usize, scored: usize) -> usize {
    scores_at(rows) + scored * SCORES_BYTES
}

/// Bytes of what so many late rows send: their draws, then which of them are scored.
pub(super) fn late_bytes(rows: usize) -> usize {
    rows * (DRAW_BYTES + SCORED_BYTES)
}

impl CudaGpt2 {
    /// Queues the late rows of the step just queued. Gives how many of them are scored.
    pub(super) fn queue_late(
        &mut self,
        batch: &StepBatch<'_>,
        sources: &[Source],
        slot: usize,
        layout: Layout,
    ) -> Result<usize, CudaError> {
        let late_count = sources.iter().filter(|source| matches!(source, Source::Late { .. })).count();
        if late_count == 0 {
            return Ok(0);
        }
        let scored_at = late_count * DRAW_BYTES;
        let late = &mut self.slots[slot].late;
        let (draws, scored) = late.bytes_mut()[..late_bytes(late_count)].split_at_mut(scored_at);
        let (mut draws, mut scored) =
            (draws.chunks_exact_mut(DRAW_BYTES), scored.chunks_exact_mut(SCORED_BYTES));
        let (mut logits_row, mut scored_count) = (0, 0);
        for (row, source) in batch.rows.iter().zip(sources) {
            let Some(params) = &row.sample else { continue };
            if let &Source::Late { changes, is_scored } = source {
                let draw = Draw { changes, row: logits_row, is_scored, ..draw(params, row.slot) };
                draw.write(draws.next().expect("a place for each late row"));
                if is_scored {
                    let best = params.logprobs.unwrap_or(0);
                    let to = scored.next().expect("a place for each late row");
                    Scored { row: logits_row, best }.write(to);
                    scored_count += 1;
                }
            }
            logits_row += 1;
        }
        let forward = &self.forward;
        let sent = forward.memory.late;
        self.stream.to_device(sent, late, late_bytes(late_count))?;
        if scored_count > 0 {
            self.stream.score(&Score {
                logits: forward.memory.logits,
                scored: sent.part(scored_at, scored_count * SCORED_BYTES),
                scores: forward.memory.sampled.part(scores_at(layout.rows), scored_count * SCORES_BYTES),
                count: scored_count as u32,
                rows: layout.rows as u32,
                vocab: self.info.vocab_size,
            })?;
        }
        let changes_max = (forward.memory.changes.bytes() / CHANGE_BYTES) as u32;
        self.stream.sample(&Sample {
            logits: forward.memory.logits,
            draws: sent.part(0, scored_at),
            sampled: forward.memory.sampled,
            lane_tokens: forward.memory.lane_tokens,
            changes: Some((forward.memory.changes, changes_max)),
            rows: late_count as u32,
            logits_rows: layout.rows as u32,
            vocab: self.info.vocab_size,
            lanes: forward.lanes,
        })?;
        Ok(scored_count)
    }
}

/// Appends the logprobs of the `index`-th scored row of a step of `rows` rows of logits, if it drew a token.
pub(super) fn report(results: &[u8], rows: usize, index: usize, sampled: &[u8], out: &mut Vec<Logprob>) {
    let SampledState::Token(token) = Sampled::read(sampled) else { return };
    let scores = Scores::read(&results[scores_at(rows) + index * SCORES_BYTES..][..SCORES_BYTES]);
    out.push(Logprob { token, logprob: scores.logprob(Sampled::logit(sampled)) });
    out.extend(scores.best().map(|(token, logprob)| Logprob { token, logprob }));
}
