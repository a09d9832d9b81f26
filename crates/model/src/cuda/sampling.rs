//! Who samples a row: the device, or the host with the row's logits.

use crate::sampler::uniform;
use crate::{Row, SampleParams, StepBatch};
use pinion_ops::cuda::{DRAW_BYTES, Draw, DrawMode, SAMPLE_VOCAB_MAX};

/// Where a row's token comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The row asks for none.
    None,
    /// The sampler kernel.
    Device,
    /// The host's sampler: the request changes its logits, or wants them told.
    Host,
}

impl Source {
    pub(super) fn of(row: &Row, index: usize, batch: &StepBatch<'_>, vocab: u32) -> Source {
        match &row.sample {
            None => Source::None,
            Some(params) if params.logprobs.is_some() || vocab > SAMPLE_VOCAB_MAX => Source::Host,
            Some(_) if batch.shaping.shaping(index).is_some() => Source::Host,
            Some(_) => Source::Device,
        }
    }
}

/// Writes the draw of each row of logits; rows past those of the batch are skipped.
pub(super) fn write_draws(batch: &StepBatch<'_>, sources: &[Source], rows: usize, bytes: &mut [u8]) {
    let sampling = batch.rows.iter().zip(sources).filter_map(|(row, &source)| {
        let params = row.sample.as_ref()?;
        Some(if source == Source::Device { draw(params, row.slot) } else { SKIP })
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
    }
}
