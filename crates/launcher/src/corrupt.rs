//! Edges whose words are not what an honest peer writes, and which end of one is restarted so that it is made anew:
//! docs/design/0009-recovery.md.

use pinion_protocol::{Peer, Role};
use std::collections::VecDeque;

/// How long an edge that was corrupt is remembered.
const MEMORY_NS: u64 = 60_000_000_000;
/// From this number of times within that on, the other end is restarted.
const TIMES_MAX: usize = 3;

/// A role's report that one of its edges is corrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptEdge {
    /// The writer.
    pub from: Peer,
    /// The reader.
    pub to: Peer,
    /// Which life of the edge.
    pub epoch: u32,
    /// The end that owns the wrong words: the one that did not report them.
    pub suspect: Peer,
    /// Which check failed.
    pub what: String,
}

/// When an edge was corrupt.
#[derive(Debug, Default)]
pub struct History {
    times_ns: VecDeque<u64>,
}

impl History {
    /// Notes that the edge is corrupt again, and gives the end to restart: the suspect, unless it is a frontend, whose
    /// death would lose its connections while that of the other end loses nothing. An edge that is corrupt again and
    /// again has shown that this does not help: then it is the turn of the other end, whatever it is. Of an edge to the
    /// events role that role goes every time: what it says of its ring must not end the engine.
    pub fn victim(&mut self, edge: &CorruptEdge, now_ns: u64) -> Peer {
        if edge.to.role == Role::Events {
            return edge.to;
        }
        while self.times_ns.front().is_some_and(|at_ns| now_ns.saturating_sub(*at_ns) > MEMORY_NS) {
            self.times_ns.pop_front();
        }
        self.times_ns.push_back(now_ns);
        let other = if edge.suspect == edge.from { edge.to } else { edge.from };
        let (first, second) =
            if edge.suspect.role == Role::Frontend { (other, edge.suspect) } else { (edge.suspect, other) };
        if self.times_ns.len() < TIMES_MAX {
            return first;
        }
        self.times_ns.clear();
        second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRONTEND: Peer = Peer::new(Role::Frontend, 1);
    const TOKENIZER: Peer = Peer::new(Role::Tokenizer, 0);
    const ENGINE: Peer = Peer::new(Role::Engine, 0);

    fn edge(from: Peer, to: Peer, suspect: Peer) -> CorruptEdge {
        CorruptEdge { from, to, epoch: 1, suspect, what: "a test".to_owned() }
    }

    #[test]
    fn the_suspect_goes_unless_its_death_loses_connections() {
        for (from, to, suspect, victim) in [
            (TOKENIZER, ENGINE, TOKENIZER, TOKENIZER),
            (TOKENIZER, ENGINE, ENGINE, ENGINE),
            (ENGINE, FRONTEND, ENGINE, ENGINE),
            (ENGINE, FRONTEND, FRONTEND, ENGINE),
            (FRONTEND, TOKENIZER, FRONTEND, TOKENIZER),
            (FRONTEND, TOKENIZER, TOKENIZER, TOKENIZER),
        ] {
            let edge = edge(from, to, suspect);
            assert_eq!(History::default().victim(&edge, 1), victim, "{edge:?}");
        }
    }

    #[test]
    fn the_engine_outlives_what_the_events_role_says() {
        const EVENTS: Peer = Peer::new(Role::Events, 0);
        let mut history = History::default();
        for (at_ns, suspect) in [ENGINE, EVENTS, ENGINE, ENGINE, ENGINE].into_iter().enumerate() {
            assert_eq!(history.victim(&edge(ENGINE, EVENTS, suspect), at_ns as u64), EVENTS);
        }
    }

    #[test]
    fn the_other_end_goes_when_the_first_was_restarted_in_vain_and_only_then() {
        let (mut history, edge) = (History::default(), edge(FRONTEND, TOKENIZER, FRONTEND));
        let victims: Vec<Peer> = (0..6).map(|second| history.victim(&edge, second * 1_000_000_000)).collect();
        assert_eq!(victims, [TOKENIZER, TOKENIZER, FRONTEND, TOKENIZER, TOKENIZER, FRONTEND]);
        let rare: Vec<Peer> = (2..8).map(|times| history.victim(&edge, times * 31_000_000_000)).collect();
        assert_eq!(rare, [TOKENIZER; 6], "two within any minute");
    }
}
