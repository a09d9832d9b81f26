//! Requests that end otherwise than by their roles' word: a role died and they cannot go on, a text never came, the drain
//! is over.

use super::Ledger;
use crate::limits::LAST_TEXT_GRACE;
use pinion_protocol::{Fault, FaultCode, RequestId};

impl Ledger {
    /// Ends requests for which no role can say anything more.
    pub(super) fn give_up(&mut self, lost: &[RequestId], fault: &Fault) {
        for id in lost {
            let prompt_tokens = self.prompt_tokens(*id);
            let Some(entry) = self.entry(*id) else { continue };
            entry.closed = true;
            let parked = std::mem::take(&mut entry.life.parked);
            entry.request.borrow_mut().lose(fault.clone(), prompt_tokens);
            self.parked -= usize::from(parked);
            self.cancel(*id);
            self.close(*id);
            self.release_if_done(*id);
        }
    }

    /// Looks at what only time can tell: an engine that finished, and a text that does not come.
    pub fn tick(&mut self, now_ns: u64) {
        let grace_ns = u64::try_from(LAST_TEXT_GRACE.as_nanos()).unwrap_or(u64::MAX);
        let late = self.ids(|entry, request| {
            request.lacks_only_text() && entry.finished_ns.saturating_add(grace_ns) < now_ns
        });
        if !late.is_empty() {
            tracing::error!(count = late.len(), "finished requests whose text never came");
            self.give_up(
                &late,
                &Fault::new(FaultCode::Internal, "the end of the text was lost inside the service"),
            );
        }
    }

    /// Ends everything that is still open, with an error: the drain deadline has come.
    pub fn fail_all(&mut self, fault: &Fault) {
        for id in self.ids(|_, request| request.outcome().is_none()) {
            if let Some(entry) = self.entry(id) {
                entry.request.borrow_mut().fail(fault.clone());
                self.cancel(id);
            }
        }
    }
}
