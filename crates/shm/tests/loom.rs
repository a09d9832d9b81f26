//! The ring that ships, under the model checker: every interleaving and every allowed stale load.
//!
//! Three runs of one build, in a target folder of its own so that the flag does not rebuild the workspace:
//!
//! ```text
//! export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom
//! cargo test -p pinion-shm --test loom --release
//! PINION_DROP_FENCE=writer cargo test -p pinion-shm --test loom --release
//! PINION_DROP_FENCE=reader cargo test -p pinion-shm --test loom --release
//! ```
//!
//! The first must pass. The second and the third must FAIL, with loom's "deadlock": each leaves out one of
//! the two fences of sync point `ring-sleep`, and a reader then sleeps for ever. (A run that fails without
//! that word did not build, which proves nothing.) The model doorbell has no deadline, unlike the real one,
//! so that a lost wake-up cannot hide behind a timeout.
//!
//! What loom cannot say: it treats SeqCst *accesses* as AcqRel and does not model their total order, but it
//! does model SeqCst *fences*, which is why the ring uses fences and Relaxed accesses around them. It does
//! not let a load see a value stored later (no load buffering), so it cannot show that sync point
//! `ring-release` needs its Release and Acquire; that one stands on the argument in `ring.rs`. It does let a
//! load see an older value, which is what the fences and `ring-publish` are for: Relaxed there fails too.
#![cfg(loom)]
// A failed step of a test is a failed test, in its helpers too.
#![allow(clippy::unwrap_used)]

use loom::sync::{Condvar, Mutex};
use loom::thread;
use pinion_shm::ring::{PushError, Reader, Wake, Writer, region_words};
use pinion_shm::spans::{Span, SpanReader, SpanWriter, region_words as region_words_of_spans};
use pinion_shm::words::HeapWords;
use std::sync::Arc;

/// A doorbell whose wait never times out: a lost wake-up is a deadlock, which loom reports.
#[derive(Clone)]
struct Bell(Arc<(Mutex<Rung>, Condvar)>);

#[derive(Default)]
struct Rung {
    ringing: bool,
    count: usize,
}

impl Bell {
    fn new() -> Bell {
        Bell(Arc::new((Mutex::new(Rung::default()), Condvar::new())))
    }

    /// Sleeps until the bell rings, and silences it.
    fn wait(&self) {
        let mut rung = self.0.0.lock().unwrap();
        while !rung.ringing {
            rung = self.0.1.wait(rung).unwrap();
        }
        rung.ringing = false;
    }

    fn count(&self) -> usize {
        self.0.0.lock().unwrap().count
    }
}

impl Wake for Bell {
    fn wake(&self) {
        let mut rung = self.0.0.lock().unwrap();
        rung.ringing = true;
        rung.count += 1;
        self.0.1.notify_one();
    }
}

const KIND: u16 = 3;
const EPOCH: u32 = 0x1_0007;

/// Payload of record `sequence`: a whole number of words, then a ragged end.
fn payload(sequence: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (sequence as u8 + 1) * 16 + i as u8).collect()
}

/// A model without the fence that `PINION_DROP_FENCE` names, if it is set.
fn model() -> loom::model::Builder {
    if let Ok(end) = std::env::var("PINION_DROP_FENCE") {
        pinion_shm::sync::LEFT_OUT.get_or_init(|| end);
    }
    loom::model::Builder::new()
}

