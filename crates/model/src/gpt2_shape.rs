//! GPT-2's sizes, from a Hugging Face folder's config.json: what every device's model starts from.

use crate::config_json::ConfigJson;
use crate::load::LoadError;
use pinion_ops::Activation;
use pinion_ops::attention::MAX_HEAD_DIM;
use std::path::Path;

/// Sizes of a GPT-2, checked. Mirrors `GPT2Config` in transformers' models/gpt2/configuration_gpt2.py.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Gpt2Shape {
    pub(crate) hidden: u32,
    pub(crate) heads: u32,
    pub(crate) layers: u32,
    pub(crate) inner: u32,
    pub(crate) positions: u32,
    pub(crate) vocab: u32,
    pub(crate) epsilon: f64,
    pub(crate) activation: Activation,
    tied: bool,
    scaled: bool,
    scaled_by_layer: bool,
}

impl Gpt2Shape {
    pub(crate) fn of(config: &ConfigJson, folder: &Path) -> Result<Self, LoadError> {
        let fail = |reason: String| LoadError::Config { path: folder.join("config.json"), reason };
        if let Some(model_type) = config.model_type.as_deref().filter(|&model_type| model_type != "gpt2") {
            return Err(fail(format!("model_type is {model_type:?}; this build knows \"gpt2\"")));
        }
        let size = |name: &str, value: Option<u32>| match value {
            Some(value) if (1..=1 << 20).contains(&value) => Ok(value),
            Some(value) => Err(fail(format!("{name} is {value}, expected 1 to 2^20"))),
            None => Err(fail(format!("{name} is missing"))),
        };
        let hidden = size("n_embd", config.n_embd)?;
        let heads = size("n_head", config.n_head)?;
        if hidden % heads != 0 || (hidden / heads) as usize > MAX_HEAD_DIM {
            return Err(fail(format!(
                "n_embd {hidden} does not split into n_head {heads} heads of at most {MAX_HEAD_DIM}"
            )));
        }
        let activation = match config.activation_function.as_deref() {
            // `ACT2FN` in transformers' activations.py; gelu_fast is the same function, written otherwise.
            None | Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Activation::GeluTanh,
            Some("gelu") => Activation::GeluErf,
            Some(other) => return Err(fail(format!("activation_function {other:?} is not supported"))),
        };
        Ok(Self {
            hidden,
            heads,
            layers: size("n_layer", config.n_layer)?,
            inner: size("n_inner", config.n_inner.or(Some(4 * hidden)))?,
            positions: size("n_positions", config.max_context())?,
            vocab: config.vocab_size,
            epsilon: config.layer_norm_epsilon.unwrap_or(1e-5),
            activation,
            tied: config.tie_word_embeddings.unwrap_or(true),
            scaled: config.scale_attn_weights.unwrap_or(true),
            scaled_by_layer: config.scale_attn_by_inverse_layer_idx.unwrap_or(false),
        })
    }

    /// Whether the head is the token embedding.
    pub(crate) fn is_tied(&self) -> bool {
        self.tied
    }

    pub(crate) fn head_dim(&self) -> u32 {
        self.hidden / self.heads
    }

    /// Factor on the scores of a layer. Mirrors `GPT2Attention.__init__` and `eager_attention_forward`.
    pub(crate) fn score_scale(&self, layer: u32) -> f32 {
        let by_dim = if self.scaled { 1.0 / (self.head_dim() as f32).sqrt() } else { 1.0 };
        if self.scaled_by_layer { by_dim / (layer + 1) as f32 } else { by_dim }
    }
}
