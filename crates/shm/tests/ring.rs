//! The ring over real memory: order, limits, faults, wake-ups and a hostile peer.
#![cfg(not(loom))]
// A failed step of a test is a failed test, in its helpers too.
#![allow(clippy::unwrap_used)]

mod seeded;

use pinion_shm::doorbell::{Doorbell, wait};
use pinion_shm::region::{Region, RegionKind};
use pinion_shm::ring::{PushError, Reader, RingFault, Wake, Writer, depth, max_record_bytes, region_words};
use pinion_shm::sync::Ordering;
use pinion_shm::words::{HeapWords, Words};
use seeded::Seeded;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

/// Payload words of the region, as the ring's head comment gives them.
const HEAD: usize = 16;
const TAIL: usize = 32;
const READER_ASLEEP: usize = 48;
const DATA: usize = 64;
const EPOCH: u32 = 0xabcd_0005;

#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Wake for Count {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn ring(capacity_bytes: usize) -> (HeapWords, Writer<HeapWords, Count>, Reader<HeapWords>) {
    let words = HeapWords::new(region_words(capacity_bytes));
    let writer = Writer::new(words.clone(), EPOCH, Count::default()).unwrap();
    (words.clone(), writer, Reader::new(words, EPOCH).unwrap())
}

#[test]
fn ends_may_move_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Region>();
    check::<Writer<Region>>();
    check::<Reader<Region>>();
}

#[test]
fn sizes_add_up() {
    for (asked, capacity) in [(0, 64), (64, 64), (65, 128), (4 << 20, 4 << 20)] {
        assert_eq!(region_words(asked), DATA + capacity / 8);
        let (words, writer, reader) = ring(asked);
        assert_eq!((writer.capacity_bytes(), reader.capacity_bytes()), (capacity, capacity));
        assert_eq!(depth(&words), (0, capacity));
    }
    for words in [0, DATA, DATA + 4, DATA + 9, DATA + 24] {
        let words = HeapWords::new(words);
        assert_eq!(Reader::new(words.clone(), 1).err().unwrap().what, "capacity");
        assert_eq!(Writer::new(words.clone(), 1, Count::default()).err().unwrap().what, "capacity");
        assert_eq!(depth(&words), (0, 0));
    }
}

#[test]
fn nothing_is_visible_before_publish() {
    let (words, mut writer, mut reader) = ring(256);
    writer.publish();
    writer.push(7, b"abc").unwrap();
    writer.push(8, b"").unwrap();
    assert!(reader.next().unwrap().is_none() && reader.is_empty());
    assert_eq!((writer.used_bytes(), writer.free_bytes(), depth(&words).0), (40, 216, 0));
    writer.publish();
    assert_eq!((reader.used_bytes(), depth(&words), reader.is_empty()), (40, (40, 256), false));
    let record = reader.next().unwrap().unwrap();
    assert_eq!((record.kind, record.sequence, record.payload), (7, 0, &b"abc"[..]));
    assert_eq!(record.payload.as_ptr() as usize % 8, 0, "eight-aligned");
    assert_eq!(writer.used_bytes(), 16, "its room came back");
    let record = reader.next().unwrap().unwrap();
    assert_eq!((record.kind, record.sequence, record.payload), (8, 1, &b""[..]));
    assert!(reader.next().unwrap().is_none());
    assert_eq!((writer.free_bytes(), depth(&words).0), (256, 0));
}

#[test]
fn a_refused_record_changes_nothing() {
    let (_, mut writer, mut reader) = ring(128);
    assert_eq!(max_record_bytes(128), 48);
    assert_eq!(writer.push(1, &[0; 49]), Err(PushError::TooLarge));
    writer.push(1, &[1; 48]).unwrap();
    writer.push(1, &[2; 41]).unwrap();
    assert_eq!(writer.push(1, b""), Err(PushError::Full), "every byte is used");
    assert_eq!(writer.push(1, &[0; 49]), Err(PushError::TooLarge), "never possible, even when full");
    writer.publish();
    assert_eq!(reader.next().unwrap().unwrap().payload, [1; 48]);
    writer.push(1, &[3; 48]).unwrap();
    writer.publish();
    assert_eq!(reader.next().unwrap().unwrap().payload, [2; 41]);
    assert_eq!(reader.next().unwrap().unwrap().payload, [3; 48]);
}

