//! A copy of the engine's prefix cache, for subscribers that come late.

use pinion_protocol::Malformed;
use pinion_protocol::events_inbox::CacheEntry;
use std::collections::BTreeMap;

#[derive(Debug)]
struct Block {
    parent: Option<u64>,
    tokens: Vec<u32>,
}

/// The blocks by hash. A child's hash is greater than its parent's, so their order puts parents first.
#[derive(Debug)]
pub(crate) struct Tree {
    blocks: BTreeMap<u64, Block>,
    block_count_max: usize,
}

impl Tree {
    /// An empty copy of a cache of at most `block_count_max` blocks.
    pub(crate) fn new(block_count_max: usize) -> Tree {
        Tree { blocks: BTreeMap::new(), block_count_max }
    }

    pub(crate) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
    }

    /// Applies a change. Error: no engine sends it.
    pub(crate) fn apply(&mut self, entry: CacheEntry) -> Result<(), Malformed> {
        match entry {
            CacheEntry::Cleared => self.blocks.clear(),
            CacheEntry::Removed { hash } => {
                self.blocks.remove(&hash).ok_or(Malformed("an unknown block is removed"))?;
            }
            CacheEntry::Stored { hash, parent, tokens } => {
                if self.blocks.len() == self.block_count_max {
                    return Err(Malformed("more blocks than the cache has"));
                }
                if parent.is_some_and(|parent| parent >= hash || !self.blocks.contains_key(&parent)) {
                    return Err(Malformed("a block is stored after an unknown one"));
                }
                if self.blocks.insert(hash, Block { parent, tokens }).is_some() {
                    return Err(Malformed("a block is stored twice"));
                }
            }
        }
        Ok(())
    }

    /// Every block, parents before children: hash, parent, tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Option<u64>, &[u32])> {
        self.blocks.iter().map(|(hash, block)| (*hash, block.parent, &block.tokens[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_engine_sends_is_refused() {
        let stored = |hash, parent| CacheEntry::Stored { hash, parent, tokens: vec![1] };
        let table: [(&[CacheEntry], CacheEntry); 6] = [
            (&[], CacheEntry::Removed { hash: 1 }),
            (&[], stored(2, Some(1))),
            (&[stored(2, None)], stored(2, None)),
            (&[stored(2, None)], stored(1, Some(2))),
            (&[stored(1, None), CacheEntry::Cleared], stored(2, Some(1))),
            (&[stored(1, None), stored(2, Some(1)), stored(3, None)], stored(4, None)),
        ];
        for (before, last) in table {
            let mut tree = Tree::new(3);
            before.iter().for_each(|entry| tree.apply(entry.clone()).unwrap());
            assert!(tree.apply(last.clone()).is_err(), "{last:?} after {before:?}");
        }
    }
}
