//! Request slots: one 320-byte entry per request of a frontend.
//!
//! A slot holds (a) a state word: generation, live, cancelled, stopped; (b) the timeline, one stamp per
//! stage, each written by one role; (c) counters, each written by one role. Cancelling is one
//! compare-and-swap that every role sees, and not a message that can queue. Which stage and counter means
//! what is the caller's vocabulary.
//!
//! Stamps and counters name their request: each word holds 48 bits of value over the low 16 bits of the
//! generation. A writer looks at the state word first and leaves a slot alone that has moved on; if it is
//! stopped between look and store for so long that the slot is used again, its word carries the old
//! generation and reads as "not reached". What remains: such a late store can hide the new request's own
//! stamp of the same stage (it reads as missing, never as a wrong time), and a writer stopped for exactly a
//! multiple of 65 536 uses of one slot would be believed.

use crate::region::{AttachError, Region, RegionKind, Words};
use crate::sync::{AtomicU64, Ordering};
use pinion_os::clock;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Stages of one slot's timeline.
pub const STAGES_PER_SLOT: usize = 16;
/// Counters of one slot.
pub const COUNTERS_PER_SLOT: usize = 16;

/// The state has the first cache line for itself, then two lines of stamps and two of counters.
const SLOT_WORDS: usize = 40;
const STATE: usize = 0;
const STAMPS: usize = 8;
const COUNTERS: usize = STAMPS + STAGES_PER_SLOT;
const _: () = assert!(COUNTERS + COUNTERS_PER_SLOT == SLOT_WORDS);

/// Bits of the generation in a stamp or counter.
const TAG_BITS: u32 = 16;
const VALUE_MASK: u64 = u64::MAX >> TAG_BITS;

/// Generations that one life of a frontend has for each slot before those of its next one: what is still said of a
/// request of a dead frontend names none of its successor's, which has a fresh table. 4096 lives have generations of
/// their own.
const GENERATIONS_PER_LIFE: u32 = 1 << 20;

const LIVE: u64 = 1 << 32;
const CANCELLED: u64 = 1 << 33;
const STOPPED: u64 = 1 << 34;

/// Within one generation the state changes three times at most (cancel, stop, close), so an honest race is
/// over after that many failed swaps; a peer that scribbles must not hold us longer.
const SWAPS_MAX: usize = 8;

/// What the state word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotState {
    /// Generation of the request that has, or last had, the slot; before the first, that before the first.
    pub generation: u32,
    /// Whether the request is under way.
    pub live: bool,
    /// Whether its end was requested.
    pub cancelled: bool,
    /// Whether a stop string was found in its text.
    pub stopped: bool,
}

impl SlotState {
    /// Whether the slot has, or had, a request of this generation. Generations wrap.
    pub fn has_reached(&self, generation: u32) -> bool {
        self.generation.wrapping_sub(generation) <= u32::MAX / 2
    }

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
    /// Bit per stage: this process does not stamp it.
    muted: u16,
}

impl SlotTable {
    /// A table of `count` closed slots for life `epoch` of its frontend, from 1 on; each life's generations are its
    /// own. Errors: see [`Region::create`].
    pub fn create(layout_hash: u64, epoch: u32, count: usize) -> io::Result<SlotTable> {
        let words = count.saturating_mul(SLOT_WORDS);
        let region = Region::create("pinion-slots", RegionKind::Slots, layout_hash, epoch, words)?;
        let last = epoch.wrapping_sub(1).wrapping_mul(GENERATIONS_PER_LIFE);
        for slot in region.words().chunks_exact(SLOT_WORDS) {
            slot[STATE].store(u64::from(last), Ordering::Relaxed);
        }
        Ok(SlotTable { region, muted: 0 })
    }

    /// Checks and maps a received table.
    pub fn attach(fd: OwnedFd, layout_hash: u64, epoch: Option<u32>) -> Result<SlotTable, AttachError> {
        let region = Region::attach(fd, RegionKind::Slots, layout_hash, epoch)?;
        let words = region.len();
        if words % SLOT_WORDS != 0 {
            let claimed = words.next_multiple_of(SLOT_WORDS) as u64;
            return Err(AttachError::Length { claimed, found: words as u64 });
        }
        Ok(SlotTable { region, muted: 0 })
    }

