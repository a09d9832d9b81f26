//! Peers that come late, read slowly, say too much or nothing, over real sockets and by a clock of the tests.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use super::*;
use crate::publisher::Facts;
use crate::subscriber::{PREFIXES_MAX, QUEUE_BYTES_MAX};
use crate::zmtp;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, setsockopt, socket, sockopt};
use pinion_protocol::events_inbox::{kind, put_cleared, put_removed, put_stored};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// What a SUB socket says first.
fn hello() -> Vec<u8> {
    [&zmtp::greeting()[..], &zmtp::ready("SUB"), &[0, 1, 1]].concat()
}

fn rig() -> (Readers, Publisher, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let facts = Facts { topic: "t".to_owned(), block_size: 1, block_count: 1, rank: 0 };
    let mut publisher = Publisher::new(facts, 0);
    let mut record = Vec::new();
    put_cleared(&mut record);
    publisher.take(kind::CACHE_CHANGES, &record, 0.0).unwrap().expect("a batch");
    let readers = Readers::new(listener, None).unwrap();
    (readers, publisher, client)
}

fn turn(readers: &mut Readers, publisher: &mut Publisher, now_ns: u64) {
    readers.accept(publisher, now_ns);
    readers.serve_subscribers(publisher, now_ns, 0.0);
    readers.serve_askers(publisher, now_ns, 0.0);
    readers.end_slow(publisher, now_ns);
}

/// Out of descriptors, with a connection that waits: each wait ended at once.
#[test]
fn a_listener_that_gives_no_connection_is_left_alone_for_a_while() {
    let (mut readers, mut publisher, _client) = rig();
    // Of a socket that does not listen the kernel takes none, and says so in the same way.
    let deaf = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
    let listener = std::mem::replace(&mut readers.listener, TcpListener::from(deaf));
    turn(&mut readers, &mut publisher, 1);
    assert_eq!(readers.listeners(1).count(), 0, "it would be readable");
    readers.listener = listener;
    turn(&mut readers, &mut publisher, ACCEPT_BACKOFF_NS);
    assert!(readers.subscribers.is_empty(), "the wait is not over");
    assert_eq!(readers.listeners(1 + ACCEPT_BACKOFF_NS).count(), 1);
    while readers.subscribers.is_empty() {
        turn(&mut readers, &mut publisher, 1 + ACCEPT_BACKOFF_NS);
    }
    assert_eq!(readers.subscribers.len(), 1);
}

/// Takes a part of the whole cache, more than the kernel holds, so that the rest moves on.
fn nibble(readers: &mut Readers, publisher: &mut Publisher, client: &mut TcpStream, now_ns: u64) {
    let (mut taken, mut bytes) = (0, vec![0; 1 << 16]);
    while taken < 300_000 {
        turn(readers, publisher, now_ns);
        taken += match client.read(&mut bytes) {
            Ok(0) => panic!("it is closed at {now_ns} ns"),
            Ok(count) => count,
            Err(_) => 0,
        };
    }
}

/// A publisher of 300 blocks, whose whole cache takes 1.5 MiB, with room for `copies` of them; what it sends waits in
/// its queues, not in the kernel.
fn slow_rig(copies: usize) -> (Readers, Publisher) {
    let facts = Facts { topic: String::new(), block_size: 1024, block_count: 300, rank: 0 };
    let mut publisher = Publisher::new(facts, 0);
    let mut record = Vec::new();
    put_cleared(&mut record);
    (1..=300).for_each(|serial| put_stored(&mut record, serial, None, &[u32::MAX - serial as u32; 1024]));
    publisher.take(kind::CACHE_CHANGES, &record, 0.0).unwrap().expect("a batch");
    let bytes = publisher.snapshot(0.0).unwrap().len();
    assert!(bytes > 1_500_000, "{bytes}");
    publisher.snapshots.bytes_max = copies * bytes + bytes / 2;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    setsockopt(&listener, sockopt::SndBuf, &32_768).unwrap();
    (Readers::new(listener, None).unwrap(), publisher)
}

/// A subscriber that reads nothing by itself.
fn slow_subscriber(readers: &mut Readers, publisher: &mut Publisher, now_ns: u64) -> TcpStream {
    let mut client = TcpStream::connect(readers.listener.local_addr().unwrap()).unwrap();
    setsockopt(&client, sockopt::RcvBuf, &32_768).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    client.write_all(&hello()).unwrap();
    let subscribed = readers.subscribed(publisher);
    while readers.subscribed(publisher) == subscribed {
        turn(readers, publisher, now_ns);
    }
    client
}

