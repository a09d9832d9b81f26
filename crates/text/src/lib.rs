//! Text on both sides of the model: encode, incremental decode, stop strings, chat messages as text, tool calls in
//! text.
//!
//! Pure: no clock, thread, process or shared memory; the only file access is in [`TextCodec::load`] and
//! [`ChatRenderer::load`]. It knows nothing of requests: the tokenizer and detokenizer roles hold one
//! [`TextCodec`] each, the tokenizer one [`ChatRenderer`], and the detokenizer one [`TextStream`] and one
//! [`StopMatcher`] per stream. Start at [`codec`].
//!
//! The promise that everything here is tested against: the pieces that a [`TextStream`] gives for a
//! sequence of tokens, joined, are what [`TextCodec::decode_all`] gives for the same tokens, whatever the
//! tokens are and wherever characters split over them.

mod added;
mod byte_table;
mod byte_tokenizer;
mod call_marks;
pub mod chat;
pub mod codec;
mod frame;
pub mod reasoning;
mod stop;
mod stream;
mod token_bytes;
mod tokenizer_config;
pub mod tools;
mod utf8_tail;

pub use byte_tokenizer::{byte_tokenizer_json, byte_tokenizer_json_with};
pub use chat::ChatRenderer;
pub use codec::{EncodeError, LoadError, TextCodec};
pub use stop::StopMatcher;
pub use stream::TextStream;
