//! The bytes of a batch are those of msgspec with vLLM's structs, and names of blocks are vLLM's: `golden/make.py` and
//! `golden/names.py` say how they were made.

use pinion_events::batch::Events;
use pinion_events::names::Digest;
use serde_json::Value;

const HIGH: u64 = (1 << 63) + (3 << 40);

fn check(
    name: &str,
    block_size: usize,
    push: impl FnOnce(&mut Events),
    unix_s: f64,
    rank: u16,
    golden: &[u8],
) {
    let mut events = Events::new(block_size);
    push(&mut events);
    assert_eq!(events.encode(unix_s, rank), golden, "{name}");
}

#[test]
fn batches_are_those_of_msgspec() {
    let golden = include_bytes!("golden/cleared.msgpack");
    check("cleared", 16, Events::push_cleared, 1_763_884_800.25, 0, golden);

    let chain = |events: &mut Events| {
        events.push_removed(HIGH + 1);
        events.push_removed(HIGH + 2);
        events.push_stored(HIGH + 3, None, &[0, 127, 128, 255]);
        events.push_stored(HIGH + 4, Some(HIGH + 3), &[256, 65_535, 65_536, 262_143]);
        events.push_stored(HIGH + 5, Some(HIGH + 3), &[7, 8, 9, 10]);
    };
    check("chain", 4, chain, 1_763_884_801.5, 0, include_bytes!("golden/chain.msgpack"));

    let ids: Vec<u32> = (0..320).collect();
    let long = |events: &mut Events| {
        // What stands before a clearing in the same batch is void.
        events.push_removed(HIGH + 9);
        events.push_cleared();
        for (tokens, name) in ids.chunks(16).zip(HIGH + 1..) {
            events.push_stored(name, (name > HIGH + 1).then_some(name - 1), tokens);
        }
    };
    check("long", 16, long, 1_763_884_802.0, 1, include_bytes!("golden/long.msgpack"));
}

/// A third party computes the same from the documentation, and so does vLLM.
#[test]
fn names_are_those_of_vllm() {
    let texts: Vec<Value> = serde_json::from_str(include_str!("golden/names.json")).unwrap();
    let numbers = |value: &Value| -> Vec<u64> {
        value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
    };
    assert_eq!(texts.len(), 8);
    for text in texts {
        let block_size = text["block_size"].as_u64().unwrap() as usize;
        let ids: Vec<u32> =
            numbers(&text["token_ids"]).iter().map(|&id| u32::try_from(id).unwrap()).collect();
        let mut digest = Digest::root();
        let names: Vec<u64> = ids
            .chunks(block_size)
            .map(|tokens| {
                digest = digest.then(tokens);
                digest.name()
            })
            .collect();
        assert_eq!(names, numbers(&text["names"]), "blocks of {block_size}");
    }
}
