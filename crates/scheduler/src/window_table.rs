//! One sequence's window blocks: those of the blocks within its window.

use crate::kv::blocks_for;
use crate::windows::{NONE, Windows, quota};
use pinion_protocol::WindowKv;
use std::ops::Range;

/// See the module's documentation. The table has its final size from the start.
#[derive(Debug, Clone)]
pub(crate) struct WindowTable {
    block_size: u32,
    /// By index in the sequence's block table; [`NONE`] outside of `held`. Empty: every layer keeps all KV.
    blocks: Vec<u32>,
    /// Indices of the blocks whose window blocks it uses.
    held: Range<u32>,
    /// Window blocks that it reserves while it runs.
    quota: u32,
    runs: bool,
}

impl WindowTable {
    /// An empty table for at most `tokens_max` tokens.
    pub(crate) fn new(window: Option<WindowKv>, block_size: u32, tokens_max: u32) -> WindowTable {
        let blocks = window.map_or(0, |_| blocks_for(tokens_max, block_size));
        let quota = window.map_or(0, |window| quota(window, block_size, tokens_max));
        WindowTable { block_size, blocks: vec![NONE; blocks as usize], held: 0..0, quota, runs: false }
    }

    pub(crate) fn quota(&self) -> u32 {
        self.quota
    }

    /// The entries for the first `count` blocks; none if every layer keeps all KV.
    pub(crate) fn entries(&self, count: usize) -> &[u32] {
        &self.blocks[..count.min(self.blocks.len())]
    }

    /// The window blocks that it uses.
    pub(crate) fn live(&self) -> &[u32] {
        &self.blocks[self.held.start as usize..self.held.end as usize]
    }

    /// What it reserves, and how much of that it does not hold.
    pub(crate) fn reservation(&self) -> (u32, u32) {
        if self.runs { (self.quota, self.lacks()) } else { (0, 0) }
    }

    fn lacks(&self) -> u32 {
        self.quota.saturating_sub(self.held.len() as u32)
    }

    /// Reserves what it needs, and uses the window blocks of the blocks in `found` that it keeps when the first
    /// `computed` tokens are known.
    pub(crate) fn begin(&mut self, found: &[u32], computed: u32, windows: &mut Windows) {
        debug_assert!(!self.runs && self.held.is_empty());
        let end = found.len() as u32;
        self.runs = true;
        windows.reserve(self.quota);
        self.held = windows.first_kept(computed).min(end)..end;
        for index in self.held.clone() {
            self.blocks[index as usize] = windows.share(found[index as usize]);
        }
        windows.settle(self.quota, self.lacks());
    }

    /// Tokens, from the first one on, for which there are window blocks or spare ones.
    pub(crate) fn token_room(&self, windows: &Windows) -> u32 {
        let blocks = self.held.end + self.lacks() + windows.spare();
        blocks.saturating_mul(self.block_size)
    }

    /// Takes window blocks up to that of the last of `tokens` tokens, for the blocks of the sequence's table.
    ///
    /// # Panics
    /// If there is neither a reserved nor a spare one.
    pub(crate) fn cover(&mut self, blocks: &[u32], tokens: u32, windows: &mut Windows) {
        for index in self.held.end..blocks_for(tokens, self.block_size) {
            let lacked = self.lacks();
            self.blocks[index as usize] = windows.take(blocks[index as usize]);
            self.held.end = index + 1;
            windows.settle(lacked, self.lacks());
        }
    }

    /// Gives back the window blocks that it does not keep when `computed` tokens are known.
    pub(crate) fn slide(&mut self, computed: u32, windows: &mut Windows) {
        for index in self.held.start..windows.first_kept(computed).min(self.held.end) {
            let lacked = self.lacks();
            windows.release(std::mem::replace(&mut self.blocks[index as usize], NONE));
            self.held.start = index + 1;
            windows.settle(lacked, self.lacks());
        }
    }

    /// Gives all window blocks back, from last to first, and what it reserved.
    pub(crate) fn release(&mut self, windows: &mut Windows) {
        let (quota, lacks) = self.reservation();
        windows.unreserve(quota, lacks);
        for index in self.held.clone().rev() {
            windows.release(std::mem::replace(&mut self.blocks[index as usize], NONE));
        }
        (self.held, self.runs) = (0..0, false);
    }

    /// The window block of a block of the sequence.
    pub(crate) fn at(&self, index: usize) -> Option<u32> {
        self.blocks.get(index).copied().filter(|&window| window != NONE)
    }
}
