//! ZMTP as bytes, against what libzmq 4.3.5 sends, and what the publisher answers.

use pinion_events::names::Digest;
use pinion_events::publisher::{Facts, Message, Publisher};
use pinion_events::zmtp::{Decoder, Incoming, Refused, message};
use pinion_protocol::events_inbox::{kind, put_cleared, put_removed, put_stored};

/// The first 64 bytes of a libzmq SUB socket, and its READY command.
fn handshake(socket_type: &str) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend_from_slice(&(socket_type.len() as u32).to_be_bytes());
    ready.extend_from_slice(socket_type.as_bytes());
    bytes.extend_from_slice(&[4, ready.len() as u8]);
    bytes.extend_from_slice(&ready);
    bytes
}

fn all(decoder: &mut Decoder) -> Result<Vec<Incoming>, Refused> {
    let mut said = Vec::new();
    while let Some(incoming) = decoder.incoming()? {
        said.push(incoming);
    }
    Ok(said)
}

#[test]
fn a_peer_is_understood_wherever_its_bytes_are_cut() {
    let mut bytes = handshake("SUB");
    bytes.extend_from_slice(b"\x00\x04\x01kv@");
    bytes.extend_from_slice(b"\x04\x0d\x09SUBSCRIBEabc");
    bytes.extend_from_slice(b"\x04\x08\x06CANCELa");
    bytes.extend_from_slice(b"\x04\x09\x04PING\x00\x64xy");
    bytes.extend_from_slice(b"\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x05");
    let expected = [
        Incoming::Greeting { minor: 1 },
        Incoming::Ready,
        Incoming::Message(vec![b"\x01kv@".to_vec()]),
        Incoming::Subscribe(b"abc".to_vec()),
        Incoming::Cancel(b"a".to_vec()),
        Incoming::Ping(b"\x04\x07\x04PONGxy".to_vec()),
        Incoming::Message(vec![Vec::new(), 5_u64.to_be_bytes().to_vec()]),
    ];
    for cut in 0..=bytes.len() {
        let (mut decoder, mut said) = (Decoder::default(), Vec::new());
        for part in [&bytes[..cut], &bytes[cut..]] {
            decoder.feed(part);
            said.extend(all(&mut decoder).unwrap());
        }
        assert_eq!(said, expected, "cut at {cut}");
    }
}

#[test]
fn what_is_no_zmtp_or_too_long_is_refused() {
    let with = |at: usize, byte: u8| {
        let mut bytes = handshake("SUB");
        bytes[at] = byte;
        bytes
    };
    let after = |more: &[u8]| [&handshake("SUB")[..], more].concat();
    let many = [1, 0].repeat(9);
    for (name, bytes) in [
        ("HTTP", [&b"GET / HTTP/1.1\r\n"[..], &[b' '; 64]].concat()),
        ("ZMTP 2", with(10, 1)),
        ("CURVE", [&with(12, b'C')[..]].concat()),
        ("unknown flags", after(&[8, 0])),
        ("a command of several frames", after(&[5, 1, 0])),
        ("a long frame", after(&[2, 0, 0, 0, 0, 0, 0, 4, 1])),
        ("the longest frame", after(&[2, 255, 255, 255, 255, 255, 255, 255, 255])),
        ("many frames", after(&many)),
        ("an empty command", after(&[4, 0])),
        ("a command's name that is cut", after(&[4, 2, 9, b'S'])),
        ("a ping that is cut", after(b"\x04\x06\x04PING\x00")),
        ("an error", after(b"\x04\x07\x05ERROR\x00")),
    ] {
        let mut decoder = Decoder::default();
        decoder.feed(&bytes);
        assert!(all(&mut decoder).is_err(), "{name}");
    }
}

fn publisher(next: u64) -> Publisher {
    let facts = Facts { topic: "kv@a@m".to_owned(), block_size: 2, block_count: 8, rank: 0 };
    Publisher::new(facts, next)
}

/// A record of one block after another, which begins with a clearing if `clears`.
fn record(clears: bool, serials: std::ops::Range<u64>) -> Vec<u8> {
    let mut payload = Vec::new();
    if clears {
        put_cleared(&mut payload);
    }
    for serial in serials {
        put_stored(&mut payload, serial, (serial > 1).then_some(serial - 1), &[serial as u32, 7]);
    }
    payload
}

