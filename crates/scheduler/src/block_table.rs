//! One sequence's KV blocks, and which of them the prefix cache holds.

use crate::kv::{BlockPool, Prefix, blocks_for};
use crate::plan::BlockCopy;
use crate::window_table::WindowTable;
use pinion_protocol::WindowKv;

/// A block from the prefix cache whose beginning is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tail {
    block: u32,
    /// Tokens to copy, at least 1.
    pub(crate) tokens: u32,
}

/// What a sequence that starts has to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Copies {
    /// The beginning of a block.
    pub(crate) block: Option<BlockCopy>,
    /// The same of its window block.
    pub(crate) window: Option<BlockCopy>,
}

/// The blocks in the order of the tokens. The table has its final capacity from the start, so that it never
/// reallocates.
#[derive(Debug, Clone)]
pub(crate) struct BlockTable {
    block_size: u32,
    blocks: Vec<u32>,
    /// Number of leading `blocks` whose tokens are in the prefix cache, or were when they were looked up or computed.
    registered: u32,
    /// Where those end in it.
    prefix: Option<Prefix>,
    /// The block that the beginning of the first own block was copied from, and its contents then.
    copied_from: Option<(u32, u64)>,
    windows: WindowTable,
}

impl BlockTable {
    /// An empty table for at most `tokens_max` tokens. `window`: what layers with a window keep, if not all.
    pub(crate) fn new(block_size: u32, tokens_max: u32, window: Option<WindowKv>) -> BlockTable {
        let blocks = Vec::with_capacity(blocks_for(tokens_max, block_size) as usize);
        let windows = WindowTable::new(window, block_size, tokens_max);
        BlockTable { block_size, blocks, registered: 0, prefix: None, copied_from: None, windows }
    }

    pub(crate) fn windows(&self) -> &WindowTable {
        &self.windows
    }

    /// The window block of each block; empty if every layer keeps all KV.
    pub(crate) fn window_entries(&self) -> &[u32] {
        self.windows.entries(self.blocks.len())
    }

    pub(crate) fn as_slice(&self) -> &[u32] {
        &self.blocks
    }

    /// Tokens that the blocks have room for.
    pub(crate) fn token_room(&self) -> u32 {
        self.blocks.len() as u32 * self.block_size
    }

    /// The same with this number of blocks more.
    pub(crate) fn token_room_with(&self, spare: u32) -> u32 {
        spare.saturating_mul(self.block_size).saturating_add(self.token_room())
    }

    /// Blocks that `tokens` tokens need beyond those in the table.
    pub(crate) fn lacks(&self, tokens: u32) -> u32 {
        blocks_for(tokens, self.block_size).saturating_sub(self.blocks.len() as u32)
    }

    /// Takes blocks until there is room for `tokens` tokens. False if the pool has too few; what it had stays here.
    pub(crate) fn grow(&mut self, tokens: u32, pool: &mut BlockPool) -> bool {
        for _ in 0..self.lacks(tokens) {
            let Some(block) = pool.take() else { return false };
            self.blocks.push(block);
        }
        true
    }

    /// Looks `ids` up in the prefix cache: fills the empty table with whole blocks and, if `partial`, returns the block
    /// to copy the beginning of the next one from. Takes no references; the result is valid until a block is taken.
    pub(crate) fn look_up(&mut self, ids: &[u32], partial: bool, pool: &BlockPool) -> Option<Tail> {
        pool.find_prefix(ids, &mut self.blocks);
        let found = self.blocks.len();
        self.blocks.truncate(pool.usable(&self.blocks));
        if self.blocks.len() < found {
            return None; // The block behind these has not all its KV.
        }
        let rest = &ids[self.token_room() as usize..ids.len() - 1];
        let tail = partial.then(|| pool.find_tail(self.blocks.last().copied(), rest))?;
        let whole = tail.filter(|&(block, _)| pool.is_whole(block));
        whole.map(|(block, tokens)| Tail { block, tokens })
    }

    /// Whether the pool has the window blocks with which a sequence starts that was looked up.
    pub(crate) fn fits_window(&self, tail: Option<Tail>, pool: &BlockPool) -> bool {
        pool.windows().is_none_or(|windows| {
            let computed = self.token_room() + tail.map_or(0, |tail| tail.tokens);
            let kept = windows.first_kept(computed) as usize;
            windows.fits(self.windows.quota(), self.blocks.get(kept..).unwrap_or_default())
        })
    }

