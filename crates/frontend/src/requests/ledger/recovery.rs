//! After the death of a role: what it held keeps its slot under a new generation, so that everything said of the old
//! one is stale at once, and goes on from its last token when the successor serves. Requests that arrive meanwhile wait
//! with them. What cannot go on, or waits for too long, is given up here.
//!
//! A request may be the cause of the death. One that made no progress since its last submission is suspect, and more so
//! if the role was computing it; a role that was killed to replace a corrupt edge makes no request suspect. The others
//! resume first, all together; a suspect resumes alone, when all that went before have moved on. So a request that
//! kills a role each time comes to be alone with it, and is given up (`recovery_state`) without taking others along:
//! docs/design/0009-recovery.md.

use super::Ledger;
use super::entry::{Entry, over};
use super::submit::Sent;
use crate::limits::{LAST_TEXT_GRACE, OWN_PAUSE};
use crate::observe::incidents::Change;
use crate::observe::timeline::Stamps;
use pinion_protocol::control::DeathCause;
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::{Fault, FaultCode, Peer, RequestId, Role};
use std::time::Duration;

/// A role that had the request died.
const HELD: u32 = 1;
/// A role died that was at work on it.
const WORKED_ON: u32 = 2;

/// What a request is told that needs a role which does not come back.
pub(super) fn unserved_in_drain() -> Fault {
    Fault::new(FaultCode::RoleRestarted, "the service is shutting down and a role has died")
}

impl Ledger {
    /// A role died. What it held waits for the successor, or ends with an error where that cannot be.
    pub fn peer_lost(&mut self, peer: Peer, cause: DeathCause) {
        self.outgoing.lost(peer, (self.setup.clock)());
        if peer.role == Role::Detokenizer {
            let theirs = self.ids(|entry, _| entry.id.detokenizer(self.setup.detokenizers) == peer.index);
            theirs.into_iter().for_each(|id| self.entries.set_opened(id, false));
        }
        let held = self.held_by(peer);
        let mut parked = 0_usize;
        for id in &held {
            parked += usize::from(self.interrupt(*id, peer, cause));
        }
        if peer.role == Role::Engine {
            let orphans = self.ids(|_, request| request.lacks_only_text());
            orphans.into_iter().for_each(|id| self.entries.engine_died(id));
        }
        if self.draining {
            self.give_up_unserved();
        }
        let change = Change::Lost { held: held.len(), waiting: parked };
        self.metrics.incidents.note((self.setup.clock)(), peer, change);
        tracing::warn!(
            %peer,
            ?cause,
            held = held.len(),
            waiting = parked,
            "role died; the waiting requests resume when its successor serves, the others end"
        );
    }

    /// A tokenizer has reached its memory limit: what it was at work on would do the same to its successor.
    pub fn memory_ran_out(&mut self, tokenizer: Peer) {
        let held = self.held_by(tokenizer).into_iter();
        let guilty: Vec<_> = held.filter(|id| self.suspicion(*id, tokenizer.role) == WORKED_ON).collect();
        self.metrics.quarantined.add(guilty.len() as u64);
        let message =
            "the model's chat template or tokenizer needs more memory for this request than it may use";
        self.give_up(&guilty, &Fault::new(FaultCode::InvalidValue, message));
    }

    /// The successor of a dead role serves.
    pub fn peer_ready(&mut self, peer: Peer) {
        self.outgoing.back(peer);
        let (now_ns, waiting) = ((self.setup.clock)(), self.entries.parked());
        self.resume_parked(now_ns);
        let resumed = waiting.saturating_sub(self.entries.parked());
        self.metrics.incidents.note(now_ns, peer, Change::Back { resumed });
    }

    /// From now on new requests are refused, and no role comes back.
    pub fn drain(&mut self) {
        self.draining = true;
        self.give_up_unserved();
    }

    /// Ends what waits for roles that do not come back. What waits for other things still goes on.
    fn give_up_unserved(&mut self) {
        let unserved = self.unserved(|_| true);
        self.cut |= !unserved.is_empty();
        self.give_up(&unserved, &unserved_in_drain());
    }

