//! What the events role receives: changes of the prefix cache, from engines.

use crate::limits::{BLOCK_TOKENS_MAX, CACHE_RECORD_BYTES_MAX};
use crate::wire::{Cursor, Malformed, put, put_ids};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Record kinds of this inbox.
pub mod kind {
    /// One or more [`super::CacheEntry`]s.
    pub const CACHE_CHANGES: u16 = 1;
}

/// Bits of a hash that hold a block's serial; the engine's epoch stands above them. Below 2^63 in all: some readers
/// take hashes for signed numbers.
const SERIAL_BITS: u32 = 40;
const EPOCH_MASK: u64 = (1 << 23) - 1;

/// What names a block outside: unique over the lives of an engine.
pub fn block_hash(epoch: u32, serial: u64) -> u64 {
    (u64::from(epoch) & EPOCH_MASK) << SERIAL_BITS | serial & ((1 << SERIAL_BITS) - 1)
}

/// One change of the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEntry {
    /// Nothing that was said before holds any more.
    Cleared,
    /// A block is in the cache no more.
    Removed {
        /// Which.
        hash: u64,
    },
    /// A block is in the cache.
    Stored {
        /// Its name.
        hash: u64,
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
    hash: u64,
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
    put(out, &EntryHead { hash: 0, parent: 0, what: CLEARED, token_count: 0 });
}

/// Appends [`CacheEntry::Removed`].
pub fn put_removed(out: &mut Vec<u8>, hash: u64) {
    put(out, &EntryHead { hash, parent: 0, what: REMOVED, token_count: 0 });
}

/// Appends [`CacheEntry::Stored`].
pub fn put_stored(out: &mut Vec<u8>, hash: u64, parent: Option<u64>, tokens: &[u32]) {
    let what = if parent.is_some() { STORED_AFTER } else { STORED_FIRST };
    let token_count = tokens.len() as u32;
    put(out, &EntryHead { hash, parent: parent.unwrap_or(0), what, token_count });
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
        let EntryHead { hash, parent, what, token_count } = cursor.take("cache entry")?;
        let expected = if what >= STORED_FIRST { block_size } else { 0 };
        if token_count as usize != expected {
            return Err(Malformed("tokens of a cache entry"));
        }
        entries.push(match what {
            CLEARED => CacheEntry::Cleared,
            REMOVED => CacheEntry::Removed { hash },
            STORED_FIRST | STORED_AFTER => CacheEntry::Stored {
                hash,
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
        put_stored(&mut out, block_hash(1, 5), None, &[1, 2]);
        put_stored(&mut out, block_hash(1, 6), Some(block_hash(1, 5)), &[3, u32::MAX]);
        put_removed(&mut out, 9);
        assert!(out.len() <= 4 * entry_bytes(2));
        let entries = decode(kind::CACHE_CHANGES, &out, 2).unwrap();
        let [first, second] = [block_hash(1, 5), block_hash(1, 6)];
        let expected = [
            CacheEntry::Cleared,
            CacheEntry::Stored { hash: first, parent: None, tokens: vec![1, 2] },
            CacheEntry::Stored { hash: second, parent: Some(first), tokens: vec![3, u32::MAX] },
            CacheEntry::Removed { hash: 9 },
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

    #[test]
    fn no_two_lives_of_an_engine_share_a_hash() {
        assert_ne!(block_hash(1, 7), block_hash(2, 7));
        assert!(block_hash(u32::MAX, u64::MAX) < 1 << 63);
        assert_eq!(block_hash(1, 1) & 0xff, 1);
    }
}
