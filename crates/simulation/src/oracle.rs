//! What the fake model must answer. Its tokens are a pure function of the prompt, so nothing of what happens to a
//! request on its way may change its answer.

use crate::plan::{EOS, PERIOD, VOCABULARY};
use pinion_model::fake_repeating_token;
use pinion_text::{ChatRenderer, StopMatcher, TextCodec, TextStream, byte_tokenizer_json};
use std::path::Path;

/// The tokenizer of all roles.
pub(crate) fn codec() -> TextCodec {
    let path = Path::new("tokenizer.json");
    TextCodec::parse(byte_tokenizer_json().as_bytes(), path).expect("the byte tokenizer parses")
}

/// What ends a text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stops {
    pub(crate) strings: Vec<String>,
    pub(crate) ids: Vec<u32>,
    pub(crate) include: bool,
    pub(crate) max_tokens: u32,
}

/// One choice as its client must get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) text: String,
    pub(crate) tokens: u64,
    pub(crate) reason: &'static str,
}

/// Knows the answers.
pub(crate) struct Oracle {
    codec: TextCodec,
    chat: ChatRenderer,
}

impl Oracle {
    pub(crate) fn new() -> Oracle {
        Oracle { codec: codec(), chat: ChatRenderer::plain() }
    }

    /// Ids of a prompt that is text.
    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        self.codec.encode(text, 1 << 20).expect("bytes encode")
    }

    /// Ids of a chat, given as the API's `messages`.
    pub(crate) fn encode_chat(&self, messages: &serde_json::Value) -> Vec<u32> {
        let chat = serde_json::json!({ "messages": messages }).to_string();
        self.encode(&self.chat.render(&chat, 0).expect("a plain chat renders").text)
    }

    /// The generated ids of a prompt.
    pub(crate) fn ids(&self, prompt: &[u32], count: u32) -> Vec<u32> {
        let token = |index| fake_repeating_token(prompt, index, PERIOD, VOCABULARY, Some(EOS));
        (0..u64::from(count)).map(token).collect()
    }

    /// The whole text of these ids.
    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        self.codec.decode_all(ids)
    }

    /// The answer to a prompt.
    pub(crate) fn answer(&self, prompt: &[u32], stops: &Stops) -> Expected {
        let mut stream = TextStream::new(&self.codec);
        let mut matcher = StopMatcher::new(stops.strings.iter().map(String::as_str)).including(stops.include);
        let (mut text, mut piece, mut tokens) = (String::new(), String::new(), 0);
        let mut reason = "length";
        for token in self.ids(prompt, stops.max_tokens) {
            tokens += 1;
            let ends = stops.ids.contains(&token);
            piece.clear();
            if !ends || stops.include {
                stream.push(&self.codec, token, &mut piece);
                if matcher.push(&piece, &mut text) {
                    return Expected { text, tokens, reason: "stop" };
                }
            }
            if ends {
                reason = "stop";
                break;
            }
        }
        piece.clear();
        stream.finish(&self.codec, &mut piece);
        if matcher.push(&piece, &mut text) || matcher.finish(&mut text) {
            reason = "stop";
        }
        Expected { text, tokens, reason }
    }
}
