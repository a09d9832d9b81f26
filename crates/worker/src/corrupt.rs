//! Corrupt edges of a role: reported to the launcher, which replaces them, and in the health page.

use crate::links::{Condition, Inbox, Links, Outbox};
use crate::session::Session;
use pinion_protocol::control::FromRole;
use pinion_protocol::status::Gauge;

impl Session {
    /// Reports each corrupt edge once. A look at a few words where there is none.
    pub(crate) fn report_corrupt_edges(&mut self) {
        let count = self.links.corrupt_count();
        if count != self.corrupt_edges {
            self.corrupt_edges = count;
            self.status.set(Gauge::CorruptEdges as usize, count as u64);
        }
        if count > 0 {
            while let Some(report) = self.links.next_report() {
                self.control.send(&report);
            }
        }
    }
}

impl Links {
    /// Edges that were found corrupt and that have not been replaced yet.
    fn corrupt_count(&self) -> usize {
        self.inboxes.iter().filter(|inbox| inbox.is_corrupt()).count()
            + self.outboxes.iter().filter(|outbox| outbox.fault().is_some()).count()
    }

    fn next_report(&mut self) -> Option<FromRole> {
        let inbox = self.inboxes.iter_mut().find_map(Inbox::report);
        inbox.or_else(|| self.outboxes.iter_mut().find_map(Outbox::report))
    }
}

impl Inbox {
    fn is_corrupt(&self) -> bool {
        matches!(self.condition, Condition::Corrupt(_) | Condition::Reported)
    }

    fn report(&mut self) -> Option<FromRole> {
        let Condition::Corrupt(what) = &mut self.condition else { return None };
        let what = std::mem::take(what);
        self.condition = Condition::Reported;
        Some(FromRole::CorruptEdge { peer: self.from, epoch: self.epoch, reads: true, what })
    }
}

impl Outbox {
    fn report(&mut self) -> Option<FromRole> {
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
