//! The pool of KV blocks: a free list, a reference count per block, and the prefix cache over both.
//!
//! A block is an index; its memory belongs to the model. A sequence's table holds one reference to each of its blocks.
//! A block is *held* by at least one sequence, or *cached* (no holder, but registered in the prefix cache), or *free*;
//! held + cached + free = total. [`BlockPool::take`] takes free blocks first and then evicts cached ones, the least
//! recently used first, so the cache never takes room from a running request. `prefix` is the tree behind it.

use crate::listing::CacheChange;
use crate::prefix::{PrefixTree, ROOT};
use crate::window_table::WindowTable;
use crate::windows::Windows;
use pinion_protocol::WindowKv;

/// Number of blocks for `tokens` tokens.
pub fn blocks_for(tokens: u32, block_size: u32) -> u32 {
    tokens.div_ceil(block_size)
}

/// The end of a cached prefix: the block of its last tokens. The block may be evicted and registered with others since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    block: u32,
    contents: u64,
}

/// The node's number in the tree, unless the prefix was unregistered.
fn parent_of(prefixes: &PrefixTree, before: Option<Prefix>) -> Option<u64> {
    match before {
        None => Some(ROOT),
        Some(before) => prefixes.serial(before.block).filter(|&serial| serial == before.contents),
    }
}

/// All blocks with their reference counts. Nothing allocates after [`BlockPool::new`].
#[derive(Debug, Clone)]
pub struct BlockPool {
    /// References to each block; 0 means free or cached.
    references: Vec<u32>,
    /// Free blocks; the last one released is taken first, because it is the warmest in the CPU's caches.
    free: Vec<u32>,
    /// `None` with the prefix cache off.
    prefixes: Option<PrefixTree>,
    /// The KV of layers with a window; `None` where they keep all of it.
    windows: Option<Windows>,
    evicted: u64,
    /// Scratch of [`BlockPool::check`].
    counted: Vec<u32>,
}

impl BlockPool {
    /// A pool of `block_count` free blocks without a prefix cache; block 0 is taken first.
    pub fn new(block_count: u32) -> Self {
        let count = block_count as usize;
        BlockPool {
            references: vec![0; count],
            free: (0..block_count).rev().collect(),
            prefixes: None,
            windows: None,
            evicted: 0,
            counted: Vec::with_capacity(if cfg!(debug_assertions) { count } else { 0 }),
        }
    }

    /// A pool with a prefix cache over blocks of `block_size` tokens.
    pub fn with_prefix_cache(block_count: u32, block_size: u32) -> Self {
        BlockPool { prefixes: Some(PrefixTree::new(block_count, block_size)), ..BlockPool::new(block_count) }
    }

    /// The same pool, whose layers with a window keep only that, in window blocks.
    ///
    /// # Panics
    /// If there are too few of them for one sequence.
    pub fn with_windows(self, window: Option<WindowKv>, block_size: u32) -> Self {
        let windows = window.map(|window| Windows::new(window, self.total(), block_size));
        BlockPool { windows, ..self }
    }

    /// The pool of window blocks.
    pub fn windows(&self) -> Option<&Windows> {
        self.windows.as_ref()
    }

    pub(crate) fn windows_mut(&mut self) -> Option<&mut Windows> {
        self.windows.as_mut()
    }

    /// Number of leading `blocks`, a cached prefix, after which a sequence can go on.
    pub(crate) fn usable(&self, blocks: &[u32]) -> usize {
        self.windows.as_ref().map_or(blocks.len(), |windows| windows.usable(blocks))
    }

    /// Whether a cached block has all its KV: not where the part of layers with a window was evicted.
    pub(crate) fn is_whole(&self, block: u32) -> bool {
        self.windows.as_ref().is_none_or(|windows| windows.of(block).is_some())
    }

    /// The block holds nothing any more.
    fn empty(&mut self, block: u32) {
        self.windows.iter_mut().for_each(|windows| windows.recycle(block));
    }

    /// Blocks in the pool.
    pub fn total(&self) -> u32 {
        self.references.len() as u32
    }

    /// Free blocks: no holder, not registered.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Cached blocks: no holder, registered.
    pub fn cached(&self) -> u32 {
        self.prefixes.as_ref().map_or(0, PrefixTree::idle_count)
    }

    /// Blocks that [`BlockPool::take`] can return: free and cached ones.
    pub fn available(&self) -> u32 {
        self.free() + self.cached()
    }

    /// Blocks with at least one holder.
    pub fn held(&self) -> u32 {
        self.total() - self.available()
    }

