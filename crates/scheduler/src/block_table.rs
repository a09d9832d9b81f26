//! One sequence's KV blocks, and which of them the prefix cache holds.

use crate::kv::{BlockPool, Prefix, blocks_for};
use crate::plan::BlockCopy;

/// A block from the prefix cache whose beginning is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tail {
    block: u32,
    /// Tokens to copy, at least 1.
    pub(crate) tokens: u32,
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
}

impl BlockTable {
    /// An empty table for at most `tokens_max` tokens.
    pub(crate) fn new(block_size: u32, tokens_max: u32) -> BlockTable {
        let blocks = Vec::with_capacity(blocks_for(tokens_max, block_size) as usize);
        BlockTable { block_size, blocks, registered: 0, prefix: None, copied_from: None }
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
        let rest = &ids[self.token_room() as usize..ids.len() - 1];
        let found = partial.then(|| pool.find_tail(self.blocks.last().copied(), rest))?;
        found.map(|(block, tokens)| Tail { block, tokens })
    }

    /// Drops what [`BlockTable::look_up`] found.
    pub(crate) fn drop_found(&mut self) {
        self.blocks.clear();
    }

    /// Takes references to what [`BlockTable::look_up`] found, and new blocks for the rest of `tokens` tokens. Taking
    /// blocks may evict the block of `tail`, but its contents stay until the step begins. Returns the copy to make.
    ///
    /// # Panics
    /// If the pool has too few blocks.
    pub(crate) fn begin(
        &mut self,
        tokens: u32,
        tail: Option<Tail>,
        pool: &mut BlockPool,
    ) -> Option<BlockCopy> {
        let hits = self.blocks.len();
        self.registered = hits as u32;
        self.prefix = self.blocks.last().and_then(|&block| pool.prefix(block));
        self.copied_from = tail.and_then(|tail| Some((tail.block, pool.contents(tail.block)?)));
        self.blocks.iter().for_each(|&block| pool.share(block));
        assert!(self.grow(tokens, pool), "there are enough blocks");
        tail.map(|tail| BlockCopy { from: tail.block, to: self.blocks[hits], tokens: tail.tokens })
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
        for block in self.blocks.drain(..).rev() {
            pool.release(block);
        }
        (self.registered, self.prefix, self.copied_from) = (0, None, None);
    }

    /// # Panics
    /// If an invariant does not hold.
    pub(crate) fn check(&self) {
        assert!(self.registered as usize <= self.blocks.len(), "registered blocks are held");
    }
}