/// Against a plain queue, over a mapped region, with random sizes and turns.
#[test]
fn behaves_like_a_queue() {
    let mut seeded = Seeded::new("behaves_like_a_queue");
    for capacity in [64, 128, 512, 4096] {
        let region =
            Region::create("pinion-ring", RegionKind::Ring, 1, EPOCH, region_words(capacity)).unwrap();
        let mut writer = Writer::new(region.clone(), EPOCH, Count::default()).unwrap();
        let mut reader = Reader::new(region, EPOCH).unwrap();
        let (mut staged, mut visible) = (Vec::new(), VecDeque::new());
        for _ in 0..20_000 {
            match seeded.below(5) {
                0..=1 => {
                    let len = seeded.below(max_record_bytes(capacity) as u64 + 1) as usize;
                    let (kind, fill) = (seeded.below(65_535) as u16 + 1, seeded.next() as u8);
                    let payload: Vec<u8> = (0..len).map(|i| fill.wrapping_add(i as u8)).collect();
                    let fits = len.div_ceil(8) * 8 + 16 <= writer.free_bytes();
                    assert_eq!(writer.push(kind, &payload), if fits { Ok(()) } else { Err(PushError::Full) });
                    if fits {
                        staged.push((kind, payload));
                    }
                }
                2 => {
                    writer.publish();
                    visible.extend(staged.drain(..));
                }
                _ => {
                    assert_eq!(reader.is_empty(), visible.is_empty());
                    let got = reader.next().unwrap().map(|record| (record.kind, record.payload.to_vec()));
                    assert_eq!(got, visible.pop_front());
                }
            }
        }
    }
}

#[test]
fn a_sleeper_is_woken_once() {
    let words = HeapWords::new(region_words(4096));
    let wakes = Count::default();
    let mut writer = Writer::new(words.clone(), EPOCH, wakes.clone()).unwrap();
    let mut reader = Reader::new(words, EPOCH).unwrap();
    let mut publish = |expected: usize, why: &str| {
        writer.push(1, b"record").unwrap();
        writer.publish();
        assert_eq!(wakes.0.load(Ordering::Relaxed), expected, "{why}");
    };
    publish(0, "awake");
    assert!(!reader.arm(), "there is data");
    publish(0, "a refused sleep leaves no reader asleep");
    for _ in 0..2 {
        reader.next().unwrap().unwrap();
    }
    assert!(reader.arm());
    publish(1, "asleep");
    publish(1, "on its way already");
    reader.disarm();
    publish(1, "awake again");
    for _ in 0..3 {
        reader.next().unwrap().unwrap();
    }
    assert!(reader.arm() && reader.arm());
    publish(2, "asleep again");
}

#[test]
fn a_ring_has_one_life() {
    let (words, mut writer, mut reader) = ring(64);
    writer.push(1, b"x").unwrap();
    writer.publish();
    assert_eq!(
        Writer::new(words.clone(), EPOCH, Count::default()).err().unwrap().what,
        "writer of a used ring"
    );
    reader.next().unwrap().unwrap();
    assert_eq!(Reader::new(words, EPOCH).err().unwrap().what, "reader of a used ring");
}

/// A ring with two good records, one word of which is replaced; the first is taken before if `second`.
fn check_fault(what: &'static str, position: u64, second: bool, word: usize, value: u64) {
    let (words, mut writer, mut reader) = ring(128);
    writer.push(1, b"first").unwrap();
    writer.publish();
    if second {
        reader.next().unwrap().unwrap();
    }
    writer.push(2, b"second").unwrap();
    writer.publish();
    words.at(word).store(value, Ordering::Relaxed);
    let fault = RingFault { what, position };
    assert_eq!(reader.next().err(), Some(fault), "{what}: word {word} = {value:#x}");
    assert!(fault.to_string().contains(what));
    words.at(HEAD).store(position, Ordering::Relaxed);
    assert_eq!(reader.next().err(), Some(fault), "{what}: a faulted ring stays faulted");
    assert!(reader.is_empty() && reader.arm(), "{what}: and keeps no reader awake");
    assert_eq!(words.at(READER_ASLEEP).load(Ordering::Relaxed), 0);
}

