//! APIs that are translations of a chat: a body becomes the body of `/v1/chat/completions`, and what the model says
//! becomes the events or the answer that clients of that API expect.
//!
//! [`vectors`] writes the answers of models that pool, which are no translations.
//!
//! Pure: no socket, no clock, no shared memory. [`messages`] is Anthropic's API, [`responses`] OpenAI's later one. A
//! request's side turns a body into a chat; the answer's side is an [`AnswerWriter`], which takes what the model says
//! piece by piece and writes the same answer whether it leaves as a stream or whole. Start there.

pub mod answer;
pub mod escape;
pub mod json;
pub mod limits;
pub mod messages;
mod object;
pub mod responses;
mod shared;
pub mod vectors;

pub use answer::{Ending, Failure, Said, Usage};

use bytes::BytesMut;
use serde_json::{Map, Value};

/// A body that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Translated {
    /// The body of the chat that it asks for.
    pub chat: Map<String, Value>,
    /// The unknown members.
    pub rest: Map<String, Value>,
}

/// Words one answer as clients of its API expect it.
#[derive(Debug)]
pub enum AnswerWriter {
    /// `/v1/messages`.
    Messages(messages::MessageWriter),
    /// `/v1/responses`.
    Responses(responses::ResponseWriter),
}

impl AnswerWriter {
    /// Whether the answer leaves piece by piece.
    pub fn streams(&self) -> bool {
        match self {
            AnswerWriter::Messages(writer) => writer.streams(),
            AnswerWriter::Responses(writer) => writer.streams(),
        }
    }

    /// Tells the counts of the prompt, as far as they are known before the first piece.
    pub fn count_prompt(&mut self, prompt_tokens: u32, cached_tokens: u32) {
        match self {
            AnswerWriter::Messages(writer) => writer.count_prompt(prompt_tokens, cached_tokens),
            // It tells all counts at its end.
            AnswerWriter::Responses(_) => {}
        }
    }

    /// Takes a piece of what the model says.
    pub fn say(&mut self, said: Said<'_>, out: &mut BytesMut) {
        match self {
            AnswerWriter::Messages(writer) => writer.say(said, out),
            AnswerWriter::Responses(writer) => writer.say(said, out),
        }
    }

    /// The text is complete. `stop` is the place of the stop string that ended it.
    pub fn finish(&mut self, ending: Ending, stop: Option<usize>, out: &mut BytesMut) {
        match self {
            AnswerWriter::Messages(writer) => writer.finish(ending, stop, out),
            // It has no stop strings.
            AnswerWriter::Responses(writer) => writer.finish(ending, out),
        }
    }

    /// The counts are known: writes the rest of a stream, or the whole answer.
    pub fn end(&mut self, usage: Usage, out: &mut BytesMut) {
        match self {
            AnswerWriter::Messages(writer) => writer.end(usage, out),
            AnswerWriter::Responses(writer) => writer.end(usage, out),
        }
    }

    /// The answer ends with an error. Only a stream has a place for it; a whole answer is replaced by it.
    pub fn fail(&mut self, failure: &Failure<'_>, out: &mut BytesMut) {
        match self {
            AnswerWriter::Messages(writer) => writer.fail(failure, out),
            AnswerWriter::Responses(writer) => writer.fail(failure, out),
        }
    }
}
