//! Logprobs in OpenAI's two shapes: lists side by side for completions, one entry per token for chats.
//!
//! A token that is a part of a character shows as U+FFFD; `bytes` has what it really is.

use super::Shape;
use pinion_protocol::scores::{Score, TokenScore};
use serde::ser::{Serialize, Serializer};
use std::borrow::Cow;

/// The scores of consecutive tokens, as one answer or chunk has them.
#[derive(Debug, serde::Serialize)]
#[serde(untagged)]
pub enum Logprobs<'a> {
    /// `logprobs` of a chat's choice.
    Chat {
        /// One entry for each token.
        content: Vec<Entry<'a>>,
        /// Always null.
        refusal: Option<()>,
    },
    /// `logprobs` of a completion's choice.
    Completions {
        /// Characters before each token, from the beginning of the text.
        text_offset: Vec<usize>,
        /// Each token's logprob.
        token_logprobs: Vec<f32>,
        /// The tokens.
        tokens: Vec<Cow<'a, str>>,
        /// The likeliest at each token's place.
        top_logprobs: Vec<Alternatives<'a>>,
    },
}

/// A token of a chat.
#[derive(Debug, serde::Serialize)]
pub struct Entry<'a> {
    token: Cow<'a, str>,
    logprob: f32,
    bytes: &'a [u8],
    top_logprobs: Vec<Alternative<'a>>,
}

#[derive(Debug, serde::Serialize)]
struct Alternative<'a> {
    token: Cow<'a, str>,
    logprob: f32,
    bytes: &'a [u8],
}

/// Tokens and logprobs as an object, likeliest first; of tokens that show the same the likeliest stays.
#[derive(Debug)]
pub struct Alternatives<'a>(Vec<(Cow<'a, str>, f32)>);

impl<'a> Alternatives<'a> {
    /// The drawn token is always in it, as with OpenAI: one entry more than asked for if it is none of the likeliest.
    fn of(score: &'a TokenScore) -> Alternatives<'a> {
        let mut all: Vec<(Cow<'a, str>, f32)> = Vec::with_capacity(score.alternatives.len() + 1);
        for score in score.alternatives.iter().chain([&score.drawn]) {
            let text = text(score);
            if all.iter().all(|(other, _)| *other != text) {
                all.push((text, score.logprob));
            }
        }
        Alternatives(all)
    }
}

impl Serialize for Alternatives<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

fn text(score: &Score) -> Cow<'_, str> {
    String::from_utf8_lossy(&score.bytes)
}

fn alternative(score: &Score) -> Alternative<'_> {
    Alternative { token: text(score), logprob: score.logprob, bytes: &score.bytes }
}

fn entry(score: &TokenScore) -> Entry<'_> {
    Entry {
        token: text(&score.drawn),
        logprob: score.drawn.logprob,
        bytes: &score.drawn.bytes,
        top_logprobs: score.alternatives.iter().map(alternative).collect(),
    }
}

/// Renders scores. `offset` is the number of characters before the first token; it moves on behind the last.
pub fn logprobs<'a>(shape: Shape, scores: &'a [TokenScore], offset: &mut usize) -> Logprobs<'a> {
    let tokens: Vec<_> = scores.iter().map(|score| text(&score.drawn)).collect();
    let behind = |token: &Cow<'_, str>| {
        let begin = *offset;
        *offset += token.chars().count();
        begin
    };
    let text_offset = tokens.iter().map(behind).collect();
    match shape {
        Shape::Chat => Logprobs::Chat { content: scores.iter().map(entry).collect(), refusal: None },
        Shape::Completions => Logprobs::Completions {
            text_offset,
            token_logprobs: scores.iter().map(|score| score.drawn.logprob).collect(),
            tokens,
            top_logprobs: scores.iter().map(Alternatives::of).collect(),
        },
    }
}