    /// Whether a request that the engine has finished can get the text that is missing once more.
    fn goes_on_without_text(&self, id: RequestId) -> bool {
        self.entries.get(id).is_some_and(|entry| {
            let open = entry.request.borrow().outcome().is_none();
            entry.has_lost_engine() && entry.recovery.job().is_some() && open && !self.draining
        })
    }

    fn held_by(&self, peer: Peer) -> Vec<RequestId> {
        self.ids(|entry, request| {
            let held = match peer.role {
                Role::Engine => request.facts.reaches_engine && request.finished().is_none(),
                Role::Detokenizer => {
                    let index = entry.id.detokenizer(self.setup.detokenizers);
                    request.facts.reaches_engine && index == peer.index && !request.has_last_text()
                }
                Role::Tokenizer => {
                    let index = request.facts.tokenizer;
                    index == peer.index && self.stage(entry.id, Stage::EngineReceived) == 0
                }
                Role::Launcher | Role::Frontend | Role::Events => false,
            };
            held && entry.submission().is_some()
        })
    }

    fn stage(&self, id: RequestId, stage: Stage) -> u64 {
        self.setup.slot(id).map_or(0, |slot| slot.stamped(id.generation, stage as usize))
    }

    /// How much a request is suspected of the death of a role that held it.
    fn suspicion(&self, id: RequestId, role: Role) -> u32 {
        let (reached, begun) = match role {
            Role::Engine => (Stage::EngineReceived, Stage::FirstScheduled),
            // It has done with this one, and waits with it for the engine.
            Role::Tokenizer if self.stage(id, Stage::TokenizeEnd) > 0 => return HELD,
            Role::Tokenizer => (Stage::Submitted, Stage::TokenizeBegin),
            // It says of no request that it is at work on it.
            Role::Detokenizer | Role::Frontend | Role::Events | Role::Launcher => return HELD,
        };
        match (self.stage(id, reached), self.stage(id, begun)) {
            (_, begun) if begun > 0 => WORKED_ON,
            (reached, _) if reached > 0 => HELD,
            _ => 0,
        }
    }

    /// Takes a request away from its roles. Whether it waits now; otherwise it has its end.
    fn interrupt(&mut self, id: RequestId, peer: Peer, cause: DeathCause) -> bool {
        let weight = match cause {
            DeathCause::Unknown => self.suspicion(id, peer.role),
            DeathCause::CorruptEdge => 0,
        };
        let draining = self.draining;
        let Some(entry) = self.entries.open(id) else { return false };
        let request = entry.request.borrow();
        let over = request.outcome().is_some() || request.lacks_only_counts();
        let moved =
            entry.submission().is_some_and(|submission| request.ids().len() > submission.tokens_before);
        drop(request);
        let role = peer.role.name();
        if over || draining || entry.recovery.job().is_none() {
            self.cut |= draining && !over;
            let message = format!("the {role} restarted while it held this request; send it again");
            self.give_up(&[id], &Fault::new(FaultCode::RoleRestarted, message));
            return false;
        }
        if !entry.recovery.suspect(moved, weight) {
            self.metrics.quarantined.add(1);
            let message = format!("the {role} died again and again while it worked on this request");
            self.give_up(&[id], &Fault::new(FaultCode::RoleRestarted, message));
            return false;
        }
        self.park(id);
        true
    }

    /// Gives a request a new generation in its slot, and lets it wait.
    fn park(&mut self, id: RequestId) {
        let Some(slot) = self.setup.table.slot(usize::from(id.slot)) else { return };
        let Some(entry) = self.entries.get_mut(id) else { return };
        let stamps = Stamps::of_slot(Some(slot), id.generation, entry.recovery.earlier());
        let [prompt_tokens, cached_tokens] = [Counter::PromptTokens, Counter::CachedTokens]
            .map(|counter| slot.counter(id.generation, counter as usize));
        entry.recovery.interrupted(stamps, (self.setup.clock)());
        slot.close(id.generation);
        let renewed = RequestId { generation: slot.open(), ..id };
        slot.set_counter(renewed.generation, Counter::PromptTokens as usize, prompt_tokens);
        let cached_tokens = u32::try_from(cached_tokens).unwrap_or(u32::MAX);
        entry.request.borrow_mut().interrupt(renewed, cached_tokens);
        self.entries.park(id, renewed);
    }

