//! What a step sends to the device: one run of bytes in pinned memory, copied at once.
//!
//! The places of the arrays follow from the padded sizes alone, those of the tokens and of what attention has of them
//! from the number of tokens, so a captured graph finds them where they were when it was captured. Block tables live on
//! the device by lane; [`Tables`] remembers what is there and sends what differs.

use crate::{Row, StepBatch};
use pinion_cuda::{DRAW_BYTES, NO_LANE, NO_QUERY, PREFILL_TILE};

/// Rows of at least this number of query tokens go to the tensor-core kernel.
pub(crate) const TILED_QUERY_MIN: u32 = 16;

/// Padded sizes of a step, from which every offset follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// Query tokens.
    pub(super) tokens: usize,
    /// Rows of logits.
    pub(super) rows: usize,
}

/// Each array starts at a multiple of this.
const ALIGNMENT: usize = 16;

pub(super) fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

impl Layout {
    /// Four arrays of a word a token: tokens, positions, lanes, and the single queries.
    pub(super) fn token_array(&self, index: usize) -> usize {
        index * aligned(4 * self.tokens)
    }

    /// Two words a tile. Every tile but a row's last holds [`PREFILL_TILE`] tokens, and no row without
    /// [`TILED_QUERY_MIN`] has one.
    pub(super) fn tiles(&self) -> usize {
        self.token_array(4)
    }

    pub(super) fn tiles_max(&self) -> usize {
        self.tokens / PREFILL_TILE as usize + self.tokens / TILED_QUERY_MIN as usize + 1
    }

    /// A word a row: the token whose logits it is.
    pub(super) fn sampled(&self) -> usize {
        self.tiles() + aligned(8 * self.tiles_max())
    }

    pub(super) fn draws(&self) -> usize {
        self.sampled() + aligned(4 * self.rows)
    }

    /// Three words a change of a block table; what follows has no fixed length.
    pub(super) fn updates(&self) -> usize {
        self.draws() + self.rows * DRAW_BYTES
    }

    /// Bytes of the largest step with this number of logit edits.
    pub(super) fn bytes(&self, updates: usize) -> usize {
        self.updates() + 12 * updates
    }
}

/// Writes words into a step's bytes.
pub(super) fn put(bytes: &mut [u8], at: usize, index: usize, word: u32) {
    let at = at + 4 * index;
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

/// What a step's arrays came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Filled {
    /// Changes of block tables.
    pub(super) updates: u32,
    /// Query tokens that go one at a time.
    pub(super) singles: u32,
    /// Tiles of prompt chunks.
    pub(super) tiles: u32,
}

/// Fills the arrays of a checked batch, but for the draws. Padding has no lane.
pub(super) fn fill(
    batch: &StepBatch<'_>,
    layout: Layout,
    tiled: bool,
    tables: &mut Tables,
    bytes: &mut [u8],
) -> Filled {
    let mut filled = Filled::default();
    let [tokens, positions, lanes, singles] = [0, 1, 2, 3].map(|index| layout.token_array(index));
    let (mut rows, mut tiles) = (0, 0);
    for row in batch.rows {
        let range = row.query_range();
        for index in range.clone() {
            put(bytes, tokens, index, batch.tokens[index]);
            put(bytes, positions, index, batch.positions[index]);
            put(bytes, lanes, index, row.slot);
        }
        if tiled && row.query_len >= TILED_QUERY_MIN {
            for first in range.clone().step_by(PREFILL_TILE as usize) {
                put(bytes, layout.tiles(), 2 * tiles, first as u32);
                put(bytes, layout.tiles(), 2 * tiles + 1, PREFILL_TILE.min((range.end - first) as u32));
                tiles += 1;
            }
        } else {
            for index in range.clone() {
                put(bytes, singles, filled.singles as usize, index as u32);
                filled.singles += 1;
            }
        }
        if row.sample.is_some() {
            put(bytes, layout.sampled(), rows, range.end as u32 - 1);
            rows += 1;
        }
        filled.updates = tables.update(row, &batch.blocks[row.block_range()], layout, filled.updates, bytes);
    }
    for index in batch.tokens.len()..layout.tokens {
        put(bytes, tokens, index, 0);
        put(bytes, positions, index, 0);
        put(bytes, lanes, index, NO_LANE);
    }
    for row in rows..layout.rows {
        put(bytes, layout.sampled(), row, 0);
    }
    filled.tiles = tiles as u32;
    filled
}

/// Appends to both lists of attention's what does nothing, until they are as long as `padded` says.
pub(super) fn pad_lists(layout: Layout, filled: Filled, padded: Filled, bytes: &mut [u8]) {
    for index in filled.singles..padded.singles {
        put(bytes, layout.token_array(3), index as usize, NO_QUERY);
    }
    for word in 2 * filled.tiles..2 * padded.tiles {
        put(bytes, layout.tiles(), word as usize, 0);
    }
}

/// One change, in the table of no lane.
pub(super) fn pad_updates(layout: Layout, bytes: &mut [u8]) {
    for (index, word) in [NO_LANE, 0, 0].into_iter().enumerate() {
        put(bytes, layout.updates(), index, word);
    }
}

/// What the device's block tables hold, by lane.
#[derive(Debug)]
pub(super) struct Tables {
    stride: usize,
    held: Vec<u32>,
}

/// No block has this id, so the first use of an entry sends it.
const UNKNOWN: u32 = u32::MAX;

impl Tables {
    pub(super) fn new(lanes: u32, stride: usize) -> Tables {
        Tables { stride, held: vec![UNKNOWN; lanes as usize * stride] }
    }

