//! APIs that are translations of a chat: a body becomes the body of `/v1/chat/completions`, and what the model says
//! becomes the events or the answer that clients of that API expect.
//!
//! Pure: no socket, no clock, no shared memory. [`messages`] is Anthropic's API, [`responses`] OpenAI's later one. A
//! request's side turns a body into a chat; the answer's side is a [`Teller`], which takes what the model says piece by
//! piece and writes the same answer whether it leaves as a stream or whole. Start there.

pub mod answer;
pub mod escape;
pub mod json;
pub mod limits;
pub mod messages;
mod object;
pub mod responses;
mod shared;

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
pub enum Teller {
    /// `/v1/messages`.
    Messages(messages::Teller),
    /// `/v1/responses`.
    Responses(responses::Teller),
}

impl Teller {
    /// Whether the answer leaves piece by piece.
    pub fn streams(&self) -> bool {
        match self {
            Teller::Messages(teller) => teller.streams(),
            Teller::Responses(teller) => teller.streams(),
        }
    }

    /// Tells the counts of the prompt, as far as they are known before the first piece.
    pub fn count_prompt(&mut self, prompt_tokens: u32, cached_tokens: u32) {
        match self {
            Teller::Messages(teller) => teller.count_prompt(prompt_tokens, cached_tokens),
            // It tells all counts at its end.
            Teller::Responses(_) => {}
        }
    }

    /// Takes a piece of what the model says.
    pub fn say(&mut self, said: Said<'_>, out: &mut BytesMut) {
        match self {
            Teller::Messages(teller) => teller.say(said, out),
            Teller::Responses(teller) => teller.say(said, out),
        }
    }

    /// The text is complete. `stop` is the place of the stop string that ended it.
    pub fn finish(&mut self, ending: Ending, stop: Option<usize>, out: &mut BytesMut) {
        match self {
            Teller::Messages(teller) => teller.finish(ending, stop, out),
            // It has no stop strings.
            Teller::Responses(teller) => teller.finish(ending, out),
        }
    }

    /// The counts are known: writes the rest of a stream, or the whole answer.
    pub fn end(&mut self, usage: Usage, out: &mut BytesMut) {
        match self {
            Teller::Messages(teller) => teller.end(usage, out),
            Teller::Responses(teller) => teller.end(usage, out),
        }
    }

    /// The answer ends with an error. Only a stream has a place for it; a whole answer is replaced by it.
    pub fn fail(&mut self, failure: &Failure<'_>, out: &mut BytesMut) {
        match self {
            Teller::Messages(teller) => teller.fail(failure, out),
            Teller::Responses(teller) => teller.fail(failure, out),
        }
    }
}
