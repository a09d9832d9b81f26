//! A ring of variable-size records between one writer and one reader.
//!
//! The same code runs over mapped memory and, under the model checker, over heap words ([`Words`]). It
//! allocates only at creation, never blocks, and knows nothing of what the records mean. Start at
//! [`Writer::push`] and [`Reader::next`]; sleeping is [`Reader::arm`] against [`Writer::publish`].
//!
//! Payload words of the region: `head` at 16, `tail` at 32, `reader_asleep` at 48, so that each stands
//! alone on a 128-byte line, and the data from 64. Each has one writer, so there is no read-modify-write.
//! Head and tail count words since the ring was made and never wrap. A record is two header words (length, kind and
//! epoch; sequence) and the payload, rounded up to words; a copy may run over the end of the data and go on at its
//! start, so there is no padding.
//!
//! Sync points, by name:
//! * `ring-publish`: the writer's Release store of `head` and the reader's Acquire load of it. A
//!   reader that loads a head also sees every word written before it.
//! * `ring-release`: the reader's Release store of `tail` and the writer's Acquire load of it. A
//!   writer that loads a tail may overwrite every word before it.
//! * `ring-sleep`: the two SeqCst fences. The writer stores `head` and then looks at `reader_asleep`; the
//!   reader stores `reader_asleep` and then looks at `head`. With both fences at least one sees the other's
//!   store, so no wake-up is lost; without either one, `tests/loom.rs` finds the lost one.
//!
//! A ring is never used again after one of its ends died: the successor gets a new one with a new epoch.

use crate::sync::{AtomicU64, Ordering, reader_fence, writer_fence};
use crate::words::Words;
use std::sync::OnceLock;
use zerocopy::IntoBytes;

const HEAD: usize = 16;
const TAIL: usize = 32;
const READER_ASLEEP: usize = 48;
const DATA: usize = 64;
const RECORD_HEADER_WORDS: usize = 2;
/// Value of `reader_asleep` while the reader is awake; otherwise it is the reader's position + 1.
const AWAKE: u64 = 0;

/// Smallest data part of a ring.
pub const CAPACITY_BYTES_MIN: usize = 64;
/// Largest data part of a ring.
pub const CAPACITY_BYTES_MAX: usize = 1 << 30;
/// What a record costs besides its payload, which is rounded up to eight bytes.
pub const RECORD_HEADER_BYTES: usize = RECORD_HEADER_WORDS * 8;

/// Payload words of a ring region for at least `capacity_bytes` of data (rounded up to a power of two).
pub const fn region_words(capacity_bytes: usize) -> usize {
    let bytes = if capacity_bytes < CAPACITY_BYTES_MIN { CAPACITY_BYTES_MIN } else { capacity_bytes };
    DATA + bytes.next_power_of_two() / 8
}

/// Largest payload that a ring of `capacity_bytes` accepts: a record takes at most half of the ring, so
/// that one can be written while another is read.
pub const fn max_record_bytes(capacity_bytes: usize) -> usize {
    (capacity_bytes / 2).saturating_sub(RECORD_HEADER_BYTES)
}

/// Wakes the reader of a ring.
pub trait Wake {
    /// Called when something was published for a reader that said it sleeps. Must not block.
    fn wake(&self);
}

/// Why a record was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// No room now.
    Full,
    /// No room ever: over [`max_record_bytes`].
    TooLarge,
}

impl std::fmt::Display for PushError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PushError::Full => "ring is full",
            PushError::TooLarge => "record is larger than half of its ring",
        })
    }
}

impl std::error::Error for PushError {}

/// The ring does not hold what an honest peer would have put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFault {
    /// Which check failed.
    pub what: &'static str,
    /// Where: words since the ring was made.
    pub position: u64,
}

impl std::fmt::Display for RingFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "corrupt ring: {} at word {}", self.what, self.position)
    }
}

impl std::error::Error for RingFault {}

/// A record copied out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What the writer said it is; never 0.
    pub kind: u16,
    /// Its number in this ring, from 0 on.
    pub sequence: u64,
    /// Its bytes, eight-aligned, owned by the reader until its next call.
    pub payload: &'a [u8],
}

/// The data part, as a ring.
#[derive(Clone, Copy)]
struct Data<'a>(&'a [AtomicU64]);