    /// The same table, of whose stages this process stamps only those for which `stamps` holds.
    pub fn stamping(mut self, stamps: impl Fn(usize) -> bool) -> SlotTable {
        let muted = (0..STAGES_PER_SLOT).filter(|stage| !stamps(*stage));
        self.muted = muted.fold(0, |bits, stage| bits | 1 << stage);
        self
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
        let words = words.try_into().expect("a chunk has the words of a slot");
        Some(Slot { words, muted: self.muted })
    }

    /// See [`Region::mend`].
    pub fn mend(&self) -> bool {
        self.region.mend()
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
    muted: u16,
}

impl Slot<'_> {
    /// Starts the slot's next request and gives its generation, which is never 0. Clears stamps and
    /// counters. Only the owning frontend calls it, and only on a closed slot. A role that still works for an
    /// earlier generation, after the death of another, finds that the slot is no longer its request's.
    pub fn open(&self) -> u32 {
        let last = SlotState::from_word(self.words[STATE].load(Ordering::Acquire)).generation;
        let generation = last.wrapping_add(1).max(1);
        for word in &self.words[STAMPS..] {
            word.store(0, Ordering::Relaxed);
        }
        // Sync point `slot-open`: a load that sees this generation in `state` sees the cleared words.
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

    /// Writes the stamp of `stage` for the request of `generation`; a slot that has moved on is left alone.
    /// Panics from [`STAGES_PER_SLOT`] on.
    pub fn stamp(&self, generation: u32, stage: usize, ns: u64) {
        let stage = bounded(stage, STAGES_PER_SLOT);
        if self.muted >> stage & 1 == 0 {
            self.put(generation, STAMPS + stage, ns);
        }
    }

    /// The stamp of `stage` by the request of `generation`, 0 when not reached. A slot keeps 48 bits, so a
    /// stamp reads right for 39 hours around the present. Panics from [`STAGES_PER_SLOT`] on.
    pub fn stamped(&self, generation: u32, stage: usize) -> u64 {
        match self.taken(generation, STAMPS + bounded(stage, STAGES_PER_SLOT)) {
            None | Some(0) => 0,
            Some(low) => widened(low, clock::now_ns()),
        }
    }

    /// Replaces counter `counter` for the request of `generation`; a slot that has moved on is left alone.
    /// Values up to 2^48 − 1. Panics from [`COUNTERS_PER_SLOT`] on.
    pub fn set_counter(&self, generation: u32, counter: usize, value: u64) {
        self.put(generation, COUNTERS + bounded(counter, COUNTERS_PER_SLOT), value.min(VALUE_MASK));
    }

    /// Counter `counter` of the request of `generation`, 0 when not written. Panics from
    /// [`COUNTERS_PER_SLOT`] on.
    pub fn counter(&self, generation: u32, counter: usize) -> u64 {
        self.taken(generation, COUNTERS + bounded(counter, COUNTERS_PER_SLOT)).unwrap_or(0)
    }

    fn put(&self, generation: u32, word: usize, value: u64) {
        if self.state().generation == generation {
            self.words[word].store(value << TAG_BITS | u64::from(generation as u16), Ordering::Relaxed);
        }
    }

    fn taken(&self, generation: u32, word: usize) -> Option<u64> {
        let word = self.words[word].load(Ordering::Relaxed);
        (word as u16 == generation as u16).then_some(word >> TAG_BITS)
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

fn bounded(index: usize, count: usize) -> usize {
    assert!(index < count, "stages and counters are named by the program, not by what it reads");
    index
}

/// The time nearest to `now_ns` whose low 48 bits are `low`; never 0.
fn widened(low: u64, now_ns: u64) -> u64 {
    let ahead = ((low.wrapping_sub(now_ns) << TAG_BITS) as i64) >> TAG_BITS;
    now_ns.saturating_add_signed(ahead).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_keeps_its_time_across_a_wrap_of_its_48_bits() {
        for now_ns in [1 << 20, (1 << 48) - 5, 1 << 48, (7 << 48) + 12, u64::MAX >> 8] {
            for distance in [0, 1, 1_000_000_000, 3_600_000_000_000_i64] {
                for signed in [-distance, distance] {
                    let Some(ns) = now_ns.checked_add_signed(signed).filter(|ns| *ns > 0) else { continue };
                    assert_eq!(widened(ns & VALUE_MASK, now_ns), ns, "{now_ns} {signed}");
                }
            }
        }
    }
}
