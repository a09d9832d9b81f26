//! One request of the ledger: what it is waiting for, and what it needs to go on after a death.

use super::recovery_state::Recovery;
use crate::limits::PROBATION_MAX;
use crate::observe::otlp::TracedSequence;
use crate::requests::outgoing::Job;
use crate::requests::request::Request;
use crate::requests::shared_line::SharedLine;
use crate::requests::siblings::Siblings;
use pinion_protocol::RequestId;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// A request that has a slot.
pub(super) struct Entry {
    pub(super) request: Rc<RefCell<Request>>,
    /// The choices of its prompt, itself among them.
    pub(super) siblings: Option<Rc<Siblings>>,
    /// Of a text of a request for vectors: the line that tells of all of them.
    pub(super) line: Option<Rc<SharedLine>>,
    /// What its spans are gathered in, if it is traced and they are not.
    pub(super) trace: Option<TracedSequence>,
    pub(super) id: RequestId,
    /// CLOCK_MONOTONIC ns at which its head was parsed.
    pub(super) received_ns: u64,
    /// The ticket is gone: the client has everything, or has left.
    pub(super) client_done: bool,
    /// When the latest token came.
    pub(super) token_ns: Option<u64>,
    pub(super) is_prompt_counted: bool,
    pub(super) recovery: Recovery,
    /// Changed by [`Entries`](super::entries::Entries) alone, as `id` is.
    pub(super) place: Place,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It waits for a role and is with none.
    Parked {
        /// Its detokenizer was told of it.
        opened: bool,
    },
    /// It is with its roles.
    Submitted(Submission),
    /// It was given up: its slot is closed ahead of its release, and what is still said of it is late.
    Closed,
}

/// A request that is with its roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Submission {
    /// When it was submitted, in CLOCK_MONOTONIC ns; later by what this process has stood still since.
    pub(super) at_ns: u64,
    /// Tokens that had come before.
    pub(super) tokens_before: usize,
    /// When the engine's account came.
    pub(super) finished_ns: Option<u64>,
    /// The engine that finished it has died: what its detokenizer had not got of it is lost.
    pub(super) engine_died: bool,
}

/// How far a request is; docs/ARCHITECTURE.md has the diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// It waits for a role and is with none.
    Parked,
    /// It is with its roles.
    Submitted,
    /// Only the engine's account is missing.
    TextComplete,
    /// Only the end of the text is missing.
    EngineDone,
    /// Its client was told the outcome, or is gone. Roles may still speak of it.
    Ended,
    /// It was given up; what roles still say of it is late.
    Closed,
}

impl Entry {
    /// A request that was not sent on yet.
    pub(super) fn new(request: Rc<RefCell<Request>>, received_ns: u64, job: Job) -> Entry {
        let id = request.borrow().facts.id;
        Entry {
            request,
            siblings: None,
            line: None,
            trace: None,
            id,
            received_ns,
            client_done: false,
            token_ns: None,
            is_prompt_counted: false,
            recovery: Recovery::new(job),
            place: Place::Parked { opened: false },
        }
    }

    pub(super) fn state(&self) -> EntryState {
        let request = self.request.borrow();
        match self.place {
            Place::Closed => EntryState::Closed,
            _ if request.outcome().is_some() => EntryState::Ended,
            Place::Parked { .. } => EntryState::Parked,
            Place::Submitted(_) if request.has_last_text() => EntryState::TextComplete,
            Place::Submitted(_) if request.finished().is_some() => EntryState::EngineDone,
            Place::Submitted(_) => EntryState::Submitted,
        }
    }

    /// Whether it waits for a role and is with none.
    pub(super) fn is_parked(&self) -> bool {
        matches!(self.place, Place::Parked { .. })
    }

    /// How it was submitted, if it is with its roles.
    pub(super) fn submission(&self) -> Option<&Submission> {
        match &self.place {
            Place::Submitted(submission) => Some(submission),
            Place::Parked { .. } | Place::Closed => None,
        }
    }

    /// Whether the engine that finished it has died since.
    pub(super) fn has_lost_engine(&self) -> bool {
        self.submission().is_some_and(|submission| submission.engine_died)
    }

    /// Whether no role will say anything more of it, and nothing more is wanted of them.
    pub(super) fn is_done(&self) -> bool {
        let settled = match self.place {
            // No other process holds it.
            Place::Parked { .. } | Place::Closed => true,
            Place::Submitted(_) => self.request.borrow().settled(),
        };
        settled && self.client_done
    }

    /// Whether it went on after a death and has not moved since; one that got nothing for that long may be in a queue,
    /// or wait for those that it delays.
    pub(super) fn is_on_probation(&self, now_ns: u64) -> bool {
        let request = self.request.borrow();
        self.submission().is_some_and(|submission| {
            self.recovery.resumptions() > 0
                && !over(submission.at_ns, PROBATION_MAX, now_ns)
                && request.outcome().is_none()
                && request.ids().len() == submission.tokens_before
        })
    }
}

/// Whether more than `patience` has passed since `since_ns`.
pub(super) fn over(since_ns: u64, patience: Duration, now_ns: u64) -> bool {
    let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    since_ns.saturating_add(patience_ns) < now_ns
}
