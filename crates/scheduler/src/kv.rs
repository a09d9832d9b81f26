//! The pool of KV blocks: a free list and a reference count per block.
//!
//! A block is an index; the memory behind it belongs to the model. A sequence's table holds one reference to each of
//! its blocks. Nothing shares a block yet, but every holder already goes through [`BlockPool::share`] and
//! [`BlockPool::release`], so a prefix cache becomes one more holder and nothing else changes.

/// Blocks that `tokens` tokens take.
pub fn blocks_for(tokens: u32, block_size: u32) -> u32 {
    tokens.div_ceil(block_size)
}

/// Free blocks and who holds how many references to the others. Taking and releasing are O(1) and never allocate.
#[derive(Debug, Clone)]
pub struct BlockPool {
    /// References to each block; 0 means that it is on the free list.
    references: Vec<u32>,
    /// Blocks that nobody holds; the last released is taken first, because its memory is the warmest.
    free: Vec<u32>,
    /// Scratch of [`BlockPool::check`].
    counted: Vec<u32>,
}

impl BlockPool {
    /// A pool of `block_count` free blocks; block 0 is taken first.
    pub fn new(block_count: u32) -> Self {
        let count = block_count as usize;
        BlockPool {
            references: vec![0; count],
            free: (0..block_count).rev().collect(),
            counted: Vec::with_capacity(if cfg!(debug_assertions) { count } else { 0 }),
        }
    }

    /// Blocks in the pool.
    pub fn total(&self) -> u32 {
        self.references.len() as u32
    }

    /// Blocks that nobody holds.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Blocks with at least one holder.
    pub fn held(&self) -> u32 {
        self.total() - self.free()
    }

    /// Takes a free block; the caller is its one holder.
    pub fn take(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.references[block as usize] = 1;
        Some(block)
    }

    /// One more holder of a held block.
    ///
    /// # Panics
    /// If nobody holds it: a free block has no contents to share.
    pub fn share(&mut self, block: u32) {
        let references = &mut self.references[block as usize];
        assert!(*references > 0, "block {block} is free and cannot be shared");
        *references += 1;
    }

    /// One holder less; the last one frees the block.
    ///
    /// # Panics
    /// If nobody holds it: freeing a block twice would give it to two sequences.
    pub fn release(&mut self, block: u32) {
        let references = &mut self.references[block as usize];
        assert!(*references > 0, "block {block} is released by one who does not hold it");
        *references -= 1;
        if *references == 0 {
            self.free.push(block);
        }
    }

    /// Checks that free + held = total, that every free block is on the list once, and that each block has as many
    /// references as `tables` has holders. O(blocks + references); for tests and debug builds.
    ///
    /// # Panics
    /// If any of it does not hold.
    pub fn check<'a>(&mut self, tables: impl Iterator<Item = &'a [u32]>) {
        self.counted.clear();
        self.counted.resize(self.references.len(), 0);
        for &block in &self.free {
            self.counted[block as usize] += 1;
            assert_eq!(self.references[block as usize], 0, "block {block} is on the free list and held");
            assert_eq!(self.counted[block as usize], 1, "block {block} is on the free list twice");
        }
        self.counted.fill(0);
        for &block in tables.flatten() {
            self.counted[block as usize] += 1;
        }
        for (block, (holders, references)) in self.counted.iter().zip(&self.references).enumerate() {
            assert_eq!(holders, references, "block {block}: holders and references differ");
        }
        let held = self.references.iter().filter(|&&references| references > 0).count();
        assert_eq!(held + self.free.len(), self.references.len(), "free + held = total");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_tokens_exactly() {
        for (tokens, size, blocks) in [(0, 16, 0), (1, 16, 1), (16, 16, 1), (17, 16, 2), (5, 1, 5)] {
            assert_eq!(blocks_for(tokens, size), blocks, "{tokens} tokens of {size}");
        }
    }

    #[test]
    fn a_shared_block_is_free_after_its_last_holder() {
        let mut pool = BlockPool::new(2);
        let block = pool.take().unwrap();
        pool.share(block);
        pool.check([&[block][..], &[block][..]].into_iter());
        pool.release(block);
        assert_eq!((pool.free(), pool.held()), (1, 1));
        pool.release(block);
        assert_eq!((pool.free(), pool.held()), (2, 0));
        assert_eq!((pool.take(), pool.take(), pool.take()), (Some(0), Some(1), None));
    }

    #[test]
    #[should_panic(expected = "does not hold it")]
    fn releasing_twice_is_a_bug() {
        let mut pool = BlockPool::new(1);
        let block = pool.take().unwrap();
        pool.release(block);
        pool.release(block);
    }

    #[test]
    #[should_panic(expected = "holders and references differ")]
    fn the_check_sees_a_leak() {
        let mut pool = BlockPool::new(1);
        let _leaked = pool.take();
        pool.check(std::iter::empty());
    }
}
