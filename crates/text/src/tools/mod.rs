//! Tool calls in a model's text: found as the text comes, and told apart from the rest.
//!
//! [`CallParser`] is a state machine over characters: however the text is cut into pieces, the same text and the same
//! calls come out. What could still become a call is held back, so that no part of a mark is ever shown; what turns out
//! to be none is text after all, so that nothing is lost. A call's arguments are the model's own characters, and leave as
//! they come. It knows nothing of JSON schemas, ids of calls or the API. Start at [`parser`]; [`scan`] reads one call.

mod format;
mod parser;
mod scan;

pub use format::CallFormat;
pub use parser::{CALLS_MAX, CallParser, HELD_BYTES_MAX, Part, Shape};