/// One block goes.
fn batch(readers: &mut Readers, publisher: &mut Publisher, serial: u64) {
    let mut record = Vec::new();
    put_removed(&mut record, serial);
    let message = publisher.take(kind::CACHE_CHANGES, &record, 0.0).unwrap().expect("a batch");
    readers.publish(&message, publisher);
}

/// Each held its own copy of the cache: there were as many as connections.
#[test]
fn slow_readers_hold_a_bounded_number_of_copies_and_make_room_in_the_end() {
    let (second, (mut readers, mut publisher)) = (1_000_000_000, slow_rig(2));
    let mut slow = Vec::new();
    for serial in 1..=2 {
        slow.push(slow_subscriber(&mut readers, &mut publisher, 0));
        batch(&mut readers, &mut publisher, serial);
    }
    assert_eq!(readers.counts.snapshots, 2);
    slow.iter_mut().for_each(|client| nibble(&mut readers, &mut publisher, client, 50 * second));

    let mut waiting: Vec<TcpStream> =
        (0..3).map(|_| slow_subscriber(&mut readers, &mut publisher, 50 * second)).collect();
    for serial in 3..20 {
        batch(&mut readers, &mut publisher, serial);
        turn(&mut readers, &mut publisher, 60 * second);
        assert!(publisher.snapshots.bytes() <= publisher.snapshots.bytes_max);
    }
    assert_eq!((readers.subscribers.len(), readers.counts.snapshots), (5, 2), "there is room for two");

    turn(&mut readers, &mut publisher, 60 * second + 1);
    assert_eq!((readers.subscribers.len(), readers.counts.closed), (3, 2), "they hold others up");
    turn(&mut readers, &mut publisher, 60 * second + 1);
    assert_eq!(readers.counts.snapshots, 5);
    let whole = publisher.snapshot(0.0).unwrap();
    assert_eq!(publisher.snapshots.bytes(), whole.len(), "all have the same");
    for client in &mut waiting {
        let (mut got, mut bytes) = (Vec::new(), vec![0; 1 << 20]);
        while !got.ends_with(&whole) {
            turn(&mut readers, &mut publisher, 61 * second);
            if let Ok(count) = client.read(&mut bytes) {
                got.extend_from_slice(&bytes[..count]);
            }
        }
    }
    drop(whole);
    batch(&mut readers, &mut publisher, 20);
    assert_eq!(publisher.snapshots.bytes(), 0, "nothing is kept for those that have it");
}

#[test]
fn a_slow_reader_of_the_whole_cache_stays_while_it_is_in_the_way_of_none() {
    let (second, (mut readers, mut publisher)) = (1_000_000_000, slow_rig(2));
    let mut client = slow_subscriber(&mut readers, &mut publisher, 0);
    for time in [50, 100, 150] {
        nibble(&mut readers, &mut publisher, &mut client, time * second);
        assert_eq!(readers.subscribers.len(), 1, "{time} s");
    }
    let connection = &readers.subscribers[0].connection;
    assert!(connection.queued_bytes() > connection.batch_bytes(), "it has not taken all of it yet");
}

/// Those that ask for batches that are not kept are told the whole cache, too.
#[test]
fn one_that_asks_waits_for_room_and_may_go_meanwhile() {
    let (mut readers, mut publisher) = slow_rig(0);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    readers.replay_listener = Some(listener);
    let held = publisher.snapshot(0.0).unwrap();
    let mut record = Vec::new();
    put_removed(&mut record, 1);
    publisher.take(kind::CACHE_CHANGES, &record, 0.0).unwrap();
    assert_eq!(publisher.replay(99, 0.0), (Vec::new(), Some(99)));
    assert_eq!(publisher.replay(1, 0.0).1, None, "what is kept needs no room");

    let request = [&[1, 0, 0, 8][..], &99_u64.to_be_bytes()].concat();
    client.write_all(&[&zmtp::greeting()[..], &zmtp::ready("DEALER"), &request].concat()).unwrap();
    while !readers.askers.first().is_some_and(|asker| asker.waits() && !asker.writes()) {
        turn(&mut readers, &mut publisher, 0);
    }
    drop(client);
    while !readers.askers.is_empty() {
        turn(&mut readers, &mut publisher, 0);
    }

    drop(held);
    let (answer, rest) = publisher.replay(99, 0.0);
    assert_eq!((Some(&answer[1]), rest), (publisher.snapshot(0.0).as_ref(), None));
}