#[test]
fn every_corruption_is_a_fault() {
    let header = |len: u64, kind: u64, epoch: u64| len | kind << 32 | epoch << 48;
    check_fault("head", 0, false, HEAD, 17);
    check_fault("head", 0, false, HEAD, u64::MAX);
    check_fault("head", 3, true, HEAD, 2);
    check_fault("head", 3, true, HEAD, 3 + 17);
    check_fault("head inside a record", 0, false, HEAD, 1);
    check_fault("record length", 0, false, HEAD, 2);
    check_fault("record length", 0, false, DATA, header(u64::from(u32::MAX), 1, 5));
    check_fault("record length", 0, false, DATA, header(49, 1, 5));
    check_fault("record length", 0, false, DATA, header(40, 1, 5));
    check_fault("record length", 3, true, DATA + 3, header(9, 1, 5));
    check_fault("record kind", 0, false, DATA, header(5, 0, 5));
    check_fault("record epoch", 0, false, DATA, header(5, 1, 6));
    check_fault("record sequence", 0, false, DATA + 1, 1);
    check_fault("record sequence", 3, true, DATA + 4, 0);
}

#[test]
fn another_epoch_is_refused() {
    let words = HeapWords::new(region_words(64));
    let mut writer = Writer::new(words.clone(), 4, Count::default()).unwrap();
    writer.push(1, b"late").unwrap();
    writer.publish();
    let fault = Reader::new(words, 5).unwrap().next().err();
    assert_eq!(fault, Some(RingFault { what: "record epoch", position: 0 }));
}

#[test]
fn a_lying_reader_fills_the_ring_and_is_told_of() {
    for lie in [9, 1 << 40, u64::MAX] {
        let (words, mut writer, _) = ring(64);
        for _ in 0..4 {
            writer.push(1, b"").unwrap();
            writer.publish();
        }
        assert_eq!((writer.free_bytes(), writer.fault()), (0, None));
        words.at(TAIL).store(lie, Ordering::Relaxed);
        assert_eq!(writer.push(1, b""), Err(PushError::Full), "tail {lie}");
        assert_eq!(writer.fault(), Some(RingFault { what: "tail", position: 8 }), "tail {lie}");
        words.at(TAIL).store(2, Ordering::Relaxed);
        writer.push(1, b"").unwrap();
        words.at(TAIL).store(0, Ordering::Relaxed);
        assert_eq!(
            (writer.push(1, b""), writer.used_bytes()),
            (Err(PushError::Full), 64),
            "a tail never goes back"
        );
    }
}

/// Takes everything a reader gives, which can never be more than the ring holds.
fn exhaust(reader: &mut Reader<impl Words>, records_max: usize) -> usize {
    for taken in 0..=records_max {
        match reader.next() {
            Ok(Some(record)) => assert!(record.payload.len() <= max_record_bytes(4096) && record.kind != 0),
            Ok(None) | Err(_) => return taken,
        }
    }
    panic!("more records than the ring can hold");
}

#[test]
fn a_damaged_ring_never_panics() {
    let mut seeded = Seeded::new("a_damaged_ring_never_panics");
    let (mut faulted, mut intact) = (0, 0);
    for _ in 0..4000 {
        let (words, mut writer, mut reader) = ring(4096);
        // Somewhere in the ring's life, so that the damage meets the wrap too.
        for _ in 0..seeded.below(40) {
            let payload = [7; 256];
            writer.push(1, &payload[..seeded.below(256) as usize]).unwrap();
            writer.publish();
            reader.next().unwrap().unwrap();
        }
        while writer.push(3, &[9; 100][..seeded.below(100) as usize]).is_ok() {}
        writer.publish();
        for _ in 0..=seeded.below(3) {
            let word = if seeded.below(4) == 0 { HEAD } else { DATA + seeded.below(512) as usize };
            let old = words.at(word).load(Ordering::Relaxed);
            let new = match seeded.below(3) {
                0 => seeded.next(),
                1 => old ^ 1 << seeded.below(64),
                _ => old.wrapping_add(seeded.below(9)).wrapping_sub(4),
            };
            words.at(word).store(new, Ordering::Relaxed);
        }
        exhaust(&mut reader, 512 / 2);
        let fault = reader.next().is_err();
        faulted += usize::from(fault);
        intact += usize::from(!fault);
    }
    assert!(faulted > 1000 && intact > 100, "the damage must reach both outcomes: {faulted}, {intact}");
}

