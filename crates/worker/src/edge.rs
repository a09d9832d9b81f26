//! A role's ends of the data edges: inboxes to read and outboxes to write.
//!
//! An edge is a ring, or under `--ipc channel` an `ipc-channel`; its reader and writer see no difference.

use crate::channel::{ChannelFault, ChannelReader, ChannelWriter};
use ipc_channel::ipc::{IpcBytesReceiver, IpcBytesSender};
use pinion_os::clock::Clock;
use pinion_protocol::Peer;
use pinion_protocol::control::FromRole;
use pinion_protocol::status::Gauge;
use pinion_shm::doorbell::Doorbell;
use pinion_shm::page::Page;
use pinion_shm::region::Region;
use pinion_shm::ring::{PushError, RECORD_HEADER_BYTES, Reader, Record, RingFault, Writer, max_record_bytes};
use std::collections::VecDeque;

/// A reader that has taken nothing for this time while records waited is stalled; writers no longer slow down for it.
const READER_PATIENCE_NS: u64 = 500_000_000;
/// Bytes of backlog an [`Outbox`] keeps beyond its full ring before it reports [`Overflow`].
pub(crate) const BACKLOG_BYTES_MAX: usize = 8 << 20;

/// What an inbox reads.
enum Source {
    Ring(Reader<Region>),
    Channel(ChannelReader),
}

/// What an outbox writes.
enum Target {
    Ring(Writer<Region, Doorbell>),
    Channel(ChannelWriter),
}

/// Whether an edge can be used.
#[derive(Debug, PartialEq, Eq)]
enum Condition {
    Sound,
    /// It holds what no honest peer writes; the launcher does not know it yet.
    Corrupt(String),
    /// The launcher knows, and will replace it.
    Reported,
    /// Its writer is gone, which the launcher sees by itself.
    Abandoned,
}

/// An edge to read from.
pub struct Inbox {
    /// The writer.
    pub from: Peer,
    epoch: u32,
    condition: Condition,
    source: Source,
    status: Page,
}

impl Inbox {
    pub(crate) fn new(from: Peer, epoch: u32, reader: Reader<Region>, status: Page) -> Inbox {
        Inbox { from, epoch, condition: Condition::Sound, source: Source::Ring(reader), status }
    }

    /// Reads from a channel from here on.
    pub(crate) fn use_channel(&mut self, receiver: IpcBytesReceiver) {
        self.source = Source::Channel(ChannelReader::new(receiver));
    }

    /// The next record, copied out of the ring. A ring whose content does not check is condemned.
    // It lends from the ring's scratch buffer, which an `Iterator` cannot.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Record<'_>> {
        if self.is_dead() {
            return None;
        }
        let fault = match &mut self.source {
            Source::Ring(reader) => match reader.next() {
                Ok(record) => return record,
                Err(fault) => fault.to_string(),
            },
            Source::Channel(reader) => match reader.next() {
                Ok(record) => return record,
                Err(ChannelFault::Abandoned) => {
                    self.condition = Condition::Abandoned;
                    return None;
                }
                Err(ChannelFault::Torn) => "a record of a channel is cut short".to_owned(),
            },
        };
        // Not `condemn`: the record that may be returned above borrows the source until here.
        self.status.add(Gauge::MalformedRecords as usize, 1);
        self.condition = Condition::Corrupt(fault);
        None
    }

    /// What came over this edge is not what an honest writer sends: a record is lost. Nothing more is read from it
    /// until the launcher, which hears of it when the role next looks for control messages or sleeps, has replaced it.
    pub fn condemn(&mut self, what: &str) {
        self.status.add(Gauge::MalformedRecords as usize, 1);
        if self.condition == Condition::Sound {
            self.condition = Condition::Corrupt(what.to_owned());
        }
    }

    fn is_dead(&self) -> bool {
        self.condition != Condition::Sound
    }

    /// Bytes waiting.
    pub fn used_bytes(&self) -> usize {
        match &self.source {
            Source::Ring(reader) => reader.used_bytes(),
            Source::Channel(reader) => reader.used_bytes(),
        }
    }

    pub(crate) fn arm(&self) -> bool {
        self.is_dead()
            || match &self.source {
                Source::Ring(reader) => reader.arm(),
                // Its writer always rings, so looking after the doorbell was drained is enough.
                Source::Channel(reader) => reader.used_bytes() == 0,
            }
    }

    pub(crate) fn disarm(&self) {
        match &self.source {
            Source::Ring(reader) => reader.disarm(),
            Source::Channel(_) => {}
        }
    }

    pub(crate) fn has_data(&self) -> bool {
        !self.is_dead() && self.used_bytes() > 0
    }

    /// Whether it was found corrupt.
    pub(crate) fn is_corrupt(&self) -> bool {
        matches!(self.condition, Condition::Corrupt(_) | Condition::Reported)
    }

    /// What to tell the launcher, once.
    pub(crate) fn report(&mut self) -> Option<FromRole> {
        let Condition::Corrupt(what) = &mut self.condition else { return None };
        let what = std::mem::take(what);
        self.condition = Condition::Reported;
        Some(FromRole::CorruptEdge { peer: self.from, epoch: self.epoch, reads: true, what })
    }
}

