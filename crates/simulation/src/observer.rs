//! Which states the parts of the service take, and from which to which they go.

use crate::coverage::Coverage;
use crate::role::{Life, Loop, Stage};
use pinion_frontend::requests::ledger::EntryState;
use pinion_launcher::member::MemberState;
use pinion_launcher::serve::Service;
use pinion_protocol::status::{Gauge, Phase};
use pinion_protocol::{Peer, RequestId, Role};
use pinion_scheduler::SequenceState;
use pinion_shm::slots::SlotState;
use std::collections::BTreeMap;

/// What was seen last.
#[derive(Default)]
pub(crate) struct Observer {
    slots: BTreeMap<(u16, u16), &'static str>,
    entries: BTreeMap<(u16, u32, u16), EntryState>,
    sequences: BTreeMap<RequestId, SequenceState>,
    engine_life: u32,
    phases: BTreeMap<Peer, Phase>,
    members: BTreeMap<Peer, MemberState>,
    preemptions: u64,
    prefix_hits: u64,
    accepted_drafts: u64,
}

impl Observer {
    /// Sees what has changed.
    pub(crate) fn look(&mut self, lives: &BTreeMap<Peer, Life>, coverage: &mut Coverage) {
        for life in lives.values() {
            match &life.stage {
                Stage::Serving(Loop::Frontend { session, app, .. }) => {
                    let session = session.borrow();
                    if let Some(table) = session.links.slot_table(life.peer.index) {
                        for slot in 0..table.len() as u16 {
                            let state = table.slot(usize::from(slot)).map(|slot| slot.state());
                            self.slot((life.peer.index, slot), state, coverage);
                        }
                    }
                    self.ledger(life, &app.ledger.borrow().states().collect::<Vec<_>>(), coverage);
                    for (peer, page) in
                        app.health.pages.iter().filter(|(peer, _)| peer.role != Role::Launcher)
                    {
                        let Some(phase) = Phase::from_word(page.get(Gauge::Phase as usize)) else { continue };
                        self.phase(*peer, phase, coverage);
                        if peer.role == Role::Engine {
                            let counts = [Gauge::Preemptions, Gauge::PrefixHitTokens, Gauge::AcceptedDrafts];
                            self.counts(counts.map(|gauge| page.get(gauge as usize)), coverage);
                        }
                    }
                }
                Stage::Serving(Loop::Engine(server)) => {
                    if std::mem::replace(&mut self.engine_life, life.epoch) != life.epoch {
                        self.sequences.clear();
                    }
                    self.scheduler(&server.engine().states().collect(), coverage);
                }
                _ => {}
            }
        }
    }

    /// Sees what the launcher makes of the roles.
    pub(crate) fn look_at(&mut self, service: &Service, coverage: &mut Coverage) {
        for (peer, state) in service.states() {
            match self.members.insert(peer, state) {
                None => coverage.see(format!("member: [*] -> {state:?}")),
                Some(before) if before != state => coverage.see(format!("member: {before:?} -> {state:?}")),
                Some(_) => {}
            }
        }
    }

    fn slot(&mut self, at: (u16, u16), state: Option<SlotState>, coverage: &mut Coverage) {
        let state = match state {
            Some(SlotState { live: false, .. }) | None => "Closed",
            Some(SlotState { cancelled: true, .. }) => "Cancelled",
            Some(SlotState { stopped: true, .. }) => "Stopped",
            Some(_) => "Live",
        };
        let before = self.slots.insert(at, state).unwrap_or("Closed");
        if before != state {
            coverage.see(format!("slot: {before} -> {state}"));
        }
    }

    fn ledger(&mut self, life: &Life, now: &[(RequestId, EntryState)], coverage: &mut Coverage) {
        let key = |slot: u16| (life.peer.index, life.epoch, slot);
        for (id, state) in now {
            match self.entries.insert(key(id.slot), *state) {
                None => coverage.see(format!("ledger: [*] -> {state:?}")),
                Some(before) if before != *state => coverage.see(format!("ledger: {before:?} -> {state:?}")),
                Some(_) => {}
            }
        }
        self.entries.retain(|(frontend, epoch, slot), state| {
            let stays = (*frontend, *epoch) != (life.peer.index, life.epoch)
                || now.iter().any(|(id, _)| id.slot == *slot);
            if !stays {
                coverage.see(format!("ledger: {state:?} -> Released"));
            }
            stays
        });
    }

    fn scheduler(&mut self, now: &BTreeMap<RequestId, SequenceState>, coverage: &mut Coverage) {
        for (id, state) in now {
            match self.sequences.get(id) {
                None => coverage.see(format!("sequence: [*] -> {state:?}")),
                Some(before) if before != state => coverage.see(format!("sequence: {before:?} -> {state:?}")),
                Some(_) => {}
            }
        }
        for (_, state) in self.sequences.iter().filter(|(id, _)| !now.contains_key(*id)) {
            coverage.see(format!("sequence: {state:?} -> gone"));
        }
        self.sequences.clone_from(now);
    }

    fn phase(&mut self, peer: Peer, phase: Phase, coverage: &mut Coverage) {
        match self.phases.insert(peer, phase) {
            Some(before) if before != phase => coverage.see(format!("role: {before:?} -> {phase:?}")),
            Some(_) | None => {}
        }
    }

    /// A successor counts from 0 again.
    fn counts(&mut self, [preemptions, prefix_hits, accepted]: [u64; 3], coverage: &mut Coverage) {
        coverage.add("engine: preemptions", preemptions.saturating_sub(self.preemptions));
        coverage.add("engine: prompt tokens from the cache", prefix_hits.saturating_sub(self.prefix_hits));
        coverage.add("engine: accepted drafts", accepted.saturating_sub(self.accepted_drafts));
        (self.preemptions, self.prefix_hits, self.accepted_drafts) = (preemptions, prefix_hits, accepted);
    }
}