    /// Cached blocks evicted since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Takes a free block, else evicts the least recently used cached one. The caller is its only holder.
    pub fn take(&mut self) -> Option<u32> {
        let block = self.free.pop().or_else(|| {
            let block = self.prefixes.as_mut()?.evict()?;
            self.evicted += 1;
            self.empty(block);
            Some(block)
        })?;
        self.references[block as usize] = 1;
        Some(block)
    }

    /// Adds a holder to a held or cached block.
    ///
    /// # Panics
    /// If the block is free.
    pub fn share(&mut self, block: u32) {
        if self.references[block as usize] == 0 {
            let node = self.prefixes.as_mut().filter(|prefixes| prefixes.serial(block).is_some());
            node.unwrap_or_else(|| panic!("block {block} is free and cannot be shared")).wake(block);
        }
        self.references[block as usize] += 1;
    }

    /// Removes a holder. After the last one the block is cached if it is registered, else free. A sequence releases its
    /// blocks from last to first, so that the ends of prefixes are evicted before their starts.
    ///
    /// # Panics
    /// If the block has no holder: a double release would give it to two sequences.
    pub fn release(&mut self, block: u32) {
        let references = &mut self.references[block as usize];
        assert!(*references > 0, "block {block} is released by a sequence that does not hold it");
        *references -= 1;
        if *references > 0 {
            return;
        }
        match self.prefixes.as_mut().filter(|prefixes| prefixes.serial(block).is_some()) {
            Some(prefixes) => prefixes.rest(block),
            None => {
                self.free.push(block);
                self.empty(block);
            }
        }
    }

    /// Appends to `blocks` the blocks of the longest cached prefix of `tokens`. Whole blocks only, and never all
    /// tokens: the last one is always computed, for its logits. Takes no references: the caller shares the blocks
    /// before it takes any.
    pub fn find_prefix(&self, tokens: &[u32], blocks: &mut Vec<u32>) {
        let Some(prefixes) = &self.prefixes else { return };
        let (reusable, mut parent) = (tokens.len().saturating_sub(1), ROOT);
        for chunk in tokens[..reusable].chunks_exact(prefixes.block_size()) {
            let Some(block) = prefixes.find(parent, chunk) else { return };
            blocks.push(block);
            parent = prefixes.serial(block).expect("what was found is a node");
        }
    }

    /// The block after `before` with the longest common beginning with `tokens`, and its length. To be copied, not
    /// shared: its holder may still write behind it.
    pub fn find_tail(&self, before: Option<u32>, tokens: &[u32]) -> Option<(u32, u32)> {
        let prefixes = self.prefixes.as_ref()?;
        let parent = before.map_or(Some(ROOT), |before| prefixes.serial(before))?;
        prefixes.find_tail(parent, tokens)
    }

    /// Registers the tokens of a held block that is not whole, after `before`. Does nothing if another block begins
    /// with the same tokens.
    pub fn register_tail(&mut self, block: u32, before: Option<Prefix>, tokens: &[u32]) {
        let Some(prefixes) = self.prefixes.as_mut().filter(|_| !tokens.is_empty()) else { return };
        let Some(parent) = parent_of(prefixes, before) else { return };
        let known =
            prefixes.find_tail(parent, tokens).is_some_and(|(_, common)| common as usize == tokens.len());
        if !known && prefixes.serial(block).is_none() {
            prefixes.insert(block, before.map(|before| before.block), tokens);
        }
    }

    /// An identifier of a block's present contents, if it is registered.
    pub fn contents(&self, block: u32) -> Option<u64> {
        self.prefixes.as_ref()?.serial(block)
    }

    /// How many of these blocks are held.
    pub fn held_of(&self, blocks: &[u32]) -> u32 {
        blocks.iter().filter(|&&block| self.references[block as usize] > 0).count() as u32
    }

    /// Registers a held whole block with `tokens`, after `before` (`None` at the start of a sequence), unless another
    /// block is registered with the same tokens there. The holder keeps its block in any case: what was computed in
    /// another way, as a prompt or token by token, differs in the last bits, and a sequence must not change while it
    /// runs. Returns where the block after this one is registered.
    pub fn register(&mut self, block: u32, before: Option<Prefix>, tokens: &[u32]) -> Option<Prefix> {
        let prefixes = self.prefixes.as_mut()?;
        if prefixes.serial(block).is_some() && prefixes.is_tail(block) {
            prefixes.remove(block); // It is whole now.
        }
        // If the block before it was unregistered, this one and those after it have no place.
        let Some(parent) = parent_of(prefixes, before) else { return before };
        let known = prefixes.find(parent, tokens);
        if known.is_none() {
            prefixes.insert(block, before.map(|before| before.block), tokens);
        }
        if let (Some(known), Some(windows)) = (known, &mut self.windows) {
            windows.pass(block, known);
        }
        self.prefix(known.unwrap_or(block))
    }

