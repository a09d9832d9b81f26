//! What the events role hears of the prefix cache.
//!
//! The scheduler keeps what there is to tell, and it cannot grow beyond two changes for each block. So the loop never
//! waits for the role: while its ring is full nothing is sent, and nothing is lost.

use crate::ports::Ports;
use pinion_protocol::events_inbox::{block_hash, entry_bytes, put_cleared, put_removed, put_stored};
use pinion_protocol::limits::CACHE_RECORD_BYTES_MAX;
use pinion_scheduler::{CacheChange, Scheduler};

/// Records of one turn: it tells more blocks than a step can fill, and takes a fraction of a millisecond. A step fills
/// at most a block for each row and each whole block of its tokens.
const RECORDS_PER_TURN_MAX: usize = 64;

/// Sends the changes.
#[derive(Debug)]
pub(crate) struct CacheEvents {
    /// Of this engine: its hashes differ from those of its predecessors.
    epoch: u32,
    /// Bytes of the largest entry.
    entry_bytes_max: usize,
    record: Vec<u8>,
}

impl CacheEvents {
    /// For an engine in this life of it.
    pub(crate) fn new(epoch: u32, block_size: u32) -> CacheEvents {
        let record = Vec::with_capacity(CACHE_RECORD_BYTES_MAX);
        CacheEvents { epoch, entry_bytes_max: entry_bytes(block_size as usize), record }
    }

    /// Sends what there is to tell, as far as there is room for it.
    pub(crate) fn send(&mut self, scheduler: &mut Scheduler, ports: &mut impl Ports) {
        for _ in 0..RECORDS_PER_TURN_MAX {
            if !scheduler.pool().has_changes() || !ports.events_fit(CACHE_RECORD_BYTES_MAX) {
                return;
            }
            self.record.clear();
            while self.record.len() + self.entry_bytes_max <= CACHE_RECORD_BYTES_MAX {
                let Some(change) = scheduler.next_cache_change() else { break };
                let hash = |serial| block_hash(self.epoch, serial);
                match change {
                    CacheChange::Cleared => put_cleared(&mut self.record),
                    CacheChange::Removed { serial } => put_removed(&mut self.record, hash(serial)),
                    CacheChange::Stored { serial, parent, tokens } => {
                        put_stored(&mut self.record, hash(serial), parent.map(hash), tokens);
                    }
                }
            }
            ports.send_events(&self.record);
        }
    }
}