impl<'a> Data<'a> {
    fn of(words: &'a [AtomicU64]) -> Data<'a> {
        Data(&words[DATA..])
    }

    fn at(self, position: u64) -> &'a AtomicU64 {
        &self.0[self.index(position)]
    }

    /// `count` ≤ capacity words from `position` on, in two parts: up to the end, and from the start.
    fn span(self, position: u64, count: usize) -> (&'a [AtomicU64], &'a [AtomicU64]) {
        let first = self.index(position);
        let until_end = count.min(self.0.len() - first);
        (&self.0[first..first + until_end], &self.0[..count - until_end])
    }

    /// The mask keeps it in bounds whatever the position is: the length is a power of two.
    fn index(self, position: u64) -> usize {
        position as usize & (self.0.len() - 1)
    }
}

/// Words of the data part. Errors: the region is no ring.
fn capacity_words(words: &impl Words) -> Result<usize, RingFault> {
    let capacity = words.len().saturating_sub(DATA);
    let bytes = capacity.saturating_mul(8);
    if !capacity.is_power_of_two() || !(CAPACITY_BYTES_MIN..=CAPACITY_BYTES_MAX).contains(&bytes) {
        return Err(RingFault { what: "capacity", position: 0 });
    }
    Ok(capacity)
}

/// Bytes in use and capacity as any process can read them, for metrics; an inconsistent pair reads as full.
pub fn depth(words: &impl Words) -> (usize, usize) {
    let Ok(capacity) = capacity_words(words) else { return (0, 0) };
    // Tail first: the head can only have grown since.
    let tail = words.at(TAIL).load(Ordering::Relaxed);
    let head = words.at(HEAD).load(Ordering::Relaxed);
    (head.wrapping_sub(tail).min(capacity as u64) as usize * 8, capacity * 8)
}

/// The writing end. There must be only one per ring.
pub struct Writer<W, D = crate::doorbell::Doorbell> {
    words: W,
    doorbell: D,
    epoch: u16,
    capacity: usize,
    /// End of what was pushed.
    staged: u64,
    /// End of what the reader may see.
    published: u64,
    /// A tail seen earlier: at least this much has been read.
    tail_seen: u64,
    sequence: u64,
    /// The sleep that was ended last, as `reader_asleep` named it.
    woken: u64,
    /// A tail that no honest reader stores was seen.
    fault: OnceLock<RingFault>,
}

impl<W: Words, D: Wake> Writer<W, D> {
    /// Takes the writing end of a new ring; of `epoch` the low 16 bits go into every record. Errors: the
    /// region is no ring, or it was written before.
    pub fn new(words: W, epoch: u32, doorbell: D) -> Result<Writer<W, D>, RingFault> {
        let capacity = capacity_words(&words)?;
        let head = words.at(HEAD).load(Ordering::Relaxed);
        if head != 0 {
            return Err(RingFault { what: "writer of a used ring", position: head });
        }
        let epoch = epoch as u16;
        Ok(Writer {
            words,
            doorbell,
            epoch,
            capacity,
            staged: 0,
            published: 0,
            tail_seen: 0,
            sequence: 0,
            woken: AWAKE,
            fault: OnceLock::new(),
        })
    }

    /// Copies a record behind the ones pushed before; the reader sees it after [`Writer::publish`]. `kind` must
    /// not be 0. On an error nothing has changed.
    pub fn push(&mut self, kind: u16, payload: &[u8]) -> Result<(), PushError> {
        assert!(kind != 0, "record kind 0 is what an unwritten ring holds");
        if payload.len() > max_record_bytes(self.capacity * 8) {
            return Err(PushError::TooLarge);
        }
        let payload_words = payload.len().div_ceil(8);
        let record_words = RECORD_HEADER_WORDS + payload_words;
        if record_words > self.free_words_seen() {
            self.refresh_tail();
            if record_words > self.free_words_seen() {
                return Err(PushError::Full);
            }
        }
        let data = Data::of(self.words.words());
        let word0 = payload.len() as u64 | u64::from(kind) << 32 | u64::from(self.epoch) << 48;
        data.at(self.staged).store(word0, Ordering::Relaxed);
        data.at(self.staged + 1).store(self.sequence, Ordering::Relaxed);
        let (first, second) = data.span(self.staged + RECORD_HEADER_WORDS as u64, payload_words);
        let (head, rest) = payload.split_at(payload.len().min(first.len() * 8));
        copy_in(first, head);
        copy_in(second, rest);
        self.staged += record_words as u64;
        self.sequence += 1;
        Ok(())
    }