    /// Forgets what the device holds: a step that was to change it may not have run.
    pub(super) fn forget(&mut self) {
        self.held.fill(UNKNOWN);
    }

    /// Writes the entries of one row's table that differ, after `count` others; gives the new count.
    fn update(&mut self, row: &Row, blocks: &[u32], layout: Layout, mut count: u32, bytes: &mut [u8]) -> u32 {
        let first = row.slot as usize * self.stride;
        let held = &mut self.held[first..first + blocks.len().min(self.stride)];
        for (index, (held, &block)) in held.iter_mut().zip(blocks).enumerate() {
            if *held != block {
                *held = block;
                for (word, value) in [row.slot, index as u32, block].into_iter().enumerate() {
                    put(bytes, layout.updates(), 3 * count as usize + word, value);
                }
                count += 1;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SampleParams, Unshaped, WindowTables};

    fn row(slot: u32, query_start: u32, query_len: u32, blocks_start: u32, blocks_len: u32) -> Row {
        let sample = Some(SampleParams::GREEDY);
        Row {
            slot,
            query_start,
            query_len,
            context_len: query_len,
            prompt_len: 1,
            blocks_start,
            blocks_len,
            sample,
            scored: None,
        }
    }

    fn word(bytes: &[u8], at: usize, index: usize) -> u32 {
        let at = at + 4 * index;
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }

    #[test]
    fn arrays_do_not_overlap_and_padding_has_no_lane() {
        let layout = Layout { tokens: 96, rows: 4 };
        let tokens: Vec<u32> = (100..171).collect();
        let positions: Vec<u32> = (0..70).chain([0]).collect();
        let blocks = [7, 8, 9];
        let rows = [row(2, 0, 70, 0, 2), row(0, 70, 1, 2, 1)];
        let batch = StepBatch {
            tokens: &tokens,
            positions: &positions,
            rows: &rows,
            blocks: &blocks,
            copies: &[],
            windows: WindowTables::NONE,
            shaping: &Unshaped,
        };
        let mut bytes = vec![0xaa; layout.bytes(3)];
        let filled = fill(&batch, layout, true, &mut Tables::new(3, 5), &mut bytes);
        assert_eq!(filled, Filled { updates: 3, singles: 1, tiles: 2 });
        for index in 0..96 {
            let (token, lane) = match index {
                0..70 => (100 + index, 2),
                70 => (170, 0),
                _ => (0, NO_LANE),
            };
            assert_eq!(word(&bytes, layout.token_array(0), index as usize), token);
            assert_eq!(word(&bytes, layout.token_array(2), index as usize), lane);
        }
        let words = |at: usize, count: usize| (0..count).map(|i| word(&bytes, at, i)).collect::<Vec<_>>();
        assert_eq!(words(layout.sampled(), 4), [69, 70, 0, 0]);
        assert_eq!(words(layout.tiles(), 4), [0, 64, 64, 6]);
        assert_eq!(words(layout.updates(), 9), [2, 0, 7, 2, 1, 8, 0, 0, 9]);
        assert_eq!(word(&bytes, layout.token_array(3), 0), 70);
        pad_lists(layout, filled, Filled { singles: 3, tiles: 4, ..filled }, &mut bytes);
        let words = |at: usize, count: usize| (0..count).map(|i| word(&bytes, at, i)).collect::<Vec<_>>();
        assert_eq!(words(layout.token_array(3), 4), [70, NO_QUERY, NO_QUERY, 0xaaaa_aaaa]);
        assert_eq!(words(layout.tiles(), 8), [0, 64, 64, 6, 0, 0, 0, 0]);
        assert_eq!(words(layout.sampled(), 4), [69, 70, 0, 0], "nothing is written over");
    }

    #[test]
    fn only_changed_entries_are_sent() {
        let layout = Layout { tokens: 2, rows: 2 };
        let mut tables = Tables::new(2, 4);
        let mut bytes = vec![0; layout.bytes(8)];
        let mut sent = |slot: u32, blocks: &[u32], tables: &mut Tables| {
            let rows = [row(slot, 0, 1, 0, blocks.len() as u32)];
            let batch = StepBatch {
                tokens: &[1],
                positions: &[0],
                rows: &rows,
                blocks,
                copies: &[],
                windows: WindowTables::NONE,
                shaping: &Unshaped,
            };
            fill(&batch, layout, false, tables, &mut bytes).updates
        };
        assert_eq!(sent(0, &[5, 6], &mut tables), 2);
        assert_eq!(sent(0, &[5, 6], &mut tables), 0);
        assert_eq!(sent(0, &[5, 6, 7], &mut tables), 1);
        assert_eq!(sent(1, &[5, 6, 7], &mut tables), 3);
        // Another sequence in the lane: a shared prefix stays.
        assert_eq!(sent(0, &[5, 9], &mut tables), 1);
        assert_eq!(sent(0, &[5, 6, 7], &mut tables), 1);
        tables.forget();
        assert_eq!(sent(0, &[5, 6, 7], &mut tables), 3);
    }

    #[test]
    fn tiles_always_fit() {
        for tokens in 1..2000usize {
            let layout = Layout { tokens, rows: 1 };
            // The worst case is rows just long enough to be tiled, or one token longer than whole tiles.
            for query in [16usize, 17, 65, 129] {
                let tiles = tokens / query * query.div_ceil(64) + (tokens % query).div_ceil(64);
                assert!(tiles <= layout.tiles_max(), "{tokens} tokens in rows of {query}");
            }
        }
    }
}
