//! From changes of the cache to numbered messages, those of the past that can be asked for again, and the whole cache
//! as one message.

use crate::batch::{self, Events};
use crate::snapshots::Snapshots;
use crate::tree::Tree;
use crate::zmtp;
use pinion_protocol::Malformed;
use pinion_protocol::events_inbox;
use std::collections::VecDeque;
use std::rc::Rc;

/// Batches kept for replay: as many as vLLM keeps, and no more bytes than this.
const KEPT_BATCHES_MAX: usize = 10_000;
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Bytes of a replay that are handed out at once, give or take a batch.
const PORTION_BYTES: usize = 1 << 20;
/// What a message has beside its blocks is less: the topic, which options bound, and heads of frames.
const HEAD_BYTES_MAX: usize = 1024;
/// The number that ends a replay: -1 in vLLM's eyes.
const END: [u8; 8] = u64::MAX.to_be_bytes();

/// A message of several frames as bytes, ready for a connection.
pub type Message = Rc<[u8]>;

/// What the publisher is told once.
#[derive(Debug, Clone)]
pub struct Facts {
    /// First frame of each message.
    pub topic: String,
    /// Tokens of a block.
    pub block_size: usize,
    /// Blocks of the engine's cache.
    pub block_count: usize,
    /// The engine's index.
    pub rank: u16,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Publisher {
    facts: Facts,
    tree: Tree,
    /// Number of the next batch.
    next: u64,
    /// The engine has spoken since this process began.
    heard: bool,
    kept: VecDeque<(u64, Message)>,
    kept_bytes: usize,
    pub(crate) snapshots: Snapshots,
}

impl Publisher {
    /// A publisher whose first batch has this number.
    pub fn new(facts: Facts, next: u64) -> Publisher {
        let tree = Tree::new(facts.block_count);
        let (kept, snapshots) = (VecDeque::new(), Snapshots::new());
        Publisher { facts, tree, next, heard: false, kept, kept_bytes: 0, snapshots }
    }

    /// Number of the next batch.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Whether subscribers with this prefix want the messages.
    pub fn is_meant_by(&self, prefix: &[u8]) -> bool {
        self.facts.topic.as_bytes().starts_with(prefix)
    }

    /// Takes a record of the engine and gives the message to send, if it has changes.
    ///
    /// # Errors
    /// It is not what an engine sends.
    pub fn take(
        &mut self,
        record_kind: u16,
        payload: &[u8],
        unix_s: f64,
    ) -> Result<Option<Message>, Malformed> {
        let entries = events_inbox::decode(record_kind, payload, self.facts.block_size)?;
        let mut events = Events::new(self.facts.block_size);
        for entry in entries {
            self.tree.apply(entry, &mut events)?;
        }
        self.heard = true;
        Ok((!events.is_empty()).then(|| self.number(&events, unix_s)))
    }

    /// The engine is gone, and its cache with it.
    pub fn lose_engine(&mut self, unix_s: f64) -> Message {
        self.tree.clear();
        self.heard = true;
        let mut events = Events::new(self.facts.block_size);
        events.push_cleared();
        self.number(&events, unix_s)
    }

    fn number(&mut self, events: &Events, unix_s: f64) -> Message {
        let message = self.message(self.next, &events.encode(unix_s, self.facts.rank));
        self.snapshots.outdate();
        self.kept_bytes += message.len();
        self.kept.push_back((self.next, message.clone()));
        self.next += 1;
        while self.kept.len() > KEPT_BATCHES_MAX || self.kept_bytes > KEPT_BYTES_MAX {
            let Some((_, oldest)) = self.kept.pop_front() else { break };
            self.kept_bytes -= oldest.len();
        }
        message
    }

    fn message(&self, number: u64, payload: &[u8]) -> Message {
        let frames = [self.facts.topic.as_bytes(), &number.to_be_bytes(), payload];
        zmtp::message(&frames).into()
    }

    /// Whether there is room for the whole cache as a message, beside those that slow readers have not taken yet.
    pub(crate) fn has_room(&mut self) -> bool {
        let blocks_bytes_max = self.tree.block_count() * batch::block_bytes_max(self.facts.block_size);
        self.snapshots.current().is_some() || self.snapshots.fits(HEAD_BYTES_MAX + blocks_bytes_max)
    }

    /// The whole cache, under the number of the last batch: what follows is newer. `None` while there is nothing that
    /// the next batch would not say. Before it is given to a reader, `has_room` is asked.
    pub fn snapshot(&mut self, unix_s: f64) -> Option<Message> {
        let last = self.next.checked_sub(1).filter(|_| self.heard)?;
        if self.snapshots.current().is_none() {
            let mut events = Events::new(self.facts.block_size);
            self.tree.tell(&mut events);
            let payload = events.encode(unix_s, self.facts.rank);
            drop(events);
            self.snapshots.set(self.message(last, &payload));
        }
        self.snapshots.current().cloned()
    }

    /// Answers a request for the batches from number `start` on with a portion of them, or with the whole cache if some
    /// are not kept or there is no such number yet. Each message is preceded by the empty frame of a reply. Also gives
    /// the number from which to ask for the next portion; without one the end mark was the last message. While there is
    /// no room for the whole cache the portion is empty, and the number is `start`.
    pub fn replay(&mut self, start: u64, unix_s: f64) -> (Vec<Message>, Option<u64>) {
        let oldest = self.kept.front().map_or(self.next, |(number, _)| *number);
        let (mut answer, mut from, mut bytes) = (Vec::new(), start, 0);
        if !(oldest..=self.next).contains(&start) {
            if !self.has_room() {
                return (Vec::new(), Some(start));
            }
            answer.extend(self.snapshot(unix_s));
            from = self.next;
        }
        for (number, message) in self.kept.iter().skip((from - oldest) as usize) {
            if bytes >= PORTION_BYTES {
                break;
            }
            answer.push(message.clone());
            (from, bytes) = (number + 1, bytes + message.len());
        }
        let rest = (from < self.next).then_some(from);
        if rest.is_none() {
            answer.push(zmtp::message(&[b"", &END, b""]).into());
        }
        let delimiter: Message = zmtp::first_frame(b"").into();
        (answer.into_iter().flat_map(|message| [delimiter.clone(), message]).collect(), rest)
    }
}
