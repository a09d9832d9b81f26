//! The last deaths and returns of other roles, as this frontend saw them: what `/stats` shows beside the counters of
//! `/metrics`, which cannot say which role it was and when.

use crate::limits::INCIDENTS_MAX;
use pinion_protocol::Peer;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// What happened to a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It died.
    Lost {
        /// Requests that it held.
        held: usize,
        /// Of these, the ones that wait for its successor; the others ended.
        waiting: usize,
    },
    /// Its successor serves.
    Back {
        /// Requests that went on at once.
        resumed: usize,
    },
}

struct Incident {
    number: u64,
    at_ns: u64,
    peer: Peer,
    change: Change,
}

/// The last [`INCIDENTS_MAX`] of them.
#[derive(Default)]
pub struct Incidents {
    last: RefCell<VecDeque<Incident>>,
    count: Cell<u64>,
}

impl Incidents {
    /// Keeps one, and forgets the oldest where there is no room.
    pub fn note(&self, at_ns: u64, peer: Peer, change: Change) {
        let number = self.count.get() + 1;
        self.count.set(number);
        let mut last = self.last.borrow_mut();
        if last.len() == INCIDENTS_MAX {
            last.pop_front();
        }
        last.push_back(Incident { number, at_ns, peer, change });
    }

    /// The incidents, oldest first.
    pub(crate) fn shown(&self, now_ns: u64) -> Vec<Value> {
        let shown = |incident: &Incident| {
            let age_s = now_ns.saturating_sub(incident.at_ns) as f64 / 1e9;
            let (number, role) = (incident.number, incident.peer.to_string());
            match incident.change {
                Change::Lost { held, waiting } => json!({
                    "number": number, "role": role, "age_s": age_s, "what": "lost", "held": held, "waiting": waiting,
                }),
                Change::Back { resumed } => json!({
                    "number": number, "role": role, "age_s": age_s, "what": "back", "resumed": resumed,
                }),
            }
        };
        self.last.borrow().iter().map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_protocol::Role;

    #[test]
    fn the_last_ones_stay_with_their_numbers_and_ages() {
        let incidents = Incidents::default();
        let engine = Peer::new(Role::Engine, 0);
        for at in 1..=INCIDENTS_MAX as u64 {
            incidents.note(at * 1_000_000_000, engine, Change::Lost { held: 2, waiting: 1 });
        }
        incidents.note(100_000_000_000, engine, Change::Back { resumed: 3 });
        let shown = incidents.shown(101_000_000_000);
        assert_eq!(shown.len(), INCIDENTS_MAX);
        assert_eq!((&shown[0]["number"], &shown[0]["what"]), (&json!(2), &json!("lost")));
        let last = shown.last().unwrap();
        assert_eq!(
            *last,
            json!({"number": INCIDENTS_MAX + 1, "role": "engine-0", "age_s": 1.0, "what": "back", "resumed": 3})
        );
    }
}
