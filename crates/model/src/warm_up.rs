//! Representative steps before the first request: they fill oneDNN's primitive cache, the allocator's free lists and
//! the sampler's buffers.

use crate::{Model, OwnedBatch, SampleParams, StepError, StepOutput, WarmUp};

/// Decode batches are warmed at these sizes and at the largest.
const ROW_COUNTS: [u32; 8] = [1, 2, 3, 4, 8, 16, 32, 64];

/// Prefill lengths warmed, besides the largest.
const QUERY_LENGTHS: [u32; 2] = [16, 64];

/// A batch of `row_count` rows that share the pool's blocks: only shapes matter here, not values.
fn step(
    model: &mut dyn Model,
    row_count: u32,
    query_len: u32,
    out: &mut StepOutput,
) -> Result<(), StepError> {
    let info = model.info().clone();
    let row_blocks = query_len.div_ceil(info.block_size);
    let blocks_max = info.window.map_or(info.block_count, |window| window.blocks.min(info.block_count));
    if row_count == 0 || query_len == 0 || query_len > info.max_context || row_blocks > blocks_max {
        return Ok(());
    }
    let (tokens, blocks) = (vec![0; query_len as usize], (0..row_blocks).collect::<Vec<u32>>());
    let mut batch = OwnedBatch::default();
    for slot in 0..row_count {
        let sample = SampleParams { temperature: 1.0, top_k: 20, top_p: 0.9, ..SampleParams::GREEDY };
        batch.push(slot, 0, &tokens, &blocks).sample = info.vector_width.is_none().then_some(sample);
        if info.window.is_some() {
            batch.push_windows(&blocks);
        }
    }
    model.step(&batch.as_step(), out)
}

/// Decode shapes up to `max_rows`, then prefill shapes up to `max_tokens`.
pub(crate) fn run_warm_up(model: &mut dyn Model, shapes: &WarmUp) -> Result<(), StepError> {
    let mut out = StepOutput::with_capacity(shapes.max_rows as usize);
    let rows = ROW_COUNTS.into_iter().filter(|&count| count < shapes.max_rows).chain([shapes.max_rows]);
    for row_count in rows {
        step(model, row_count, 1, &mut out)?;
    }
    let max_tokens = shapes.max_tokens.min(model.info().max_context);
    for query_len in QUERY_LENGTHS.into_iter().filter(|&len| len < max_tokens).chain([max_tokens]) {
        step(model, 1, query_len, &mut out)?;
    }
    Ok(())
}
