//! What the host does of a step: rows that its sampler samples, and the scores of prompt tokens. Both bring logits
//! over, a row at a time, so such a step waits for its own result.

use super::engine::{CudaDecoder, gone};
use super::sampling::Source;
use crate::{Row, RowOutcome, Shaping, StepBatch, StepError, StepOutput};
use pinion_cuda::{CudaError, GEMV_ROWS_MAX};

impl CudaDecoder {
    /// Samples the host's rows of the step just queued, which it waits for, and gives their tokens to their lanes.
    pub(super) fn sample_on_host(
        &mut self,
        batch: &StepBatch<'_>,
        sources: &[Source],
        slot: usize,
        out: &mut StepOutput,
    ) -> Result<(), StepError> {
        out.clear();
        if !sources.contains(&Source::Host) {
            return Ok(());
        }
        self.wait(slot)?;
        let mut logits_row = 0;
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(params) = &row.sample else { continue };
            if sources[index] == Source::Host {
                self.load_logits(logits_row)?;
                let shaping = match batch.shaping.shaping(index) {
                    Some(shaping) if batch.is_ahead(row) && shaping.reads_output() => {
                        self.host_output.clear();
                        self.host_output.extend_from_slice(shaping.output);
                        let last = self.lane_token(row).map_err(gone)?;
                        self.host_output.push(last);
                        Some(Shaping { output: &self.host_output, ..shaping })
                    }
                    shaping => shaping,
                };
                self.sampler.draw_row(&mut self.host_row, params, shaping, out);
                if let Some(RowOutcome::Token(token)) = out.rows.last() {
                    self.give_lane(row, *token).map_err(gone)?;
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
        batch: &StepBatch<'_>,
        out: &mut StepOutput,
        broken: &mut Vec<usize>,
    ) -> Result<(), StepError> {
        let at_once = GEMV_ROWS_MAX.min(self.forward.lanes) as usize;
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(scored) = &row.scored else { continue };
            let range = row.scored_range();
            for begin in range.clone().step_by(at_once) {
                let len = at_once.min(range.end - begin);
                self.forward.score(&self.stream, begin, len as u32).map_err(gone)?;
                for offset in 0..len {
                    self.load_logits(offset)?;
                    let token = batch.successor(row, scored, begin + offset);
                    if !self.sampler.score_known(&self.host_row, token, scored.alternatives, out) {
                        broken.push(index);
                    }
                }
            }
            out.end_prompt_scores(index);
        }
        Ok(())
    }

    /// Brings one row of logits to the host.
    pub(super) fn load_logits(&mut self, row: usize) -> Result<(), StepError> {
        let bytes = self.info.vocab_size as usize * 4;
        let from = self.forward.memory.logits.part(row * bytes, bytes);
        self.stream.to_host(&mut self.host_logits, 0, from).map_err(gone)?;
        self.stream.synchronize().map_err(gone)?;
        let words = self.host_logits.bytes()[..bytes].chunks_exact(4);
        self.host_row.clear();
        self.host_row.extend(words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])));
        Ok(())
    }

    /// What the lane of a row that the step's sampler skipped got in the step before.
    fn lane_token(&mut self, row: &Row) -> Result<u32, CudaError> {
        let lane = self.forward.memory.lane_tokens.part(4 * row.slot as usize, 4);
        self.stream.to_host(&mut self.host_token, 0, lane)?;
        self.stream.synchronize()?;
        let bytes = self.host_token.bytes();
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn give_lane(&mut self, row: &Row, token: u32) -> Result<(), CudaError> {
        self.host_token.bytes_mut()[..4].copy_from_slice(&token.to_le_bytes());
        let lane = self.forward.memory.lane_tokens.part(4 * row.slot as usize, 4);
        self.stream.to_device(lane, &self.host_token, 4)?;
        // The next row uses the same four bytes.
        self.stream.synchronize()
    }
}
