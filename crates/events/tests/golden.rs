//! The bytes of a batch are those of msgspec with vLLM's structs: `golden/make.py` says how they were made.

use pinion_events::batch::Events;
use pinion_protocol::events_inbox::{CacheEntry, block_hash};

fn stored(serial: u64, parent: Option<u64>, tokens: &[u32]) -> CacheEntry {
    let hash = |serial| block_hash(3, serial);
    CacheEntry::Stored { hash: hash(serial), parent: parent.map(hash), tokens: tokens.to_vec() }
}

fn removed(serial: u64) -> CacheEntry {
    CacheEntry::Removed { hash: block_hash(3, serial) }
}

fn check(name: &str, block_size: usize, entries: &[CacheEntry], unix_s: f64, rank: u16, golden: &[u8]) {
    let mut events = Events::new(block_size);
    entries.iter().for_each(|entry| events.push(entry));
    assert_eq!(events.encode(unix_s, rank), golden, "{name}");
}

#[test]
fn batches_are_those_of_msgspec() {
    let golden = include_bytes!("golden/cleared.msgpack");
    check("cleared", 16, &[CacheEntry::Cleared], 1_763_884_800.25, 0, golden);

    let chain = [
        removed(1),
        removed(2),
        stored(3, None, &[0, 127, 128, 255]),
        stored(4, Some(3), &[256, 65_535, 65_536, 262_143]),
        stored(5, Some(3), &[7, 8, 9, 10]),
    ];
    check("chain", 4, &chain, 1_763_884_801.5, 0, include_bytes!("golden/chain.msgpack"));

    let ids: Vec<u32> = (0..320).collect();
    // What stands before a clearing in the same batch is void.
    let mut long = vec![removed(9), CacheEntry::Cleared];
    for (index, tokens) in ids.chunks(16).enumerate() {
        let serial = index as u64 + 1;
        long.push(stored(serial, (serial > 1).then_some(serial - 1), tokens));
    }
    check("long", 16, &long, 1_763_884_802.0, 1, include_bytes!("golden/long.msgpack"));
}
