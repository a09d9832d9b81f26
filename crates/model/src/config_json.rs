//! The parts of a Hugging Face `config.json` that Pinion reads.

use crate::load::LoadError;
use serde::Deserialize;
use std::path::Path;

/// `eos_token_id` is one id or a list of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum EosIds {
    One(u32),
    Many(Vec<u32>),
}

/// Raw fields as they stand in the file; names of the GPT-2 family and their Llama-family synonyms where the fake needs
/// them. See `GPT2Config` in transformers' `models/gpt2/configuration_gpt2.py`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ConfigJson {
    pub(crate) model_type: Option<String>,
    pub(crate) vocab_size: u32,
    eos_token_id: Option<EosIds>,
    pub(crate) n_embd: Option<u32>,
    pub(crate) n_head: Option<u32>,
    pub(crate) n_layer: Option<u32>,
    pub(crate) n_inner: Option<u32>,
    n_positions: Option<u32>,
    n_ctx: Option<u32>,
    max_position_embeddings: Option<u32>,
    pub(crate) layer_norm_epsilon: Option<f64>,
    pub(crate) activation_function: Option<String>,
    pub(crate) tie_word_embeddings: Option<bool>,
    pub(crate) scale_attn_weights: Option<bool>,
    pub(crate) scale_attn_by_inverse_layer_idx: Option<bool>,
}

impl ConfigJson {
    pub(crate) fn read(folder: &Path) -> Result<Self, LoadError> {
        let path = folder.join("config.json");
        let fail = |reason: String| LoadError::Config { path: path.clone(), reason };
        let text = std::fs::read_to_string(&path).map_err(|error| fail(error.to_string()))?;
        let config: Self = serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
        if config.vocab_size < 2 {
            return Err(fail(format!("vocab_size is {}, expected at least 2", config.vocab_size)));
        }
        Ok(config)
    }

    /// The first end-of-sequence id that lies in the vocabulary.
    pub(crate) fn eos(&self) -> Option<u32> {
        let first = match self.eos_token_id.as_ref()? {
            EosIds::One(id) => Some(*id),
            EosIds::Many(ids) => ids.first().copied(),
        };
        first.filter(|&id| id < self.vocab_size)
    }

    /// Longest sequence in tokens, under whichever name the file has it.
    pub(crate) fn max_context(&self) -> Option<u32> {
        self.n_positions.or(self.n_ctx).or(self.max_position_embeddings).filter(|&length| length > 0)
    }
}
