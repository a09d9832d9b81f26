//! Identities: roles, peers and requests. Every identity carries a generation.

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A kind of process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Resolves the plan, owns shared memory, spawns and watches the others.
    Launcher,
    /// HTTP and streaming.
    Frontend,
    /// Chat template and encode.
    Tokenizer,
    /// Scheduler and model.
    Engine,
    /// Incremental decode.
    Detokenizer,
    /// Tells others what the prefix cache holds.
    Events,
}

impl Role {
    /// The roles that the launcher spawns, in start order: consumers before producers.
    pub const SPAWNED: [Role; 5] =
        [Role::Engine, Role::Detokenizer, Role::Tokenizer, Role::Frontend, Role::Events];

    /// Lower-case name, used in process names, metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Role::Launcher => "launcher",
            Role::Frontend => "frontend",
            Role::Tokenizer => "tokenizer",
            Role::Engine => "engine",
            Role::Detokenizer => "detokenizer",
            Role::Events => "events",
        }
    }

    /// Whether no request needs it: its death, its absence and damage to its ring reach neither requests nor the
    /// service's state.
    pub fn is_optional(self) -> bool {
        match self {
            Role::Events => true,
            Role::Launcher | Role::Frontend | Role::Tokenizer | Role::Engine | Role::Detokenizer => false,
        }
    }
}

/// One process: a role and its index among the processes of that role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Peer {
    /// What it does.
    pub role: Role,
    /// 0-based position among its like.
    pub index: u16,
}

impl Peer {
    /// The peer `role`-`index`.
    pub const fn new(role: Role, index: u16) -> Peer {
        Peer { role, index }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.role.name(), self.index)
    }
}

/// A request *is* this triple. It is made by the frontend that owns the slot; the client's own ids are
/// never keys. A record whose generation differs from the slot's is late and is dropped.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct RequestId {
    /// Index of the owning frontend.
    pub frontend: u16,
    /// Slot in that frontend's table.
    pub slot: u16,
    /// Generation of the slot; grows by one at every reuse and is never 0.
    pub generation: u32,
}

impl RequestId {
    /// The detokenizer that serves this request, among `detokenizer_count` (≥ 1).
    pub fn detokenizer(self, detokenizer_count: u16) -> u16 {
        self.slot % detokenizer_count.max(1)
    }
}

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.frontend, self.slot, self.generation)
    }
}

const _: () = assert!(size_of::<RequestId>() == 8);
