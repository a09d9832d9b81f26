//! What must hold: when a client may fail, what a turn may leave, and what a run may leave.

use crate::client::Client;
use crate::plan::STUCK_TIMEOUT_MS;
use crate::role::{Life, Loop, Stage};
use crate::world::{World, stage_name};
use pinion_frontend::observe::health;
use pinion_frontend::requests::ledger::EntryState;
use pinion_protocol::names::Counter;
use pinion_protocol::status::{EDGE_WORDS, Gauge};
use pinion_protocol::{Peer, RequestId, Role};
use pinion_shm::slots::SlotState;

/// A death may be news to a frontend for this long, in ns: it may stand still until it is killed as stuck, and what it
/// is asked just before it goes on comes before the news.
const NEWS_NS: u64 = (STUCK_TIMEOUT_MS + 1_000) * 1_000_000;
/// Two generations of a slot that are further apart are of two lives of its frontend.
const GENERATIONS_APART: u32 = 1 << 19;

impl World {
    /// Whether what went wrong is a reason for such an end.
    pub(crate) fn may_fail(&self, client: &Client, code: &str, at_once: bool) -> bool {
        let since_ns = client.came_ns.saturating_sub(NEWS_NS);
        let deaths = self.deaths_ns.iter().filter(|at_ns| **at_ns >= since_ns).count();
        let resumes = self.plan.config.lifecycle.resume;
        match code {
            "rate_limit_exceeded" => at_once && self.is_full(client),
            // One of a role that was at work on it counts twice.
            "role_restarted" => deaths >= 2 || deaths >= 1 && (!resumes || self.drained),
            // PeerReady waits for roles that hold old links, and one of them may be stopped.
            "unavailable" => self.drained || !resumes && !self.deaths_ns.is_empty(),
            // So little room may fill between two turns.
            "slow_reader" => self.plan.config.stream_buffer_bytes_max < 1 << 20,
            _ => false,
        }
    }

    /// Whether its frontend has too few slots left for it.
    fn is_full(&self, client: &Client) -> bool {
        let app = self.lives.get(&Peer::new(Role::Frontend, client.frontend)).and_then(Life::app);
        app.is_some_and(|app| {
            let ledger = app.ledger.borrow();
            ledger.slots_used() + client.asked.choices.len() > ledger.slots_total()
        })
    }

