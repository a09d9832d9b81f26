//! What the events role hears of the prefix cache.
//!
//! The scheduler keeps what there is to tell, and it cannot grow beyond two changes for each block. So the loop never
//! waits for the role: while its ring is full nothing is sent, and nothing is lost. Nothing tells when the role reads
//! again, so an idle loop looks at the ring, more and more rarely ([`Looks`]).

use crate::ports::Ports;
use pinion_protocol::events_inbox::{entry_bytes, put_cleared, put_removed, put_stored};
use pinion_protocol::limits::CACHE_RECORD_BYTES_MAX;
use pinion_scheduler::{CacheChange, Scheduler};
use std::time::Duration;

/// Records of one turn: it tells more blocks than a step can fill, and takes a fraction of a millisecond. A step fills
/// at most a block for each row and each whole block of its tokens.
const RECORDS_PER_TURN_MAX: usize = 64;

/// Sends the changes.
#[derive(Debug)]
pub(crate) struct CacheEvents {
    /// Bytes of the largest entry.
    entry_bytes_max: usize,
    record: Vec<u8>,
    /// There was something to tell in the last turn, and the ring took none of it.
    is_stalled: bool,
}

impl CacheEvents {
    /// For blocks of this number of tokens.
    pub(crate) fn new(block_size: u32) -> CacheEvents {
        let record = Vec::with_capacity(CACHE_RECORD_BYTES_MAX);
        CacheEvents { entry_bytes_max: entry_bytes(block_size as usize), record, is_stalled: false }
    }

    /// Sends what there is to tell, as far as there is room for it.
    pub(crate) fn send(&mut self, scheduler: &mut Scheduler, ports: &mut impl Ports) {
        self.is_stalled = false;
        for sent in 0..RECORDS_PER_TURN_MAX {
            if !scheduler.pool().has_changes() {
                return;
            }
            if !ports.events_fit(CACHE_RECORD_BYTES_MAX) {
                self.is_stalled = sent == 0;
                return;
            }
            self.record.clear();
            while self.record.len() + self.entry_bytes_max <= CACHE_RECORD_BYTES_MAX {
                let Some(change) = scheduler.next_cache_change() else { break };
                match change {
                    CacheChange::Cleared => put_cleared(&mut self.record),
                    CacheChange::Removed { serial } => put_removed(&mut self.record, serial),
                    CacheChange::Stored { serial, parent, tokens } => {
                        put_stored(&mut self.record, serial, parent, tokens);
                    }
                }
            }
            ports.send_events(&self.record);
        }
    }

    /// Whether the role does not read: it is down, stands still or has more to do.
    pub(crate) fn is_stalled(&self) -> bool {
        self.is_stalled
    }
}

/// When an idle loop looks again whether the role reads.
#[derive(Debug)]
pub(crate) struct Looks {
    next: Duration,
}

impl Looks {
    /// After a record that the ring took.
    const FIRST: Duration = Duration::from_millis(2);
    /// While the role is down.
    const LAST: Duration = Duration::from_millis(100);

    pub(crate) fn new() -> Looks {
        Looks { next: Looks::FIRST }
    }

    /// How long to sleep: twice as long after each look that found the role as it was.
    pub(crate) fn wait(&mut self, is_stalled: bool) -> Duration {
        if !is_stalled {
            self.next = Looks::FIRST;
            return Looks::FIRST;
        }
        let wait = self.next;
        self.next = (wait * 2).min(Looks::LAST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_that_is_down_costs_few_looks_and_one_that_reads_is_told_soon() {
        let mut looks = Looks::new();
        let mut waits = |stalls: &[bool]| -> Vec<u128> {
            stalls.iter().map(|&is_stalled| looks.wait(is_stalled).as_millis()).collect()
        };
        assert_eq!(waits(&[true; 9]), [2, 4, 8, 16, 32, 64, 100, 100, 100]);
        assert_eq!(waits(&[false, false, true, true, false, true]), [2, 2, 2, 4, 2, 2]);
    }
}
