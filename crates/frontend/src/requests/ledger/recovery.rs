//! After the death of a role: what it held keeps its slot under a new generation, so that everything said of the old
//! one is stale at once, and goes on from its last token when the successor serves. Requests that arrive meanwhile wait
//! with them.
//!
//! A request may be the cause of the death. One that made no progress since its last submission is suspect, and more so
//! if the role was computing it; a role that was killed to replace a corrupt edge makes no request suspect. The others
//! resume first, all together; a suspect resumes alone, when all that went before have moved on. So a request that
//! kills a role each time comes to be alone with it, and is given up ([`QUARANTINE`]) without taking others along:
//! docs/design/0009-recovery.md.

use super::losses::over;
use super::{Entry, Ledger, Setup};
use crate::limits::PROBATION_MAX;
use crate::observe::incidents::Change;
use crate::observe::timeline::Stamps;
use crate::requests::outgoing::{Job, Outgoing};
use pinion_protocol::control::DeathCause;
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::{Fault, FaultCode, Peer, RequestId, Role};

/// A role that had the request died.
const HELD: u32 = 1;
/// A role died that was at work on it.
const WORKED_ON: u32 = 2;
/// From so much suspicion on, a request goes alone.
const ALONE: u32 = 2;
/// With so much it is given up: two deaths at work on it, or four that had it.
const QUARANTINE: u32 = 4;

/// What an entry needs to go on after a death.
pub(super) struct Life {
    /// What was asked; none once it was sent if requests do not go on here.
    job: Option<Job>,
    suspicion: u32,
    /// Tokens that came before it was last submitted.
    tokens_before: usize,
    /// Times that it went on.
    pub(super) resumptions: u32,
    /// It waits for its roles and is with none of them.
    pub(super) parked: bool,
    /// Its stream was opened while it waits.
    opened: bool,
    /// CLOCK_MONOTONIC ns of the death, until the next token comes.
    pub(super) lost_ns: Option<u64>,
    /// Its stages before the last death.
    pub(super) earlier: Option<Box<Stamps>>,
    /// The engine that finished it has died: what its detokenizer had not got of it is lost.
    pub(super) engine_died: bool,
    /// CLOCK_MONOTONIC ns at which it was last submitted.
    submitted_ns: u64,
}

impl Life {
    /// Of a request that was not sent on yet.
    pub(super) fn new(job: Job) -> Life {
        Life {
            job: Some(job),
            suspicion: 0,
            tokens_before: 0,
            resumptions: 0,
            parked: true,
            opened: false,
            lost_ns: None,
            earlier: None,
            engine_died: false,
            submitted_ns: 0,
        }
    }
}

impl Entry {
    /// Whether it went on after a death and has not moved since; one that got nothing for that long may be in a queue,
    /// or wait for those that it delays.
    fn is_on_probation(&self, now_ns: u64) -> bool {
        let request = self.request.borrow();
        self.life.resumptions > 0
            && !self.life.parked
            && !over(self.life.submitted_ns, PROBATION_MAX, now_ns)
            && request.outcome().is_none()
            && request.ids().len() == self.life.tokens_before
    }

    /// Sends the request on if its roles serve. False if it has to wait; the error says that a reader is stuck.
    pub(super) fn send_on(&mut self, outgoing: &mut Outgoing, setup: &Setup) -> Result<bool, Fault> {
        let (id, life) = (self.id, &mut self.life);
        let Some(job) = &life.job else { return Ok(false) };
        let generates = matches!(job, Job::Generate { .. });
        let Ok(way) = outgoing.choose(id.slot, generates) else { return Ok(false) };
        let mut request = self.request.borrow_mut();
        if !life.opened {
            outgoing.open(id, job, request.resume_ids(), way)?;
            life.opened = true;
        }
        if generates && !outgoing.shows_openings(way) {
            return Ok(false);
        }
        let resumptions = life.resumptions + u32::from(life.earlier.is_some());
        let now_ns = (setup.clock)();
        if let Some(slot) = setup.table.slot(usize::from(id.slot)) {
            slot.set_counter(id.generation, Counter::Resumptions as usize, u64::from(resumptions));
            slot.stamp(id.generation, Stage::Submitted as usize, now_ns);
        }
        outgoing.submit(id, job, request.resume_ids(), way)?;
        life.resumptions = resumptions;
        life.submitted_ns = now_ns;
        request.facts.tokenizer = way.tokenizer;
        life.tokens_before = request.ids().len();
        life.parked = false;
        if !setup.resume {
            life.job = None;
        }
        Ok(true)
    }
}

