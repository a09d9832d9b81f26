//! The client's half of a request, held by whatever answers it: while it lives, a client waits.

use crate::answers::openai::Usage;
use crate::observe::timeline::Timeline;
use crate::requests::ledger::{Ledger, Origin};
use crate::requests::outgoing::Job;
use crate::requests::request::{AnswerPlan, Form, Outcome, Request};
use pinion_protocol::names::Stage;
use pinion_protocol::{Fault, RequestId};
use std::cell::RefCell;
use std::rc::Rc;

/// The client's half of a request. Dropping it says that the client has everything or is gone.
pub struct Ticket {
    ledger: Rc<RefCell<Ledger>>,
    /// The request.
    pub request: Rc<RefCell<Request>>,
    received_ns: u64,
}

impl Ticket {
    /// Begins a request in `ledger`, whose answer is made as `plan` says.
    pub fn begin(
        ledger: &Rc<RefCell<Ledger>>,
        origin: Origin,
        job: Job,
        plan: impl Into<AnswerPlan>,
    ) -> Result<Ticket, Fault> {
        let received_ns = origin.received_ns;
        let request = ledger.borrow_mut().begin(origin, job, plan.into())?;
        Ok(Ticket { ledger: ledger.clone(), request, received_ns })
    }

    /// The request's identity, which is another one after the death of a role.
    fn id(&self) -> RequestId {
        self.request.borrow().facts.id
    }

    /// Another choice of the same answer failed: this one is not needed any more, and is cancelled with the ticket.
    pub fn withdraw(&self) {
        self.request.borrow_mut().withdraw();
    }

    /// Why the request failed, if it did.
    pub fn fault(&self) -> Option<Fault> {
        match self.request.borrow().outcome() {
            Some(Outcome::Failed(fault)) => Some(fault.clone()),
            _ => None,
        }
    }

    /// Where the request's time went up to now, if the answer shall say so.
    pub fn timeline(&self) -> Option<Timeline> {
        let timings = self.request.borrow().facts.timings;
        timings.then(|| self.ledger.borrow().timeline(self.id(), self.received_ns))
    }

    /// Whether the request has its outcome.
    pub fn is_over(&self) -> bool {
        self.request.borrow().outcome().is_some()
    }

    /// Whether the answer is bare text as it comes.
    pub fn is_plain(&self) -> bool {
        matches!(self.request.borrow().form(), Form::PlainStream)
    }

    /// The counts of a completed generation.
    pub fn usage(&self) -> Option<Usage> {
        match self.request.borrow().outcome() {
            Some(Outcome::Text(_, usage)) => Some(*usage),
            _ => None,
        }
    }

    /// Stamps a stage now.
    pub fn stamp(&self, stage: Stage) {
        self.ledger.borrow_mut().stamp(self.id(), stage);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.ledger.borrow_mut().client_done(self.id());
    }
}