    /// What a turn of this role must have done.
    pub(crate) fn check_turn(&self, peer: Peer) -> Result<(), String> {
        match self.lives.get(&peer).map(|life| &life.stage) {
            Some(Stage::Serving(Loop::Engine(server))) => {
                // It looks at every slot in every turn.
                match server.engine().states().find(|(id, _)| self.is_over(*id)) {
                    Some((id, _)) => {
                        Err(format!("{peer} goes on with {id}, and its slot says that it is over"))
                    }
                    None => Ok(()),
                }
            }
            Some(Stage::Serving(Loop::Frontend { app, .. })) => {
                let states: Vec<_> = app.ledger.borrow().states().collect();
                match states.into_iter().find(|(id, state)| self.lacks_stop(*id, *state)) {
                    Some((id, _)) => {
                        Err(format!("the text of {id} is complete, and the engine was not told to stop"))
                    }
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Whether the slot of a request tells the engine to end or to forget it.
    fn is_over(&self, id: RequestId) -> bool {
        self.slot(id).is_some_and(|(state, _)| {
            // The engine may not know the slots of the frontend's next life yet, whose generations are far off.
            let is_of_this_life = state.generation.wrapping_sub(id.generation) < GENERATIONS_APART;
            let is_current = state.live && state.generation == id.generation;
            is_of_this_life && (!is_current || state.cancelled || state.stopped)
        })
    }

    /// Whether all of a text has come, the engine goes on with it, and nothing tells it to stop. One that goes on after
    /// a death draws its last token again.
    fn lacks_stop(&self, id: RequestId, state: EntryState) -> bool {
        let Some((slot, resumptions)) = self.slot(id) else { return false };
        let told = slot.cancelled || slot.stopped || resumptions > 0;
        let is_current = slot.live && slot.generation == id.generation;
        state == EntryState::TextComplete && is_current && !told && self.runs(id)
    }

    /// Whether the engine has this request.
    fn runs(&self, id: RequestId) -> bool {
        self.lives.values().any(|life| match &life.stage {
            Stage::Serving(Loop::Engine(server)) => server.engine().states().any(|(other, _)| other == id),
            _ => false,
        })
    }

    /// What the slot of a request says, with how often the request went on after a death.
    fn slot(&self, id: RequestId) -> Option<(SlotState, u64)> {
        let life = self.lives.get(&Peer::new(Role::Frontend, id.frontend))?;
        let Stage::Serving(Loop::Frontend { session, .. }) = &life.stage else { return None };
        let session = session.borrow();
        let slot = session.links.slot(id)?;
        Some((slot.state(), slot.counter(id.generation, Counter::Resumptions as usize)))
    }

    /// Requests of a frontend whose clients wait.
    fn open_requests(&self, frontend: u16) -> Vec<RequestId> {
        let app = self.lives.get(&Peer::new(Role::Frontend, frontend)).and_then(Life::app);
        let states: Vec<_> = app.map(|app| app.ledger.borrow().states().collect()).unwrap_or_default();
        let is_open = |state| !matches!(state, EntryState::Ended | EntryState::Closed);
        states.into_iter().filter(|(_, state)| is_open(*state)).map(|(id, _)| id).collect()
    }

    /// A client is gone. What it had asked for and did not get is cancelled.
    pub(crate) fn remove(&mut self, at: usize) -> Result<Client, String> {
        let frontend = self.clients[at].frontend;
        let before = self.open_requests(frontend);
        let mut client = self.clients.remove(at);
        client.hang_up();
        let after = self.open_requests(frontend);
        let goes_on = |id: &&RequestId| {
            self.slot(**id)
                .is_some_and(|(state, _)| state.live && state.generation == id.generation && !state.cancelled)
        };
        match before.iter().filter(|id| !after.contains(*id)).find(goes_on) {
            Some(id) => {
                Err(format!("client {} is gone, and its request {id} is not cancelled", client.number))
            }
            None => Ok(client),
        }
    }

    /// Nothing is left of any request.
    pub(crate) fn check_baseline(&self) -> Result<(), String> {
        let mut left = Vec::new();
        for life in self.lives.values() {
            let Some(app) = life.app() else { continue };
            let slots = app.ledger.borrow().slots_used();
            if slots > 0 {
                left.push(format!("{slots} slots of {} are taken", life.peer));
            }
            for (peer, page) in &app.health.pages {
                if peer.role == Role::Launcher {
                    for (at, edge) in self.plan.topology.edges.iter().enumerate() {
                        let bytes = page.get(EDGE_WORDS + 2 * at);
                        if bytes > 0 {
                            left.push(format!("{bytes} bytes wait from {} to {}", edge.from, edge.to));
                        }
                    }
                    continue;
                }
                for (word, name) in [
                    (Gauge::KvBlocksUsed, "KV blocks are taken"),
                    (Gauge::RequestsRunning, "requests run"),
                    (Gauge::RequestsWaiting, "requests wait"),
                    (Gauge::DecodeStates, "streams are open"),
                    (Gauge::MalformedRecords, "records were malformed"),
                ] {
                    let count = health::gauge(page, word);
                    if count > 0 {
                        left.push(format!("{peer}: {count} {name}"));
                    }
                }
            }
        }
        if left.is_empty() { Ok(()) } else { Err(format!("at the end {}", left.join(", "))) }
    }

    /// The state of everything, for the message about a run that does not end.
    pub(crate) fn stuck(&self, what: &str) -> String {
        let roles: Vec<String> = self
            .lives
            .values()
            .map(|life| format!("{} life {} {}", life.peer, life.epoch, stage_name(&life.stage)))
            .collect();
        let clients: Vec<String> = self.clients.iter().map(Client::describe).collect();
        format!("{what}; roles: {}; {}", roles.join(", "), clients.join("; "))
    }
}
