//! The layers of a decoder: products of ours or of libtorch's, and our kernels between them.

use crate::kv_cache::{KvCache, Tables};
use crate::load::ModelOptions;
use crate::rotation::Rotations;
use crate::weights::{Layer, Norm};
use pinion_architecture::{Activation, Architecture, NormKind};
use pinion_ops::attention::{Attend, Launch};
use pinion_ops::layer::{self, AttentionPlan};
use pinion_ops::product::Product;
use pinion_ops::rows::{GateActivation, LayerNorm, RmsNorm, RmsOrder};
use pinion_ops::tensor::TensorError;
use pinion_ops::{AttentionKernel, Dtype, Matrix};

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
}

/// What a step computes on the way; each layer overwrites what the one before it left, and the memory is kept.
#[derive(Debug)]
pub(crate) struct Activations {
    /// \[tokens, hidden\], what goes from layer to layer.
    pub(crate) hidden: Matrix,
    /// Rows of `hidden` for the head or the pooling.
    pub(crate) chosen: Matrix,
    /// \[rows, hidden\], behind a norm.
    pub(crate) normed: Matrix,
    /// \[rows, vocab\], of the head.
    pub(crate) scores: Matrix,
    /// \[tokens, (heads + 2 * KV heads) * head_dim\]: Q, K, V side by side.
    qkv: Matrix,
    /// \[tokens, heads * head_dim\].
    attended: Matrix,
    /// \[tokens, inner\], or gate and up side by side \[tokens, 2 * inner\].
    inner: Matrix,
    /// \[tokens, inner\], behind the gate.
    gated: Matrix,
    /// \[tokens, hidden\], what a norm or a factor changes before it is added.
    added: Matrix,
}

impl Activations {
    /// Of a model that computes in this dtype.
    pub(crate) fn new(dtype: Dtype) -> Self {
        let one = || Matrix::new(dtype);
        Self {
            hidden: one(),
            chosen: one(),
            normed: one(),
            scores: one(),
            qkv: one(),
            attended: one(),
            inner: one(),
            gated: one(),
            added: one(),
        }
    }
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
    ) -> Self {
        let (kernel, split_contexts) = (options.attention, options.split_contexts);
        Self { model, dtype, cache, rotations, kernel, split_contexts, launch }
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

    /// Before the first layer: the factor on embeddings `[tokens, hidden]`, and the step's rotations.
    pub(crate) fn begin(&mut self, hidden: &mut Matrix, positions: &[i64]) {
        if let Some(factor) = self.model.embedding_multiplier {
            hidden.scale(self.rounded(factor));
        }
        self.rotations.fill(positions);
    }

    fn rounded(&self, value: f32) -> f32 {
        match self.dtype {
            Dtype::F32 => value,
            Dtype::Bf16 => half::bf16::from_f32(value).to_f32(),
        }
    }

    /// The norm of each row of `x`.
    pub(crate) fn norm(&self, x: &Matrix, norm: &Norm, out: &mut Matrix) -> Result<(), TensorError> {
        match norm {
            Norm::Layer { weight, bias } => {
                let norm = LayerNorm { weight, bias, epsilon: self.model.norm.epsilon as f32 };
                layer::layer_norm(x, &norm, out, self.launch)?;
            }
            Norm::Rms(weight) => layer::rms_norm(x, &self.rms(weight), out, self.launch)?,
        }
        Ok(())
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
        activations: &mut Activations,
        tables: &Tables<'_>,
    ) -> Result<(), TensorError> {
        let Activations { hidden, normed, qkv, attended, inner, gated, added, .. } = activations;
        weights.qkv.forward(self.normed(hidden, weights.attention_norm.as_ref(), normed)?, qkv)?;
        self.place(layer, weights, qkv)?;
        let plan = self.plan(layer);
        self.cache.attend(layer, tables, qkv, attended, plan)?;
        self.add((&weights.out, attended), weights.attention_post_norm.as_ref(), hidden, (added, normed))?;
        weights.up.forward(self.normed(hidden, weights.mlp_norm.as_ref(), normed)?, inner)?;
        let mut product: &Matrix = inner;
        if self.model.mlp.gated {
            let activation = match self.model.mlp.activation {
                Activation::Silu => GateActivation::Silu,
                Activation::GeluTanh => GateActivation::GeluTanh,
                Activation::GeluErf => GateActivation::GeluErf,
            };
            layer::gate(inner, activation, gated, self.launch)?;
            product = gated;
        }
        self.add((&weights.down, product), weights.mlp_post_norm.as_ref(), hidden, (added, normed))
    }

    /// The norm of `hidden` in `room`, or `hidden` itself where there is none.
    fn normed<'a>(
        &self,
        hidden: &'a Matrix,
        norm: Option<&Norm>,
        room: &'a mut Matrix,
    ) -> Result<&'a Matrix, TensorError> {
        let Some(norm) = norm else { return Ok(hidden) };
        self.norm(hidden, norm, room)?;
        Ok(room)
    }

    /// Norms on queries and keys, and their rotation, in place.
    fn place(&self, index: usize, weights: &Layer, qkv: &mut Matrix) -> Result<(), TensorError> {
        let (attention, q_width) = (&self.model.attention, self.model.query_width() as usize);
        let kv_width = self.model.kv_width() as usize;
        let parts = [(&weights.q_norm, 0, q_width), (&weights.k_norm, q_width, kv_width)];
        for (weight, column, width) in parts {
            if let Some(weight) = weight {
                layer::rms_norm_columns(qkv, column, width / weight.len(), &self.rms(weight), self.launch)?;
            }
        }
        let Some(rotary) = self.model.layers[index].rotary else { return Ok(()) };
        let heads = (attention.heads + attention.kv_heads) as usize;
        let rotation = self.rotations.of(rotary);
        Ok(layer::rotate_columns(qkv, heads, attention.head_dim as usize, rotation, self.launch)?)
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

    /// Adds a product to `hidden`, behind a norm or a factor if there is one; both need room of their own.
    fn add(
        &self,
        (linear, x): (&Product, &Matrix),
        post_norm: Option<&Norm>,
        hidden: &mut Matrix,
        (mut added, normed): (&mut Matrix, &mut Matrix),
    ) -> Result<(), TensorError> {
        let factor = self.model.residual_multiplier;
        if post_norm.is_none() && factor.is_none() {
            return linear.forward_add(x, hidden);
        }
        linear.forward(x, added)?;
        if let Some(norm) = post_norm {
            self.norm(added, norm, normed)?;
            added = normed;
        }
        if let Some(factor) = factor {
            added.scale(factor);
        }
        Ok(hidden.add(added)?)
    }
}
