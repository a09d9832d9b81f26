//! The layers of a decoder on libtorch.

use crate::kv_cache::{KvCache, Tables};
use crate::load::{LoadError, ModelOptions};
use crate::rotation::Rotations;
use crate::weights::{Layer, Norm};
use pinion_architecture::{Activation, Architecture, NormKind};
use pinion_ops::attention::{Attend, Launch};
use pinion_ops::rows::{GateActivation, RmsNorm, RmsOrder};
use pinion_ops::tensor::{self, AttentionPlan, TensorError, kind_of};
use pinion_ops::{AttentionKernel, Dtype};
use tch::{Device, Tensor};

/// What the layers run with, apart from their weights.
#[derive(Debug)]
pub(crate) struct Layers {
    model: Architecture,
    dtype: Dtype,
    cache: KvCache,
    rotations: Rotations,
    kernel: AttentionKernel,
    split_contexts: bool,
    launch: Launch,
    /// Attention output of one layer, `[capacity, heads * head_dim]`, overwritten by each.
    attended: Tensor,
}

fn order_of(kind: NormKind) -> RmsOrder {
    match kind {
        NormKind::Layer | NormKind::Rms => RmsOrder::RoundFirst,
        NormKind::RmsWide => RmsOrder::RoundLast,
        NormKind::RmsOnePlus => RmsOrder::OnePlus,
    }
}

impl Layers {
    pub(crate) fn new(
        model: Architecture,
        dtype: Dtype,
        cache: KvCache,
        rotations: Rotations,
        options: &ModelOptions,
        launch: Launch,
    ) -> Result<Self, LoadError> {
        let size = [1, i64::from(model.query_width())];
        let attended = Tensor::f_empty(size, (kind_of(dtype), Device::Cpu)).map_err(|error| {
            let message = TensorError::from(error).message;
            LoadError::Backend { operation: "allocating activations", message }
        })?;
        let (kernel, split_contexts) = (options.attention, options.split_contexts);
        Ok(Self { model, dtype, cache, rotations, kernel, split_contexts, launch, attended })
    }

    pub(crate) fn model(&self) -> &Architecture {
        &self.model
    }

    pub(crate) fn cache(&self) -> &KvCache {
        &self.cache
    }

    pub(crate) fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    /// Before the first layer: the factor on embeddings `[tokens, hidden]`, the step's rotations, and room.
    pub(crate) fn begin(&mut self, hidden: &mut Tensor, positions: &[i64]) -> Result<(), TensorError> {
        if let Some(factor) = self.model.embedding_multiplier {
            let _ = hidden.f_mul_scalar_(f64::from(self.rounded(factor)))?;
        }
        self.rotations.fill(positions);
        if self.attended.size()[0] < positions.len() as i64 {
            let size = [positions.len().next_power_of_two() as i64, i64::from(self.model.query_width())];
            self.attended = Tensor::f_empty(size, (kind_of(self.dtype), Device::Cpu))?;
        }
        Ok(())
    }

    fn rounded(&self, value: f32) -> f32 {
        match self.dtype {
            Dtype::F32 => value,
            Dtype::Bf16 => half::bf16::from_f32(value).to_f32(),
        }
    }

    pub(crate) fn norm(&self, x: &Tensor, norm: &Norm) -> Result<Tensor, TensorError> {
        match norm {
            Norm::Layer { weight, bias } => {
                let axes = [i64::from(self.model.hidden)];
                Ok(x.f_layer_norm(axes, Some(weight), Some(bias), self.model.norm.epsilon, false)?)
            }
            Norm::Rms(weight) => tensor::rms_norm(x, &self.rms(weight), self.launch),
        }
    }