    /// Whether running sequences leave the window blocks that this one reserves.
    pub(crate) fn may_reserve_window(&self, pool: &BlockPool) -> bool {
        pool.windows().is_none_or(|windows| windows.may_reserve(self.windows.quota()))
    }

    /// Takes window blocks up to that of the last of `tokens` tokens: reserved ones, or spare ones.
    pub(crate) fn cover_window(&mut self, tokens: u32, pool: &mut BlockPool) {
        if let Some(windows) = pool.windows_mut() {
            self.windows.cover(&self.blocks, tokens, windows);
        }
    }

    /// Gives back the window blocks that no query sees any more once `computed` tokens are known.
    pub(crate) fn slide_window(&mut self, computed: u32, pool: &mut BlockPool) {
        if let Some(windows) = pool.windows_mut() {
            self.windows.slide(computed, windows);
        }
    }

    /// Tokens, from the first one on, for which there are window blocks or spare ones.
    pub(crate) fn window_room(&self, pool: &BlockPool) -> u32 {
        pool.windows().map_or(u32::MAX, |windows| self.windows.token_room(windows))
    }

    /// Drops what [`BlockTable::look_up`] found.
    pub(crate) fn drop_found(&mut self) {
        self.blocks.clear();
    }

    /// Takes references to what [`BlockTable::look_up`] found, and new blocks for the rest of `tokens` tokens. Taking
    /// blocks may evict the block of `tail`, but its contents stay until the step begins. Returns the copies to make.
    ///
    /// # Panics
    /// If the pool has too few blocks.
    pub(crate) fn begin(&mut self, tokens: u32, tail: Option<Tail>, pool: &mut BlockPool) -> Copies {
        let hits = self.blocks.len();
        let computed = self.token_room() + tail.map_or(0, |tail| tail.tokens);
        let window_from = tail.and_then(|tail| pool.windows()?.of(tail.block));
        self.registered = hits as u32;
        self.prefix = self.blocks.last().and_then(|&block| pool.prefix(block));
        self.copied_from = tail.and_then(|tail| Some((tail.block, pool.contents(tail.block)?)));
        self.blocks.iter().for_each(|&block| pool.share(block));
        if let Some(windows) = pool.windows_mut() {
            self.windows.begin(&self.blocks, computed, windows);
        }
        assert!(self.grow(tokens, pool), "there are enough blocks");
        self.cover_window(computed + 1, pool);
        let copy = |from, to, tail: Tail| BlockCopy { from, to, tokens: tail.tokens };
        Copies {
            block: tail.map(|tail| copy(tail.block, self.blocks[hits], tail)),
            window: tail.and_then(|tail| Some(copy(window_from?, self.windows.at(hits)?, tail))),
        }
    }

    /// Registers the whole blocks among the first `computed` of `ids` in the prefix cache, and, if `with_tail`, the
    /// tokens behind them.
    pub(crate) fn register(&mut self, ids: &[u32], computed: u32, with_tail: bool, pool: &mut BlockPool) {
        let (computed, block_size) = (computed as usize, self.block_size as usize);
        let whole = computed / block_size;
        for index in self.registered as usize..whole {
            let tokens = &ids[index * block_size..][..block_size];
            self.prefix = pool.register(self.blocks[index], self.prefix, tokens);
        }
        self.registered = self.registered.max(whole as u32);
        if with_tail && let Some(&block) = self.blocks.get(whole) {
            pool.register_tail(block, self.prefix, &ids[whole * block_size..computed]);
        }
    }

    /// Takes the blocks out of the prefix cache, and the one that was copied from; they stay in the table.
    pub(crate) fn forget(&self, pool: &mut BlockPool) {
        let copied = self.copied_from.filter(|&(block, contents)| pool.contents(block) == Some(contents));
        // Has no effect on blocks that are not registered.
        for block in self.blocks.iter().copied().chain(copied.map(|(block, _)| block)) {
            pool.forget(block);
        }
    }

    /// Gives all blocks back.
    pub(crate) fn release(&mut self, pool: &mut BlockPool) {
        if let Some(windows) = pool.windows_mut() {
            self.windows.release(windows);
        }
        for block in self.blocks.drain(..).rev() {
            pool.release(block);
        }
        (self.registered, self.prefix, self.copied_from) = (0, None, None);
    }

    /// # Panics
    /// If an invariant does not hold.
    pub(crate) fn check(&self) {
        assert!(self.registered as usize <= self.blocks.len(), "registered blocks are held");
        assert!(
            self.windows.reservation().0 == 0 || !self.blocks.is_empty(),
            "a reservation goes with blocks"
        );
    }
}
