//! Where a row is sampled: on the device, or on the host from the row's logits.

use super::changes::Changes;
use crate::sampler::uniform;
use crate::{Row, RowOutcome, SampleParams, StepBatch};
use pinion_cuda::{DRAW_BYTES, Draw, DrawMode, RowChanges, SAMPLE_VOCAB_MAX};

/// Where a row's token comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Source {
    /// The row asks for none.
    None,
    /// The sampler kernel, after what the request does to its logits.
    Device(RowChanges),
    /// The same kernel, launched behind the step's own.
    Late {
        /// What the request does to its logits.
        changes: RowChanges,
        /// The request wants logprobs.
        is_scored: bool,
        /// A grammar says what may follow.
        is_masked: bool,
    },
    /// Nowhere: its mask has none to give.
    Ended(RowOutcome),
    /// The host's sampler: the kernel cannot make the row's changes, or is not to do what it could.
    Host,
}

/// What the device does of what the host's sampler could do too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnDevice {
    pub(crate) shaped: bool,
    pub(crate) scored: bool,
    pub(crate) masked: bool,
}

impl Source {
    /// Where the row's token comes from; its changes join those of the step.
    pub(crate) fn of(
        row: &Row,
        index: usize,
        batch: &StepBatch<'_>,
        vocab: u32,
        on: OnDevice,
        changes: &mut Changes,
    ) -> Source {
        let Some(params) = &row.sample else { return Source::None };
        let is_scored = params.logprobs.is_some();
        if is_scored && !on.scored || vocab > SAMPLE_VOCAB_MAX {
            return Source::Host;
        }
        let shaping = batch.shaping.shaping(index);
        let is_masked = shaping.is_some_and(|shaping| shaping.mask.is_some());
        if is_masked && !on.masked {
            return Source::Host;
        }
        let changes = match shaping {
            None => Some(RowChanges::NONE),
            Some(shaping) if on.shaped => changes.add(&shaping, batch.is_ahead(row)),
            Some(_) => None,
        };
        match changes {
            None => Source::Host,
            Some(changes) if is_scored || is_masked => Source::Late { changes, is_scored, is_masked },
            Some(changes) => Source::Device(changes),
        }
    }
}

/// Writes the draw of each row of logits; rows past those of the batch are skipped.
pub(super) fn write_draws(batch: &StepBatch<'_>, sources: &[Source], rows: usize, bytes: &mut [u8]) {
    let sampling = batch.rows.iter().zip(sources).filter_map(|(row, &source)| {
        let params = row.sample.as_ref()?;
        Some(match source {
            Source::Device(changes) => Draw { changes, ..draw(params, row.slot) },
            Source::None | Source::Late { .. } | Source::Ended(_) | Source::Host => SKIP,
        })
    });
    let padded = sampling.chain(std::iter::repeat(SKIP)).take(rows);
    for ((index, draw), to) in padded.enumerate().zip(bytes.chunks_exact_mut(DRAW_BYTES)) {
        Draw { row: index as u32, ..draw }.write(to);
    }
}

const SKIP: Draw = Draw {
    draw: 0.0,
    inverse_temperature: 0.0,
    top_p: 1.0,
    min_p: 0.0,
    top_k: 0,
    lane: 0,
    mode: DrawMode::Skip,
    changes: RowChanges::NONE,
    row: 0,
    is_scored: false,
    mask: None,
};

/// A draw whose row and changes are still to be said.
pub(super) fn draw(params: &SampleParams, lane: u32) -> Draw {
    if params.is_greedy() {
        return Draw { lane, mode: DrawMode::Greedy, ..SKIP };
    }
    Draw {
        draw: uniform(params.seed, params.position),
        inverse_temperature: 1.0 / params.temperature,
        top_p: params.top_p,
        min_p: params.min_p,
        top_k: params.top_k,
        lane,
        mode: DrawMode::Draw,
        ..SKIP
    }
}
