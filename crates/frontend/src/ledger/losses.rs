//! Requests that end otherwise than by their roles' word: a role died, a text never came, the drain is over.

use super::Ledger;
use crate::limits::LAST_TEXT_GRACE;
use pinion_protocol::names::Stage;
use pinion_protocol::{Fault, FaultCode, Peer, RequestId, Role};

impl Ledger {
    /// A role died: what it held ends with an error, and those slots are closed so that late records are stale.
    pub fn peer_lost(&mut self, peer: Peer) {
        self.outgoing.lost(peer);
        let lost = self.ids(|entry, request| match peer.role {
            Role::Engine => request.facts.route.generates() && request.finished().is_none(),
            Role::Detokenizer => {
                let index = entry.id.detokenizer(self.setup.detokenizers);
                request.facts.route.generates() && index == peer.index && !request.has_last_text()
            }
            Role::Tokenizer => {
                let reached = self
                    .slot(entry.id)
                    .map_or(0, |slot| slot.stamped(entry.id.generation, Stage::EngineReceived as usize));
                request.facts.tokenizer == peer.index && reached == 0
            }
            Role::Launcher | Role::Frontend => false,
        });
        let message = format!("the {} restarted while it held this request; send it again", peer.role.name());
        self.give_up(&lost, &Fault::new(FaultCode::RoleRestarted, message));
    }

    /// Ends requests for which no role can say anything more.
    fn give_up(&mut self, lost: &[RequestId], fault: &Fault) {
        for id in lost {
            let prompt_tokens = self.prompt_tokens(*id);
            let Some(entry) = self.entry(*id) else { continue };
            entry.closed = true;
            entry.request.borrow_mut().lose(fault.clone(), prompt_tokens);
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
