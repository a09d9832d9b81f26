//! A batch that owns what it names, to be handed to another thread or to be built row by row. Its buffers are used
//! again and keep their sizes.

use crate::{
    BlockCopy, FUTURE_TOKEN, ModelInfo, Row, RowShaping, SampleParams, Shaping, StepBatch, TokenMask, WarmUp,
    WindowTables,
};
use std::ops::Range;
use std::sync::Arc;

/// Most entries of a list that get room before the first step. A longer one costs reallocations until it has its size.
const RESERVED_MAX: usize = 1 << 22;

/// See the module's head.
#[derive(Debug, Default)]
pub struct OwnedBatch {
    pub(crate) tokens: Vec<u32>,
    positions: Vec<u32>,
    pub(crate) rows: Vec<Row>,
    blocks: Vec<u32>,
    copies: Vec<BlockCopy>,
    window_blocks: Vec<u32>,
    window_copies: Vec<BlockCopy>,
    /// In the order of the rows.
    shapings: Vec<OwnedShaping>,
    /// The lists of ids of all shapings.
    ids: Vec<u32>,
    biases: Vec<(u32, f32)>,
}

/// A [`Shaping`] with ranges for its lists.
#[derive(Debug)]
struct OwnedShaping {
    row: usize,
    prompt: Range<usize>,
    output: Range<usize>,
    bias: Range<usize>,
    banned_ids: Range<usize>,
    banned_ends: Range<usize>,
    repetition_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
    mask: Option<Arc<dyn TokenMask>>,
}

/// Appends `items` and gives where they stand.
fn append<T: Copy>(list: &mut Vec<T>, items: &[T]) -> Range<usize> {
    let start = list.len();
    list.extend_from_slice(items);
    start..list.len()
}

impl OwnedBatch {
    /// Appends a row: `tokens` from position `start` of their sequence on, whose cache lies in `blocks`. The row, which
    /// the caller may change, is all prompt and draws the likeliest token.
    pub fn push(&mut self, slot: u32, start: u32, tokens: &[u32], blocks: &[u32]) -> &mut Row {
        let (query_start, query_len) = (self.tokens.len() as u32, tokens.len() as u32);
        let (blocks_start, context_len) = (self.blocks.len() as u32, start + query_len);
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(start..context_len);
        self.blocks.extend_from_slice(blocks);
        self.rows.push(Row {
            slot,
            query_start,
            query_len,
            context_len,
            prompt_len: context_len,
            blocks_start,
            blocks_len: blocks.len() as u32,
            sample: Some(SampleParams::GREEDY),
            scored: None,
        });
        self.rows.last_mut().expect("a row was pushed")
    }

    /// The window blocks of the last row's blocks, in a model that keeps only the windows of some layers.
    pub fn push_windows(&mut self, window_blocks: &[u32]) {
        self.window_blocks.extend_from_slice(window_blocks);
    }

    /// Makes room for the largest batch.
    pub(crate) fn reserve(&mut self, shapes: &WarmUp, info: &ModelInfo) {
        let (rows, tokens) = (shapes.max_rows as usize, shapes.max_tokens as usize);
        let row_blocks = info.max_context.div_ceil(info.block_size).min(info.block_count) as usize;
        let pool_tokens = info.block_count as usize * info.block_size as usize;
        self.tokens.reserve(tokens);
        self.positions.reserve(tokens);
        self.rows.reserve(rows);
        self.copies.reserve(rows);
        self.shapings.reserve(rows);
        self.blocks.reserve(rows.saturating_mul(row_blocks).min(RESERVED_MAX));
        if info.window.is_some() {
            self.window_blocks.reserve(rows.saturating_mul(row_blocks).min(RESERVED_MAX));
            self.window_copies.reserve(rows);
        }
        // The last of a row's tokens may stand there before it is in the pool.
        self.ids.reserve((pool_tokens + rows).min(RESERVED_MAX));
    }

    pub(crate) fn copy_from(&mut self, batch: &StepBatch<'_>) {
        self.tokens.clear();
        self.tokens.extend_from_slice(batch.tokens);
        self.positions.clear();
        self.positions.extend_from_slice(batch.positions);
        self.rows.clear();
        self.rows.extend_from_slice(batch.rows);
        self.blocks.clear();
        self.blocks.extend_from_slice(batch.blocks);
        self.copies.clear();
        self.copies.extend_from_slice(batch.copies);
        self.window_blocks.clear();
        self.window_blocks.extend_from_slice(batch.windows.blocks);
        self.window_copies.clear();
        self.window_copies.extend_from_slice(batch.windows.copies);
        self.shapings.clear();
        self.ids.clear();
        self.biases.clear();
        for (index, row) in batch.rows.iter().enumerate().filter(|(_, row)| row.sample.is_some()) {
            if let Some(shaping) = batch.shaping.shaping(index) {
                self.push_shaping(index, &shaping, batch.is_ahead(row));
            }
        }
    }

    /// Puts the tokens, by lane, that the step before drew where rows stand on them: behind the output of those rows,
    /// too.
    pub(crate) fn resolve(&mut self, drawn: impl Fn(u32) -> u32) {
        for (index, row) in self.rows.iter().enumerate() {
            let last = (row.query_start + row.query_len).saturating_sub(1) as usize;
            let Some(token) = self.tokens.get_mut(last).filter(|token| **token == FUTURE_TOKEN) else {
                continue;
            };
            *token = drawn(row.slot);
            if let Ok(found) = self.shapings.binary_search_by_key(&index, |shaping| shaping.row) {
                // `push_shaping` kept its place.
                self.ids[self.shapings[found].output.end - 1] = *token;
            }
        }
    }

    fn push_shaping(&mut self, row: usize, shaping: &Shaping<'_>, is_ahead: bool) {
        // Every field by name: what is added to a shaping must be copied too.
        let &Shaping {
            prompt,
            output,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            bias,
            banned_ends,
            banned_ids,
            mask,
        } = shaping;
        let mut output = append(&mut self.ids, output);
        if is_ahead {
            output.end = append(&mut self.ids, &[FUTURE_TOKEN]).end;
        }
        self.shapings.push(OwnedShaping {
            row,
            prompt: append(&mut self.ids, prompt),
            output,
            bias: append(&mut self.biases, bias),
            banned_ids: append(&mut self.ids, banned_ids),
            banned_ends: append(&mut self.ids, banned_ends),
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            mask: mask.cloned(),
        });
    }

    /// The batch as a model takes it.
    pub fn as_step(&self) -> StepBatch<'_> {
        StepBatch {
            tokens: &self.tokens,
            positions: &self.positions,
            rows: &self.rows,
            blocks: &self.blocks,
            copies: &self.copies,
            windows: WindowTables { blocks: &self.window_blocks, copies: &self.window_copies },
            shaping: self,
        }
    }
}

impl RowShaping for OwnedBatch {
    fn shaping(&self, row: usize) -> Option<Shaping<'_>> {
        let found = self.shapings.binary_search_by_key(&row, |shaping| shaping.row).ok()?;
        let owned = &self.shapings[found];
        Some(Shaping {
            prompt: &self.ids[owned.prompt.clone()],
            output: &self.ids[owned.output.clone()],
            repetition_penalty: owned.repetition_penalty,
            frequency_penalty: owned.frequency_penalty,
            presence_penalty: owned.presence_penalty,
            bias: &self.biases[owned.bias.clone()],
            banned_ends: &self.ids[owned.banned_ends.clone()],
            banned_ids: &self.ids[owned.banned_ids.clone()],
            mask: owned.mask.as_ref(),
        })
    }
}
