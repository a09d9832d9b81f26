//! How a request is sent to its roles: a new one, and one that goes on after a death.

use super::Setup;
use super::entry::{Entry, Place, Submission};
use crate::requests::outgoing::Outgoing;
use pinion_protocol::Fault;
use pinion_protocol::names::{Counter, Stage};

/// What came of sending a parked request on. `opened`: its detokenizer was told of it.
#[derive(Debug)]
pub(super) enum Sent {
    /// Its roles have it.
    Submitted(Submission),
    /// A role that it needs is down, or its detokenizer cannot see yet that it was told of it.
    Waits { opened: bool },
    /// The reader of a ring is stuck.
    Stuck { opened: bool, fault: Fault },
}

impl Entry {
    /// Sends a parked request on if its roles serve.
    pub(super) fn send_on(&mut self, outgoing: &mut Outgoing, setup: &Setup) -> Sent {
        let (id, recovery) = (self.id, &mut self.recovery);
        let mut opened = self.place == Place::Parked { opened: true };
        let Some(job) = recovery.job() else { return Sent::Waits { opened } };
        let reaches_engine = job.reaches_engine();
        let Ok(way) = outgoing.choose(id.slot, reaches_engine) else { return Sent::Waits { opened } };
        let mut request = self.request.borrow_mut();
        if !opened {
            if let Err(fault) = outgoing.open(id, job, request.resume_ids(), way) {
                return Sent::Stuck { opened, fault };
            }
            opened = true;
        }
        if reaches_engine && !outgoing.shows_openings(way) {
            return Sent::Waits { opened };
        }
        let at_ns = (setup.clock)();
        if let Some(slot) = setup.table.slot(usize::from(id.slot)) {
            let resumptions = u64::from(recovery.resumptions_when_sent());
            slot.set_counter(id.generation, Counter::Resumptions as usize, resumptions);
            slot.stamp(id.generation, Stage::Submitted as usize, at_ns);
        }
        if let Err(fault) = outgoing.submit(id, job, request.resume_ids(), way) {
            return Sent::Stuck { opened, fault };
        }
        recovery.sent(setup.resume);
        request.facts.tokenizer = way.tokenizer;
        let tokens_before = request.ids().len();
        Sent::Submitted(Submission { at_ns, tokens_before, finished_ns: None, engine_died: false })
    }
}
