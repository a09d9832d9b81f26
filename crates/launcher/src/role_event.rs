//! What a role says or does that the launcher acts on.

use crate::corrupt::CorruptEdge;
use pinion_protocol::Peer;
use pinion_protocol::control::{Admin, AdminOutcome, FromRole};
use std::process::ExitStatus;

/// An event of a role since the last look at it.
#[derive(Debug)]
pub enum RoleEvent {
    /// It can serve.
    Ready {
        /// One line for the operator.
        summary: String,
    },
    /// It cannot start.
    Failed {
        /// Why.
        reason: String,
        /// Exit code for the launcher.
        exit_code: i32,
    },
    /// A frontend passes on an operator's command.
    Ordered {
        /// The frontend's number for it.
        number: u64,
        /// CLOCK_MONOTONIC ns at which the client stops waiting for the answer.
        deadline_ns: u64,
        /// The command.
        admin: Admin,
    },
    /// One of its edges is corrupt.
    Corrupt(CorruptEdge),
    /// It has carried out a command.
    Answered {
        /// The launcher's number for it.
        number: u64,
        /// The result.
        outcome: AdminOutcome,
    },
    /// Its process ended.
    Ended {
        /// As wait(2) gives it.
        status: ExitStatus,
        /// A warm standby ended before it attached, which is no death of the role.
        was_standby: bool,
    },
}

impl RoleEvent {
    /// The event that a control message of `sender` is, if the launcher acts on it.
    pub(crate) fn of(sender: Peer, message: FromRole) -> Option<RoleEvent> {
        Some(match message {
            FromRole::Ready { summary } => RoleEvent::Ready { summary },
            FromRole::Failed { reason, exit_code } => RoleEvent::Failed { reason, exit_code },
            FromRole::Admin { number, deadline_ns, admin } => {
                RoleEvent::Ordered { number, deadline_ns, admin }
            }
            FromRole::AdminDone { number, outcome } => RoleEvent::Answered { number, outcome },
            FromRole::CorruptEdge { peer, epoch, reads, what } => {
                let (from, to) = if reads { (peer, sender) } else { (sender, peer) };
                RoleEvent::Corrupt(CorruptEdge { from, to, epoch, suspect: peer, what })
            }
            FromRole::Hello { .. } | FromRole::Phase { .. } => return None,
        })
    }
}
