//! Rows that are sampled behind the step's own sampler, which leaves them out: those whose logits are read before they
//! are changed, because the request wants logprobs, and those whose mask the host waits for while the device computes
//! their logits. Their launches are in no graph, so steps without such rows do not pay for them.

use super::forward::Forward;
use super::inputs::{Layout, aligned};
use super::sampling::{Source, draw};
use crate::{Logprob, MaskState, RowOutcome, SampleParams, StepBatch, StepOutput};
use pinion_cuda::{
    CHANGE_BYTES, CudaError, DRAW_BYTES, Draw, Pinned, SAMPLED_BYTES, SCORED_BYTES, SCORES_BYTES, Sample,
    Sampled, SampledState, Score, Scored, Scores, Stream, mask_bytes,
};

/// Offset of the scores behind the tokens of a step with this number of rows of logits.
pub(crate) fn scores_at(rows: usize) -> usize {
    aligned(rows * SAMPLED_BYTES)
}

/// Bytes of the results of a step, by its rows of logits and the scored ones among them.
pub(crate) fn result_bytes(rows: usize, scored: usize) -> usize {
    scores_at(rows) + scored * SCORES_BYTES
}

/// Bytes that late rows send, by their number and the masked ones among them: their draws, which of them are scored,
/// their masks.
pub(crate) fn late_bytes(rows: usize, masked: usize, vocab: u32) -> usize {
    masks_at(rows) + masked * mask_bytes(vocab)
}

pub(crate) fn masks_at(rows: usize) -> usize {
    aligned(rows * (DRAW_BYTES + SCORED_BYTES))
}

/// What of a step's late rows is on its way.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) draws: usize,
    pub(crate) scored: usize,
    pub(crate) masks: usize,
}

/// What the late rows of a step are made with.
#[derive(Debug)]
pub(crate) struct LateRows {
    vocab: u32,
    /// The mask of one row.
    mask_bits: Vec<u32>,
}

impl LateRows {
    pub(crate) fn new(vocab: u32) -> LateRows {
        LateRows { vocab, mask_bits: Vec::with_capacity(vocab as usize / 32 + 2) }
    }

    /// Queues the late rows of the step just queued, by way of `late`. Reads their masks, which may wait a little while
    /// the device works; a row whose mask has nothing to give becomes [`Source::Ended`]. Gives the number of scored
    /// rows.
    pub(super) fn queue(
        &mut self,
        stream: &Stream,
        forward: &Forward,
        batch: &StepBatch<'_>,
        sources: &mut [Source],
        late: &mut Pinned,
        layout: Layout,
    ) -> Result<usize, CudaError> {
        let late_count = sources.iter().filter(|source| matches!(source, Source::Late { .. })).count();
        if late_count == 0 {
            return Ok(0);
        }
        let sent = self.write(batch, sources, late.bytes_mut(), late_count);
        if sent.draws == 0 {
            return Ok(0);
        }
        let (memory, vocab) = (&forward.memory, self.vocab);
        let bytes = late_bytes(late_count, sent.masks, vocab);
        stream.to_device(memory.late, late, bytes)?;
        if sent.scored > 0 {
            stream.score(&Score {
                logits: memory.logits,
                scored: memory.late.part(late_count * DRAW_BYTES, sent.scored * SCORED_BYTES),
                scores: memory.sampled.part(scores_at(layout.rows), sent.scored * SCORES_BYTES),
                count: sent.scored as u32,
                rows: layout.rows as u32,
                vocab,
            })?;
        }
        let masks = memory.late.part(masks_at(late_count), sent.masks * mask_bytes(vocab));
        stream.sample(&Sample {
            logits: memory.logits,
            draws: memory.late.part(0, sent.draws * DRAW_BYTES),
            sampled: memory.sampled,
            lane_tokens: memory.lane_tokens,
            changes: Some((memory.changes, (memory.changes.bytes() / CHANGE_BYTES) as u32)),
            masks: Some((masks, sent.masks as u32)),
            rows: sent.draws as u32,
            logits_rows: layout.rows as u32,
            vocab,
            lanes: forward.lanes,
        })?;
        Ok(sent.scored)
    }

    /// Writes what the step's late rows send, each part where `late_count` rows have it.
    pub(crate) fn write(
        &mut self,
        batch: &StepBatch<'_>,
        sources: &mut [Source],
        late: &mut [u8],
        late_count: usize,
    ) -> Sent {
        let (rows, masks) = late.split_at_mut(masks_at(late_count));
        let (draws, scored) = rows.split_at_mut(late_count * DRAW_BYTES);
        let mask_bytes = mask_bytes(self.vocab);
        let (mut sent, mut logits_row) = (Sent::default(), 0);
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(params) = &row.sample else { continue };
            let own_row = logits_row;
            logits_row += 1;
            let Source::Late { changes, is_scored, is_masked } = sources[index] else { continue };
            let mut mask = None;
            if is_masked {
                if let Some(outcome) = read_mask(batch, index, params, &mut self.mask_bits) {
                    sources[index] = Source::Ended(outcome);
                    continue;
                }
                write_mask(&self.mask_bits, &mut masks[sent.masks * mask_bytes..][..mask_bytes]);
                mask = Some(sent.masks as u32);
                sent.masks += 1;
            }
            if is_scored {
                let best = params.logprobs.unwrap_or(0);
                Scored { row: own_row, best }
                    .write(&mut scored[sent.scored * SCORED_BYTES..][..SCORED_BYTES]);
                sent.scored += 1;
            }
            let draw = Draw { changes, row: own_row, is_scored, mask, ..draw(params, row.slot) };
            draw.write(&mut draws[sent.draws * DRAW_BYTES..][..DRAW_BYTES]);
            sent.draws += 1;
        }
        sent
    }
}

/// Reads a row's mask; if it has nothing to give, what becomes of the row.
fn read_mask(
    batch: &StepBatch<'_>,
    index: usize,
    params: &SampleParams,
    bits: &mut Vec<u32>,
) -> Option<RowOutcome> {
    let mask = batch.shaping.shaping(index).and_then(|shaping| shaping.mask)?;
    match mask.read(params.position, bits) {
        MaskState::Ready => None,
        MaskState::Complete => Some(RowOutcome::Complete),
        MaskState::Late => Some(RowOutcome::Late),
        MaskState::Failed => Some(RowOutcome::Unmasked),
    }
}

/// An id without a bit may not be drawn.
fn write_mask(bits: &[u32], to: &mut [u8]) {
    let words = bits.iter().copied().chain(std::iter::repeat(0));
    for (to, word) in to.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

/// Takes the outcome of the `row`-th of `rows` rows of logits from a step's results. A row that is scored is the
/// `scored`-th of these.
pub(crate) fn take(results: &[u8], rows: usize, row: usize, scored: Option<usize>, out: &mut StepOutput) {
    let sampled = &results[row * SAMPLED_BYTES..][..SAMPLED_BYTES];
    let state = Sampled::read(sampled);
    if let (SampledState::Token(token), Some(index)) = (state, scored) {
        let scores = Scores::read(&results[scores_at(rows) + index * SCORES_BYTES..][..SCORES_BYTES]);
        out.logprobs.push(Logprob { token, logprob: scores.logprob(Sampled::logit(sampled)) });
        out.logprobs.extend(scores.best().map(|(token, logprob)| Logprob { token, logprob }));
    }
    out.push(match state {
        SampledState::Token(token) => RowOutcome::Token(token),
        // The kernel writes one of the two for every row that is not skipped.
        SampledState::NonFinite | SampledState::None => RowOutcome::NonFinite,
    });
}
