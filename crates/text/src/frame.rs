//! What a tokenizer puts around every text: as tokenizer.json has it, and as tokenizer_config.json changes it.

use crate::tokenizer_config::content;
use serde_json::Value;
use tokenizers::Tokenizer;

/// Classes of transformers 4 that make the frame from the two flags of tokenizer_config.json, whatever tokenizer.json
/// says (`update_post_processor` in models/llama/tokenization_llama_fast.py and its two copies); each has a twin whose
/// name ends in `Fast`. transformers 5 drops the flags where there is a tokenizer.json.
const FRAMED_BY_FLAGS: [&str; 3] = ["LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"];

/// What a tokenizer puts around every text.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    /// Such as a beginning-of-sequence token.
    pub(crate) before: Vec<u32>,
    /// Such as an end-of-sequence token.
    pub(crate) behind: Vec<u32>,
}

impl Frame {
    /// What the tokenizer adds to a text, found out by showing it one.
    pub(crate) fn of(tokenizer: &Tokenizer) -> tokenizers::Result<Frame> {
        const PROBE: &str = "a";
        let bare = tokenizer.encode_fast(PROBE, false)?;
        let framed = tokenizer.encode_fast(PROBE, true)?;
        let (bare, framed) = (bare.get_ids(), framed.get_ids());
        let width = bare.len().max(1);
        let at = framed.windows(width).position(|window| window == bare).filter(|_| !bare.is_empty());
        // A tokenizer that knows no letter shows its frame alone, which is taken to be a beginning.
        let at = at.unwrap_or(framed.len());
        let behind = framed.get(at + bare.len()..).unwrap_or_default();
        Ok(Frame { before: framed[..at].to_vec(), behind: behind.to_vec() })
    }
}

/// What tokenizer_config.json says. Tokens are strings there, or objects with their `content`.
#[derive(Debug, Default)]
pub(crate) struct Configured {
    begin: Option<String>,
    pub(crate) end: Option<String>,
    adds_begin: Option<bool>,
    adds_end: Option<bool>,
    /// The class is one of [`FRAMED_BY_FLAGS`].
    is_framed_by_flags: bool,
}

impl Configured {
    /// What these keys say.
    pub(crate) fn of(config: &Value) -> Configured {
        let token = |name: &str| Some(content(config.get(name)?)?.to_owned());
        let flag = |name: &str| config.get(name).and_then(Value::as_bool);
        let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
        Configured {
            begin: token("bos_token"),
            end: token("eos_token"),
            adds_begin: flag("add_bos_token"),
            adds_end: flag("add_eos_token"),
            is_framed_by_flags: FRAMED_BY_FLAGS.contains(&class.strip_suffix("Fast").unwrap_or(class)),
        }
    }

    /// Changes the frame as the flags say, and gives what of them is not followed, for the operator. Older files say
    /// here what newer ones have in tokenizer.json.
    pub(crate) fn apply(&self, frame: &mut Frame, id_of: impl Fn(&str) -> Option<u32>) -> Vec<String> {
        let Frame { before, behind } = frame;
        let mut ignored = Vec::new();
        for (flag, is_added, name, token, place) in [
            ("add_bos_token", self.adds_begin, "bos_token", &self.begin, before),
            ("add_eos_token", self.adds_end, "eos_token", &self.end, behind),
        ] {
            match (is_added, place.is_empty()) {
                (Some(true), true) => match token.as_deref().and_then(&id_of) {
                    Some(id) => place.push(id),
                    None => ignored.push(format!("{flag} is true, but the vocabulary has no {name}")),
                },
                (Some(false), false) if self.is_framed_by_flags => place.clear(),
                (Some(false), false) => ignored.push(format!(
                    "{flag} is false, but tokenizer.json adds tokens there, which counts for this tokenizer_class"
                )),
                (Some(true), false) | (Some(false), true) | (None, _) => {}
            }
        }
        ignored
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn applied(config: Value, before: &[u32], behind: &[u32]) -> (Vec<u32>, Vec<u32>, Vec<String>) {
        let mut frame = Frame { before: before.to_vec(), behind: behind.to_vec() };
        let id_of =
            |token: &str| ["<s>", "</s>"].iter().position(|known| *known == token).map(|id| id as u32);
        let ignored = Configured::of(&config).apply(&mut frame, id_of);
        (frame.before, frame.behind, ignored)
    }

    #[test]
    fn the_flags_fill_what_tokenizer_json_leaves_empty() {
        let tokens = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}});
        let with = |begin: Value, end: Value| {
            let mut config = tokens.clone();
            (config["add_bos_token"], config["add_eos_token"]) = (begin, end);
            applied(config, &[], &[])
        };
        assert_eq!(with(json!(true), json!(true)), (vec![0], vec![1], vec![]));
        assert_eq!(with(json!(false), json!(true)), (vec![], vec![1], vec![]));
        assert_eq!(with(json!(true), json!(null)), (vec![0], vec![], vec![]));
        assert_eq!(with(json!("true"), json!(1)), (vec![], vec![], vec![]));
        let both = json!({"add_bos_token": true, "add_eos_token": true, "eos_token": "<|none|>"});
        let reasons = [
            "add_bos_token is true, but the vocabulary has no bos_token",
            "add_eos_token is true, but the vocabulary has no eos_token",
        ];
        assert_eq!(applied(both.clone(), &[], &[]), (vec![], vec![], reasons.map(str::to_owned).to_vec()));
        assert_eq!(applied(both, &[7], &[8]), (vec![7], vec![8], vec![]));
    }

    #[test]
    fn false_empties_the_frame_of_classes_that_are_framed_by_flags() {
        for (class, is_emptied) in [
            ("LlamaTokenizer", true),
            ("LlamaTokenizerFast", true),
            ("CodeLlamaTokenizerFast", true),
            ("GemmaTokenizer", true),
            ("PreTrainedTokenizerFast", false),
            ("Qwen2Tokenizer", false),
            ("", false),
        ] {
            let config = json!({"tokenizer_class": class, "add_bos_token": false, "add_eos_token": false});
            let (before, behind, ignored) = applied(config, &[0], &[1]);
            assert_eq!((before.is_empty(), behind.is_empty()), (is_emptied, is_emptied), "{class}");
            assert_eq!(ignored.len(), if is_emptied { 0 } else { 2 }, "{class}: {ignored:?}");
            let silent = applied(json!({"tokenizer_class": class}), &[0], &[1]);
            assert_eq!(silent, (vec![0], vec![1], vec![]), "{class}");
        }
    }
}
