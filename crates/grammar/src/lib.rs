//! Grammars that a text must follow: from what a client wrote to the set of tokens that may come next.
//!
//! [`Vocabulary::compile`] makes a [`Matcher`] of a [`pinion_protocol::Grammar`]; the matcher takes tokens and says
//! which may follow. Compiling runs on what strangers send, so it is bounded: by what [`limits`] refuses unread, by the
//! library's own fuel, and by a clock ([`Checker`]). The tokenizer has a [`Checker`] and refuses there what does not
//! pass; the engine has [`Grammars`], two threads that compile and compute masks beside its loop. Start at [`matcher`].
//!
//! It knows no model, no ring and no HTTP.

mod checker;
mod constraint;
mod gate;
pub mod limits;
pub mod matcher;
mod service;
mod shape;
mod tokens;
mod vocabulary;

pub use checker::Checker;
pub use constraint::{Constraint, Mask};
pub use gate::MarkIds;
pub use matcher::{Matcher, Next};
pub use service::{Compiled, Grammars};
pub use vocabulary::{Vocabulary, Words};
