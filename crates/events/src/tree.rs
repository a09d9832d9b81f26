//! A copy of the engine's prefix cache: for subscribers that come late, and for the names of blocks.
//!
//! The engine tells blocks by numbers of its own, and readers are told names. Two blocks may have one name: those of
//! different texts can collide, and nothing here relies on an engine that caches a text once. For readers they are one
//! block, which is stored with the first and removed with the last.

use crate::batch::Events;
use crate::names::Digest;
use pinion_protocol::Malformed;
use pinion_protocol::events_inbox::CacheEntry;
use std::collections::{BTreeMap, HashMap, HashSet};

#[derive(Debug)]
struct Block {
    digest: Digest,
    /// Its name.
    parent: Option<u64>,
    tokens: Box<[u32]>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Tree {
    /// By serial. A child's is greater than its parent's, so their order puts parents first.
    blocks: BTreeMap<u64, Block>,
    /// How many blocks have a name.
    copies: HashMap<u64, u32>,
    block_count_max: usize,
    root: Digest,
}

impl Tree {
    /// An empty copy of a cache of at most `block_count_max` blocks.
    pub(crate) fn new(block_count_max: usize) -> Tree {
        Tree { blocks: BTreeMap::new(), copies: HashMap::new(), block_count_max, root: Digest::root() }
    }

    pub(crate) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.copies.clear();
    }

    /// Applies a change, and adds what readers hear of it. Error: no engine sends it.
    pub(crate) fn apply(&mut self, entry: CacheEntry, events: &mut Events) -> Result<(), Malformed> {
        match entry {
            CacheEntry::Cleared => {
                self.clear();
                events.push_cleared();
            }
            CacheEntry::Removed { serial } => {
                let block = self.blocks.remove(&serial).ok_or(Malformed("an unknown block is removed"))?;
                if self.forget_copy(block.digest.name()) {
                    events.push_removed(block.digest.name());
                }
            }
            CacheEntry::Stored { serial, parent, tokens } => self.store(serial, parent, tokens, events)?,
        }
        Ok(())
    }

    fn store(
        &mut self,
        serial: u64,
        parent: Option<u64>,
        tokens: Vec<u32>,
        events: &mut Events,
    ) -> Result<(), Malformed> {
        if self.blocks.len() == self.block_count_max {
            return Err(Malformed("more blocks than the cache has"));
        }
        let before = match parent {
            None => None,
            Some(parent) => {
                let known = self.blocks.get(&parent).filter(|_| parent < serial);
                Some(known.ok_or(Malformed("a block is stored after an unknown one"))?.digest)
            }
        };
        let digest = before.unwrap_or(self.root).then(&tokens);
        let (parent, tokens) = (before.map(|before| before.name()), tokens.into_boxed_slice());
        let copies = self.copies.entry(digest.name()).or_insert(0);
        *copies += 1;
        if *copies == 1 {
            events.push_stored(digest.name(), parent, &tokens);
        }
        if self.blocks.insert(serial, Block { digest, parent, tokens }).is_some() {
            return Err(Malformed("a block is stored twice"));
        }
        Ok(())
    }

    /// True if there was no other one with this name.
    fn forget_copy(&mut self, name: u64) -> bool {
        let copies = self.copies.get_mut(&name).expect("the name of each block is counted");
        *copies -= 1;
        let was_last = *copies == 0;
        if was_last {
            self.copies.remove(&name);
        }
        was_last
    }

