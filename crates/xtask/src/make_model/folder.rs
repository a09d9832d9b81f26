//! A model's folder: the files beside the weights, and all of them written.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::tokenizer;
use super::vocabulary::Vocabulary;
use super::weights::{self, Filling, Plan};

/// Everything about a model but the numbers.
pub(super) struct Model {
    pub config: Value,
    pub generation: Value,
    pub tokenizer_config: Value,
    pub tokenizer: Tokenizer,
    pub plan: Plan,
}

/// Where tokenizer.json comes from.
pub(super) enum Tokenizer {
    Gpt2,
    Bytes,
    Cut(Vocabulary),
}

impl Tokenizer {
    fn write(&self, path: &Path) -> Result<(), String> {
        let cannot = |error: &dyn std::fmt::Display| format!("tokenizer.json: {error}");
        match self {
            Self::Gpt2 => {
                println!("tokenizer: GPT-2's, rebuilt from the ranks of the tiktoken-rs crate");
                tokenizer::gpt2()?.save(path, false).map_err(|error| cannot(&error))
            }
            Self::Bytes => {
                println!("tokenizer: a token for each byte");
                fs::write(path, pinion_text::byte_tokenizer_json()).map_err(|error| cannot(&error))
            }
            Self::Cut(vocabulary) => {
                println!(
                    "tokenizer: the first {} ranks of o200k and the family's special tokens",
                    vocabulary.ordinary
                );
                fs::write(path, vocabulary.tokenizer_json()?).map_err(|error| cannot(&error))
            }
        }
    }
}

impl Model {
    pub(super) fn write(&self, out: &Path, filling: Filling) -> Result<(), String> {
        fs::create_dir_all(out).map_err(|error| format!("cannot make {}: {error}", out.display()))?;
        self.tokenizer.write(&out.join("tokenizer.json"))?;
        let files = [
            ("tokenizer_config.json", &self.tokenizer_config),
            ("config.json", &self.config),
            ("generation_config.json", &self.generation),
        ];
        for (name, value) in files {
            fs::write(out.join(name), format!("{value:#}\n")).map_err(|error| format!("{name}: {error}"))?;
        }
        weights::write(out, &self.plan, filling)
    }
}
