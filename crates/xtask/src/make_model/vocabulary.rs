//! A family's vocabulary: ordinary tokens of a real BPE, cut to the family's number, and the family's special tokens at
//! the family's ids.
//!
//! The ordinary tokens are the first ranks of o200k, which the tiktoken-rs crate carries: each token is merged from
//! earlier ones, so any number of first ranks is a vocabulary of its own. Texts are split as GPT-2 splits them.

use serde_json::{Map, Value, json};

use super::tokenizer::{byte_characters, ordinary_tokens, recover_merges};

/// Tokens of o200k that are made of text.
const RANKS: usize = 199_998;
const BYTES: usize = 256;

pub(super) struct Vocabulary {
    /// Special tokens with the first ids.
    pub first: Vec<String>,
    /// Ordinary tokens behind them.
    pub ordinary: usize,
    /// Special tokens with the last ids.
    pub last: Vec<String>,
    /// Put before each text, unless the caller does not want it.
    pub bos: Option<&'static str>,
}

impl Vocabulary {
    /// A special token's id.
    pub(super) fn id(&self, token: &str) -> usize {
        let at = |list: &[String]| list.iter().position(|known| known == token);
        let last = || at(&self.last).map(|index| self.first.len() + self.ordinary + index);
        at(&self.first).or_else(last).expect("a family asks for its own special tokens")
    }

    pub(super) fn size(&self) -> usize {
        self.first.len() + self.ordinary + self.last.len()
    }

    /// The text of tokenizer.json.
    pub(super) fn tokenizer_json(&self) -> Result<String, String> {
        if !(BYTES..=RANKS).contains(&self.ordinary) {
            return Err(format!("{} ordinary tokens are not between {BYTES} and {RANKS}", self.ordinary));
        }
        let ranks = tiktoken_rs::o200k_base().map_err(|error| format!("o200k ranks: {error}"))?;
        let tokens = ordinary_tokens(&ranks, self.ordinary as u32);
        let merges = recover_merges(&tokens);
        if merges.len() != self.ordinary - BYTES {
            return Err(format!("{} merges make {} tokens", merges.len(), self.ordinary));
        }
        let characters = byte_characters();
        let spelled =
            |bytes: &[u8]| bytes.iter().map(|&byte| characters[usize::from(byte)]).collect::<String>();
        let texts = self.first.iter().cloned().chain(tokens.iter().map(|token| spelled(token)));
        let vocabulary: Map<String, Value> = texts
            .chain(self.last.iter().cloned())
            .zip(0..)
            .map(|(token, id): (String, u32)| (token, Value::from(id)))
            .collect();
        if vocabulary.len() != self.size() {
            return Err("a special token is spelled like an ordinary one".to_owned());
        }
        let merges: Vec<Value> =
            merges.iter().map(|(left, right)| json!([spelled(left), spelled(right)])).collect();
        let byte_level = |trim| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": trim, "use_regex": true});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
            "added_tokens": self.added(),
            "pre_tokenizer": byte_level(true), "decoder": byte_level(true), "post_processor": self.post_processor(),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocabulary, "merges": merges,
            },
        });
        Ok(tokenizer.to_string())
    }

    fn added(&self) -> Vec<Value> {
        let entry = |token: &String| {
            // What a chat's text may show: the marks of tools, thoughts and files.
            let is_text = ["tool_call", "tool_response", "think", "fim_", "repo_name", "file_sep"];
            let special = !is_text.iter().any(|part| token.contains(part));
            json!({
                "id": self.id(token), "content": token, "special": special, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        };
        self.first.iter().chain(&self.last).map(entry).collect()
    }

    fn post_processor(&self) -> Value {
        let Some(bos) = self.bos else {
            return json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
        };
        let token = json!({"SpecialToken": {"id": bos, "type_id": 0}});
        let sequence = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
        json!({
            "type": "TemplateProcessing",
            "single": [token, sequence("A", 0)],
            "pair": [token, sequence("A", 0), sequence("B", 1)],
            "special_tokens": {bos: {"id": bos, "ids": [self.id(bos)], "tokens": [bos]}},
        })
    }
}

/// `count` names made of a number.
pub(super) fn numbered(
    name: impl Fn(usize) -> String,
    from: usize,
    count: usize,
) -> impl Iterator<Item = String> {
    (from..from + count).map(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::Tokenizer;

    #[test]
    fn a_cut_vocabulary_encodes_every_text_and_keeps_the_special_ids() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let vocabulary = Vocabulary {
            first: names(&["<pad>", "<bos>"]),
            ordinary: 3000,
            last: names(&["<end>"]),
            bos: Some("<bos>"),
        };
        let tokenizer: Tokenizer = vocabulary.tokenizer_json().unwrap().parse().unwrap();
        assert_eq!(tokenizer.get_vocab_size(true), 3003);
        for token in ["<pad>", "<bos>", "<end>"] {
            assert_eq!(tokenizer.token_to_id(token), Some(vocabulary.id(token) as u32), "{token}");
        }
        let text = "The quick brown fox, 12345 + 敏捷的狐狸 👍🏽\n\n  indented";
        let ids = tokenizer.encode(text, true).unwrap().get_ids().to_vec();
        assert_eq!((ids[0], ids.iter().all(|id| *id < 3003)), (1, true));
        assert!(ids.len() < text.len(), "merges are used");
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
        let chat = tokenizer.encode(format!("{text}<end>"), false).unwrap().get_ids().to_vec();
        assert_eq!((&chat[..chat.len() - 1], chat[chat.len() - 1]), (&ids[1..], 3002));
    }
}
