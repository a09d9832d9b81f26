//! Logprobs in OpenAI's two shapes: lists side by side for completions, one entry per token for chats.
//!
//! A token that is a part of a character shows as U+FFFD; `bytes` has what it really is. Besides, vLLM's
//! `prompt_logprobs`: an object of token ids for each token of the prompt.

use super::Shape;
use crate::answers::prompt_part::chars_begun;
use pinion_protocol::prompt_scores::PromptScore;
use pinion_protocol::scores::{Score, TokenScore};
use serde::ser::SerializeMap;
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
        /// Characters before each token, from the beginning of the text: those that begin in the tokens before it.
        text_offset: Vec<usize>,
        /// Each token's logprob; null for the first token of a prompt.
        token_logprobs: Vec<Option<f32>>,
        /// The tokens.
        tokens: Vec<Cow<'a, str>>,
        /// The likeliest at each token's place; null for the first token of a prompt.
        top_logprobs: Vec<Option<Alternatives<'a>>>,
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
    fn of(score: &'a TokenScore, most: usize) -> Alternatives<'a> {
        let mut all: Vec<(Cow<'a, str>, f32)> = Vec::with_capacity(score.alternatives.len() + 1);
        for score in score.alternatives.iter().take(most).chain([&score.drawn]) {
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
    match shape {
        Shape::Chat => Logprobs::Chat { content: scores.iter().map(entry).collect(), refusal: None },
        Shape::Completions => echoed(&[], 0, scores, offset),
    }
}

/// The same for a completion that begins with tokens of its prompt, each with `alternatives` others at most.
pub fn echoed<'a>(
    prompt: &'a [PromptScore],
    alternatives: usize,
    scores: &'a [TokenScore],
    offset: &mut usize,
) -> Logprobs<'a> {
    let of_prompt = prompt.iter().map(|prompt| (&prompt.score, prompt.rank.is_some(), alternatives));
    let all = of_prompt.chain(scores.iter().map(|score| (score, true, usize::MAX)));
    let (mut text_offset, mut token_logprobs, mut tokens, mut top_logprobs) =
        (vec![], vec![], vec![], vec![]);
    for (score, is_scored, most) in all {
        text_offset.push(*offset);
        *offset += chars_begun(&score.drawn.bytes);
        tokens.push(text(&score.drawn));
        token_logprobs.push(is_scored.then_some(score.drawn.logprob));
        top_logprobs.push(is_scored.then(|| Alternatives::of(score, most)));
    }
    Logprobs::Completions { text_offset, token_logprobs, tokens, top_logprobs }
}

/// vLLM's `prompt_logprobs`: null for the first token, then an object for each.
#[derive(Debug, serde::Serialize)]
#[serde(transparent)]
pub struct PromptLogprobs<'a>(Vec<Option<Ranked<'a>>>);

/// A prompt's token, then the likeliest at its place, by their ids.
#[derive(Debug)]
struct Ranked<'a> {
    rank: u32,
    score: &'a TokenScore,
    most: usize,
}

#[derive(serde::Serialize)]
struct RankedEntry<'a> {
    logprob: f32,
    rank: u32,
    decoded_token: Cow<'a, str>,
}

impl Serialize for Ranked<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let drawn = &self.score.drawn;
        let mut put = |score: &Score, rank| {
            let value = RankedEntry { logprob: score.logprob, rank, decoded_token: text(score) };
            map.serialize_entry(&score.token, &value)
        };
        put(drawn, self.rank)?;
        for (rank, score) in (1..).zip(self.score.alternatives.iter().take(self.most)) {
            if score.token != drawn.token {
                put(score, rank)?;
            }
        }
        map.end()
    }
}

/// Renders the scores of a whole prompt, with `alternatives` others beside each token at most.
pub fn prompt_logprobs(prompt: &[PromptScore], alternatives: usize) -> PromptLogprobs<'_> {
    let entries = prompt
        .iter()
        .map(|prompt| prompt.rank.map(|rank| Ranked { rank, score: &prompt.score, most: alternatives }));
    PromptLogprobs(entries.collect())
}
