//! Request slots: one 256-byte entry per request of a frontend.
//!
//! A slot holds (a) a state word: generation, live, cancelled, stopped; (b) the timeline, one stamp per
//! stage, each written by one role; (c) counters, each written by one role. Cancelling is one
//! compare-and-swap that every role sees, and not a message that can queue. Which stage and counter means
//! what is the caller's vocabulary.

use crate::region::{AttachError, Region, RegionKind, Words};
use crate::sync::{AtomicU64, Ordering};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Stages of one slot's timeline.
pub const STAGES_PER_SLOT: usize = 16;
/// Counters of one slot.
pub const COUNTERS_PER_SLOT: usize = 8;

/// The state has the first cache line for itself, then two lines of stamps and one of counters.
const SLOT_WORDS: usize = 32;
const STATE: usize = 0;
const STAMPS: usize = 8;
const COUNTERS: usize = STAMPS + STAGES_PER_SLOT;
const _: () = assert!(COUNTERS + COUNTERS_PER_SLOT == SLOT_WORDS);

const LIVE: u64 = 1 << 32;
const CANCELLED: u64 = 1 << 33;
const STOPPED: u64 = 1 << 34;

/// Within one generation the state changes three times at most (cancel, stop, close), so an honest race is
/// over after that many failed swaps; a peer that scribbles must not hold us longer.
const SWAPS_MAX: usize = 8;

/// What the state word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotState {
    /// Generation of the request that has, or last had, the slot; 0 before the first.
    pub generation: u32,
    /// Whether the request is under way.
    pub live: bool,
    /// Whether somebody asked for its end.
    pub cancelled: bool,
    /// Whether a stop string was found in its text.
    pub stopped: bool,
}

impl SlotState {
    fn from_word(word: u64) -> SlotState {
        SlotState {
            generation: word as u32,
            live: word & LIVE != 0,
            cancelled: word & CANCELLED != 0,
            stopped: word & STOPPED != 0,
        }
    }
}

/// The slots of one frontend; a clone is the same table.
#[derive(Clone)]
pub struct SlotTable {
    region: Region,
}

impl SlotTable {
    /// A table of `count` closed slots. Errors: see [`Region::create`].
    pub fn create(layout_hash: u64, epoch: u32, count: usize) -> io::Result<SlotTable> {
        let words = count.saturating_mul(SLOT_WORDS);
        Ok(SlotTable {
            region: Region::create("pinion-slots", RegionKind::Slots, layout_hash, epoch, words)?,
        })
    }

    /// Checks and maps a received table.
    pub fn attach(fd: OwnedFd, layout_hash: u64, epoch: Option<u32>) -> Result<SlotTable, AttachError> {
        let region = Region::attach(fd, RegionKind::Slots, layout_hash, epoch)?;
        let words = region.len();
        if words % SLOT_WORDS != 0 {
            let claimed = words.next_multiple_of(SLOT_WORDS) as u64;
            return Err(AttachError::Length { claimed, found: words as u64 });
        }
        Ok(SlotTable { region })
    }

    /// How many slots it has.
    pub fn len(&self) -> usize {
        self.region.len() / SLOT_WORDS
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slot `i`; `None` past the end.
    pub fn slot(&self, i: usize) -> Option<Slot<'_>> {
        let words = self.region.words().chunks_exact(SLOT_WORDS).nth(i)?;
        Some(Slot { words: words.try_into().expect("a chunk has the words of a slot") })
    }

    /// The memfd, for sending it to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    /// Which life of its frontend it belongs to.
    pub fn epoch(&self) -> u32 {
        self.region.epoch()
    }
}

/// One slot.
#[derive(Clone, Copy)]
pub struct Slot<'a> {
    words: &'a [AtomicU64; SLOT_WORDS],
}

impl Slot<'_> {
    /// Starts the slot's next request and gives its generation, which is never 0. Clears stamps and
    /// counters. Only the owning frontend calls it, and only on a closed slot that nobody works on.
    pub fn open(&self) -> u32 {
        let last = SlotState::from_word(self.words[STATE].load(Ordering::Acquire)).generation;
        let generation = last.wrapping_add(1).max(1);
        for word in &self.words[STAMPS..] {
            word.store(0, Ordering::Relaxed);
        }
        // Sync point `slot-open`: who sees this generation in `state` sees the cleared words.
        self.words[STATE].store(u64::from(generation) | LIVE, Ordering::Release);
        generation
    }

    /// Ends the request; the generation stays, so that late records are told apart. A stale generation
    /// changes nothing. Only the owning frontend calls it.
    pub fn close(&self, generation: u32) {
        self.change(generation, |word| word & !LIVE);
    }

    /// A consistent view of the state word.
    pub fn state(&self) -> SlotState {
        // Sync point `slot-open`, the reading end.
        SlotState::from_word(self.words[STATE].load(Ordering::Acquire))
    }

    /// Asks for the end of the request; `false`, and nothing changes, when it is not live in `generation`.
    pub fn cancel(&self, generation: u32) -> bool {
        self.change(generation, |word| word | CANCELLED)
    }

    /// Says that a stop string was found; `false`, and nothing changes, when it is not live in `generation`.
    pub fn stop(&self, generation: u32) -> bool {
        self.change(generation, |word| word | STOPPED)
    }

    /// Writes the stamp of `stage`. Panics from [`STAGES_PER_SLOT`] on.
    pub fn stamp(&self, stage: usize, ns: u64) {
        self.stamps()[stage].store(ns, Ordering::Relaxed);
    }

    /// The stamp of `stage`, 0 when not reached. Panics from [`STAGES_PER_SLOT`] on.
    pub fn stamped(&self, stage: usize) -> u64 {
        self.stamps()[stage].load(Ordering::Relaxed)
    }

    /// Replaces counter `counter`. Panics from [`COUNTERS_PER_SLOT`] on.
    pub fn set_counter(&self, counter: usize, value: u64) {
        self.words[COUNTERS..][counter].store(value, Ordering::Relaxed);
    }

    /// Counter `counter`. Panics from [`COUNTERS_PER_SLOT`] on.
    pub fn counter(&self, counter: usize) -> u64 {
        self.words[COUNTERS..][counter].load(Ordering::Relaxed)
    }

    fn stamps(&self) -> &[AtomicU64] {
        &self.words[STAMPS..COUNTERS]
    }

    /// Swaps the state word for `update` of it while it is live in `generation`.
    fn change(&self, generation: u32, update: impl Fn(u64) -> u64) -> bool {
        let state = &self.words[STATE];
        let mut word = state.load(Ordering::Acquire);
        for _ in 0..SWAPS_MAX {
            let now = SlotState::from_word(word);
            if !now.live || now.generation != generation {
                return false;
            }
            match state.compare_exchange(word, update(word), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(changed) => word = changed,
            }
        }
        false
    }
}