    /// The end of a cached prefix: a block with its present contents, if it is registered.
    pub fn prefix(&self, block: u32) -> Option<Prefix> {
        Some(Prefix { block, contents: self.contents(block)? })
    }

    /// Unregisters a block and everything below it. Its holders keep it.
    pub fn forget(&mut self, block: u32) {
        let Some(prefixes) = &mut self.prefixes else { return };
        if prefixes.serial(block).is_none() {
            return;
        }
        if self.references[block as usize] == 0 {
            prefixes.wake(block);
            self.free.push(block);
        }
        prefixes.remove(block);
        if self.references[block as usize] == 0 {
            self.empty(block);
        }
    }

    /// Unregisters all blocks: cached ones become free, held ones stay with their holders. O(blocks).
    pub fn clear_cache(&mut self) {
        // That everything is gone is told once, not block by block.
        self.repeat_changes();
        for block in 0..self.total() {
            self.forget(block);
        }
    }

    /// Lists what comes into the prefix cache and leaves it, for a reader outside. To be called before the first
    /// registration.
    pub fn list_changes(&mut self) {
        self.prefixes.iter_mut().for_each(PrefixTree::list);
    }

    /// The reader outside knows nothing: it is told everything anew.
    pub fn repeat_changes(&mut self) {
        self.prefixes.iter_mut().for_each(PrefixTree::repeat);
    }

    /// Whether there is something to tell.
    pub fn has_changes(&self) -> bool {
        self.prefixes.as_ref().and_then(PrefixTree::listing).is_some_and(|listing| !listing.is_told())
    }

