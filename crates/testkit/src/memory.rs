//! The shared memory of a running service, through the launcher's descriptors: for tests that write what no role
//! writes.
//!
//! Regions are found by their name in /proc and told by their header. Offsets are those of `shm/src/ring.rs`.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

/// "pinionsm", as a region begins.
const MAGIC: u64 = u64::from_le_bytes(*b"pinionsm");
/// Words in front of a region's payload.
const HEADER_WORDS: u64 = 16;
const HEAD: u64 = 16;
const TAIL: u64 = 32;
const READER_ASLEEP: u64 = 48;
const DATA: u64 = 64;

/// What a region holds, as its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// Records of one edge.
    Ring = 1,
    /// Request slots of one frontend.
    Slots = 2,
    /// A status page.
    Page = 3,
}

/// A region of a running service.
pub struct SharedRegion {
    file: File,
}

/// A word of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingWord {
    /// Where the writer is.
    Head,
    /// Where the reader is.
    Tail,
    /// Whether the reader sleeps.
    ReaderAsleep,
    /// This word of the first record that the reader has not taken; 0 and 1 are its header.
    Unread(u64),
}

impl SharedRegion {
    /// The regions of this kind and memfd name that the process has open now.
    pub fn find(pid: u32, kind: RegionKind, name: &str) -> Vec<SharedRegion> {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
        let wanted = format!("/memfd:{name} (deleted)");
        let is_wanted = |path: &std::path::PathBuf| {
            fs::read_link(path).is_ok_and(|target| target.to_string_lossy() == wanted)
        };
        entries
            .flatten()
            .map(|entry| entry.path())
            .filter(is_wanted)
            .filter_map(|path| OpenOptions::new().read(true).write(true).open(path).ok())
            .map(|file| SharedRegion { file })
            .filter(|region| region.word(0) == MAGIC && region.word(2) as u32 == kind as u32)
            .collect()
    }

    /// Word `index` of the file.
    pub fn word(&self, index: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, index * 8).map_or(0, |()| u64::from_ne_bytes(bytes))
    }

    /// Replaces word `index` of the file.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn set_word(&self, index: u64, value: u64) {
        self.file
            .write_all_at(&value.to_ne_bytes(), index * 8)
            .expect("a region of our own user can be written");
    }

    /// Words of a ring that wait for its reader.
    pub fn unread_words(&self) -> u64 {
        self.word(HEADER_WORDS + HEAD).saturating_sub(self.word(HEADER_WORDS + TAIL))
    }

    /// Turns over every other bit of a word of a ring.
    pub fn damage_ring(&self, word: RingWord) {
        let index = HEADER_WORDS
            + match word {
                RingWord::Head => HEAD,
                RingWord::Tail => TAIL,
                RingWord::ReaderAsleep => READER_ASLEEP,
                RingWord::Unread(at) => {
                    let capacity = self.word(3) - DATA;
                    DATA + ((self.word(HEADER_WORDS + TAIL) + at) & (capacity - 1))
                }
            };
        self.set_word(index, self.word(index) ^ 0x5a5a_5a5a_5a5a_5a5a);
    }
}