    /// Gives up the ring and keeps the way to wake its reader.
    pub fn into_doorbell(self) -> D {
        self.doorbell
    }

    /// Makes everything pushed visible at once and wakes the reader if it sleeps. Nothing pushed: no-op.
    pub fn publish(&mut self) {
        if self.staged == self.published {
            return;
        }
        // Sync point `ring-publish`, the writing end.
        self.words.at(HEAD).store(self.staged, Ordering::Release);
        self.published = self.staged;
        // Sync point `ring-sleep`, the writer's half.
        writer_fence();
        let asleep = self.words.at(READER_ASLEEP).load(Ordering::Relaxed);
        // The reader says where it fell asleep. At the very head it misses nothing. Further back it needs one
        // wake-up, however often we publish before it is up: it will find the head moved and sleep elsewhere.
        let misses_something = asleep != AWAKE && asleep <= self.published;
        if misses_something && asleep != self.woken {
            self.woken = asleep;
            self.doorbell.wake();
        }
    }

    /// Room for records, headers included.
    pub fn free_bytes(&self) -> usize {
        (self.capacity - self.used_words(self.tail())) * 8
    }

    /// Size of the data part.
    pub fn capacity_bytes(&self) -> usize {
        self.capacity * 8
    }

    /// What the reader has not taken yet, pushed records included.
    pub fn used_bytes(&self) -> usize {
        self.used_words(self.tail()) * 8
    }

    fn free_words_seen(&self) -> usize {
        self.capacity - self.used_words(self.tail_seen)
    }

    /// `tail` must be a checked one: between an earlier tail and `staged`.
    fn used_words(&self, tail: u64) -> usize {
        (self.staged - tail) as usize
    }

    fn refresh_tail(&mut self) {
        self.tail_seen = self.tail();
    }

    /// The first fault that was seen. The ring may look full for ever from then on: it must be replaced.
    pub fn fault(&self) -> Option<RingFault> {
        self.fault.get().copied()
    }

    /// The reader's tail, checked: one that runs backwards or past the published head is a corrupt one, which
    /// [`Writer::fault`] tells and which reads as no progress.
    fn tail(&self) -> u64 {
        // Sync point `ring-release`, the writer's end.
        let tail = self.words.at(TAIL).load(Ordering::Acquire);
        if (self.tail_seen..=self.published).contains(&tail) {
            return tail;
        }
        // Only the first is kept.
        let _ = self.fault.set(RingFault { what: "tail", position: self.published });
        self.tail_seen
    }
}

/// The reading end. There must be only one per ring.
pub struct Reader<W> {
    words: W,
    epoch: u16,
    capacity: usize,
    /// End of what was read; the shared tail is a copy of it and is never read back.
    position: u64,
    /// A head seen earlier: at least up to here there are whole records.
    head_seen: u64,
    sequence: u64,
    /// Where the current record is copied to; as large as the largest record.
    scratch: Box<[u64]>,
    fault: Option<RingFault>,
}

impl<W: Words> Reader<W> {
    /// Takes the reading end of a ring; records of another `epoch` (low 16 bits) are a fault. Errors: the
    /// region is no ring, or it was read before.
    pub fn new(words: W, epoch: u32) -> Result<Reader<W>, RingFault> {
        let capacity = capacity_words(&words)?;
        let tail = words.at(TAIL).load(Ordering::Relaxed);
        if tail != 0 {
            return Err(RingFault { what: "reader of a used ring", position: tail });
        }
        let scratch = vec![0; max_record_bytes(capacity * 8).div_ceil(8)].into_boxed_slice();
        let epoch = epoch as u16;
        Ok(Reader { words, epoch, capacity, position: 0, head_seen: 0, sequence: 0, scratch, fault: None })
    }

