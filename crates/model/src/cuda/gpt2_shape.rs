//! GPT-2's sizes. The device's forward does not interpret the whole architecture yet: it runs what GPT-2 is and refuses
//! the rest.

use crate::config_json;
use crate::load::LoadError;
use pinion_architecture::{Architecture, Layer, Position};
use pinion_ops::Activation;
use std::path::Path;

/// Sizes of a GPT-2.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Gpt2Shape {
    pub(super) hidden: u32,
    pub(super) heads: u32,
    pub(super) layers: u32,
    pub(super) inner: u32,
    pub(super) positions: u32,
    pub(super) vocab: u32,
    pub(super) epsilon: f64,
    pub(super) activation: Activation,
    tied: bool,
    each: Vec<Layer>,
}

impl Gpt2Shape {
    pub(super) fn of(model: &Architecture, folder: &Path) -> Result<Self, LoadError> {
        let Position::Learned { count: positions } = model.position else {
            let reason =
                format!("model_type {:?} is not supported on CUDA yet; use --device cpu", model.family);
            return Err(config_json::fault(folder, reason));
        };
        Ok(Self {
            hidden: model.hidden,
            heads: model.attention.heads,
            layers: model.layers.len() as u32,
            inner: model.mlp.inner,
            positions,
            vocab: model.vocab,
            epsilon: model.norm.epsilon,
            activation: match model.mlp.activation {
                pinion_architecture::Activation::GeluTanh => Activation::GeluTanh,
                pinion_architecture::Activation::GeluErf => Activation::GeluErf,
                pinion_architecture::Activation::Silu => {
                    return Err(config_json::fault(
                        folder,
                        "activation_function silu is not supported".into(),
                    ));
                }
            },
            tied: model.head.tied,
            each: model.layers.clone(),
        })
    }

    /// Whether the head is the token embedding.
    pub(super) fn is_tied(&self) -> bool {
        self.tied
    }

    pub(super) fn head_dim(&self) -> u32 {
        self.hidden / self.heads
    }

    /// Factor on the scores of a layer.
    pub(super) fn score_scale(&self, layer: u32) -> f32 {
        self.each[layer as usize].scale
    }
}
