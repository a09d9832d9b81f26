//! The tokenizer role: turns a client's prompt into checked token ids.
//!
//! [`Tokenizer::answer`] is the role as a function, record in, record out, with no clock, link or process;
//! [`serve`] is the loop around it. It sees no socket and holds no request: what it took from an inbox has
//! been answered before it takes the next. Start at [`answer`].

pub mod answer;
pub mod serve;
mod words;

pub use answer::{Answer, Limits, Tokenizer};
pub use serve::{Server, live};