    /// Adds what makes a reader know the whole cache, whatever it knew before.
    pub(crate) fn tell(&self, events: &mut Events) {
        events.push_cleared();
        let mut told = HashSet::new();
        for block in self.blocks.values() {
            let name = block.digest.name();
            if self.copies[&name] == 1 || told.insert(name) {
                events.push_stored(name, block.parent, &block.tokens);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(serial: u64, parent: Option<u64>, token: u32) -> CacheEntry {
        CacheEntry::Stored { serial, parent, tokens: vec![token] }
    }

    /// What readers hear of these changes.
    fn heard(tree: &mut Tree, entries: &[CacheEntry]) -> Events {
        let mut events = Events::new(1);
        entries.iter().for_each(|entry| tree.apply(entry.clone(), &mut events).unwrap());
        events
    }

    fn whole(tree: &Tree) -> Events {
        let mut events = Events::new(1);
        tree.tell(&mut events);
        events
    }

    #[test]
    fn what_no_engine_sends_is_refused() {
        let table: [(&[CacheEntry], CacheEntry); 6] = [
            (&[], CacheEntry::Removed { serial: 1 }),
            (&[], stored(2, Some(1), 1)),
            (&[stored(2, None, 1)], stored(2, None, 1)),
            (&[stored(2, None, 1)], stored(1, Some(2), 1)),
            (&[stored(1, None, 1), CacheEntry::Cleared], stored(2, Some(1), 1)),
            (&[stored(1, None, 1), stored(2, Some(1), 1), stored(3, None, 1)], stored(4, None, 1)),
        ];
        for (before, last) in table {
            let mut tree = Tree::new(3);
            heard(&mut tree, before);
            assert!(tree.apply(last.clone(), &mut Events::new(1)).is_err(), "{last:?} after {before:?}");
        }
    }

    /// A reader that does not count copies loses the block with the first of them.
    #[test]
    fn blocks_of_one_name_are_stored_with_the_first_and_removed_with_the_last() {
        let (mut tree, mut expected) = (Tree::new(9), Events::new(1));
        let first = Digest::root().then(&[1]);
        let second = first.then(&[2]);
        expected.push_stored(first.name(), None, &[1]);
        expected.push_stored(second.name(), Some(first.name()), &[2]);
        let both = [stored(1, None, 1), stored(2, None, 1), stored(3, Some(1), 2), stored(4, Some(2), 2)];
        assert_eq!(heard(&mut tree, &both), expected);

        let removed = |serial| CacheEntry::Removed { serial };
        assert_eq!(heard(&mut tree, &[removed(1), removed(3)]), Events::new(1), "the others are still there");
        let mut all = Events::new(1);
        all.push_cleared();
        all.push_stored(first.name(), None, &[1]);
        all.push_stored(second.name(), Some(first.name()), &[2]);
        assert_eq!(whole(&tree), all);

        let mut last = Events::new(1);
        last.push_removed(second.name());
        last.push_removed(first.name());
        assert_eq!(heard(&mut tree, &[removed(4), removed(2)]), last);
        assert_eq!(heard(&mut tree, &both), expected, "they come again");
        assert_eq!(whole(&tree), all, "of copies one is told");
        assert_eq!(tree.copies.len(), 2);
        heard(&mut tree, &[CacheEntry::Cleared]);
        assert_eq!((tree.block_count(), tree.copies.len()), (0, 0));
    }

    /// Serials are numbers of one engine; names are not.
    #[test]
    fn caches_that_were_filled_in_another_order_have_the_same_names() {
        let (mut one, mut other) = (Tree::new(9), Tree::new(9));
        heard(&mut one, &[stored(1, None, 1), stored(2, Some(1), 2), stored(3, None, 3)]);
        let rest = [stored(7, None, 3), stored(8, None, 1), stored(9, Some(8), 4), stored(11, Some(8), 2)];
        heard(&mut other, &rest);
        let names = |tree: &Tree| tree.copies.keys().copied().collect::<HashSet<u64>>();
        assert_eq!(names(&other).difference(&names(&one)).count(), 1, "the block that one lacks");
        assert!(names(&one).is_subset(&names(&other)));
        let (here, there) = (one.blocks[&2].digest, other.blocks[&11].digest);
        assert_eq!((here, one.blocks[&2].parent), (there, other.blocks[&11].parent));
    }
}
