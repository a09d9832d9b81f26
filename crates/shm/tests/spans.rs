//! The ring of spans: what was written is read, what was overwritten is counted, and nothing is ever half.
#![cfg(not(loom))]

use pinion_shm::spans::{Span, SpanReader, SpanWriter, region_words};
use pinion_shm::sync::{AtomicU64, Ordering};
use pinion_shm::words::{HeapWords, Words};

fn span(number: u64) -> Span {
    Span { name: number as u32, begin_ns: number, duration_ns: number, arguments: [number, number] }
}

fn numbers(reader: &mut SpanReader<HeapWords>) -> Vec<u64> {
    std::iter::from_fn(|| reader.next_span()).map(|span| span.begin_ns).collect()
}

#[test]
fn a_reader_gets_the_latest_and_counts_what_it_missed() {
    let words = HeapWords::new(region_words(8));
    let writer = SpanWriter::new(words.clone()).unwrap();
    let mut early = SpanReader::from_oldest(words.clone()).unwrap();
    assert_eq!(early.next_span(), None);
    (0..5).for_each(|n| writer.write(span(n)));
    assert_eq!((numbers(&mut early), early.lost()), ((0..5).collect(), 0));
    (5..25).for_each(|n| writer.write(span(n)));
    assert_eq!((numbers(&mut early), early.lost()), ((17..25).collect(), 12));
    let mut late = SpanReader::from_oldest(words.clone()).unwrap();
    let mut live = SpanReader::from_now(words.clone()).unwrap();
    assert_eq!((numbers(&mut late), numbers(&mut live)), ((17..25).collect(), vec![]));
    // A successor goes on where the last writer ended.
    drop(writer);
    SpanWriter::new(words).unwrap().write(span(25));
    assert_eq!((numbers(&mut late), numbers(&mut live)), (vec![25], vec![25]));
}

#[test]
fn words_that_are_no_ring_and_numbers_that_jump_are_survived() {
    for wrong in [0, 15, 16, 17, region_words(3), region_words(8) + 1] {
        assert!(SpanWriter::new(HeapWords::new(wrong)).is_none(), "{wrong}");
    }
    let words = HeapWords::new(region_words(4));
    let mut reader = SpanReader::from_oldest(words.clone()).unwrap();
    for head in [u64::MAX - 9, 7, 0, u64::MAX / 2] {
        words.at(0).store(head, Ordering::Relaxed);
        assert_eq!(numbers(&mut reader), vec![], "{head}");
    }
}

/// A writer that runs round and round while a reader reads: every span that comes out is whole, in order.
#[test]
fn nothing_is_ever_half() {
    let words = HeapWords::new(region_words(4));
    let (writer, read) = (SpanWriter::new(words.clone()).unwrap(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut reader = SpanReader::from_oldest(words).unwrap();
            let mut last = 0;
            while read.load(Ordering::Relaxed) < 1000 {
                let Some(Span { name, begin_ns, duration_ns, arguments }) = reader.next_span() else {
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!([begin_ns, duration_ns, arguments[0], arguments[1]], [u64::from(name); 4]);
                assert!(begin_ns > last, "{begin_ns} after {last}");
                last = begin_ns;
                read.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut number = 1;
        while read.load(Ordering::Relaxed) < 1000 {
            writer.write(span(number));
            number += 1;
            if number % 64 == 0 {
                std::thread::yield_now();
            }
        }
    });
}
