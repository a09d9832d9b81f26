//! The pool of window blocks: the KV of layers that see a window only (docs/design/0020-window-kv.md).
//!
//! A window block holds what these layers know of one block's tokens. Running sequences *use* it while the block is
//! within their window. The block *owns* it: the prefix cache finds it through that. It outlives its users as an *idle*
//! one, the least recently used of which is evicted when a window block is wanted, and is free when its block is.
//! used + idle + free = total.
//!
//! Each running sequence reserves what it can hold at most between two steps, so what one row needs is always there and
//! nothing is preempted for a window block. A prompt's chunk takes more for one step, of what is reserved by none.

use crate::kv::blocks_for;
use crate::window_table::WindowTable;
use pinion_protocol::{WindowKv, window_blocks_of_sequence};

/// No window block. Also: no owner, no neighbour.
pub const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Place {
    /// Running sequences that have it within their window.
    users: u32,
    /// The block that owns it.
    owner: u32,
    /// Neighbours in the list of idle ones.
    older: u32,
    newer: u32,
}

const VACANT: Place = Place { users: 0, owner: NONE, older: NONE, newer: NONE };

/// See the module's documentation. Nothing allocates after it is made.
#[derive(Debug, Clone)]
pub struct Windows {
    /// Positions that a query sees, its own included.
    tokens: u32,
    block_size: u32,
    /// By block: the window block that it owns.
    of: Vec<u32>,
    /// By window block.
    places: Vec<Place>,
    free: Vec<u32>,
    /// Both ends of the list of idle ones.
    oldest: u32,
    newest: u32,
    idle_count: u32,
    /// What running sequences reserve.
    reserved: u32,
    /// How much of that they do not hold.
    lacking: u32,
    evicted: u64,
    /// Scratch of [`Windows::check`].
    counted: Vec<u32>,
}

impl Windows {
    /// A pool of free window blocks for `block_count` blocks.
    ///
    /// # Panics
    /// If it is too small for one sequence. The configuration has checked it.
    pub(crate) fn new(window: WindowKv, block_count: u32, block_size: u32) -> Windows {
        let WindowKv { tokens, blocks } = window;
        let least = window_blocks_of_sequence(tokens, block_size).min(block_count);
        assert!(
            tokens > 0 && blocks >= least,
            "{blocks} window blocks are too few: one sequence takes {least}"
        );
        Windows {
            tokens,
            block_size,
            of: vec![NONE; block_count as usize],
            places: vec![VACANT; blocks as usize],
            free: (0..blocks).rev().collect(),
            oldest: NONE,
            newest: NONE,
            idle_count: 0,
            reserved: 0,
            lacking: 0,
            evicted: 0,
            counted: Vec::with_capacity(if cfg!(debug_assertions) { blocks as usize } else { 0 }),
        }
    }

    /// Window blocks in the pool.
    pub fn total(&self) -> u32 {
        self.places.len() as u32
    }

    /// Window blocks that no running sequence uses and no block owns.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Window blocks that only the prefix cache keeps.
    pub fn idle(&self) -> u32 {
        self.idle_count
    }

    /// Window blocks that running sequences use.
    pub fn used(&self) -> u32 {
        self.total() - self.free() - self.idle()
    }

    /// Idle window blocks evicted since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Window blocks that are reserved by none: they may be taken for one step.
    pub(crate) fn spare(&self) -> u32 {
        self.free() + self.idle() - self.lacking
    }

    /// Whether running sequences leave a reservation of this size.
    pub(crate) fn may_reserve(&self, quota: u32) -> bool {
        self.reserved + quota <= self.total()
    }

    /// Whether a sequence can start with a reservation of this size, and use the window blocks of `found`.
    pub(crate) fn fits(&self, quota: u32, found: &[u32]) -> bool {
        let in_use = |block: &&u32| self.place_of(**block).is_some_and(|place| place.users > 0);
        let shared = found.iter().filter(in_use).count() as u32;
        self.may_reserve(quota) && self.spare() >= quota - shared
    }

    /// Reserves `quota` window blocks, none of which is held yet.
    pub(crate) fn reserve(&mut self, quota: u32) {
        self.reserved += quota;
        self.lacking += quota;
    }

    /// Gives back a reservation of which `lacks` are not held.
    pub(crate) fn unreserve(&mut self, quota: u32, lacks: u32) {
        self.reserved -= quota;
        self.lacking -= lacks;
    }

    /// A sequence lacked `before` of its reservation, and lacks `after` now.
    pub(crate) fn settle(&mut self, before: u32, after: u32) {
        self.lacking = self.lacking - before + after;
    }

    /// Index, in its table, of the first block whose window block a sequence with this number of computed tokens keeps:
    /// that of the first position that its next query sees, and of the one before that, which is seen if its last token
    /// is computed again.
    pub(crate) fn first_kept(&self, computed: u32) -> u32 {
        computed.saturating_sub(self.tokens) / self.block_size
    }

    /// Number of leading `blocks`, a cached prefix, after which a sequence can go on: the most for which every block
    /// that it keeps owns its window block.
    pub(crate) fn usable(&self, blocks: &[u32]) -> usize {
        let (mut in_a_row, mut usable) = (0, 0);
        for (end, &block) in (1..).zip(blocks) {
            in_a_row = if self.of[block as usize] == NONE { 0 } else { in_a_row + 1 };
            if end - self.first_kept(end * self.block_size) <= in_a_row {
                usable = end as usize;
            }
        }
        usable
    }

    /// The window block that a block owns.
    pub(crate) fn of(&self, block: u32) -> Option<u32> {
        Some(self.of[block as usize]).filter(|&window| window != NONE)
    }

    fn place_of(&self, block: u32) -> Option<&Place> {
        self.of(block).map(|window| &self.places[window as usize])
    }