/// What was told of the whole cache was taken off the batches that wait, also when it was long gone.
#[test]
fn the_whole_cache_widens_the_bound_of_batches_only_while_it_waits() {
    let (mut readers, mut publisher) = slow_rig(1);
    let mut client = slow_subscriber(&mut readers, &mut publisher, 0);
    let half: Message = vec![7; QUEUE_BYTES_MAX / 2].into();
    readers.publish(&half, &publisher);
    let connection = |readers: &Readers| {
        let connection = &readers.subscribers[0].connection;
        (connection.batch_bytes(), connection.queued_bytes())
    };
    let (batches, all) = connection(&readers);
    assert!(batches == half.len() && all > half.len(), "{batches} of {all}");
    let mut bytes = vec![0; 1 << 16];
    while connection(&readers).1 > half.len() {
        let _ = client.read(&mut bytes);
        turn(&mut readers, &mut publisher, 0);
    }
    readers.publish(&half, &publisher);
    assert_eq!((connection(&readers).0, readers.counts.overflows), (QUEUE_BYTES_MAX, 0));
    readers.publish(&Message::from(vec![7]), &publisher);
    assert_eq!(readers.counts.overflows, 1);
}

/// Waits until these bytes of it can be read.
fn arrived(subscriber: &Subscriber, count: usize) {
    while count > 0 && !matches!(subscriber.connection.stream().peek(&mut [0; 256]), Ok(all) if all == count)
    {
    }
}

#[test]
fn a_subscriber_that_does_not_read_loses_its_queue_and_is_told_everything_later() {
    let (mut readers, mut publisher, mut client) = rig();
    client.write_all(&hello()).unwrap();
    while readers.counts.snapshots == 0 {
        turn(&mut readers, &mut publisher, 0);
    }
    let batch: Message = vec![7; 1 << 20].into();
    while readers.counts.overflows == 0 {
        readers.publish(&batch, &publisher);
        turn(&mut readers, &mut publisher, 0);
        assert!(readers.subscribers[0].connection.queued_bytes() <= QUEUE_BYTES_MAX);
    }
    for _ in 0..100 {
        readers.publish(&batch, &publisher);
    }
    assert!(readers.subscribers[0].connection.queued_bytes() <= batch.len(), "only what is half written");

    let (mut got, mut bytes) = (Vec::new(), vec![0; 1 << 20]);
    let whole = publisher.snapshot(0.0).unwrap();
    while readers.counts.snapshots == 1 || !got.ends_with(&whole) {
        turn(&mut readers, &mut publisher, 0);
        if let Ok(count) = client.read(&mut bytes) {
            got.extend_from_slice(&bytes[..count]);
        }
    }
    assert_eq!((readers.counts.overflows, readers.counts.snapshots), (1, 2));
    let before = 64 + zmtp::ready("PUB").len() + whole.len();
    assert_eq!((got.len() - before - whole.len()) % batch.len(), 0, "every batch that was begun is whole");
}

