//! Tool calls in a model's text: found as the text comes, and told apart from the rest.
//!
//! [`CallParser`] is a state machine over characters: however the text is cut into pieces, the same text and the same
//! calls come out. What could still become a call is held back, so that no part of a mark is ever shown; what turns out
//! to be none is text after all, so that nothing is lost. A call's arguments leave as they come: as the model's
//! own characters where they are JSON, spelled as JSON where they are not. It knows nothing of JSON schemas, ids of
//! calls or the API. Start at `parser`; `scan`, `xml` and `pythonic` read one call or list.

mod format;
mod parser;
mod pythonic;
mod scan;
mod spelled;
mod xml;

pub use format::CallFormat;
pub use parser::{CALLS_MAX, CallParser, HELD_BYTES_MAX, Part, Shape};