    /// Takes the next record: copies it out, checks it and gives its room back. After a fault every call
    /// gives that fault: the ring is dead and must be replaced.
    #[expect(
        clippy::should_implement_trait,
        reason = "a lending iterator: a record lives until the next call"
    )]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, RingFault> {
        match self.take() {
            Ok(None) => Ok(None),
            Ok(Some((kind, len))) => {
                let payload = &self.scratch.as_bytes()[..len];
                Ok(Some(Record { kind, sequence: self.sequence - 1, payload }))
            }
            Err(fault) => {
                self.fault = Some(fault);
                Err(fault)
            }
        }
    }

    /// Copies the next record to the scratch; gives its kind and payload length.
    fn take(&mut self) -> Result<Option<(u16, usize)>, RingFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let fault = |what| RingFault { what, position: self.position };
        if self.head_seen == self.position {
            // Sync point `ring-publish`, the reading end.
            let head = self.words.at(HEAD).load(Ordering::Acquire);
            if head.wrapping_sub(self.position) > self.capacity as u64 {
                return Err(fault("head"));
            }
            if head == self.position {
                return Ok(None);
            }
            self.head_seen = head;
        }
        let available = (self.head_seen - self.position) as usize;
        if available < RECORD_HEADER_WORDS {
            return Err(fault("head inside a record"));
        }
        let data = Data::of(self.words.words());
        let word0 = data.at(self.position).load(Ordering::Relaxed);
        let sequence = data.at(self.position + 1).load(Ordering::Relaxed);
        let (len, kind, epoch) = (word0 as u32 as usize, (word0 >> 32) as u16, (word0 >> 48) as u16);
        let payload_words = len.div_ceil(8);
        if len > max_record_bytes(self.capacity * 8) || payload_words + RECORD_HEADER_WORDS > available {
            return Err(fault("record length"));
        }
        if kind == 0 {
            return Err(fault("record kind"));
        }
        if epoch != self.epoch {
            return Err(fault("record epoch"));
        }
        if sequence != self.sequence {
            return Err(fault("record sequence"));
        }
        let (first, second) = data.span(self.position + RECORD_HEADER_WORDS as u64, payload_words);
        let (head, rest) = self.scratch.split_at_mut(first.len());
        copy_out(first, head);
        copy_out(second, rest);
        self.position += (RECORD_HEADER_WORDS + payload_words) as u64;
        self.sequence += 1;
        // Sync point `ring-release`, the reader's end: the words were copied out above.
        self.words.at(TAIL).store(self.position, Ordering::Release);
        Ok(Some((kind, len)))
    }

    /// Says that the reader is about to sleep. `false`: there is data, do not sleep (and the flag is down).
    /// `true`: the next publish rings the doorbell; sleep, and [`Reader::disarm`] afterwards. A faulted
    /// ring has no more records, so it never keeps a reader awake.
    pub fn arm(&self) -> bool {
        if self.fault.is_some() {
            return true;
        }
        self.words.at(READER_ASLEEP).store(self.position + 1, Ordering::Relaxed);
        // Sync point `ring-sleep`, the reader's half.
        reader_fence();
        // Sync point `ring-publish`, the reading end.
        if self.words.at(HEAD).load(Ordering::Acquire) != self.position {
            self.disarm();
            return false;
        }
        true
    }

    /// Says that the reader is awake and needs no wake-up.
    pub fn disarm(&self) {
        self.words.at(READER_ASLEEP).store(AWAKE, Ordering::Relaxed);
    }

    /// Whether [`Reader::next`] would give nothing now; a faulted ring is empty.
    pub fn is_empty(&self) -> bool {
        self.fault.is_some() || self.words.at(HEAD).load(Ordering::Relaxed) == self.position
    }

    /// What was published and not taken yet, as the writer claims it.
    pub fn used_bytes(&self) -> usize {
        let head = self.words.at(HEAD).load(Ordering::Relaxed);
        head.wrapping_sub(self.position).min(self.capacity as u64) as usize * 8
    }

    /// Size of the data part.
    pub fn capacity_bytes(&self) -> usize {
        self.capacity * 8
    }
}

/// Stores `bytes` into as many words as they need, the last one filled up with zeros.
fn copy_in(words: &[AtomicU64], bytes: &[u8]) {
    let chunks = bytes.chunks_exact(8);
    let last = chunks.remainder();
    for (word, chunk) in words.iter().zip(chunks) {
        word.store(u64::from_ne_bytes(chunk.try_into().expect("a chunk of eight bytes")), Ordering::Relaxed);
    }
    if !last.is_empty() {
        let mut filled = [0; 8];
        filled[..last.len()].copy_from_slice(last);
        words[bytes.len() / 8].store(u64::from_ne_bytes(filled), Ordering::Relaxed);
    }
}

/// Loads words into the front of `into`, which is at least as long.
fn copy_out(words: &[AtomicU64], into: &mut [u64]) {
    for (value, word) in into.iter_mut().zip(words) {
        *value = word.load(Ordering::Relaxed);
    }
}
