//! What the launcher says to a role, as the role's loop sees it.

use crate::edge::Inbox;
use pinion_protocol::Peer;
use pinion_protocol::control::{Admin, AdminOutcome, DeathCause};
use std::time::Duration;

/// Something the launcher said. Links are already replaced when the role sees the event.
pub enum ControlEvent {
    /// A drain follows: say that no new requests are wanted, and go on serving.
    Leaving,
    /// Finish what is in flight, take nothing new; the launcher kills at the deadline.
    Drain {
        /// CLOCK_MONOTONIC ns.
        deadline_ns: u64,
    },
    /// Leave the loop now.
    Stop,
    /// Every role is ready; the listening socket listens.
    Open,
    /// A peer died, and why.
    PeerLost(Peer, DeathCause),
    /// The successor of a dead peer is ready.
    PeerReady(Peer),
    /// An operator's order, to be answered with [`crate::Session::admin_done`].
    Admin {
        /// For the answer.
        number: u64,
        /// What to do.
        admin: Admin,
    },
    /// The end of an order that this frontend gave with [`crate::Session::order`].
    AdminDone {
        /// The number it was given with.
        number: u64,
        /// What came of it.
        outcome: AdminOutcome,
    },
    /// A ring to read from was replaced; the old one may still hold records.
    InboxReplaced {
        /// Its writer.
        from: Peer,
        /// The old end.
        old: Inbox,
    },
    /// A ring to write to was replaced; what the old one held is lost with its reader.
    OutboxReplaced {
        /// Its reader.
        to: Peer,
    },
    /// A frontend has a fresh slot table: every request of its predecessor is gone. It comes ahead of what else was
    /// said.
    SlotsReplaced {
        /// Its index.
        frontend: u16,
    },
}

/// What a role's loop does after a turn; see [`crate::Session::rest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The next turn follows at once.
    Go,
    /// Sleep until there is something to read, at most this long.
    Wait(Duration),
    /// Sleep this long, whatever there is to read: it waits for room in another ring.
    Pause(Duration),
    /// Leave the loop.
    Stop,
}
