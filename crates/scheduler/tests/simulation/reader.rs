//! A reader of the prefix cache's changes that is late, slow and forgetful: what it knows once it has heard everything
//! must be the cache.

use super::mix;
use pinion_scheduler::{CacheChange, Scheduler};
use std::collections::BTreeMap;

/// Blocks by serial: parent and tokens.
type Tree = BTreeMap<u64, Node>;
/// The parent, if it has one, and the tokens.
type Node = (Option<u64>, Vec<u32>);

/// How much it has heard of what.
#[derive(Debug, Default, Clone, Copy)]
pub struct Told {
    pub cleared: u32,
    pub stored: u32,
    pub removed: u32,
    /// Times that it was told everything anew.
    pub repeated: u32,
    /// Turns in which it left changes unread, as if the ring to it were full.
    pub left: u32,
}

#[derive(Debug, Default)]
pub struct Reader {
    tree: Tree,
    /// The greatest serial so far.
    newest: u64,
    pub told: Told,
    /// The texts, from the root on, of the blocks that were stored since the last look.
    pub news: Vec<Vec<u32>>,
}

impl Reader {
    /// Hears a few changes, all of them, or none; now and then it is another reader, which knows nothing.
    pub fn turn(&mut self, scheduler: &mut Scheduler, step: u64) {
        let chance = mix(step, self.newest);
        if chance.is_multiple_of(31) {
            scheduler.repeat_cache_changes();
            self.tree.clear();
            self.told.repeated += 1;
        }
        match chance >> 8 & 7 {
            0..4 => {}
            4..6 => (0..chance >> 16 & 7).for_each(|_| _ = self.read(scheduler)),
            _ => self.read_all(scheduler),
        }
        self.told.left += u32::from(scheduler.pool().has_changes());
    }

    /// Hears everything, and holds it against the cache.
    pub fn read_all(&mut self, scheduler: &mut Scheduler) {
        while self.read(scheduler) {}
        assert!(!scheduler.pool().has_changes(), "everything was told");
        let cache: Tree = scheduler.pool().contents_of_cache().into_iter().filter_map(entry).collect();
        assert_eq!(self.tree, cache, "what was told makes the cache");
    }

    fn text(&self, serial: u64) -> Vec<u32> {
        let (parent, tokens) = &self.tree[&serial];
        let mut text = parent.map(|parent| self.text(parent)).unwrap_or_default();
        text.extend(tokens);
        text
    }

    fn read(&mut self, scheduler: &mut Scheduler) -> bool {
        let Some(change) = scheduler.next_cache_change() else { return false };
        match change {
            CacheChange::Cleared => {
                self.tree.clear();
                self.newest = 0;
                self.told.cleared += 1;
            }
            CacheChange::Removed { serial } => {
                assert!(self.tree.remove(&serial).is_some(), "{serial} was not told, or is removed twice");
                self.told.removed += 1;
            }
            CacheChange::Stored { serial, parent, tokens } => {
                assert!(serial > self.newest, "{serial} after {}", self.newest);
                assert!(parent.is_none_or(|parent| self.tree.contains_key(&parent)), "its parent was told");
                self.newest = serial;
                self.tree.insert(serial, (parent, tokens.to_vec()));
                self.told.stored += 1;
                self.news.push(self.text(serial));
            }
        }
        true
    }
}

fn entry(change: CacheChange<'_>) -> Option<(u64, Node)> {
    match change {
        CacheChange::Stored { serial, parent, tokens } => Some((serial, (parent, tokens.to_vec()))),
        CacheChange::Cleared | CacheChange::Removed { .. } => None,
    }
}
