//! Logprobs in OpenAI's two shapes: lists side by side for completions, one entry per token for chats.
//!
//! A token that is a part of a character shows as U+FFFD; `bytes` has what it really is. Besides, vLLM's
//! `prompt_logprobs`: an object of token ids for each token of the prompt.

use super::Shape;
use super::TokenStyle;
use crate::answers::prompt_part::{ShownText, chars_begun};
use pinion_protocol::prompt_scores::PromptScore;
use pinion_protocol::scores::{Score, TokenScore};
use serde::ser::SerializeMap;
use serde::ser::{Serialize, Serializer};
use std::borrow::Cow;

impl TokenStyle {
    fn text(self, score: &Score) -> Cow<'_, str> {
        if self.as_ids { format!("token_id:{}", score.token).into() } else { text(score) }
    }

    /// Characters that a token adds to the answer's text.
    fn chars(self, score: &Score) -> usize {
        if score.special && !self.special { 0 } else { chars_begun(&score.bytes) }
    }
}

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
    fn of(score: &'a TokenScore, most: usize, style: TokenStyle) -> Alternatives<'a> {
        let mut all: Vec<(Cow<'a, str>, f32)> = Vec::with_capacity(score.alternatives.len() + 1);
        for score in score.alternatives.iter().take(most).chain([&score.drawn]) {
            let text = style.text(score);
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

fn alternative(score: &Score, style: TokenStyle) -> Alternative<'_> {
    Alternative { token: style.text(score), logprob: score.logprob, bytes: &score.bytes }
}

fn entry(score: &TokenScore, style: TokenStyle) -> Entry<'_> {
    Entry {
        token: style.text(&score.drawn),
        logprob: score.drawn.logprob,
        bytes: &score.drawn.bytes,
        top_logprobs: score.alternatives.iter().map(|score| alternative(score, style)).collect(),
    }
}

/// Renders scores. `offset` is the number of characters before the first token; it moves on behind the last.
pub fn logprobs<'a>(
    shape: Shape,
    scores: &'a [TokenScore],
    offset: &mut usize,
    style: TokenStyle,
) -> Logprobs<'a> {
    match shape {
        Shape::Chat => {
            let content = scores.iter().map(|score| entry(score, style)).collect();
            Logprobs::Chat { content, refusal: None }
        }
        Shape::Completions => {
            let mut lists = Lists::default();
            for score in scores {
                lists.push((score, true, usize::MAX), *offset, style);
                *offset += style.chars(&score.drawn);
            }
            lists.into()
        }
    }
}

/// The same for a completion that begins with tokens of its prompt, each with a number of others at most. `text` begins
/// with what they show, and has a number of characters before it.
pub fn echoed<'a>(
    (prompt, alternatives): (&'a [PromptScore], usize),
    scores: &'a [TokenScore],
    (text, mut offset): (&str, usize),
    style: TokenStyle,
) -> Logprobs<'a> {
    let (mut lists, mut shown) = (Lists::default(), ShownText::new(text, offset == 0));
    for PromptScore { rank, score } in prompt {
        lists.push((score, rank.is_some(), alternatives), offset, style);
        offset += shown.pass(&score.drawn);
    }
    for score in scores {
        lists.push((score, true, usize::MAX), offset, style);
        offset += style.chars(&score.drawn);
    }
    lists.into()
}

/// What completions have side by side.
#[derive(Default)]
struct Lists<'a> {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<Cow<'a, str>>,
    top_logprobs: Vec<Option<Alternatives<'a>>>,
}

impl<'a> Lists<'a> {
    fn push(
        &mut self,
        (score, is_scored, most): (&'a TokenScore, bool, usize),
        offset: usize,
        style: TokenStyle,
    ) {
        self.text_offset.push(offset);
        self.tokens.push(style.text(&score.drawn));
        self.token_logprobs.push(is_scored.then_some(score.drawn.logprob));
        self.top_logprobs.push(is_scored.then(|| Alternatives::of(score, most, style)));
    }
}

impl<'a> From<Lists<'a>> for Logprobs<'a> {
    fn from(Lists { text_offset, token_logprobs, tokens, top_logprobs }: Lists<'a>) -> Logprobs<'a> {
        Logprobs::Completions { text_offset, token_logprobs, tokens, top_logprobs }
    }
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
