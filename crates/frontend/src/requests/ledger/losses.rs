//! Requests that end otherwise than by their roles' word: a role died and they cannot go on, a text never came, the
//! drain is over.

use super::Ledger;
use super::entry::{Entry, over};
use crate::limits::LAST_TEXT_GRACE;
use pinion_protocol::names::Counter;
use pinion_protocol::{Fault, FaultCode, RequestId};

impl Ledger {
    /// Ends requests for which no role can say anything more.
    pub(super) fn give_up(&mut self, lost: &[RequestId], fault: &Fault) {
        for id in lost {
            let prompt_tokens = self.counted(*id, Counter::PromptTokens);
            let cached_tokens = self.counted(*id, Counter::CachedTokens);
            let Some(entry) = self.entries.open(*id) else { continue };
            entry.request.borrow_mut().lose(fault.clone(), prompt_tokens, cached_tokens);
            self.entries.close(*id);
            self.cancel(*id);
            self.close(*id);
            self.release_if_done(*id);
        }
    }

    /// Looks at what only time can tell: a text that does not come, a role that does not come back.
    pub fn tick(&mut self, now_ns: u64) {
        self.give_up_text(now_ns);
        if self.entries.parked() > 0 {
            let waited = |since_ns: u64| over(since_ns, self.setup.patience.role, now_ns);
            let fault =
                Fault::new(FaultCode::RoleRestarted, "a role that this request needs does not come back");
            let waiting = self.unserved(waited);
            self.give_up(&waiting, &fault);
        }
    }

    /// Requests that wait for a role that is down, and since when it is down.
    pub(super) fn unserved(&self, since: impl Fn(u64) -> bool) -> Vec<RequestId> {
        self.ids(|entry, request| {
            let generates = request.facts.route.generates();
            entry.is_parked() && self.outgoing.unserved_since(entry.id.slot, generates).is_some_and(&since)
        })
    }

    /// Texts whose engine has finished and that did not come. Where the engine has died since, the detokenizer may
    /// never have got them: their requests go on from their last token, to the same end.
    fn give_up_text(&mut self, now_ns: u64) {
        let patience = self.setup.patience.text;
        let (orphans, late): (Vec<_>, Vec<_>) = self
            .ids(|entry, request| {
                let Some(submission) = entry.submission() else { return false };
                // Requests that have their outcome wait for no text.
                let soon = entry.has_lost_engine() || request.outcome().is_some();
                let patience = if soon { LAST_TEXT_GRACE } else { patience };
                let late = |finished_ns| over(finished_ns, patience, now_ns);
                request.lacks_only_text() && submission.finished_ns.is_some_and(late)
            })
            .into_iter()
            .partition(|id| self.goes_on_without_text(*id));
        orphans.into_iter().for_each(|id| self.park(id));
        if late.is_empty() {
            return;
        }
        tracing::error!(count = late.len(), "finished requests whose text never came");
        let (died_with_engine, lost): (Vec<_>, Vec<_>) =
            late.into_iter().partition(|id| self.entries.get(*id).is_some_and(Entry::has_lost_engine));
        let waits = |id: &RequestId| {
            self.entries.get(*id).is_some_and(|entry| entry.request.borrow().outcome().is_none())
        };
        self.cut |= self.draining && died_with_engine.iter().any(waits);
        let message = "the engine restarted before all of this request's text was sent; send it again";
        self.give_up(&died_with_engine, &Fault::new(FaultCode::RoleRestarted, message));
        let message = "the end of the text was lost inside the service";
        self.give_up(&lost, &Fault::new(FaultCode::Internal, message));
    }

    /// Ends everything that is still open, with an error: the drain deadline has come.
    pub fn fail_all(&mut self, fault: &Fault) {
        for id in self.ids(|_, request| request.outcome().is_none()) {
            if let Some(entry) = self.entries.open(id) {
                entry.request.borrow_mut().fail(fault.clone());
                self.cancel(id);
            }
        }
    }
}
