//! A record of what a process did lately: spans of fixed size in a ring that is always written and never waited for.
//!
//! One thread writes and overwrites the oldest; any process reads, and skips what was overwritten meanwhile.
//! Writing is eight stores and allocates nothing. Each record has a sequence word that is odd while the record is
//! being written, so a reader never takes half of one span and half of another. What a name or an argument means
//! is the caller's vocabulary.
//!
//! Layout in words: the number of spans ever written, fifteen words unused, then records of eight words:
//! sequence, name, begin, duration, two arguments, two unused, so that a record is one cache line.

use crate::sync::{Ordering, fence};
use crate::words::Words;
use std::cell::Cell;

const HEAD: usize = 0;
const RECORDS: usize = 16;
const RECORD_WORDS: usize = 8;
const SEQUENCE: usize = 0;
const NAME: usize = 1;
const BEGIN: usize = 2;
const DURATION: usize = 3;
const ARGUMENTS: usize = 4;

/// Something that took time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// What, in the caller's vocabulary.
    pub name: u32,
    /// CLOCK_MONOTONIC ns.
    pub begin_ns: u64,
    /// How long.
    pub duration_ns: u64,
    /// What it worked on, in the caller's vocabulary.
    pub arguments: [u64; 2],
}

/// Words of a region that keeps the last `span_count` spans, which must be a power of two.
pub fn region_words(span_count: usize) -> usize {
    RECORDS + span_count * RECORD_WORDS
}

fn span_count(words: &impl Words) -> Option<usize> {
    let records = words.len().checked_sub(RECORDS)?;
    let count = records / RECORD_WORDS;
    (records % RECORD_WORDS == 0 && count.is_power_of_two()).then_some(count)
}

/// The one writer of a ring.
pub struct SpanWriter<W: Words> {
    words: W,
    mask: usize,
    next: Cell<u64>,
}

impl<W: Words> SpanWriter<W> {
    /// Goes on where the last writer ended. `None` if the words hold no power of two of records.
    pub fn new(words: W) -> Option<SpanWriter<W>> {
        let mask = span_count(&words)? - 1;
        let next = Cell::new(words.at(HEAD).load(Ordering::Relaxed));
        Some(SpanWriter { words, mask, next })
    }

    /// Writes one span over the oldest.
    pub fn write(&self, span: Span) {
        let number = self.next.get();
        let base = RECORDS + (number as usize & self.mask) * RECORD_WORDS;
        let record = &self.words.words()[base..base + RECORD_WORDS];
        record[SEQUENCE].store(writing(number), Ordering::Relaxed);
        // Sync point `span-begin`: a load that sees a word of this span sees that it was being written, or later.
        fence(Ordering::Release);
        record[NAME].store(u64::from(span.name), Ordering::Relaxed);
        record[BEGIN].store(span.begin_ns, Ordering::Relaxed);
        record[DURATION].store(span.duration_ns, Ordering::Relaxed);
        for (word, argument) in record[ARGUMENTS..].iter().zip(span.arguments) {
            word.store(argument, Ordering::Relaxed);
        }
        // Sync point `span-end`: a load that sees that it is written sees all of it.
        record[SEQUENCE].store(written(number), Ordering::Release);
        self.next.set(number.wrapping_add(1));
        self.words.at(HEAD).store(number.wrapping_add(1), Ordering::Release);
    }
}

fn writing(number: u64) -> u64 {
    number.wrapping_mul(2) | 1
}

fn written(number: u64) -> u64 {
    number.wrapping_mul(2).wrapping_add(2)
}

/// One of any number of readers; it has a place of its own.
pub struct SpanReader<W: Words> {
    words: W,
    mask: usize,
    next: u64,
    lost: u64,
}

impl<W: Words> SpanReader<W> {
    /// From the oldest span that is still there. `None` if the words hold no power of two of records.
    pub fn from_oldest(words: W) -> Option<SpanReader<W>> {
        let mask = span_count(&words)? - 1;
        let head = words.at(HEAD).load(Ordering::Acquire);
        Some(SpanReader { next: head.saturating_sub(mask as u64 + 1), words, mask, lost: 0 })
    }

    /// From the next span that is written.
    pub fn from_now(words: W) -> Option<SpanReader<W>> {
        let mut reader = SpanReader::from_oldest(words)?;
        reader.next = reader.head();
        Some(reader)
    }

    fn head(&self) -> u64 {
        self.words.at(HEAD).load(Ordering::Acquire)
    }

    /// The next span; `None` when there is none yet. Those that were overwritten first are passed over.
    pub fn next_span(&mut self) -> Option<Span> {
        let head = self.head();
        let oldest = head.saturating_sub(self.mask as u64 + 1);
        if self.next < oldest {
            self.lost = self.lost.saturating_add(oldest - self.next);
            self.next = oldest;
        }
        // At most the ring once over: a writer that keeps overtaking us must not hold us.
        for _ in 0..=self.mask {
            if self.next >= head {
                // Also after a writer that scribbled: its number may go back.
                self.next = head;
                return None;
            }
            let number = self.next;
            self.next += 1;
            match self.read(number) {
                Some(span) => return Some(span),
                None => self.lost = self.lost.saturating_add(1),
            }
        }
        None
    }

    /// Spans that were overwritten before this reader came to them.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn read(&self, number: u64) -> Option<Span> {
        let base = RECORDS + (number as usize & self.mask) * RECORD_WORDS;
        let record = &self.words.words()[base..base + RECORD_WORDS];
        // Sync point `span-end`, the reading end.
        if record[SEQUENCE].load(Ordering::Acquire) != written(number) {
            return None;
        }
        let word = |index: usize| record[index].load(Ordering::Relaxed);
        let span = Span {
            name: u32::try_from(word(NAME)).unwrap_or(u32::MAX),
            begin_ns: word(BEGIN),
            duration_ns: word(DURATION),
            arguments: [word(ARGUMENTS), word(ARGUMENTS + 1)],
        };
        // Sync point `span-begin`, the reading end.
        fence(Ordering::Acquire);
        (record[SEQUENCE].load(Ordering::Relaxed) == written(number)).then_some(span)
    }
}
