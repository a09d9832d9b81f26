//! Record and replay: everything that the loop took from the world, and what it made of it, in a file; and the same
//! loop driven from that file to the same batches and tokens.
//!
//! The seam is [`crate::Ports`]: clock, records, slots and full outboxes are all that the loop sees, so they are what
//! is recorded ([`Taped`]), and a replay answers with them ([`replay`]). A model is deterministic for the same batches,
//! so nothing else is needed.
//!
//! # The file
//! `PINIONRC`, a u32 version, then frames until the end: kind u8, length u32, payload; all little-endian.
//!
//! | kind | payload |
//! |---|---|
//! | 0 header | JSON: `pinion` (version), `inboxes`, `config` (as resolved, without keys) |
//! | 1 group | what u8 (0 turn, 1 record of a replaced ring, 2 frontend gone, 3 detokenizer gone, 4 prefix cache cleared), index u16 |
//! | 2 clock | ns u64: what the next look at the clock gave |
//! | 3 record | inbox u32, kind u16, payload: what was taken from a ring |
//! | 4 slot | number of the look in this group u32, request (frontend u16, slot u16, generation u32), flags u8 (1 there, 2 live, 4 cancelled, 8 stopped), generation u32; only if it was not simply live |
//! | 5 refused | number of the send in this group u32: the outbox was over its bound |
//! | 6 plan | step u64, then for each row: request, start u32, length u32, index of the draw + 1 or 0 u32 |
//! | 7 sent | role u8 (0 frontend, 1 detokenizer), index u16, kind u16, payload |
//! | 8 lost | bytes u64 that could not be written in time: what follows is not the whole |
//! | 10 backlog | number of the look in this group u32, bytes u64 that waited for late detokenizers; only if there were any |
//! | 9 end | nothing: the service stopped in order |
//!
//! Frames of a group follow its group frame. Turns in which nothing happened are left out.

mod reader;
mod replay;
mod taped;

pub use reader::{Recording, read};
pub use replay::{Report, replay};
pub use taped::{Tape, Taped};

/// First bytes of a file.
const MAGIC: &[u8; 8] = b"PINIONRC";
/// Version of what is described above.
const VERSION: u32 = 2;
/// An earlier one that is still read: its config has one end-of-sequence id, no defaults of the model folder and no
/// reasoning.
const VERSION_ONE_END: u32 = 1;

mod frame {
    pub(super) const HEADER: u8 = 0;
    pub(super) const GROUP: u8 = 1;
    pub(super) const CLOCK: u8 = 2;
    pub(super) const RECORD: u8 = 3;
    pub(super) const SLOT: u8 = 4;
    pub(super) const REFUSED: u8 = 5;
    pub(super) const PLAN: u8 = 6;
    pub(super) const SENT: u8 = 7;
    pub(super) const LOST: u8 = 8;
    pub(super) const END: u8 = 9;
    pub(super) const BACKLOG: u8 = 10;
}

/// What a group of frames is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Group {
    /// A turn of the loop.
    Turn = 0,
    /// A record of a ring that was replaced; it is the group's one record.
    OldRecord = 1,
    /// A frontend is gone.
    FrontendGone = 2,
    /// A detokenizer is gone.
    DetokenizerGone = 3,
    /// The prefix cache was cleared.
    CacheCleared = 4,
}

impl Group {
    fn from_byte(byte: u8) -> Option<Group> {
        let all =
            [Group::Turn, Group::OldRecord, Group::FrontendGone, Group::DetokenizerGone, Group::CacheCleared];
        all.get(usize::from(byte)).copied()
    }
}
