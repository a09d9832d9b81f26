//! What the events role receives: changes of the prefix cache, from engines.

use crate::limits::{BLOCK_TOKENS_MAX, CACHE_RECORD_BYTES_MAX};
use crate::wire::{Cursor, Malformed, put, put_ids};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Record kinds of this inbox.
pub mod kind {
    /// One or more [`super::CacheEntry`]s.
    pub const CACHE_CHANGES: u16 = 1;
}

/// One change of the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEntry {
    /// Nothing that was said before holds any more.
    Cleared,
    /// A block is in the cache no more.
    Removed {
        /// Which.
        serial: u64,
    },
    /// A block is in the cache.
    Stored {
        /// Its number, used once in this life of the engine and greater than its parent's.
        serial: u64,
        /// The block before it; `None` for the first block of a text.
        parent: Option<u64>,
        /// Its token ids: all blocks have as many.
        tokens: Vec<u32>,
    },
}

const CLEARED: u32 = 0;
const REMOVED: u32 = 1;
const STORED_FIRST: u32 = 2;
const STORED_AFTER: u32 = 3;

/// Head of an entry; the tokens of a stored block follow it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct EntryHead {
    serial: u64,
    parent: u64,
    what: u32,
    token_count: u32,
}

/// Bytes of the entry of a block with this number of tokens, which is the largest kind.
pub const fn entry_bytes(block_size: usize) -> usize {
    size_of::<EntryHead>() + block_size * size_of::<u32>()
}

const _: () = assert!(entry_bytes(BLOCK_TOKENS_MAX) <= CACHE_RECORD_BYTES_MAX);

/// Appends [`CacheEntry::Cleared`].
pub fn put_cleared(out: &mut Vec<u8>) {
    put(out, &EntryHead { serial: 0, parent: 0, what: CLEARED, token_count: 0 });
}

/// Appends [`CacheEntry::Removed`].
pub fn put_removed(out: &mut Vec<u8>, serial: u64) {
    put(out, &EntryHead { serial, parent: 0, what: REMOVED, token_count: 0 });
}

/// Appends [`CacheEntry::Stored`].
pub fn put_stored(out: &mut Vec<u8>, serial: u64, parent: Option<u64>, tokens: &[u32]) {
    let what = if parent.is_some() { STORED_AFTER } else { STORED_FIRST };
    let token_count = tokens.len() as u32;
    put(out, &EntryHead { serial, parent: parent.unwrap_or(0), what, token_count });
    put_ids(out, tokens);
}

/// Checks and copies a record of blocks of `block_size` tokens. Errors: an unknown kind, an entry that is cut short or
/// is none, a block of another size.
pub fn decode(record_kind: u16, payload: &[u8], block_size: usize) -> Result<Vec<CacheEntry>, Malformed> {
    if record_kind != kind::CACHE_CHANGES {
        return Err(Malformed("events record kind"));
    }
    let mut cursor = Cursor(payload);
    let mut entries = Vec::new();
    while !cursor.0.is_empty() {
        let EntryHead { serial, parent, what, token_count } = cursor.take("cache entry")?;
        let expected = if what >= STORED_FIRST { block_size } else { 0 };
        if token_count as usize != expected {
            return Err(Malformed("tokens of a cache entry"));
        }
        entries.push(match what {
            CLEARED => CacheEntry::Cleared,
            REMOVED => CacheEntry::Removed { serial },
            STORED_FIRST | STORED_AFTER => CacheEntry::Stored {
                serial,
                parent: (what == STORED_AFTER).then_some(parent),
                tokens: cursor.ids(expected, "tokens of a cache entry")?,
            },
            _ => return Err(Malformed("cache entry")),
        });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_damaged_ones_do_not() {
        let mut out = Vec::new();
        put_cleared(&mut out);
        put_stored(&mut out, 5, None, &[1, 2]);
        put_stored(&mut out, 6, Some(5), &[3, u32::MAX]);
        put_removed(&mut out, 9);
        assert!(out.len() <= 4 * entry_bytes(2));
        let entries = decode(kind::CACHE_CHANGES, &out, 2).unwrap();
        let expected = [
            CacheEntry::Cleared,
            CacheEntry::Stored { serial: 5, parent: None, tokens: vec![1, 2] },
            CacheEntry::Stored { serial: 6, parent: Some(5), tokens: vec![3, u32::MAX] },
            CacheEntry::Removed { serial: 9 },
        ];
        assert_eq!(entries, expected);
        assert_eq!(decode(kind::CACHE_CHANGES, &[], 2), Ok(Vec::new()));

        assert!(decode(2, &out, 2).is_err(), "an unknown kind");
        assert!(decode(kind::CACHE_CHANGES, &out, 3).is_err(), "blocks of another size");
        let ends = [24, 56, 88, 112];
        for end in (1..out.len()).filter(|end| !ends.contains(end)) {
            assert!(decode(kind::CACHE_CHANGES, &out[..end], 2).is_err(), "{end} bytes");
        }
        for (at, what) in [(16, 4), (16, STORED_FIRST), (40, CLEARED)] {
            let mut damaged = out.clone();
            damaged[at..at + 4].copy_from_slice(&what.to_le_bytes());
            assert!(decode(kind::CACHE_CHANGES, &damaged, 2).is_err(), "{at} {what}");
        }
    }
}