impl Ledger {
    /// A role died. What it held waits for the successor, or ends with an error where that cannot be.
    pub fn peer_lost(&mut self, peer: Peer, cause: DeathCause) {
        self.outgoing.lost(peer, (self.setup.clock)());
        if peer.role == Role::Detokenizer {
            let theirs = |entry: &&mut Entry| entry.id.detokenizer(self.setup.detokenizers) == peer.index;
            self.entries.iter_mut().flatten().filter(theirs).for_each(|entry| entry.life.opened = false);
        }
        let held = self.held_by(peer);
        let mut parked = 0_usize;
        for id in &held {
            parked += usize::from(self.interrupt(*id, peer, cause));
        }
        if peer.role == Role::Engine {
            let finished = |entry: &&mut Entry| entry.request.borrow().lacks_only_text();
            self.entries
                .iter_mut()
                .flatten()
                .filter(finished)
                .for_each(|entry| entry.life.engine_died = true);
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
        let (now_ns, waiting) = ((self.setup.clock)(), self.parked);
        self.resume_parked(now_ns);
        let resumed = waiting.saturating_sub(self.parked);
        self.metrics.incidents.note(now_ns, peer, Change::Back { resumed });
    }

    /// From now on new requests are refused, and no role comes back.
    pub fn drain(&mut self) {
        self.draining = true;
        self.give_up_unserved();
    }

    /// Ends what waits for roles that do not come back. What waits for other things still goes on.
    fn give_up_unserved(&mut self) {
        let fault = Fault::new(FaultCode::RoleRestarted, "the service is shutting down and a role has died");
        let unserved = self.unserved(|_| true);
        self.cut |= !unserved.is_empty();
        self.give_up(&unserved, &fault);
    }

    /// Whether a request that the engine has finished can get the text that is missing once more.
    pub(super) fn goes_on_without_text(&self, id: RequestId) -> bool {
        let entry = self.entries.get(usize::from(id.slot)).and_then(Option::as_ref);
        entry.is_some_and(|entry| {
            let open = entry.request.borrow().outcome().is_none();
            entry.life.engine_died && entry.life.job.is_some() && open && !self.draining
        })
    }

    fn held_by(&self, peer: Peer) -> Vec<RequestId> {
        self.ids(|entry, request| {
            let held = match peer.role {
                Role::Engine => request.facts.route.generates() && request.finished().is_none(),
                Role::Detokenizer => {
                    let index = entry.id.detokenizer(self.setup.detokenizers);
                    request.facts.route.generates() && index == peer.index && !request.has_last_text()
                }
                Role::Tokenizer => {
                    let index = request.facts.tokenizer;
                    index == peer.index && self.stage(entry.id, Stage::EngineReceived) == 0
                }
                Role::Launcher | Role::Frontend => false,
            };
            held && !entry.life.parked && !entry.closed
        })
    }

    fn stage(&self, id: RequestId, stage: Stage) -> u64 {
        self.slot(id).map_or(0, |slot| slot.stamped(id.generation, stage as usize))
    }

    /// How much a request is suspected of the death of a role that held it.
    fn suspicion(&self, id: RequestId, role: Role) -> u32 {
        let (reached, begun) = match role {
            Role::Engine => (Stage::EngineReceived, Stage::FirstScheduled),
            // It has done with this one, and waits with it for the engine.
            Role::Tokenizer if self.stage(id, Stage::TokenizeEnd) > 0 => return HELD,
            Role::Tokenizer => (Stage::Submitted, Stage::TokenizeBegin),
            // It says of no request that it is at work on it.
            Role::Detokenizer | Role::Frontend | Role::Launcher => return HELD,
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
        let Some(entry) = self.entry(id) else { return false };
        let request = entry.request.borrow();
        let over = request.outcome().is_some() || request.lacks_only_counts();
        let moved = request.ids().len() > entry.life.tokens_before;
        drop(request);
        let role = peer.role.name();
        if over || draining || entry.life.job.is_none() {
            self.cut |= draining && !over;
            let message = format!("the {role} restarted while it held this request; send it again");
            self.give_up(&[id], &Fault::new(FaultCode::RoleRestarted, message));
            return false;
        }
        let life = &mut entry.life;
        life.suspicion = if moved { 0 } else { life.suspicion + weight };
        if life.suspicion >= QUARANTINE {
            self.metrics.quarantined.add(1);
            let message = format!("the {role} died again and again while it worked on this request");
            self.give_up(&[id], &Fault::new(FaultCode::RoleRestarted, message));
            return false;
        }
        self.park(id);
        true
    }

    /// Gives a request a new generation in its slot, and lets it wait.
    pub(super) fn park(&mut self, id: RequestId) {
        let Some(slot) = self.setup.table.slot(usize::from(id.slot)) else { return };
        let place = self.entries.get_mut(usize::from(id.slot)).and_then(Option::as_mut);
        let Some(entry) = place.filter(|entry| entry.id == id) else { return };
        let life = &mut entry.life;
        let stamps = Stamps::of_slot(Some(slot), id.generation, life.earlier.as_deref());
        let [prompt_tokens, cached_tokens] = [Counter::PromptTokens, Counter::CachedTokens]
            .map(|counter| slot.counter(id.generation, counter as usize));
        life.earlier = Some(Box::new(stamps));
        life.lost_ns = life.lost_ns.or(Some((self.setup.clock)()));
        (life.parked, life.opened, life.engine_died) = (true, false, false);
        slot.close(id.generation);
        entry.id.generation = slot.open();
        slot.set_counter(entry.id.generation, Counter::PromptTokens as usize, prompt_tokens);
        entry.finished_ns = 0;
        let cached_tokens = u32::try_from(cached_tokens).unwrap_or(u32::MAX);
        entry.request.borrow_mut().interrupt(entry.id, cached_tokens);
        self.parked += 1;
    }

    /// Sends on what waits for roles that serve again: see the module's head. Called whenever something may have
    /// changed; costs nothing while nothing waits.
    pub fn resume_parked(&mut self, now_ns: u64) {
        if self.parked == 0 {
            return;
        }
        for id in self.ids(|entry, _| entry.life.parked && entry.life.suspicion < ALONE) {
            self.resume(id);
        }
        let crowded = self.entries.iter().flatten().any(|entry| entry.is_on_probation(now_ns));
        if crowded || !self.ids(|entry, _| entry.life.parked && entry.life.suspicion < ALONE).is_empty() {
            return;
        }
        // Those that a role that is still down keeps do not hold up the others.
        let suspects = self.ids(|entry, _| entry.life.parked);
        let _ = suspects.into_iter().find(|id| self.resume(*id));
    }

    /// Sends on what waits. False if it has to wait on.
    fn resume(&mut self, id: RequestId) -> bool {
        let place = self.entries.get_mut(usize::from(id.slot)).and_then(Option::as_mut);
        let Some(entry) = place.filter(|entry| entry.id == id) else { return false };
        let sent = entry.send_on(&mut self.outgoing, &self.setup) == Ok(true);
        if sent {
            self.parked -= 1;
            self.metrics.resumptions.add(u64::from(entry.life.earlier.is_some()));
        }
        sent
    }
}