    /// Sends on what waits for roles that serve again: see the module's head. Called whenever something may have
    /// changed; costs nothing while nothing waits.
    pub fn resume_parked(&mut self, now_ns: u64) {
        if self.entries.parked() == 0 {
            return;
        }
        for id in self.ids(|entry, _| entry.is_parked() && !entry.recovery.goes_alone()) {
            self.resume(id);
        }
        let crowded = self.entries.iter().any(|entry| entry.is_on_probation(now_ns));
        if crowded || !self.ids(|entry, _| entry.is_parked() && !entry.recovery.goes_alone()).is_empty() {
            return;
        }
        // Those that a role that is still down keeps do not hold up the others.
        let suspects = self.ids(|entry, _| entry.is_parked());
        let _ = suspects.into_iter().find(|id| self.resume(*id));
    }

    /// Sends a parked request on. Whether its roles have it now.
    fn resume(&mut self, id: RequestId) -> bool {
        let Some(entry) = self.entries.get_mut(id) else { return false };
        match entry.send_on(&mut self.outgoing, &self.setup) {
            Sent::Submitted(submission) => {
                self.metrics.resumptions.add(u64::from(entry.recovery.earlier().is_some()));
                self.entries.submit(id, submission);
                true
            }
            Sent::Waits { opened } | Sent::Stuck { opened, .. } => {
                self.entries.set_opened(id, opened);
                false
            }
        }
    }

    /// Ends requests for which no role can say anything more.
    fn give_up(&mut self, lost: &[RequestId], fault: &Fault) {
        for id in lost {
            let prompt_tokens = self.setup.counted(*id, Counter::PromptTokens);
            let cached_tokens = self.setup.counted(*id, Counter::CachedTokens);
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

    /// Called in each turn before anything else that looks at the clock. A frontend that stood still has not heard what
    /// came meanwhile, and where all of the service stood still nothing came: no wait has lasted that long.
    pub fn excuse_pause(&mut self, now_ns: u64) {
        let since_ns = self.turned_ns.replace(now_ns).unwrap_or(now_ns);
        let gap = Duration::from_nanos(now_ns.saturating_sub(since_ns));
        if gap > OWN_PAUSE {
            self.outgoing.excuse_pause(gap, now_ns);
            self.entries.excuse_pause(gap, now_ns);
        }
    }

    /// Requests that wait for a role that is down, and since when it is down.
    fn unserved(&self, since: impl Fn(u64) -> bool) -> Vec<RequestId> {
        self.ids(|entry, request| {
            let reaches_engine = request.facts.reaches_engine;
            entry.is_parked()
                && self.outgoing.unserved_since(entry.id.slot, reaches_engine).is_some_and(&since)
        })
    }

    /// Texts whose engine has finished and that did not come. Where the engine has died since, the detokenizer may
    /// never have got them: their requests go on from their last token, to the same end.
    fn give_up_text(&mut self, now_ns: u64) {
        let patience = self.setup.patience.text;
        let (orphans, late): (Vec<_>, Vec<_>) = self
            .ids(|entry, request| {
                let Some(submission) = entry.submission() else { return false };
                // Requests that have their outcome wait for no text, which may not come at all after a death.
                let patience = match (entry.has_lost_engine(), request.outcome().is_some()) {
                    (true, true) => Duration::ZERO,
                    (false, false) => patience,
                    _ => LAST_TEXT_GRACE,
                };
                let late = |finished_ns| over(finished_ns, patience, now_ns);
                request.lacks_only_text() && submission.finished_ns.is_some_and(late)
            })
            .into_iter()
            .partition(|id| self.goes_on_without_text(*id));
        orphans.into_iter().for_each(|id| self.park(id));
        if late.is_empty() {
            return;
        }
        let (died_with_engine, lost): (Vec<_>, Vec<_>) =
            late.into_iter().partition(|id| self.entries.get(*id).is_some_and(Entry::has_lost_engine));
        let waits = |id: &RequestId| {
            self.entries.get(*id).is_some_and(|entry| entry.request.borrow().outcome().is_none())
        };
        let missed = died_with_engine.iter().chain(&lost).filter(|id| waits(id)).count();
        if missed > 0 {
            tracing::error!(count = missed, "finished requests whose text never came");
        }
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
