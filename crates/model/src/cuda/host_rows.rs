//! What the host does of a step: rows that its sampler samples, and the scores of prompt tokens. Both bring logits
//! over, a row at a time, so such a step waits for its own result.

use super::engine::gone;
use super::forward::Forward;
use super::memory::Memory;
use super::sampling::Source;
use crate::sampler::Sampler;
use crate::{Row, RowOutcome, Shaping, StepBatch, StepError, StepOutput};
use pinion_cuda::{CudaError, Device, GEMV_ROWS_MAX, Pinned, Stream};

/// The host's sampler, and what it brings over for it.
#[derive(Debug)]
pub(super) struct HostRows {
    sampler: Sampler,
    /// A row of logits: as the device sends it, and as numbers.
    sent: Pinned,
    row: Vec<f32>,
    /// The token of a lane.
    token: Pinned,
    /// The output of a row, with the token that it stands on.
    output: Vec<u32>,
}

impl HostRows {
    pub(super) fn new(device: &Device, vocab: u32, max_context: u32) -> Result<HostRows, CudaError> {
        Ok(HostRows {
            sampler: Sampler::new(vocab as usize),
            sent: device.pinned(vocab as usize * 4)?,
            row: Vec::with_capacity(vocab as usize),
            token: device.pinned(4)?,
            output: Vec::with_capacity(max_context as usize),
        })
    }

    /// Samples the host's rows of a step that has ended, and gives their tokens to their lanes.
    pub(super) fn sample(
        &mut self,
        stream: &Stream,
        memory: &Memory,
        batch: &StepBatch<'_>,
        sources: &[Source],
        out: &mut StepOutput,
    ) -> Result<(), StepError> {
        let mut logits_row = 0;
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(params) = &row.sample else { continue };
            if sources[index] == Source::Host {
                self.logits(stream, memory, logits_row)?;
                let shaping = match batch.shaping.shaping(index) {
                    Some(shaping) if batch.is_ahead(row) && shaping.reads_output() => {
                        self.output.clear();
                        self.output.extend_from_slice(shaping.output);
                        let last = self.lane_token(stream, memory, row).map_err(gone)?;
                        self.output.push(last);
                        Some(Shaping { output: &self.output, ..shaping })
                    }
                    shaping => shaping,
                };
                self.sampler.draw_row(&mut self.row, params, shaping, out);
                if let Some(RowOutcome::Token(token)) = out.rows.last() {
                    self.give_lane(stream, memory, row, *token).map_err(gone)?;
                }
            }
            logits_row += 1;
        }
        Ok(())
    }

    /// Scores the prompt tokens of the rows that ask, a few at a time: so few that no algorithm has to be chosen for
    /// them.
    pub(super) fn score_prompts(
        &mut self,
        stream: &Stream,
        forward: &Forward,
        batch: &StepBatch<'_>,
        out: &mut StepOutput,
        broken: &mut Vec<usize>,
    ) -> Result<(), StepError> {
        let at_once = GEMV_ROWS_MAX.min(forward.lanes) as usize;
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(scored) = &row.scored else { continue };
            let range = row.scored_range();
            for begin in range.clone().step_by(at_once) {
                let len = at_once.min(range.end - begin);
                forward.score(stream, begin, len as u32).map_err(gone)?;
                for offset in 0..len {
                    self.logits(stream, &forward.memory, offset)?;
                    let token = batch.successor(row, scored, begin + offset);
                    if !self.sampler.score_known(&self.row, token, scored.alternatives, out) {
                        broken.push(index);
                    }
                }
            }
            out.end_prompt_scores(index);
        }
        Ok(())
    }

    /// Brings one row of logits to the host.
    pub(super) fn logits(
        &mut self,
        stream: &Stream,
        memory: &Memory,
        row: usize,
    ) -> Result<&[f32], StepError> {
        let bytes = self.sent.bytes().len();
        let from = memory.logits.part(row * bytes, bytes);
        stream.to_host(&mut self.sent, 0, from).map_err(gone)?;
        stream.synchronize().map_err(gone)?;
        let words = self.sent.bytes().chunks_exact(4);
        self.row.clear();
        self.row.extend(words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])));
        Ok(&self.row)
    }

    /// What the lane of a row that the step's sampler skipped got in the step before.
    fn lane_token(&mut self, stream: &Stream, memory: &Memory, row: &Row) -> Result<u32, CudaError> {
        let lane = memory.lane_tokens.part(4 * row.slot as usize, 4);
        stream.to_host(&mut self.token, 0, lane)?;
        stream.synchronize()?;
        let bytes = self.token.bytes();
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn give_lane(
        &mut self,
        stream: &Stream,
        memory: &Memory,
        row: &Row,
        token: u32,
    ) -> Result<(), CudaError> {
        self.token.bytes_mut()[..4].copy_from_slice(&token.to_le_bytes());
        let lane = memory.lane_tokens.part(4 * row.slot as usize, 4);
        stream.to_device(lane, &self.token, 4)?;
        // The next row uses the same four bytes.
        stream.synchronize()
    }
}
