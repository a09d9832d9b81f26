//! What the fake model must answer.

use pinion_model::fake_token;
use pinion_text::{ChatRenderer, StopMatcher, TextCodec, TextStream};
use std::path::Path;

/// The text of ids that go on with a prompt.
pub fn continued(codec: &TextCodec, ids: &[u32]) -> String {
    let (mut stream, mut text) = (TextStream::continuing(codec), String::new());
    ids.iter().for_each(|id| stream.push(codec, *id, &mut text));
    stream.finish(codec, &mut text);
    text
}

/// The fake model's answers over the tokenizer of one model folder.
pub struct Oracle {
    codec: TextCodec,
    chat: ChatRenderer,
    vocab_size: u32,
    eos: Option<u32>,
}

impl Oracle {
    /// Over the tokenizer.json and config.json of a folder.
    pub fn of(folder: &Path) -> Oracle {
        let codec = TextCodec::load(folder).expect("the kit's tokenizer loads");
        let chat = ChatRenderer::load(folder).expect("the kit's chat template loads, if it has one");
        let text =
            std::fs::read_to_string(folder.join("config.json")).expect("the kit's config.json is there");
        let config: serde_json::Value = serde_json::from_str(&text).expect("the kit's config.json is JSON");
        let number = |name: &str| config[name].as_u64().and_then(|n| u32::try_from(n).ok());
        let vocab_size = number("vocab_size").expect("the kit's config.json has a vocab_size");
        Oracle { codec, chat, vocab_size, eos: number("eos_token_id") }
    }

    /// Ids of a text prompt.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.codec.encode(text, 1 << 20).expect("test prompts encode")
    }

    /// Ids of a chat, given as the API's `messages`.
    pub fn encode_chat(&self, messages: &serde_json::Value) -> Vec<u32> {
        let chat = serde_json::json!({ "messages": messages }).to_string();
        let rendered = self.chat.render(&chat, 0).expect("test chats render");
        self.encode(&rendered.text)
    }

    /// The first `count` generated ids.
    pub fn ids(&self, prompt_ids: &[u32], count: usize) -> Vec<u32> {
        (0..count as u64).map(|index| fake_token(prompt_ids, index, self.vocab_size, self.eos)).collect()
    }

    /// The text of the first `count` generated ids.
    pub fn text(&self, prompt_ids: &[u32], count: usize) -> String {
        self.codec.decode_all(&self.ids(prompt_ids, count))
    }

    /// Text of any ids.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.codec.decode_all(ids)
    }

    /// The text up to the first stop string, and whether there is one.
    pub fn stopped(&self, text: &str, stops: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops.iter().copied());
        let mut out = String::new();
        matcher.push(text, &mut out);
        let found = matcher.finish(&mut out);
        (out, found)
    }
}
