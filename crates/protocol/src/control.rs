//! What the launcher and a role say to each other. Typed messages go over `ipc-channel`; descriptors go over
//! a socket pair that the role finds as its standard input. Both are encoded with bincode.
//!
//! A role learns that something waits by one load: [`crate::status::Gauge::ControlSequence`] on its own
//! status page counts what the launcher has sent.

use crate::ids::{Peer, Role};
use crate::status::Phase;
use serde::{Deserialize, Serialize};

/// One datagram on the descriptor socket. The descriptors that travel with it stand in the comment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Attach {
    /// The role's name; [config memfd, its ends of the control channel: to receive, to send and, if data edges are
    /// channels too, to receive the ends of those]. Always first of a first set.
    Hello {
        /// The receiver.
        me: Peer,
        /// Epoch of this process: 1 at the first start, one more at each restart.
        epoch: u32,
        /// Must equal the role's own [`crate::layout_hash`].
        layout_hash: u64,
        /// The launcher's process id; a role whose parent is another exits ...
        launcher_pid: u32,
        /// ... unless it was started by a profiler, which is its parent then.
        wrapped: bool,
    },
    /// The role's own doorbell; an eventfd.
    Doorbell,
    /// The status page of `of`: writable for the role itself, and for frontends every other page to read;
    /// a memfd.
    Status {
        /// Whose page.
        of: Peer,
    },
    /// The ring of spans of one track of `of`: for the role itself to write, for frontends all of them to read;
    /// a memfd.
    Spans {
        /// Whose.
        of: Peer,
        /// Which of its threads.
        track: u16,
    },
    /// The slot table of a frontend; a memfd.
    Slots {
        /// Index of the frontend.
        frontend: u16,
        /// Epoch of that frontend's process.
        epoch: u32,
    },
    /// A ring to read from; [ring memfd].
    Inbox {
        /// The writer.
        from: Peer,
        /// Epoch of the ring.
        epoch: u32,
    },
    /// A ring to write to; [ring memfd, the reader's doorbell eventfd].
    Outbox {
        /// The reader.
        to: Peer,
        /// Epoch of the ring.
        epoch: u32,
    },
    /// The listening socket, for frontends, or that of subscribers, for the events role; [TCP socket].
    Listener,
    /// The socket for replay requests, for the events role; [TCP socket that listens].
    ReplayListener,
    /// The set is complete; no descriptor.
    Done,
    /// The process is a warm standby: its first set comes when a role has died, if ever. Sent before it; no descriptor.
    Spare,
}

/// What an operator asks of a running service through a frontend's admin routes. The frontend sends it to the launcher,
/// which hands it to every process of the roles that carry it out, and answers when all of them have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Admin {
    /// Forget what the prefix cache holds; requests that are under way keep theirs.
    ClearPrefixCache,
    /// The profilers that the roles were started by, or the engine's own, record from now on.
    StartProfile,
    /// They stop and write what they have.
    StopProfile,
}

impl Admin {
    /// The roles that carry it out; the launcher itself those of profilers that it has started.
    pub fn roles(self) -> &'static [Role] {
        match self {
            Admin::ClearPrefixCache | Admin::StartProfile | Admin::StopProfile => &[Role::Engine],
        }
    }
}

/// Why a role died, as far as it says something about the requests that the role held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeathCause {
    /// It ended by itself, was stuck, or was killed by others: a request may be the reason.
    Unknown,
    /// The launcher killed it to replace a corrupt edge: no request is the reason.
    CorruptEdge,
}

/// Whether an order was carried out, or why not, in one line for the operator.
pub type AdminOutcome = Result<(), String>;

/// Launcher → role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToRole {
    /// A drain follows: answer `/ready` with no, and go on serving.
    Leaving,
    /// Finish what is in flight, take nothing new, then stop by yourself.
    Drain {
        /// CLOCK_MONOTONIC ns after which the launcher kills.
        deadline_ns: u64,
    },
    /// Stop now.
    Stop,
    /// All roles are ready: the frontend may accept.
    Open,
    /// A peer died. New rings follow when its successor starts.
    PeerLost {
        /// The peer.
        peer: Peer,
        /// Why.
        cause: DeathCause,
    },
    /// A set of new descriptors, ended by [`Attach::Done`], lies ready on the descriptor socket. It was sent
    /// there before this message, so taking it here keeps the two channels in one order.
    Attached,
    /// The successor of a dead peer is ready, and no role uses links to its predecessor any more.
    PeerReady {
        /// The peer.
        peer: Peer,
    },
    /// Carry this out and answer with [`FromRole::AdminDone`].
    Admin {
        /// The launcher's number for the order, for the answer.
        number: u64,
        /// What to do.
        admin: Admin,
    },
    /// The end of an order that this frontend gave.
    AdminDone {
        /// The frontend's own number.
        number: u64,
        /// What came of it.
        outcome: AdminOutcome,
    },
}

/// Role → launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromRole {
    /// First message: the sender's name.
    Hello {
        /// The sender.
        me: Peer,
        /// Its process id.
        pid: u32,
    },
    /// The role can serve. `summary` is one line for the operator (model, dtype, blocks, cores).
    Ready {
        /// One line for the operator.
        summary: String,
    },
    /// The role cannot start or go on; the launcher prints the reason and uses the exit code.
    Failed {
        /// What and why, in one line.
        reason: String,
        /// Exit code for the launcher (see docs/OPERATIONS.md).
        exit_code: i32,
    },
    /// The role changed phase.
    Phase {
        /// To what.
        phase: Phase,
    },
    /// An edge of this role holds what no honest peer writes: one end of it must be replaced.
    CorruptEdge {
        /// The other end.
        peer: Peer,
        /// Epoch of the edge.
        epoch: u32,
        /// The role reads this edge; otherwise it writes it.
        reads: bool,
        /// Which check failed, in one line for the operator.
        what: String,
    },
    /// An order of an operator, from a frontend.
    Admin {
        /// The frontend's number for it, for the answer.
        number: u64,
        /// CLOCK_MONOTONIC ns at which the client stops waiting for the answer.
        deadline_ns: u64,
        /// What to do.
        admin: Admin,
    },
    /// An order was carried out, or cannot be.
    AdminDone {
        /// The launcher's number.
        number: u64,
        /// What came of it.
        outcome: AdminOutcome,
    },
}
