//! Tokens of a step, drawn by the CUDA object's sampler from logits on the device: what the CUDA engine does for the
//! rows that its step's own sampler leaves out, for all rows. One copy to the device, one back.

use super::OperatorKernels;
use crate::batch::{RowOutcome, StepBatch, StepOutput};
use crate::cuda::CHANGES_PER_ROW;
use crate::cuda::changes::Changes;
use crate::cuda::late::{LateRows, Sent, late_bytes, masks_at, result_bytes, scores_at, take};
use crate::cuda::sampling::{OnDevice, Source};
use crate::op_trace;
use crate::sampler::Sampler;
use pinion_cuda::{DRAW_BYTES, SCORED_BYTES, SCORES_BYTES, mask_bytes};
use pinion_ops::tensor::{TensorError, copy_to_f32};
use pinion_ops::tensor_kernels::{SampleTensors, TensorStream};
use tch::{Device, Kind, Tensor};

/// What the draws of a step are made with.
#[derive(Debug)]
pub(super) struct DeviceDraws {
    on: OnDevice,
    vocab: u32,
    changes: Changes,
    rows: LateRows,
    sources: Vec<Source>,
    /// What a step sends.
    sent: Vec<u8>,
    /// What comes back.
    results: Vec<u8>,
    /// A row of logits that the host samples.
    row: Vec<f32>,
}

impl DeviceDraws {
    pub(super) fn new(kernels: &OperatorKernels, vocab: u32, max_rows: u32) -> Self {
        Self {
            on: OnDevice {
                shaped: kernels.shaped_on_device,
                scored: kernels.scored_on_device,
                masked: kernels.masked_on_device,
            },
            vocab,
            changes: Changes::new(max_rows as usize * CHANGES_PER_ROW, vocab),
            rows: LateRows::new(vocab),
            sources: Vec::new(),
            sent: Vec::new(),
            results: Vec::new(),
            row: Vec::new(),
        }
    }

    /// Draws for the rows of a step that sample, from `logits` `[sampling rows, vocab]` on the device, which change.
    /// `host` draws what the kernel does not.
    pub(super) fn draw(
        &mut self,
        stream: &TensorStream,
        logits: &Tensor,
        host: &mut Sampler,
        batch: &StepBatch<'_>,
        out: &mut StepOutput,
    ) -> Result<(), TensorError> {
        let _range = op_trace::range(op_trace::SAMPLE);
        self.choose(batch);
        self.launch(stream, logits, batch)?;
        self.collect(logits, host, batch, out)
    }

    /// Where each row is sampled: all that the kernel takes are one launch.
    fn choose(&mut self, batch: &StepBatch<'_>) {
        self.changes.clear();
        self.sources.clear();
        for (index, row) in batch.rows.iter().enumerate() {
            let source = Source::of(row, index, batch, self.vocab, self.on, &mut self.changes);
            self.sources.push(match source {
                Source::Device(changes) => Source::Late { changes, is_scored: false, is_masked: false },
                other => other,
            });
        }
    }

    /// Leaves what the kernels say in `self.results`.
    fn launch(
        &mut self,
        stream: &TensorStream,
        logits: &Tensor,
        batch: &StepBatch<'_>,
    ) -> Result<(), TensorError> {
        let count = |is: fn(&Source) -> bool| self.sources.iter().filter(|source| is(source)).count();
        let late = count(|source| matches!(source, Source::Late { .. }));
        let masked = count(|source| matches!(source, Source::Late { is_masked: true, .. }));
        if late == 0 {
            return Ok(());
        }
        let changes_at = late_bytes(late, masked, self.vocab).next_multiple_of(16);
        self.sent.clear();
        self.sent.resize(changes_at + self.changes.bytes(), 0);
        let (rows, changes) = self.sent.split_at_mut(changes_at);
        self.changes.write(changes);
        let Sent { draws, scored, masks } = self.rows.write(batch, &mut self.sources, rows, late);
        let all = Tensor::f_from_slice(&self.sent)?.f_to_device(logits.device())?;
        let part = |begin: usize, bytes: usize| all.f_narrow(0, begin as i64, bytes as i64);
        let row_count = logits.size()[0] as usize;
        let bytes = result_bytes(row_count, scored);
        let results = Tensor::f_zeros([bytes as i64], (Kind::Uint8, logits.device()))?;
        let result = |begin: usize, bytes: usize| results.f_narrow(0, begin as i64, bytes as i64);
        if scored > 0 {
            let wanted = part(late * DRAW_BYTES, scored * SCORED_BYTES)?;
            stream.score(logits, &wanted, &result(scores_at(row_count), scored * SCORES_BYTES)?)?;
        }
        if draws > 0 {
            // Each lane's token is for a step that is queued behind this one; here none is.
            let lanes = batch.rows.iter().map(|row| i64::from(row.slot) + 1).max().unwrap_or(1);
            stream.sample(&SampleTensors {
                logits,
                draws: &part(0, draws * DRAW_BYTES)?,
                changes: &part(changes_at, self.changes.bytes())?,
                masks: &part(masks_at(late), masks * mask_bytes(self.vocab))?,
                sampled: &result(0, scores_at(row_count))?,
                lane_tokens: &Tensor::f_empty([lanes], (Kind::Int, logits.device()))?,
            })?;
        }
        self.results.resize(bytes, 0);
        Ok(results.f_to_device(Device::Cpu)?.f_copy_data_u8(&mut self.results, bytes)?)
    }

    fn collect(
        &mut self,
        logits: &Tensor,
        host: &mut Sampler,
        batch: &StepBatch<'_>,
        out: &mut StepOutput,
    ) -> Result<(), TensorError> {
        let row_count = logits.size()[0] as usize;
        let (mut logits_row, mut scored) = (0, 0..);
        for (index, (row, &source)) in batch.rows.iter().zip(&self.sources).enumerate() {
            match (source, &row.sample) {
                (Source::None, _) | (_, None) => {
                    out.push(RowOutcome::None);
                    continue;
                }
                (Source::Ended(outcome), _) => out.push(outcome),
                (Source::Host | Source::Device(_), Some(params)) => {
                    let own = logits.f_select(0, logits_row as i64)?.f_to_device(Device::Cpu)?;
                    copy_to_f32(&own, &mut self.row)?;
                    host.draw_row(&mut self.row, params, batch.shaping.shaping(index), out);
                }
                (Source::Late { is_scored, .. }, _) => {
                    let scored = is_scored.then(|| scored.next()).flatten();
                    take(&self.results, row_count, logits_row, scored, out);
                }
            }
            logits_row += 1;
        }
        Ok(())
    }
}