/// One writer, one reader, `batches` of records of `payload_len` bytes in a ring of `capacity_bytes`.
/// The reader sleeps whenever it may. `preemptions`: bound on the search, none = all of it.
fn check(capacity_bytes: usize, payload_len: usize, batches: &'static [u64], preemptions: Option<usize>) {
    let mut model = model();
    model.preemption_bound = preemptions;
    model.check(move || {
        let words = HeapWords::new(region_words(capacity_bytes));
        let bell = Bell::new();
        let mut writer = Writer::new(words.clone(), EPOCH, bell.clone()).unwrap();
        let mut reader = Reader::new(words, EPOCH).unwrap();
        let total: u64 = batches.iter().sum();

        let writing = thread::spawn(move || {
            let mut sequence = 0;
            for batch in batches {
                for _ in 0..*batch {
                    while let Err(error) = writer.push(KIND, &payload(sequence, payload_len)) {
                        assert_eq!(error, PushError::Full);
                        // What is staged must become visible, or the reader never makes room.
                        writer.publish();
                        thread::yield_now();
                    }
                    sequence += 1;
                }
                writer.publish();
            }
        });

        let mut taken = 0;
        let mut arms = 0;
        while taken < total {
            while let Some(record) = reader.next().unwrap() {
                assert_eq!((record.kind, record.sequence), (KIND, taken), "records in order");
                assert_eq!(record.payload, payload(taken, payload_len), "records whole");
                taken += 1;
            }
            if taken < total {
                arms += 1;
                if reader.arm() {
                    bell.wait();
                    reader.disarm();
                }
            }
        }
        writing.join().unwrap();
        assert!(reader.next().unwrap().is_none(), "nothing is left");
        assert!(bell.count() <= arms, "at most one wake-up each time the reader says it sleeps");
    });
}

#[test]
fn one_record_wakes_a_sleeper() {
    check(64, 3, &[1], None);
}

#[test]
fn batches_wake_a_sleeper() {
    check(128, 5, &[1, 2], None);
}

#[test]
fn publishing_again_wakes_again() {
    check(256, 8, &[1, 1, 1], Some(3));
}

#[test]
fn a_tiny_ring_wraps_and_fills() {
    // Records of four words in a ring of eight: the third overwrites the first, and a batch does not fit.
    check(64, 16, &[3, 1], Some(3));
}

#[test]
fn a_record_wraps_in_the_middle() {
    // Records of three words in a ring of eight: the third runs over the end.
    check(64, 7, &[1, 1, 2], Some(3));
}

#[test]
fn a_full_ring_refuses_and_recovers() {
    model().check(|| {
        let words = HeapWords::new(region_words(64));
        let mut writer = Writer::new(words.clone(), EPOCH, Bell::new()).unwrap();
        let mut reader = Reader::new(words, EPOCH).unwrap();
        writer.push(KIND, &payload(0, 16)).unwrap();
        writer.push(KIND, &payload(1, 16)).unwrap();
        assert_eq!(writer.push(KIND, &[]), Err(PushError::Full));
        writer.publish();
        let reading = thread::spawn(move || {
            let first = reader.next().unwrap().map(|record| record.sequence);
            (reader, first)
        });
        // Either the reader has made room by now or not; a refusal changes nothing.
        let pushed = writer.push(KIND, &payload(2, 16)).is_ok();
        writer.publish();
        let (mut reader, first) = reading.join().unwrap();
        assert_eq!(first, Some(0));
        for sequence in 1..2 + u64::from(pushed) {
            let record = reader.next().unwrap().expect("published before");
            assert_eq!((record.sequence, record.payload), (sequence, &payload(sequence, 16)[..]));
        }
        assert!(reader.next().unwrap().is_none());
    });
}

/// A writer that overwrites the one record of its ring while a reader reads it: what comes out is whole.
#[test]
fn a_span_is_never_half() {
    let mut model = model();
    model.preemption_bound = Some(2);
    model.check(|| {
        let words = HeapWords::new(region_words_of_spans(1));
        let writer = SpanWriter::new(words.clone()).unwrap();
        let span = |n: u64| Span { name: n as u32, begin_ns: n, duration_ns: n, arguments: [n, n] };
        writer.write(span(1));
        let thread = thread::spawn(move || writer.write(span(2)));
        let mut reader = SpanReader::from_oldest(words).unwrap();
        if let Some(found) = reader.next_span() {
            assert_eq!(found, span(found.begin_ns));
        }
        thread.join().unwrap();
    });
}