/// The backlog of an outbox is over its bound: the reader has stopped reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// An edge to write to, with a bounded backlog so that a full ring never makes the writer wait.
pub struct Outbox {
    /// The reader.
    pub to: Peer,
    epoch: u32,
    /// The launcher knows that it is corrupt.
    reported: bool,
    target: Target,
    backlog: VecDeque<(u16, Vec<u8>)>,
    backlog_bytes: usize,
    /// When the reader last made room for a record of the backlog, or the backlog began.
    taken_ns: u64,
    clock: Clock,
}

impl Outbox {
    pub(crate) fn new(to: Peer, epoch: u32, writer: Writer<Region, Doorbell>, clock: Clock) -> Outbox {
        Outbox::over(to, epoch, Target::Ring(writer), clock)
    }

    fn over(to: Peer, epoch: u32, target: Target, clock: Clock) -> Outbox {
        let backlog = VecDeque::new();
        Outbox { to, epoch, reported: false, target, backlog, backlog_bytes: 0, taken_ns: 0, clock }
    }

    /// What is wrong with the words that the reader writes, if they were seen wrong.
    pub(crate) fn fault(&self) -> Option<RingFault> {
        match &self.target {
            Target::Ring(writer) => writer.fault(),
            Target::Channel(_) => None,
        }
    }

    /// Writes to a channel from here on; what the ring held is lost.
    pub(crate) fn use_channel(self, sender: IpcBytesSender) -> Outbox {
        let doorbell = match self.target {
            Target::Ring(writer) => writer.into_doorbell(),
            Target::Channel(writer) => writer.into_doorbell(),
        };
        Outbox::over(self.to, self.epoch, Target::Channel(ChannelWriter::new(sender, doorbell)), self.clock)
    }

    /// Stages one record, in order: in the ring, or behind what the ring could not take. Allocates only in
    /// the latter case. Nothing is visible to the reader before [`Outbox::publish`].
    pub fn send(&mut self, kind: u16, payload: &[u8]) -> Result<(), Overflow> {
        let writer = match &mut self.target {
            Target::Ring(writer) => writer,
            Target::Channel(writer) if writer.staged_bytes() + payload.len() > BACKLOG_BYTES_MAX => {
                return Err(Overflow);
            }
            Target::Channel(writer) => {
                writer.push(kind, payload);
                return Ok(());
            }
        };
        // Before it is looked whether there is room: it would stand at the head of the backlog for ever.
        if payload.len() > max_record_bytes(writer.capacity_bytes()) {
            tracing::error!(to = %self.to, kind, bytes = payload.len(), "record over the ring's limit");
            return Err(Overflow);
        }
        if self.backlog.is_empty() {
            match writer.push(kind, payload) {
                Ok(()) => return Ok(()),
                Err(PushError::Full | PushError::TooLarge) => {}
            }
        }
        if self.backlog_bytes + payload.len() > BACKLOG_BYTES_MAX {
            return Err(Overflow);
        }
        if self.backlog.is_empty() {
            self.taken_ns = (self.clock)();
        }
        self.backlog_bytes += payload.len();
        self.backlog.push_back((kind, payload.to_vec()));
        Ok(())
    }

    /// Whether a record of this number of bytes would fit now. Lets a caller skip encoding one that would not.
    pub fn has_room(&self, payload_bytes: usize) -> bool {
        let fits_backlog =
            matches!(self.target, Target::Ring(_)) && self.backlog_bytes + payload_bytes <= BACKLOG_BYTES_MAX;
        self.fits_now(payload_bytes) || fits_backlog
    }

