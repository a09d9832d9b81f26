//! The tokens of a prompt, and the form in which they are sent.
//!
//! A trace has only lengths and, some of them, ids of prefix blocks. With [`Source::Blocks`] equal ids give equal
//! tokens, so a prefix cache finds what it would have found in the original traffic, and no more; prompts of a trace
//! without ids share nothing. As text, a prompt is made of words that the model's tokenizer gives back one to one.

use crate::random::Random;
use crate::trace::Row;
use clap::ValueEnum;
use pinion_text::TextCodec;
use serde_json::Value;
use std::path::Path;

/// Streams of random numbers, one per purpose, so that none shifts another.
const BLOCK_STREAM: u64 = 1 << 40;
const OWN_STREAM: u64 = 1 << 41;
const BASE_STREAM: u64 = 1 << 42;
/// Fewer words than this would make prompts too alike.
const WORDS_MIN: usize = 16;

/// The context of the model in this folder, by its config.json.
pub(crate) fn context_of(folder: &Path) -> Result<u32, String> {
    let path = folder.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let made = if folder.ends_with("target/models/gpt2-124m") {
            "; `cargo xtask make-model gpt2` makes it"
        } else {
            ""
        };
        format!("{}: cannot be read: {error}{made}", path.display())
    })?;
    let config: Value =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let found = ["n_positions", "max_position_embeddings"].iter().find_map(|name| config[*name].as_u64());
    let tokens = found.and_then(|tokens| u32::try_from(tokens).ok());
    tokens.ok_or_else(|| format!("{} does not say how long the context is: say --context N", path.display()))
}

/// Where the tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// From the trace's block ids; random where it has none.
    Blocks,
    /// Random for each request: nothing is shared.
    Random,
    /// Every prompt is a beginning of one and the same text, as in the seed project's benchmark: a prefix cache then
    /// finds nearly everything. For comparison with its numbers only.
    OneText,
}

/// How a prompt is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// As an array of token ids.
    Ids,
    /// As text, for servers that take no ids.
    Text,
}

impl Form {
    /// As results have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Form::Ids => "ids",
            Form::Text => "text",
        }
    }
}

/// Makes prompts.
pub(crate) struct Prompts {
    source: Source,
    form: Form,
    seed: u64,
    /// The ids to draw from.
    alphabet: Vec<u32>,
    codec: Option<TextCodec>,
}

impl Prompts {
    /// `folder` holds the model's tokenizer.json; without it ids are drawn below `vocab`.
    pub(crate) fn new(
        source: Source,
        form: Form,
        seed: u64,
        folder: Option<&Path>,
        vocab: Option<u32>,
    ) -> Result<Prompts, String> {
        let load = |folder| TextCodec::load(folder).map_err(|error| error.to_string());
        let codec = folder.map(load).transpose()?;
        let alphabet = match (form, &codec, vocab) {
            (Form::Text, None, _) => return Err("--prompt-form text needs --tokenizer DIR".to_owned()),
            (Form::Text, Some(codec), _) => words(codec)?,
            (Form::Ids, None, None) => {
                return Err("token ids need --tokenizer DIR or --vocab N".to_owned());
            }
            // Without a tokenizer the last id is left out: it is where GPT-2's end of text stands.
            (Form::Ids, None, Some(vocab)) => (0..vocab.saturating_sub(1)).collect(),
            (Form::Ids, Some(codec), vocab) => {
                let most = vocab.unwrap_or(codec.vocab_size());
                (0..most).filter(|id| Some(*id) != codec.eos_id()).collect()
            }
        };
        if alphabet.is_empty() {
            return Err("the vocabulary is empty".to_owned());
        }
        Ok(Prompts { source, form, seed, alphabet, codec })
    }

    /// The first `length` tokens of request `index`.
    pub(crate) fn ids(&self, index: usize, row: &Row, block_tokens: u32, length: u32) -> Vec<u32> {
        let length = length as usize;
        match self.source {
            Source::OneText => self.draw(BASE_STREAM, length),
            Source::Blocks if !row.blocks.is_empty() => {
                let mut ids = Vec::with_capacity(length + block_tokens as usize);
                for block in &row.blocks {
                    if ids.len() >= length {
                        break;
                    }
                    ids.extend(self.draw(BLOCK_STREAM ^ block, block_tokens as usize));
                }
                ids.truncate(length);
                ids
            }
            Source::Blocks | Source::Random => self.draw(OWN_STREAM ^ index as u64, length),
        }
    }

    fn draw(&self, stream: u64, count: usize) -> Vec<u32> {
        let mut random = Random::stream(self.seed, stream);
        (0..count).map(|_| self.alphabet[random.below(self.alphabet.len())]).collect()
    }

    /// The value of a request's `prompt`. Errors: the text would not come back as these tokens.
    pub(crate) fn render(&self, ids: &[u32]) -> Result<Value, String> {
        let (Form::Text, Some(codec)) = (self.form, &self.codec) else { return Ok(Value::from(ids)) };
        let text = codec.decode_all(ids);
        let back = codec.encode(&text, ids.len() + 1).map_err(|error| error.to_string())?;
        if back.len() != ids.len() {
            return Err(format!("a prompt of {} tokens became {} by way of text", ids.len(), back.len()));
        }
        Ok(Value::from(text))
    }
}