/// A hostile process writes random words over the whole region while both ends work on it.
#[test]
fn a_scribbling_peer_never_stops_us() {
    let mut seeded = Seeded::new("a_scribbling_peer_never_stops_us");
    let region = Region::create("pinion-ring", RegionKind::Ring, 1, EPOCH, region_words(4096)).unwrap();
    let done = AtomicBool::new(false);
    let mut scribble = Seeded::new("scribbler");
    let begin = Instant::now();
    let (mut rounds, mut faults) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let word = if scribble.below(3) == 0 {
                    [HEAD, TAIL, READER_ASLEEP][scribble.below(3) as usize]
                } else {
                    scribble.below(region.len() as u64) as usize
                };
                let value = scribble.next() >> scribble.below(64);
                region.at(word).store(value, Ordering::Relaxed);
            }
        });
        // Also when an assertion fails: the scope waits for the scribbler.
        let _stop = SetOnDrop(&done);
        // On a single busy core the scribbler gets few turns, so the count of faults decides.
        while (rounds < 2000 || faults < 50) && begin.elapsed() < Duration::from_secs(60) {
            rounds += 1;
            let (mut writer, mut reader) = fresh(&region);
            for _ in 0..20 {
                let payload = [5; 300];
                let _ = writer.push(1, &payload[..seeded.below(300) as usize]);
                writer.publish();
                for bytes in [writer.used_bytes(), writer.free_bytes(), reader.used_bytes()] {
                    assert!(bytes <= 4096, "{bytes}");
                }
                exhaust(&mut reader, 100_000);
                let (used, capacity) = depth(&region);
                assert!(used <= capacity);
                if reader.arm() {
                    reader.disarm();
                }
            }
            std::thread::yield_now();
            faults += usize::from(reader.next().is_err());
        }
    });
    println!("{faults} of {rounds} rings faulted in {:?}", begin.elapsed());
    assert!(faults >= 50, "the scribbler must be noticed");
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// New ends over zeroed cursors; the scribbler may be faster, so try again.
fn fresh(region: &Region) -> (Writer<Region, Count>, Reader<Region>) {
    for _ in 0..1_000_000 {
        region.at(HEAD).store(0, Ordering::Relaxed);
        let writer = Writer::new(region.clone(), EPOCH, Count::default());
        region.at(TAIL).store(0, Ordering::Relaxed);
        if let (Ok(writer), Ok(reader)) = (writer, Reader::new(region.clone(), EPOCH)) {
            return (writer, reader);
        }
    }
    panic!("the scribbler won a million races");
}

/// The whole protocol with real sleeps: nothing is lost, and no sleep runs into its deadline.
#[test]
fn two_threads_and_a_doorbell() {
    const RECORDS: u64 = 200_000;
    let mut seeded = Seeded::new("two_threads_and_a_doorbell");
    let region = Region::create("pinion-ring", RegionKind::Ring, 1, EPOCH, region_words(8192)).unwrap();
    let bell = Doorbell::create().unwrap();
    let mut writer = Writer::new(region.clone(), EPOCH, bell.try_clone().unwrap()).unwrap();
    let mut reader = Reader::new(region, EPOCH).unwrap();
    let writing = std::thread::spawn(move || {
        for sequence in 0..RECORDS {
            let payload = sequence.to_ne_bytes().repeat(1 + (sequence % 5) as usize);
            while writer.push(1, &payload).is_err() {
                writer.publish();
                std::thread::yield_now();
            }
            match seeded.below(1000) {
                0 => {
                    writer.publish();
                    std::thread::sleep(Duration::from_micros(seeded.below(100)));
                }
                1..400 => writer.publish(),
                _ => {}
            }
        }
        writer.publish();
    });
    let (mut taken, mut sleeps) = (0, 0);
    while taken < RECORDS {
        while let Some(record) = reader.next().unwrap() {
            let expected = taken.to_ne_bytes().repeat(1 + (taken % 5) as usize);
            assert_eq!((record.sequence, record.payload), (taken, &expected[..]));
            taken += 1;
        }
        if taken < RECORDS && reader.arm() {
            let ready = wait(&[bell.fd()], Duration::from_secs(60)).unwrap();
            assert!(!ready.timed_out(), "a lost wake-up at record {taken}");
            bell.drain();
            reader.disarm();
            sleeps += 1;
        }
    }
    writing.join().unwrap();
    assert!(sleeps > 0, "it slept");
}