    /// Whether a record of this number of bytes fits without a backlog. For what is sent later when it does not.
    pub fn fits_now(&self, payload_bytes: usize) -> bool {
        match &self.target {
            Target::Ring(writer) => {
                self.backlog.is_empty() && payload_bytes + RECORD_HEADER_BYTES <= writer.free_bytes()
            }
            Target::Channel(writer) => writer.staged_bytes() + payload_bytes <= BACKLOG_BYTES_MAX,
        }
    }

    /// Makes everything staged visible, moves backlog into the ring as far as it fits, and wakes a sleeping
    /// reader: at most one syscall.
    pub fn publish(&mut self) {
        let writer = match &mut self.target {
            Target::Ring(writer) => writer,
            Target::Channel(writer) => return writer.publish(),
        };
        let waiting = self.backlog.len();
        while let Some((kind, payload)) = self.backlog.front() {
            if writer.push(*kind, payload).is_err() {
                break;
            }
            self.backlog_bytes -= payload.len();
            self.backlog.pop_front();
        }
        if self.backlog.len() < waiting {
            self.taken_ns = (self.clock)();
        }
        writer.publish();
    }

    /// Bytes that wait outside the ring.
    pub fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }

    /// Back-pressure: bytes that wait for a reader that is slow but reads. 0 if it has taken nothing for half a second:
    /// a writer that waited for it would stall with it.
    pub fn lag_bytes(&self) -> usize {
        let reads =
            self.backlog_bytes > 0 && (self.clock)().saturating_sub(self.taken_ns) < READER_PATIENCE_NS;
        if reads { self.backlog_bytes } else { 0 }
    }

    /// What to tell the launcher, once.
    pub(crate) fn report(&mut self) -> Option<FromRole> {
        let fault = self.fault().filter(|_| !self.reported)?;
        self.reported = true;
        Some(FromRole::CorruptEdge {
            peer: self.to,
            epoch: self.epoch,
            reads: false,
            what: fault.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_protocol::Role;
    use pinion_shm::region::RegionKind;
    use pinion_shm::ring::region_words;
    use std::time::{Duration, Instant};

    #[test]
    fn a_slow_reader_is_waited_for_and_one_that_stopped_is_not() {
        let region = Region::create("test", RegionKind::Ring, 1, 1, region_words(4096)).unwrap();
        let writer = Writer::new(region.clone(), 1, Doorbell::create().unwrap()).unwrap();
        let mut reader = Reader::new(region, 1).unwrap();
        let mut outbox = Outbox::new(Peer::new(Role::Frontend, 0), 1, writer, pinion_os::clock::now_ns);
        let payload = [7; 1000];
        let mut sent = 0;
        let begin = Instant::now();
        while outbox.backlog_bytes() == 0 {
            outbox.send(1, &payload).unwrap();
            outbox.publish();
            sent += 1;
        }
        assert!((2..=5).contains(&sent), "{sent} records for a ring of 4096 bytes");
        assert!(outbox.has_room(BACKLOG_BYTES_MAX - payload.len()));
        assert!(!outbox.has_room(BACKLOG_BYTES_MAX), "no record is made in vain");
        assert_eq!(outbox.lag_bytes(), payload.len());

        while outbox.lag_bytes() > 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "still waiting for a reader that has stopped");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(begin.elapsed().as_nanos() >= u128::from(READER_PATIENCE_NS) / 2);
        assert_eq!(outbox.backlog_bytes(), payload.len(), "nothing is thrown away");
        outbox.send(1, &payload).unwrap();
        assert_eq!(
            outbox.send(1, &[7; 2100]),
            Err(Overflow),
            "it would never fit and hold up what comes behind it"
        );

        let mut got = 0;
        while outbox.backlog_bytes() > 0 {
            assert_eq!(reader.next().unwrap().expect("a record").payload, payload);
            got += 1;
            let before = outbox.backlog_bytes();
            outbox.publish();
            let made_room = outbox.backlog_bytes() < before;
            assert_eq!(outbox.lag_bytes() > 0, made_room && outbox.backlog_bytes() > 0, "it reads again");
        }
        while reader.next().unwrap().is_some() {
            got += 1;
        }
        assert_eq!(got, sent + 1);
    }
}
