//! Who samples a row: the device, or the host with the row's logits.

use super::changes::Changes;
use crate::sampler::uniform;
use crate::{Row, SampleParams, StepBatch};
use pinion_ops::cuda::{DRAW_BYTES, Draw, DrawMode, RowChanges, SAMPLE_VOCAB_MAX};

/// Where a row's token comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Source {
    /// The row asks for none.
    None,
    /// The sampler kernel, after what the request does to its logits.
    Device(RowChanges),
    /// The host's sampler: the request wants logprobs, a grammar says what may follow, or the kernel cannot make its changes.
    Host,
}

impl Source {
    /// Where the row's token comes from; its changes join those of the step. Without `changes` the host makes them.
    pub(super) fn of(
        row: &Row,
        index: usize,
        batch: &StepBatch<'_>,
        vocab: u32,
        changes: Option<&mut Changes>,
    ) -> Source {
        let Some(params) = &row.sample else { return Source::None };
        if params.logprobs.is_some() || vocab > SAMPLE_VOCAB_MAX {
            return Source::Host;
        }
        match (batch.shaping.shaping(index), changes) {
            (None, _) => Source::Device(RowChanges::NONE),
            (Some(shaping), Some(changes)) if shaping.mask.is_none() => {
                changes.add(&shaping, batch.is_ahead(row)).map_or(Source::Host, Source::Device)
            }
            (Some(_), _) => Source::Host,
        }
    }
}

/// Writes the draw of each row of logits; rows past those of the batch are skipped.
pub(super) fn write_draws(batch: &StepBatch<'_>, sources: &[Source], rows: usize, bytes: &mut [u8]) {
    let sampling = batch.rows.iter().zip(sources).filter_map(|(row, &source)| {
        let params = row.sample.as_ref()?;
        Some(match source {
            Source::Device(changes) => Draw { changes, ..draw(params, row.slot) },
            Source::None | Source::Host => SKIP,
        })
    });
    let padded = sampling.chain(std::iter::repeat(SKIP)).take(rows);
    for (draw, to) in padded.zip(bytes.chunks_exact_mut(DRAW_BYTES)) {
        draw.write(to);
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
};

fn draw(params: &SampleParams, lane: u32) -> Draw {
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