#[test]
fn a_subscriber_that_comes_back_to_a_topic_is_told_everything_anew() {
    let (mut readers, mut publisher, mut client) = rig();
    client.write_all(&hello()).unwrap();
    while readers.counts.snapshots == 0 {
        turn(&mut readers, &mut publisher, 0);
    }
    client.write_all(&[0, 1, 0]).unwrap();
    while readers.subscribed(&publisher) > 0 {
        turn(&mut readers, &mut publisher, 0);
    }
    let missed = publisher.lose_engine(0.0);
    readers.publish(&missed, &publisher);
    client.write_all(&[0, 1, 1]).unwrap();
    while readers.counts.snapshots == 1 {
        turn(&mut readers, &mut publisher, 0);
    }
    let (mut got, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = client.read(&mut bytes) {
        got.extend_from_slice(&bytes[..count]);
    }
    assert!(got.ends_with(&publisher.snapshot(0.0).unwrap()));
}

#[test]
fn a_peer_that_reads_nothing_is_not_heard_and_then_closed() {
    let (mut readers, mut publisher, mut client) = rig();
    client.set_nonblocking(true).unwrap();
    client.write_all(&hello()).unwrap();
    let pings = b"\x04\x09\x04PING\x00\x64xy".repeat(400);
    // Both sockets are full in the end: it does not write, and is not read.
    let (mut refused, mut at) = (0, 0);
    while refused < 100 {
        match client.write(&pings[at..]) {
            Ok(count) => at = (at + count) % 11,
            Err(_) => refused += 1,
        }
        turn(&mut readers, &mut publisher, 0);
        let queued = readers.subscribers[0].connection.queued_bytes();
        assert!(queued < 128 << 10, "{queued} bytes of answers wait");
    }
    assert!(!readers.subscribers[0].connection.is_heard());
    turn(&mut readers, &mut publisher, 60_000_000_000);
    assert_eq!(readers.subscribers.len(), 1, "it still has time");
    let batch: Message = vec![7; 1 << 24].into();
    for _ in 0..3 {
        readers.publish(&batch, &publisher);
        turn(&mut readers, &mut publisher, 60_000_000_000);
    }
    turn(&mut readers, &mut publisher, 60_000_000_001);
    assert_eq!(readers.subscribers.len(), 0, "a queue that is dropped is no sign of life");
}

#[test]
fn one_that_asks_again_and_again_without_reading_is_closed() {
    let (mut readers, mut publisher, mut client) = rig();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    readers.replay_listener = Some(std::mem::replace(&mut readers.listener, other));
    let request = [&[1, 0, 0, 8][..], &[0; 8]].concat();
    let hello = [&zmtp::greeting()[..], &zmtp::ready("DEALER")].concat();
    client.write_all(&[hello, request.repeat(16)].concat()).unwrap();
    let (mut got, mut bytes) = (Vec::new(), [0; 4096]);
    let end = zmtp::message(&[b"", b"", &[255; 8], b""]);
    let one = [zmtp::first_frame(b""), publisher.snapshot(0.0).unwrap().to_vec(), end].concat();
    while !got.ends_with(&one.repeat(16)) {
        readers.accept(&publisher, 0);
        readers.serve_askers(&mut publisher, 0, 0.0);
        if let Ok(count) = client.read(&mut bytes) {
            got.extend_from_slice(&bytes[..count]);
        }
    }
    assert!(!readers.askers[0].waits());
    client.write_all(&request.repeat(17)).unwrap();
    while !readers.askers.is_empty() {
        readers.serve_askers(&mut publisher, 0, 0.0);
    }
}

#[test]
fn a_peer_that_breaks_the_rules_loses_its_connection() {
    for (name, bytes) in [
        ("no ZMTP", vec![b'x'; 64]),
        ("a message that is no subscription", [&hello()[..], &[0, 1, 9]].concat()),
        ("too many prefixes", [&hello()[..], &[0, 1, 1].repeat(PREFIXES_MAX)].concat()),
        ("a subscription within the handshake", [&zmtp::greeting()[..], &[0, 1, 1]].concat()),
    ] {
        let (mut readers, mut publisher, mut client) = rig();
        client.write_all(&bytes).unwrap();
        while readers.subscribers.is_empty() {
            readers.accept(&publisher, 0);
        }
        assert_eq!(readers.subscribers.len(), 1);
        while !readers.subscribers.is_empty() {
            readers.serve_subscribers(&mut publisher, 0, 0.0);
        }
        println!("{name}: closed");
    }
    let (mut readers, mut publisher, _silent) = rig();
    while readers.subscribers.is_empty() {
        turn(&mut readers, &mut publisher, 0);
    }
    turn(&mut readers, &mut publisher, 9_000_000_000);
    assert_eq!(readers.subscribers.len(), 1, "it still has time");
    turn(&mut readers, &mut publisher, 11_000_000_000);
    assert_eq!(readers.subscribers.len(), 0, "its handshake took too long");
}

/// A place is for those that something is sent to.
#[test]
fn the_longest_idle_makes_room_and_a_live_subscriber_never_does() {
    let (mut readers, mut publisher, mut client) = rig();
    let address = readers.listener.local_addr().unwrap();
    client.write_all(&hello()).unwrap();
    while readers.subscribed(&publisher) == 0 {
        turn(&mut readers, &mut publisher, 0);
    }
    // Of another topic, with a handshake only, and with nothing said.
    let other = [&zmtp::greeting()[..], &zmtp::ready("SUB"), &[0, 2, 1, b'x']].concat();
    let said = [&other[..], &other[..other.len() - 4], &[]];
    let mut idle = Vec::new();
    for (tenth, said) in (1..64).zip(said.iter().cycle()) {
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(said).unwrap();
        while readers.subscribers.len() == idle.len() + 1 {
            readers.accept(&publisher, tenth * 100_000_000);
        }
        arrived(&readers.subscribers[idle.len() + 1], said.len());
        turn(&mut readers, &mut publisher, tenth * 100_000_000);
        idle.push(peer);
    }
    assert_eq!((readers.subscribers.len(), readers.counts.closed), (CONNECTIONS_MAX, 0));

    let mut wanting: Vec<TcpStream> = Vec::new();
    for count in 1..=63 {
        let mut late = TcpStream::connect(address).unwrap();
        late.write_all(&hello()).unwrap();
        while readers.subscribed(&publisher) == count {
            turn(&mut readers, &mut publisher, 7_000_000_000);
        }
        wanting.push(late);
        let places: Vec<_> = readers.subscribers.iter().map(|peer| peer.connection.peer).collect();
        assert_eq!((places.len(), readers.counts.closed), (CONNECTIONS_MAX, count as u64));
        assert!(places.contains(&client.local_addr().unwrap()));
        for (index, peer) in idle.iter().enumerate() {
            assert_eq!(places.contains(&peer.local_addr().unwrap()), index >= count, "{index} of {count}");
        }
    }
    let refused = TcpStream::connect(address).unwrap();
    while readers.counts.closed == 63 {
        turn(&mut readers, &mut publisher, 7_000_000_000);
    }
    assert_eq!(readers.subscribed(&publisher), CONNECTIONS_MAX, "{refused:?} finds no place");
}

#[test]
fn one_that_asks_for_nothing_makes_room_for_one_that_does() {
    let (mut readers, mut publisher, first) = rig();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let address = readers.listener.local_addr().unwrap();
    readers.replay_listener = Some(std::mem::replace(&mut readers.listener, other));
    let mut peers = vec![first];
    for now_ns in 1..=64 {
        while readers.askers.len() < peers.len() {
            readers.accept(&publisher, now_ns);
            readers.serve_askers(&mut publisher, now_ns, 0.0);
        }
        peers.push(TcpStream::connect(address).unwrap());
    }
    while readers.counts.closed == 0 {
        readers.accept(&publisher, 65);
        readers.serve_askers(&mut publisher, 65, 0.0);
    }
    let left: Vec<_> = readers.askers.iter().map(|asker| asker.connection.peer).collect();
    assert_eq!(left.len(), 64);
    assert!(!left.contains(&peers[0].local_addr().unwrap()), "it came first");
}

/// Its process stands still, and its kernel answers TCP. A peer of ZMTP 3.0 may not know what a ping is.
#[test]
fn a_peer_that_can_be_pinged_must_answer() {
    let second = 1_000_000_000;
    for (minor, answers, stays) in [(1, false, false), (1, true, true), (0, false, true)] {
        let (mut readers, mut publisher, mut client) = rig();
        let mut hello = hello();
        hello[11] = minor;
        client.write_all(&hello).unwrap();
        while readers.counts.snapshots == 0 {
            turn(&mut readers, &mut publisher, 0);
        }
        turn(&mut readers, &mut publisher, 31 * second);
        let (mut got, mut bytes) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = client.read(&mut bytes) {
            got.extend_from_slice(&bytes[..count]);
        }
        assert_eq!(got.ends_with(&zmtp::ping()), minor > 0, "3.{minor}");
        if answers {
            client.write_all(b"\x04\x05\x04PONG").unwrap();
            arrived(&readers.subscribers[0], 7);
            turn(&mut readers, &mut publisher, 32 * second);
        }
        turn(&mut readers, &mut publisher, 91 * second);
        assert_eq!(readers.subscribers.len(), 1, "3.{minor}: it still has time");
        turn(&mut readers, &mut publisher, 92 * second);
        assert_eq!(readers.subscribers.len(), usize::from(stays), "3.{minor}, answers: {answers}");
    }
}

/// The network is gone between them: no packet says so.
#[test]
fn tcp_looks_after_a_peer_that_says_nothing_and_one_that_acknowledges_nothing() {
    let (mut readers, mut publisher, _client) = rig();
    while readers.subscribers.is_empty() {
        turn(&mut readers, &mut publisher, 0);
    }
    let stream = readers.subscribers[0].connection.stream();
    assert!(getsockopt(stream, sockopt::KeepAlive).unwrap());
    let quiet_s = getsockopt(stream, sockopt::TcpKeepIdle).unwrap()
        + getsockopt(stream, sockopt::TcpKeepInterval).unwrap()
            * getsockopt(stream, sockopt::TcpKeepCount).unwrap();
    assert_eq!((quiet_s, getsockopt(stream, sockopt::TcpUserTimeout).unwrap()), (120, 120_000));
}
