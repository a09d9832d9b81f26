//! OpenAI's Responses API as a translation of a chat.
//!
//! [`Asked::parse`] reads a body and [`Asked::chat`] makes a chat of it, behind the conversation of an earlier response
//! if it names one; [`renamed`] gives what admission finds wrong there the names of this API. [`ResponseWriter`] words
//! the answer, and a [`Store`] keeps answers that later requests name.

mod events;
mod input;
mod request;
mod store;
mod writer;

pub use request::{Asked, renamed};
pub use store::{Kept, Store, input_items};
pub use writer::{Head, ResponseWriter};
