//! What must hold: when a client may fail, and what a run may leave.

use crate::client::Client;
use crate::role::Life;
use crate::world::{World, stage_name};
use pinion_frontend::observe::health::Health;
use pinion_protocol::status::{EDGE_WORDS, Gauge};
use pinion_protocol::{Peer, Role};

/// A death may be news to a frontend for this long, in ns.
const NEWS_NS: u64 = 1_000_000_000;

impl World {
    /// Whether what went wrong is a reason for such an end.
    pub(crate) fn may_fail(&self, client: &Client, code: &str, at_once: bool) -> bool {
        let since_ns = client.came_ns.saturating_sub(NEWS_NS);
        let deaths = self.deaths_ns.iter().filter(|at_ns| **at_ns >= since_ns).count();
        let resumes = self.plan.config.lifecycle.resume;
        // Deaths after which a request may be given up. One of a role that was at work on it counts twice, and only the
        // timeline tells that.
        let suspected = if self.plan.config.observe.timeline { 2 } else { 4 };
        match code {
            "rate_limit_exceeded" => at_once && self.is_full(client),
            "role_restarted" => deaths >= suspected || deaths >= 1 && (!resumes || self.drained),
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
                for (gauge, name) in [
                    (Gauge::KvBlocksUsed, "KV blocks are taken"),
                    (Gauge::RequestsRunning, "requests run"),
                    (Gauge::RequestsWaiting, "requests wait"),
                    (Gauge::DecodeStates, "streams are open"),
                    (Gauge::MalformedRecords, "records were malformed"),
                ] {
                    let count = Health::word(page, gauge as usize);
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