    /// A free window block, else the least recently used idle one. `block` owns it, and the caller is its only user.
    ///
    /// # Panics
    /// If there is none: more was taken than reserved.
    pub(crate) fn take(&mut self, block: u32) -> u32 {
        debug_assert!(self.of(block).is_none(), "block {block} owns a window block already");
        let window = self.free.pop().unwrap_or_else(|| {
            let window = self.oldest;
            assert!(window != NONE, "what a sequence may take is there");
            let owner = std::mem::replace(&mut self.places[window as usize].owner, NONE);
            self.of[owner as usize] = NONE;
            self.wake(window);
            self.evicted += 1;
            window
        });
        self.places[window as usize] = Place { users: 1, owner: block, ..VACANT };
        self.of[block as usize] = window;
        window
    }

    /// Adds a user to the window block that `block` owns, and gives it.
    pub(crate) fn share(&mut self, block: u32) -> u32 {
        let window = self.of(block).expect("what was found owns a window block");
        if self.places[window as usize].users == 0 {
            self.wake(window);
        }
        self.places[window as usize].users += 1;
        window
    }

    /// Removes a user. After the last one the window block is idle if it is owned, else free.
    ///
    /// # Panics
    /// If it has no user.
    pub(crate) fn release(&mut self, window: u32) {
        let place = &mut self.places[window as usize];
        assert!(place.users > 0, "window block {window} is released by a sequence that does not use it");
        place.users -= 1;
        match (place.users, place.owner) {
            (0, NONE) => self.free.push(window),
            (0, _) => self.rest(window),
            _ => {}
        }
    }

    /// The block is about to hold other tokens: it owns nothing any more.
    pub(crate) fn recycle(&mut self, block: u32) {
        let Some(window) = self.of(block) else { return };
        self.of[block as usize] = NONE;
        self.places[window as usize].owner = NONE;
        if self.places[window as usize].users == 0 {
            self.wake(window);
            self.free.push(window);
        }
    }

    /// What block `from` owns belongs to `to` from here on, a block of the same tokens that the prefix cache finds,
    /// unless that owns a window block itself.
    pub(crate) fn pass(&mut self, from: u32, to: u32) {
        let (Some(window), None) = (self.of(from), self.of(to)) else { return };
        self.of[from as usize] = NONE;
        self.of[to as usize] = window;
        self.places[window as usize].owner = to;
    }

    /// Makes a window block without users idle, as the most recently used one.
    fn rest(&mut self, window: u32) {
        let older = std::mem::replace(&mut self.newest, window);
        match older {
            NONE => self.oldest = window,
            older => self.places[older as usize].newer = window,
        }
        let place = &mut self.places[window as usize];
        (place.older, place.newer) = (older, NONE);
        self.idle_count += 1;
    }

    /// Takes a window block off the list of idle ones.
    fn wake(&mut self, window: u32) {
        let place = &mut self.places[window as usize];
        let (older, newer) = (place.older, place.newer);
        (place.older, place.newer) = (NONE, NONE);
        match older {
            NONE => self.oldest = newer,
            older => self.places[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.places[newer as usize].older = older,
        }
        self.idle_count -= 1;
    }

    /// Checks the lists, that each window block has as many users as `tables` have, and what they reserve. O(blocks);
    /// for tests and debug builds.
    ///
    /// # Panics
    /// If a check fails.
    pub(crate) fn check<'a>(&mut self, tables: impl Iterator<Item = &'a WindowTable>) {
        const FREE: u32 = u32::MAX;
        self.counted.clear();
        self.counted.resize(self.places.len(), 0);
        let (mut reserved, mut lacking) = (0, 0);
        for table in tables {
            table.live().iter().for_each(|&window| self.counted[window as usize] += 1);
            let (quota, lacks) = table.reservation();
            (reserved, lacking) = (reserved + quota, lacking + lacks);
        }
        assert_eq!(
            (self.reserved, self.lacking),
            (reserved, lacking),
            "what is reserved, and not held of that"
        );
        assert!(
            reserved <= self.total() && lacking <= self.free() + self.idle(),
            "what is reserved is there"
        );
        let (mut window, mut older, mut idle) = (self.oldest, NONE, 0);
        while window != NONE {
            let place = self.places[window as usize];
            let listed = (place.users, place.older) == (0, older) && place.owner != NONE;
            assert!(listed && idle < self.idle_count, "window block {window}: the list of idle ones is none");
            idle += 1;
            (older, window) = (window, place.newer);
        }
        assert_eq!((idle, older), (self.idle_count, self.newest), "the list of idle ones is whole");
        for &window in &self.free {
            let count = std::mem::replace(&mut self.counted[window as usize], FREE);
            assert_eq!(count, 0, "window block {window} is free, and used or twice free");
        }
        let mut owned = 0;
        for (window, (place, &count)) in (0..).zip(self.places.iter().zip(&self.counted)) {
            let users = if count == FREE { 0 } else { count };
            assert_eq!(place.users, users, "window block {window}: its users");
            let has_owner = place.owner != NONE;
            assert!(
                !has_owner || self.of[place.owner as usize] == window,
                "window block {window}: its owner"
            );
            assert_eq!(count == FREE, users == 0 && !has_owner, "window block {window} is free, or is not");
            owned += usize::from(has_owner);
        }
        let owners = self.of.iter().filter(|&&window| window != NONE).count();
        assert_eq!(owners, owned, "each block owns a window block of its own");
    }
}

/// What a sequence of at most `tokens_max` tokens reserves.
pub(crate) fn quota(window: WindowKv, block_size: u32, tokens_max: u32) -> u32 {
    blocks_for(tokens_max, block_size).min(window_blocks_of_sequence(window.tokens, block_size))
}
