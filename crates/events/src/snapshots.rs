//! Messages of the whole cache that are in memory. One is shared while no batch comes between, and each reader holds
//! its own until it has taken it: many slow ones that come at different times would hold as many copies of the cache.

use crate::publisher::Message;
use std::rc::Rc;

/// Bytes of all of them. One alone may have more: it is bounded by the cache.
const BYTES_MAX: usize = 128 << 20;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Snapshots {
    pub(crate) bytes_max: usize,
    /// Good until the next batch.
    current: Option<Message>,
    /// Older ones that readers have not taken yet.
    held: Vec<Message>,
    /// A reader waits for room.
    is_short: bool,
}

impl Snapshots {
    pub(crate) fn new() -> Snapshots {
        Snapshots { bytes_max: BYTES_MAX, current: None, held: Vec::new(), is_short: false }
    }

    /// The one that is good, if it has been made.
    pub(crate) fn current(&self) -> Option<&Message> {
        self.current.as_ref()
    }

    /// Takes the one that is good from now on. [`Snapshots::fits`] was asked before.
    pub(crate) fn set(&mut self, snapshot: Message) {
        self.current = Some(snapshot);
    }

    /// A batch has come: the good one is good no more.
    pub(crate) fn outdate(&mut self) {
        self.held.extend(self.current.take());
        self.drop_taken();
    }

    /// Whether a message of at most this number of bytes fits beside those that are held.
    pub(crate) fn fits(&mut self, bytes: usize) -> bool {
        self.drop_taken();
        let fits = self.held.is_empty() || self.bytes() + bytes <= self.bytes_max;
        self.is_short |= !fits;
        fits
    }

    /// Frees those that have been taken; once in each turn. True if a reader has waited for room since the last look.
    pub(crate) fn look(&mut self) -> bool {
        self.drop_taken();
        std::mem::take(&mut self.is_short)
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> usize {
        self.held.iter().chain(&self.current).map(|snapshot| snapshot.len()).sum()
    }

    fn drop_taken(&mut self) {
        self.held.retain(|snapshot| Rc::strong_count(snapshot) > 1);
    }
}