/// Topic, number and payload of a message.
fn parts(message: &[u8]) -> (Vec<u8>, u64, Vec<u8>) {
    let (mut rest, mut frames) = (message, Vec::new());
    while !rest.is_empty() {
        let (head, len) = match rest[0] & 2 {
            0 => (2, usize::from(rest[1])),
            _ => (9, u64::from_be_bytes(rest[1..9].try_into().expect("eight bytes")) as usize),
        };
        assert_eq!(
            rest[0] & 1 == 1,
            rest.len() > head + len,
            "every frame but the last has others behind it"
        );
        frames.push(rest[head..head + len].to_vec());
        rest = &rest[head + len..];
    }
    let [topic, number, payload] = frames.try_into().expect("three frames");
    (topic, u64::from_be_bytes(number.try_into().expect("eight bytes")), payload)
}

/// The whole answer to a request from number `start` on, and in how many portions it came.
fn replay(publisher: &mut Publisher, start: u64) -> (Vec<Message>, usize) {
    let (mut answer, mut next, mut portions) = (Vec::new(), Some(start), 0);
    while let Some(start) = next {
        let (messages, rest) = publisher.replay(start, 2.0);
        let bytes: usize = messages.iter().map(|message| message.len()).sum();
        assert!(bytes < 3 << 20, "{bytes} bytes at once");
        answer.extend(messages);
        (next, portions) = (rest, portions + 1);
    }
    (answer, portions)
}

fn numbers(publisher: &mut Publisher, start: u64) -> Vec<u64> {
    let (answer, _) = replay(publisher, start);
    answer
        .chunks(2)
        .map(|pair| {
            assert_eq!(pair[0][..], [1, 0], "an empty frame precedes each message");
            parts(&pair[1]).1
        })
        .collect()
}

#[test]
fn batches_are_numbered_and_a_snapshot_has_the_number_of_the_last() {
    let mut publisher = publisher(5);
    assert_eq!(publisher.snapshot(0.0), None, "the engine has not spoken: its first batch says everything");
    let first = publisher.take(kind::CACHE_CHANGES, &record(true, 1..4), 1.0).unwrap().expect("changes");
    assert_eq!((parts(&first).0, parts(&first).1), (b"kv@a@m".to_vec(), 5));
    let mut more = Vec::new();
    put_removed(&mut more, 3);
    put_stored(&mut more, 4, Some(1), &[4, 7]);
    let second = publisher.take(kind::CACHE_CHANGES, &more, 2.0).unwrap().expect("changes");
    assert_eq!((parts(&second).1, publisher.next_number()), (6, 7));
    assert!(publisher.take(kind::CACHE_CHANGES, &[], 3.0).unwrap().is_none(), "nothing to say");

    let (_, number, payload) = parts(&publisher.snapshot(4.0).unwrap());
    assert_eq!(number, 6);
    type Whole = (f64, ((String,), Stored, Stored), u16);
    type Stored = (String, Vec<u64>, Option<u64>, Vec<u32>, u32, Option<u32>, String, Option<String>);
    let (_, (cleared, chain, branch), rank): Whole = rmp_serde::from_slice(&payload).unwrap();
    assert_eq!(cleared.0, "AllBlocksCleared");
    let first = Digest::root().then(&[1, 7]);
    assert_eq!((chain.1, chain.2), (vec![first.name(), first.then(&[2, 7]).name()], None));
    assert_eq!((chain.3, chain.4, &chain.6[..]), (vec![1, 7, 2, 7], 2, "GPU"));
    assert_eq!((branch.1, branch.2, rank), (vec![first.then(&[4, 7]).name()], Some(first.name()), 0));

    let lost = publisher.lose_engine(5.0);
    assert_eq!(parts(&lost).1, 7);
    assert!(parts(&publisher.snapshot(6.0).unwrap()).2.len() < 40, "nothing is left but the clearing");
}