    fn rms<'a>(&self, weight: &'a [f32]) -> RmsNorm<'a> {
        let order = order_of(self.model.norm.kind);
        RmsNorm { weight, epsilon: self.model.norm.epsilon as f32, order }
    }

    /// One layer: hidden `[tokens, hidden]` in and out.
    pub(crate) fn layer(
        &mut self,
        layer: usize,
        weights: &Layer,
        hidden: Tensor,
        tables: &Tables<'_>,
    ) -> Result<Tensor, TensorError> {
        let normed = self.normed(&hidden, weights.attention_norm.as_ref())?;
        // [tokens, (heads + 2 * kv_heads) * head_dim]: Q, K, V side by side
        let mut qkv = weights.qkv.forward(&normed)?;
        self.place(layer, weights, &mut qkv)?;
        // [tokens, heads * head_dim]
        let mut attended = self.attended.f_narrow(0, 0, tables.tokens() as i64)?;
        let plan = self.plan(layer);
        self.cache.attend(layer, tables, &qkv, &mut attended, plan)?;
        let hidden = self.add(&weights.out, &attended, hidden, weights.attention_post_norm.as_ref())?;
        let normed = self.normed(&hidden, weights.mlp_norm.as_ref())?;
        // [tokens, inner], or gate and up side by side [tokens, 2 * inner]
        let mut inner = weights.up.forward(&normed)?;
        if self.model.mlp.gated {
            let activation = match self.model.mlp.activation {
                Activation::Silu => GateActivation::Silu,
                Activation::GeluTanh => GateActivation::GeluTanh,
                Activation::GeluErf => GateActivation::GeluErf,
            };
            inner = tensor::gate(&inner, activation, self.launch)?;
        }
        self.add(&weights.down, &inner, hidden, weights.mlp_post_norm.as_ref())
    }

    fn normed(&self, hidden: &Tensor, norm: Option<&Norm>) -> Result<Tensor, TensorError> {
        norm.map_or_else(|| Ok(hidden.shallow_clone()), |norm| self.norm(hidden, norm))
    }

    /// Norms on queries and keys, and their rotation, in place.
    fn place(&self, layer: usize, weights: &Layer, qkv: &mut Tensor) -> Result<(), TensorError> {
        let (attention, q_width) = (&self.model.attention, self.model.query_width() as usize);
        let kv_width = self.model.kv_width() as usize;
        let parts = [(&weights.q_norm, 0, q_width), (&weights.k_norm, q_width, kv_width)];
        for (weight, column, width) in parts {
            if let Some(weight) = weight {
                tensor::rms_norm_columns(qkv, column, width / weight.len(), &self.rms(weight), self.launch)?;
            }
        }
        let Some(rotary) = self.model.layers[layer].rotary else { return Ok(()) };
        let heads = (attention.heads + attention.kv_heads) as usize;
        let rotation = self.rotations.of(rotary);
        tensor::rotate_columns(qkv, heads, attention.head_dim as usize, rotation, self.launch)
    }

    fn plan(&self, layer: usize) -> AttentionPlan {
        let (model, each) = (&self.model, &self.model.layers[layer]);
        let attend = Attend {
            heads: model.attention.heads as usize,
            scale: each.scale,
            window: each.window,
            soft_cap: model.attention.soft_cap,
            split_contexts: self.split_contexts,
        };
        AttentionPlan { kernel: self.kernel, launch: self.launch, attend }
    }

    /// hidden + linear(x), with a norm or a factor between the two if there is one.
    fn add(
        &self,
        linear: &pinion_ops::product::Product,
        x: &Tensor,
        hidden: Tensor,
        post_norm: Option<&Norm>,
    ) -> Result<Tensor, TensorError> {
        let factor = self.model.residual_multiplier;
        if post_norm.is_none() && factor.is_none() {
            return linear.forward_add(x, &hidden);
        }
        let mut added = linear.forward(x)?;
        if let Some(norm) = post_norm {
            added = self.norm(&added, norm)?;
        }
        if let Some(factor) = factor {
            let _ = added.f_mul_scalar_(f64::from(factor))?;
        }
        Ok(added.f_add_(&hidden)?)
    }
}
