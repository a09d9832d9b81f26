//! What the loop needs from the world: inboxes, outboxes, request slots, gauges, the time.

use pinion_protocol::events_inbox::kind;
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::status::Gauge;
use pinion_protocol::{Peer, RequestId, Role};
use pinion_scheduler::StepPlan;
use pinion_shm::ring::Record;
use pinion_shm::slots::SlotState;
use pinion_worker::{Outbox, Overflow, Recorder, Session};

/// The loop's edges. [`Session`] has them in production; a test has its own.
pub trait Ports {
    /// CLOCK_MONOTONIC ns.
    fn now_ns(&self) -> u64;
    /// How many inboxes there are.
    fn inbox_count(&self) -> usize;
    /// The next record of one inbox.
    fn next_record(&mut self, inbox: usize) -> Option<Record<'_>>;
    /// What came from one inbox is not what an honest writer sends: a record is lost, and the edge must be replaced.
    fn condemn(&mut self, inbox: usize, what: &'static str);
    /// What the request's slot says; `None` if there is no such slot. One load.
    fn slot(&self, id: RequestId) -> Option<SlotState>;
    /// Writes a stamp of the request's timeline.
    fn stamp(&self, id: RequestId, stage: Stage, ns: u64);
    /// Writes a counter of the request.
    fn count(&self, id: RequestId, counter: Counter, value: u64);
    /// Stages a record. Never blocks.
    ///
    /// # Errors
    /// [`Overflow`]: the reader has not read for so long that the backlog is over its bound.
    fn send(&mut self, to: Peer, kind: u16, payload: &[u8]) -> Result<(), Overflow>;
    /// Bytes that wait, beyond what their rings took, for detokenizers that are slow but read.
    fn detokenizer_lag_bytes(&self) -> usize;
    /// Makes everything staged visible.
    fn publish(&mut self);
    /// So much of this turn passed in the model: the host did not pause.
    fn excuse(&mut self, ns: u64);
    /// Replaces a gauge of the engine's status page.
    fn set_gauge(&self, gauge: Gauge, value: u64);
    /// Adds one to a gauge of the engine's status page.
    fn add_one(&self, gauge: Gauge);
    /// Whether a record of this number of bytes can be sent to the events role now. A replay has none.
    fn events_fit(&self, _bytes: usize) -> bool {
        false
    }
    /// Stages a record of changes of the prefix cache, if [`Ports::events_fit`].
    fn send_events(&mut self, _payload: &[u8]) {}
    /// Hears of each batch that is launched.
    fn planned(&self, _plan: &StepPlan) {}
    /// Where the loop's spans go.
    fn recorder(&self) -> &Recorder;
}

impl Ports for Session {
    fn now_ns(&self) -> u64 {
        Session::now_ns(self)
    }

    fn inbox_count(&self) -> usize {
        self.links.inboxes.len()
    }

    fn next_record(&mut self, inbox: usize) -> Option<Record<'_>> {
        self.links.inboxes.get_mut(inbox)?.next()
    }

    fn condemn(&mut self, inbox: usize, what: &'static str) {
        if let Some(inbox) = self.links.inboxes.get_mut(inbox) {
            inbox.condemn(what);
        }
    }

    fn slot(&self, id: RequestId) -> Option<SlotState> {
        self.links.slot(id).map(|slot| slot.state())
    }

    fn stamp(&self, id: RequestId, stage: Stage, ns: u64) {
        if let Some(slot) = self.links.slot(id) {
            slot.stamp(id.generation, stage as usize, ns);
        }
    }

    fn count(&self, id: RequestId, counter: Counter, value: u64) {
        if let Some(slot) = self.links.slot(id) {
            slot.set_counter(id.generation, counter as usize, value);
        }
    }

    fn send(&mut self, to: Peer, kind: u16, payload: &[u8]) -> Result<(), Overflow> {
        let outbox = self.links.outbox(to).expect("the topology joins the engine to every consumer");
        outbox.send(kind, payload)
    }

    fn detokenizer_lag_bytes(&self) -> usize {
        let outboxes = self.links.outboxes.iter().filter(|outbox| outbox.to.role == Role::Detokenizer);
        outboxes.map(Outbox::lag_bytes).sum()
    }

    fn publish(&mut self) {
        self.links.publish();
    }

    fn events_fit(&self, bytes: usize) -> bool {
        self.links.outboxes.iter().any(|outbox| outbox.to.role == Role::Events && outbox.fits_now(bytes))
    }

    fn send_events(&mut self, payload: &[u8]) {
        let outbox = self.links.outboxes.iter_mut().find(|outbox| outbox.to.role == Role::Events);
        let sent = outbox.map(|outbox| outbox.send(kind::CACHE_CHANGES, payload));
        debug_assert!(sent.is_none_or(|sent| sent.is_ok()), "it was asked before");
    }

    fn excuse(&mut self, ns: u64) {
        Session::excuse(self, ns);
    }

    fn set_gauge(&self, gauge: Gauge, value: u64) {
        self.status.set(gauge as usize, value);
    }

    fn add_one(&self, gauge: Gauge) {
        self.status.add(gauge as usize, 1);
    }

    fn recorder(&self) -> &Recorder {
        Session::recorder(self)
    }
}