    /// What the reader outside must hear next; it counts as told. Removals come before additions, and a block comes
    /// after its parent.
    pub fn next_change(&mut self) -> Option<CacheChange<'_>> {
        self.prefixes.as_mut()?.next_change()
    }

    /// Every whole block that can be found, as it would be told. O(blocks); for tests.
    pub fn contents_of_cache(&self) -> Vec<CacheChange<'_>> {
        self.prefixes.as_ref().map(PrefixTree::reachable).unwrap_or_default()
    }

    /// Checks that held + cached + free = total, that every block without a holder is in one list once, and that each
    /// block has as many references as `tables` has holders. O(blocks + references); for tests and debug builds.
    ///
    /// # Panics
    /// If a check fails.
    pub fn check<'a>(&mut self, tables: impl Iterator<Item = &'a [u32]>) {
        let (references, counted) = (&self.references, &mut self.counted);
        counted.clear();
        counted.resize(references.len(), 0);
        let mut see = |block: u32| {
            counted[block as usize] += 1;
            assert_eq!(
                references[block as usize], 0,
                "block {block} is held and on a list of those that are not"
            );
            assert_eq!(counted[block as usize], 1, "block {block} is on two lists");
        };
        for &block in &self.free {
            see(block);
            let node = self.prefixes.as_ref().and_then(|prefixes| prefixes.serial(block));
            assert_eq!(node, None, "block {block} is free and can be found");
        }
        if let Some(prefixes) = &self.prefixes {
            prefixes.check(see);
        }
        counted.fill(0);
        for &block in tables.flatten() {
            counted[block as usize] += 1;
        }
        for (block, (holders, references)) in counted.iter().zip(references).enumerate() {
            assert_eq!(holders, references, "block {block}: holders and references differ");
        }
        let held = references.iter().filter(|&&references| references > 0).count() as u32;
        assert_eq!(held + self.cached() + self.free(), self.total(), "held + cached + free = total");
    }

    /// Checks the pool of window blocks against what sequences use of it.
    pub(crate) fn check_windows<'a>(&mut self, tables: impl Iterator<Item = &'a WindowTable>) {
        if let Some(windows) = &mut self.windows {
            windows.check(tables);
            let owns =
                |(block, references): (usize, &u32)| *references > 0 || windows.of(block as u32).is_none();
            let cached =
                |block: usize| self.prefixes.as_ref().is_some_and(|p| p.serial(block as u32).is_some());
            let mut blocks = self.references.iter().enumerate();
            assert!(blocks.all(|at| owns(at) || cached(at.0)), "a free block owns no window block");
        }
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

    /// Takes and registers a chain of one-token blocks; gives them.
    fn chain(pool: &mut BlockPool, tokens: &[u32]) -> Vec<u32> {
        let (mut blocks, mut prefix) = (Vec::new(), None);
        for token in tokens {
            let block = pool.take().unwrap();
            prefix = pool.register(block, prefix, &[*token]);
            blocks.push(block);
        }
        blocks
    }

    fn release(pool: &mut BlockPool, blocks: &[u32]) {
        blocks.iter().rev().for_each(|&block| pool.release(block));
    }

    fn found(pool: &BlockPool, tokens: &[u32]) -> Vec<u32> {
        let mut blocks = Vec::new();
        pool.find_prefix(tokens, &mut blocks);
        blocks
    }

    #[test]
    fn a_prefix_is_found_by_all_of_its_tokens_but_never_whole() {
        let mut pool = BlockPool::with_prefix_cache(8, 1);
        let one = chain(&mut pool, &[1, 2, 3]);
        let other = chain(&mut pool, &[2, 2]);
        for (tokens, blocks) in [
            (&[1, 2, 3, 4][..], &one[..]),
            (&[1, 2, 3], &one[..2]),
            (&[1, 2, 9, 3], &one[..2]),
            (&[2, 2, 3, 4], &other[..]),
            (&[3, 2, 1], &[]),
            (&[1], &[]),
            (&[], &[]),
        ] {
            assert_eq!(found(&pool, tokens), blocks, "{tokens:?}");
        }
        pool.check([&one[..], &other[..]].into_iter());
    }

    #[test]
    fn a_holder_keeps_its_block_where_another_has_the_same_tokens_and_registers_what_follows() {
        let mut pool = BlockPool::with_prefix_cache(8, 1);
        let first = chain(&mut pool, &[1, 2]);
        let second = chain(&mut pool, &[1, 2, 3]);
        assert_eq!((pool.held(), pool.free()), (5, 3));
        assert_eq!(found(&pool, &[1, 2, 3, 4]), [first[0], first[1], second[2]]);
        pool.check([&first[..], &second[..]].into_iter());
        release(&mut pool, &second);
        assert_eq!(
            (pool.held(), pool.cached(), pool.free()),
            (2, 1, 5),
            "a second block of the same tokens is free"
        );
        pool.check([&first[..]].into_iter());
    }

    #[test]
    fn the_least_recently_used_end_of_a_prefix_goes_first_and_never_a_held_block() {
        let mut pool = BlockPool::with_prefix_cache(4, 1);
        let old = chain(&mut pool, &[1, 2]);
        let young = chain(&mut pool, &[3, 4]);
        release(&mut pool, &old);
        release(&mut pool, &young);
        assert_eq!((pool.held(), pool.cached(), pool.free()), (0, 4, 0));
        old.iter().for_each(|&block| pool.share(block)); // used again: now the younger one
        release(&mut pool, &old);
        assert_eq!(pool.take(), Some(young[1]), "the end before the start");
        assert_eq!(pool.take(), Some(young[0]));
        assert_eq!(found(&pool, &[3, 4, 5]), []);
        pool.share(old[0]);
        assert_eq!(pool.take(), Some(old[1]));
        assert_eq!((pool.take(), pool.evicted()), (None, 3), "what is held stays");
        assert_eq!(found(&pool, &[1, 2, 3]), [old[0]]);
        pool.check([&young[..], &old[..]].into_iter());
    }

    #[test]
    fn what_follows_a_forgotten_block_is_not_found_even_when_the_block_has_new_contents() {
        let mut pool = BlockPool::with_prefix_cache(3, 1);
        let blocks = chain(&mut pool, &[1, 2, 3]);
        let forgotten = pool.prefix(blocks[0]);
        pool.forget(blocks[0]);
        assert_eq!(found(&pool, &[1, 2, 3, 4]), []);
        assert_eq!(pool.register(blocks[1], forgotten, &[2]), forgotten, "it has no place in the tree");
        release(&mut pool, &blocks);
        assert_eq!((pool.cached(), pool.free()), (2, 1));
        assert_eq!(chain(&mut pool, &[9]), [blocks[0]]);
        assert_eq!(found(&pool, &[9, 2, 3, 4]), [blocks[0]], "the same block, and another parent");
        pool.clear_cache();
        assert_eq!((pool.held(), pool.cached(), pool.free()), (1, 0, 2));
        assert_eq!(found(&pool, &[9, 2]), []);
        pool.check([&blocks[..1]].into_iter());
    }
}