/// Ids of words with a blank in front, or else of single letters, that the tokenizer gives back in any order.
fn words(codec: &TextCodec) -> Result<Vec<u32>, String> {
    let letters = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase());
    let comes_back = |id: u32, text: &str| codec.encode(text, 2).is_ok_and(|ids| ids == [id]);
    let (mut words, mut single) = (Vec::new(), Vec::new());
    for id in 0..codec.vocab_size() {
        let text = codec.decode_all(&[id]);
        if text.strip_prefix(' ').is_some_and(letters) && comes_back(id, &text) {
            words.push(id);
        } else if text.len() == 1 && letters(&text) && comes_back(id, &text) {
            single.push(id);
        }
    }
    let found = if words.len() >= WORDS_MIN { words } else { single };
    if found.len() < WORDS_MIN {
        return Err(
            "this tokenizer has too few words that come back as one token; use --prompt-form ids".to_owned()
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 16;

    fn row(input_tokens: u32, blocks: &[u64]) -> Row {
        Row { at_s: 0.0, input_tokens, output_tokens: 1, blocks: blocks.to_vec() }
    }

    fn prompts(source: Source) -> Prompts {
        Prompts::new(source, Form::Ids, 1, None, Some(257)).expect("a vocabulary")
    }

    fn common_prefix(a: &[u32], b: &[u32]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn equal_blocks_are_equal_tokens_and_nothing_else_is() {
        let made = prompts(Source::Blocks);
        let ids = |index, length, blocks: &[u64]| made.ids(index, &row(length, blocks), BLOCK, length);
        let first = ids(0, 40, &[7, 8, 9]);
        assert_eq!(first.len(), 40);
        assert!(first.iter().all(|id| *id < 256));
        // (blocks, tokens in common with the first prompt)
        for (blocks, common) in [([7, 8, 9], 40), ([7, 8, 3], 32), ([7, 1, 9], 16), ([6, 8, 9], 0)] {
            let other = ids(1, 40, &blocks);
            let found = common_prefix(&first, &other);
            assert!((common..common + 2).contains(&found), "{blocks:?}: {found}");
        }
        assert_eq!(ids(5, 20, &[7, 8, 9]), first[..20], "a clamped prompt is a beginning");
        // Without block ids nothing is shared, whatever the lengths.
        assert!(common_prefix(&ids(0, 40, &[]), &ids(1, 40, &[])) < 3);
        assert_eq!(ids(3, 40, &[]), ids(3, 40, &[]), "the same request again");
    }

    #[test]
    fn a_folder_without_a_context_says_which_file_and_why() {
        let folder = std::env::temp_dir().join(format!("pinion-bench-context-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        let missing = context_of(&folder).expect_err("there is no file");
        assert!(missing.contains("config.json: cannot be read"), "{missing}");
        for (text, expected) in [
            ("{\"n_positions\": 512}", Ok(512)),
            ("{\"max_position_embeddings\": 64}", Ok(64)),
            ("{\"n_positions\": -1}", Err("--context")),
            ("{", Err("config.json: ")),
        ] {
            std::fs::write(folder.join("config.json"), text).expect("a file can be written");
            match (context_of(&folder), expected) {
                (Ok(tokens), Ok(wanted)) => assert_eq!(tokens, wanted, "{text}"),
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{text}: {reason}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
        std::fs::remove_dir_all(&folder).expect("the folder is there");
    }

    #[test]
    fn random_prompts_ignore_blocks_and_one_text_shares_all() {
        let random = prompts(Source::Random);
        let same = row(64, &[1, 2, 3, 4]);
        assert!(common_prefix(&random.ids(0, &same, BLOCK, 64), &random.ids(1, &same, BLOCK, 64)) < 3);
        let one = prompts(Source::OneText);
        assert_eq!(one.ids(0, &same, BLOCK, 20), one.ids(1, &same, BLOCK, 64)[..20]);
        let other_seed = Prompts::new(Source::Random, Form::Ids, 2, None, Some(257)).expect("a vocabulary");
        assert_ne!(random.ids(0, &same, BLOCK, 64), other_seed.ids(0, &same, BLOCK, 64));
    }

    #[test]
    fn text_prompts_have_the_right_length() {
        let folder = pinion_testkit::fake_model(64);
        let made = Prompts::new(Source::Random, Form::Text, 1, Some(folder.path()), None).expect("letters");
        let ids = made.ids(0, &row(50, &[]), 0, 50);
        let text = made.render(&ids).expect("letters come back");
        assert_eq!(text.as_str().map(str::len), Some(50), "one byte a token");
        assert!(Prompts::new(Source::Random, Form::Text, 1, None, Some(9)).is_err());
        assert!(Prompts::new(Source::Random, Form::Ids, 1, None, None).is_err());
    }
}
