//! The log line of a request for vectors, whose texts are requests of their own: there may be thousands of them, and
//! one line tells of all.

use crate::observe::metrics::EndReason;
use crate::route::Route;
use std::cell::RefCell;
use std::rc::Rc;

/// Held by each of the texts; the last one that ends lets it go, and it is written.
pub struct SharedLine {
    route: Route,
    label: String,
    told: RefCell<Option<Told>>,
}

/// What one text tells, and what all of them do.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    pub(crate) texts: u32,
    pub(crate) prompt_tokens: u64,
    pub(crate) reason: EndReason,
    /// From the arrival to the last byte of the answer; of a text that others have followed, to its vector.
    pub(crate) total_ms: Option<f64>,
    pub(crate) resumptions: u32,
}

impl SharedLine {
    /// Of a request whose texts begin now.
    pub(crate) fn new(route: Route, label: &str) -> Rc<SharedLine> {
        Rc::new(SharedLine { route, label: label.to_owned(), told: RefCell::new(None) })
    }

    /// One of them has ended.
    pub(crate) fn add(&self, text: Told) {
        let mut told = self.told.borrow_mut();
        *told = Some(match *told {
            None => text,
            Some(all) => all.and(text),
        });
    }
}

impl Told {
    fn and(self, other: Told) -> Told {
        Told {
            texts: self.texts + other.texts,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            reason: if rank(other.reason) > rank(self.reason) { other.reason } else { self.reason },
            total_ms: [self.total_ms, other.total_ms].into_iter().flatten().reduce(f64::max),
            resumptions: self.resumptions + other.resumptions,
        }
    }
}

/// What ended the request counts more than that its other texts were given up, and that more than those that were done.
fn rank(reason: EndReason) -> u8 {
    match reason {
        EndReason::Answered => 0,
        EndReason::Withdrawn => 1,
        EndReason::Stop
        | EndReason::Length
        | EndReason::Disconnected
        | EndReason::Rejected
        | EndReason::Overload
        | EndReason::Engine
        | EndReason::Internal
        | EndReason::SlowReader => 2,
    }
}

impl Drop for SharedLine {
    fn drop(&mut self) {
        let Some(told) = self.told.get_mut() else { return };
        tracing::info!(
            request_id = self.label,
            route = self.route.name(),
            texts = told.texts,
            prompt_tokens = told.prompt_tokens,
            reason = told.reason.name(),
            e2e_ms = told.total_ms.filter(|_| told.reason == EndReason::Answered),
            resumptions = told.resumptions,
            "request"
        );
    }
}