#[test]
fn a_replay_gives_what_is_kept_or_the_whole_cache() {
    let end = u64::MAX;
    let mut publisher = publisher(5);
    assert_eq!(numbers(&mut publisher, 0), [end], "nothing was said yet");
    publisher.take(kind::CACHE_CHANGES, &record(true, 1..2), 1.0).unwrap();
    publisher.take(kind::CACHE_CHANGES, &record(false, 2..3), 1.0).unwrap();
    publisher.take(kind::CACHE_CHANGES, &record(false, 3..4), 1.0).unwrap();
    for (start, expected) in [
        (5, &[5, 6, 7, end][..]),
        (7, &[7, end]),
        (8, &[end]),
        // Its predecessor's batches are gone, and those that are still to come belong to an earlier service.
        (4, &[7, end]),
        (9, &[7, end]),
        (end, &[7, end]),
    ] {
        assert_eq!(numbers(&mut publisher, start), expected, "from {start}");
    }
    let (whole, _) = replay(&mut publisher, 4);
    assert_eq!(Some(&whole[1]), publisher.snapshot(2.0).as_ref());
    assert_eq!(whole.last().unwrap()[..], message(&[b"", &end.to_be_bytes(), b""]));
}

#[test]
fn a_long_replay_comes_in_portions_and_what_is_kept_is_bounded() {
    let facts = Facts { topic: "t".to_owned(), block_size: 1024, block_count: 16, rank: 0 };
    let mut publisher = Publisher::new(facts, 0);
    let mut record = Vec::new();
    put_cleared(&mut record);
    for serial in 1..=16 {
        put_stored(&mut record, serial, None, &[u32::MAX - serial as u32; 1024]);
    }
    for _ in 0..1000 {
        publisher.take(kind::CACHE_CHANGES, &record, 0.0).unwrap();
    }
    let (answer, portions) = replay(&mut publisher, 900);
    assert_eq!(answer.len(), 2 * 101);
    assert!((5..20).contains(&portions), "{portions}");
    assert_eq!(numbers(&mut publisher, 0), [999, u64::MAX], "the first are kept no more");
    let kept = (64 << 20) / answer[1].len() as u64;
    assert_eq!(numbers(&mut publisher, 1000 - kept).len() as u64, kept + 1);
    assert_eq!(numbers(&mut publisher, 1000 - kept - 1).len(), 2);
}

#[test]
fn what_no_engine_sends_is_an_error() {
    let mut publisher = publisher(0);
    assert!(publisher.take(2, &record(true, 1..2), 0.0).is_err(), "an unknown kind");
    assert!(publisher.take(kind::CACHE_CHANGES, &record(true, 3..4), 0.0).is_err(), "an unknown parent");
    assert!(
        publisher.take(kind::CACHE_CHANGES, &record(true, 1..10), 0.0).is_err(),
        "more than the cache has"
    );
}

/// Whatever comes, nothing ends the process, and no more is kept than a frame and the frames before it.
#[test]
fn damaged_bytes_are_refused_or_understood() {
    let mut whole = handshake("SUB");
    for more in [
        &b"\x00\x04\x01kv@"[..],
        b"\x04\x0d\x09SUBSCRIBEabc\x04\x08\x06CANCELa\x04\x09\x04PING\x00\x64xy",
        b"\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x05",
    ] {
        whole.extend_from_slice(more);
    }
    let mut refused = 0;
    for seed in 0..20_000 {
        let mut random = pinion_random::Random::new(seed);
        let mut bytes = whole.clone();
        for _ in 0..random.between(1, 4) {
            // A greeting that is damaged says little about what follows it.
            let at = if random.chance(90) { 64 } else { 0 };
            let at = at + random.below(bytes.len() - at);
            match random.below(3) {
                0 => bytes[at] = random.bits() as u8,
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, random.bits() as u8),
            }
            if bytes.len() <= 65 {
                bytes.extend_from_slice(&whole[64..]);
            }
        }
        let mut decoder = Decoder::default();
        for part in bytes.chunks(random.between(1, 40) as usize) {
            decoder.feed(part);
            if all(&mut decoder).is_err() {
                refused += 1;
                break;
            }
        }
    }
    assert!((1_000..19_000).contains(&refused), "{refused} of 20000 are refused");
}
