//! Which blocks of the prefix tree a reader outside knows of, and what it must hear to know the rest.
//!
//! Listed are the whole blocks that can be found from the root, in a linked list in the order of their serials. A child
//! is registered after its parent, so a parent stands before its children. The reader knows the blocks up to some
//! serial; those behind it are what it lacks, and `removed` has those that it knows and that are listed no more.
//!
//! So nothing is lost while the reader takes no changes: what comes and goes meanwhile cancels out, and there are never
//! more changes to tell than twice the blocks. [`Listing::repeat`] tells everything to a reader that knows nothing.

use crate::prefix::ROOT;

/// No block.
const NONE: u32 = u32::MAX;

/// A change of the prefix cache, as [`crate::Scheduler::next_cache_change`] tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheChange<'a> {
    /// Nothing that was told before holds any more.
    Cleared,
    /// A block can no longer be found.
    Removed {
        /// Its serial.
        serial: u64,
    },
    /// A block can be found.
    Stored {
        /// Its serial: used once, and greater than all before it.
        serial: u64,
        /// The serial of the block before it, which was told before; `None` for the first block of a text.
        parent: Option<u64>,
        /// Its token ids, as many as a block has.
        tokens: &'a [u32],
    },
}

/// What is next to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Cleared,
    Removed(u64),
    /// The node in this block.
    Stored(u32),
}

/// A block's place in the list.
#[derive(Debug, Clone, Copy)]
struct Place {
    listed: bool,
    before: u32,
    after: u32,
}

/// See the module's documentation. Nothing allocates after [`Listing::new`].
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    /// By block.
    places: Vec<Place>,
    first: u32,
    last: u32,
    /// The first block that the reader lacks.
    lacking: u32,
    /// The serial of the last block that was told.
    told: u64,
    /// In the order in which they left. Blocks are told only while it is empty, so it never has more entries than
    /// blocks that were told.
    removed: Vec<u64>,
    removed_told: usize,
    cleared: bool,
}

impl Listing {
    pub(crate) fn new(block_count: u32) -> Listing {
        let place = Place { listed: false, before: NONE, after: NONE };
        Listing {
            places: vec![place; block_count as usize],
            first: NONE,
            last: NONE,
            lacking: NONE,
            told: ROOT,
            removed: Vec::with_capacity(block_count as usize),
            removed_told: 0,
            cleared: true,
        }
    }

    pub(crate) fn has(&self, block: u32) -> bool {
        self.places[block as usize].listed
    }

    /// Lists a block whose serial is greater than all before it.
    pub(crate) fn add(&mut self, block: u32) {
        debug_assert!(!self.has(block));
        self.places[block as usize] = Place { listed: true, before: self.last, after: NONE };
        match std::mem::replace(&mut self.last, block) {
            NONE => self.first = block,
            before => self.places[before as usize].after = block,
        }
        if self.lacking == NONE {
            self.lacking = block;
        }
    }

    /// Takes a block off the list. False if it was not there.
    pub(crate) fn remove(&mut self, block: u32, serial: u64) -> bool {
        let Place { listed, before, after } = self.places[block as usize];
        if !listed {
            return false;
        }
        self.places[block as usize].listed = false;
        match before {
            NONE => self.first = after,
            before => self.places[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            after => self.places[after as usize].before = before,
        }
        if self.lacking == block {
            self.lacking = after;
        }
        if serial <= self.told {
            self.removed.push(serial);
        }
        true
    }

    /// From here on the reader knows nothing.
    pub(crate) fn repeat(&mut self) {
        (self.cleared, self.told, self.lacking) = (true, ROOT, self.first);
        self.removed.clear();
        self.removed_told = 0;
    }

    pub(crate) fn is_told(&self) -> bool {
        !self.cleared && self.removed.is_empty() && self.lacking == NONE
    }

    /// What to tell next, which counts as told. `serial` is that of a block.
    pub(crate) fn next(&mut self, serial: impl FnOnce(u32) -> u64) -> Option<Next> {
        if std::mem::take(&mut self.cleared) {
            return Some(Next::Cleared);
        }
        if let Some(&removed) = self.removed.get(self.removed_told) {
            self.removed_told += 1;
            if self.removed_told == self.removed.len() {
                self.removed.clear();
                self.removed_told = 0;
            }
            return Some(Next::Removed(removed));
        }
        if self.lacking == NONE {
            return None;
        }
        let block = self.lacking;
        self.lacking = self.places[block as usize].after;
        self.told = serial(block);
        Some(Next::Stored(block))
    }

    /// Calls `see` for every listed block, in their order.
    ///
    /// # Panics
    /// If the list is none.
    pub(crate) fn check(&self, mut see: impl FnMut(u32)) {
        let (mut block, mut before, mut count) = (self.first, NONE, 0);
        let mut found = self.lacking == NONE;
        while block != NONE {
            let place = self.places[block as usize];
            assert!(place.listed && place.before == before, "block {block}: the listing is no list");
            found |= block == self.lacking;
            see(block);
            count += 1;
            assert!(count <= self.places.len(), "the listing goes in a circle");
            (before, block) = (block, place.after);
        }
        assert_eq!(self.last, before, "the listing ends where it says");
        assert!(found, "what the reader lacks is listed");
        assert_eq!(
            self.places.iter().filter(|place| place.listed).count(),
            count,
            "all listed are in the list"
        );
        assert!(self.removed.len() <= self.places.len() && self.removed.capacity() >= self.places.len());
    }
}
