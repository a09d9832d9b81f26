//! The vocabulary every role shares: identities, limits, wire records and errors.
//!
//! It does no I/O, knows no shared memory and no sibling crate. Records are grouped by their
//! *receiver*, one file per inbox ([`tokenizer_inbox`], [`engine_inbox`], [`detokenizer_inbox`],
//! [`frontend_inbox`], [`events_inbox`]); [`control`] is what the launcher and a role say to each other.
//! Start reading at [`ids`], then the inbox of the role you care about.
//!
//! Wire structs are `repr(C)`, little-endian (the only byte order libtorch serves on), and are read by
//! copy-then-check: a record comes out of a ring as owned bytes, `decode` checks every field, and only
//! the checked value is used.

pub mod claim;
pub mod control;
pub mod detokenizer_inbox;
pub mod engine_inbox;
pub mod events_inbox;
pub mod fault;
pub mod frontend_inbox;
pub mod grammar;
pub mod ids;
pub mod limits;
pub mod names;
pub mod prompt_scores;
pub mod reasoning;
pub mod sampling;
pub mod scores;
pub mod spans;
pub mod status;
pub mod stop_ids;
pub mod tokenizer_inbox;
pub mod window_kv;
mod wire;

pub use claim::Claim;
pub use fault::{Blame, Fault, FaultCode};
pub use grammar::{Grammar, GrammarField, GrammarKind, JSON_SEPARATORS};
pub use ids::{Peer, RequestId, Role};
pub use reasoning::Reasoning;
pub use sampling::Sampling;
pub use stop_ids::StopIds;
pub use window_kv::{WindowKv, window_blocks_of_sequence};
pub use wire::{Malformed, layout_hash};
