//! The detokenizer role: token events in, text deltas out.
//!
//! [`Detokenizer`] is the role as a state machine, record in, records out, with no clock, link or process;
//! [`serve`] is the loop around it. One `stream::Stream` per request holds what its text needs. Nothing
//! here sees a socket, a prompt or a sampling parameter. Start at [`detokenizer`].

pub mod detokenizer;
mod outgoing;
pub mod serve;
mod stream;
mod waiting;

pub use detokenizer::{Counts, Detokenizer};
pub use serve::{Server, live};
