//! One layer on the device: what the CPU's `layers` does, with the residual sum one norm behind.

use super::forward::{Forward, Kind};
use super::inputs::Layout;
use super::weights::{Layer, Linear, Norm};
use pinion_architecture::{Activation, NormKind};
use pinion_cuda::{
    Append, Attention, BiasActivation, CudaActivation, CudaError, Gate, GateActivation, GeneralAttention,
    Prefill, Product, ProductMethod, Rms, RmsOrder, Rope, Span, Stream, TokenBatch,
};

/// The query tokens of a step, and where the inputs have their lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepPart {
    pub(super) batch: TokenBatch,
    pub(super) layout: Layout,
    pub(super) kind: Kind,
}

/// What is still to be added to the residual stream: `delta`, and the bias of the product that made it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    bias: Option<Span>,
}

fn order_of(kind: NormKind) -> RmsOrder {
    match kind {
        NormKind::Layer | NormKind::Rms => RmsOrder::RoundFirst,
        NormKind::RmsWide => RmsOrder::RoundLast,
        NormKind::RmsOnePlus => RmsOrder::OnePlus,
    }
}

impl Forward {
    /// The sum of the layer before joins with the first norm; this layer's own is pending when it returns.
    pub(super) fn layer(
        &self,
        stream: &Stream,
        index: usize,
        layer: &Layer,
        before: Option<Pending>,
        step: &StepPart,
    ) -> Result<Pending, CudaError> {
        let (memory, tokens) = (&self.memory, step.batch.tokens);
        let normed = self.add_norm(stream, tokens, before, layer.attention_norm.as_ref())?;
        self.linear(stream, tokens, &layer.qkv, normed, memory.qkv, CudaActivation::None)?;
        self.place(stream, index, layer, step)?;
        self.attend(stream, index, step)?;
        self.make_delta(stream, tokens, &layer.out, memory.attended, layer.attention_post_norm.as_ref())?;
        let attended = self.pending(&layer.out, layer.attention_post_norm.as_ref());
        let normed = self.add_norm(stream, tokens, Some(attended), layer.mlp_norm.as_ref())?;
        let inner = self.up(stream, tokens, layer, normed)?;
        self.make_delta(stream, tokens, &layer.down, inner, layer.mlp_post_norm.as_ref())?;
        Ok(self.after(layer))
    }

    /// What a layer leaves to be added.
    pub(super) fn after(&self, layer: &Layer) -> Pending {
        self.pending(&layer.down, layer.mlp_post_norm.as_ref())
    }

    /// Whether something stands between a product and the residual sum, so that the bias joins before it.
    fn is_finished_apart(&self, post_norm: Option<&Norm>) -> bool {
        post_norm.is_some() || self.shape.model.residual_multiplier.is_some()
    }

    fn pending(&self, linear: &Linear, post_norm: Option<&Norm>) -> Pending {
        Pending { bias: linear.bias.filter(|_| !self.is_finished_apart(post_norm)) }
    }

    /// delta = linear(x), normed and multiplied if the model does that. Otherwise the bias joins with the sum.
    fn make_delta(
        &self,
        stream: &Stream,
        tokens: u32,
        linear: &Linear,
        x: Span,
        post_norm: Option<&Norm>,
    ) -> Result<(), CudaError> {
        let delta = self.memory.delta;
        if !self.is_finished_apart(post_norm) {
            return stream.product(&self.product(tokens, linear, x, delta));
        }
        self.linear(stream, tokens, linear, x, delta, CudaActivation::None)?;
        if let Some(norm) = post_norm {
            self.norm(stream, tokens, norm, delta, delta)?;
        }
        match self.shape.model.residual_multiplier {
            Some(factor) => self.multiply(stream, tokens, delta, factor),
            None => Ok(()),
        }
    }

    /// The first product of the MLP with its activation or gate; gives where the result is.
    fn up(&self, stream: &Stream, tokens: u32, layer: &Layer, normed: Span) -> Result<Span, CudaError> {
        let (memory, mlp) = (&self.memory, &self.shape.model.mlp);
        self.linear(stream, tokens, &layer.up, normed, memory.inner, self.shape.product_activation())?;
        if !mlp.gated {
            return Ok(memory.inner);
        }
        stream.gate(&Gate {
            x: memory.inner,
            out: memory.gated,
            rows: tokens,
            width: mlp.inner,
            dtype: self.dtype,
            activation: match mlp.activation {
                Activation::Silu => GateActivation::Silu,
                Activation::GeluTanh => GateActivation::GeluTanh,
                Activation::GeluErf => GateActivation::GeluErf,
            },
        })?;
        Ok(memory.gated)
    }

    /// y = activation(x . weight^T + bias).
    fn linear(
        &self,
        stream: &Stream,
        tokens: u32,
        linear: &Linear,
        x: Span,
        y: Span,
        activation: CudaActivation,
    ) -> Result<(), CudaError> {
        let args = self.product(tokens, linear, x, y);
        if self.fused_products {
            return stream.product(&Product { bias: linear.bias, activation, ..args });
        }
        stream.product(&args)?;
        let launch = |bias, activation| {
            let (rows, width, dtype) = (tokens, linear.outputs, self.dtype);
            stream.bias_activation(&BiasActivation { x: y, bias, rows, width, dtype, activation })
        };
        if linear.bias.is_some() {
            launch(linear.bias, CudaActivation::None)?;
        }
        match activation {
            CudaActivation::None => Ok(()),
            activation => launch(None, activation),
        }
    }

    /// y = x . weight^T.
    fn product(&self, tokens: u32, linear: &Linear, x: Span, y: Span) -> Product {
        Product {
            x,
            weight: linear.weight,
            bias: None,
            y,
            m: tokens,
            n: linear.outputs,
            k: linear.inputs,
            dtype: self.dtype,
            y_dtype: self.dtype,
            activation: CudaActivation::None,
            method: ProductMethod::Auto,
            accumulate: false,
            candidates: self.candidates,
        }
    }

    /// residual += what is pending; then its norm, if there is one. Gives where that is.
    pub(super) fn add_norm(
        &self,
        stream: &Stream,
        tokens: u32,
        before: Option<Pending>,
        norm: Option<&Norm>,
    ) -> Result<Span, CudaError> {
        let (residual, normed) = (self.memory.residual, self.memory.normed);
        if let (Some(before), Some(&Norm::Layer { weight, bias }), true) = (before, norm, self.fused_norms) {
            let whole = self.layer_norm(tokens, weight, Some(bias), residual, Some(normed));
            stream.norm(&with_sum(whole, self.memory.delta, before))?;
            return Ok(normed);
        }
        self.add(stream, tokens, before)?;
        let Some(norm) = norm else { return Ok(residual) };
        self.norm(stream, tokens, norm, residual, normed)?;
        Ok(normed)
    }

    /// residual += what is pending, and nothing else.
    pub(super) fn add(&self, stream: &Stream, tokens: u32, before: Option<Pending>) -> Result<(), CudaError> {
        let Some(before) = before else { return Ok(()) };
        // Without an output the weight is named and not read.
        let sum = self.layer_norm(tokens, self.memory.delta, None, self.memory.residual, None);
        stream.norm(&with_sum(sum, self.memory.delta, before))
    }

    /// out = norm(x), both `[rows, hidden]`.
    pub(super) fn norm(
        &self,
        stream: &Stream,
        rows: u32,
        norm: &Norm,
        x: Span,
        out: Span,
    ) -> Result<(), CudaError> {
        match *norm {
            Norm::Layer { weight, bias } => {
                stream.norm(&self.layer_norm(rows, weight, Some(bias), x, Some(out)))
            }
            Norm::Rms(weight) => {
                let hidden = self.shape.model.hidden;
                stream.rms(&Rms { out, ..self.rms_columns(rows, x, (weight, hidden), 1, hidden) })
            }
        }
    }

    fn layer_norm(
        &self,
        rows: u32,
        weight: Span,
        bias: Option<Span>,
        x: Span,
        out: Option<Span>,
    ) -> pinion_cuda::Norm {
        pinion_cuda::Norm {
            x,
            delta: None,
            delta_bias: None,
            weight,
            bias,
            out,
            rows,
            width: self.shape.model.hidden,
            epsilon: self.shape.model.norm.epsilon as f32,
            dtype: self.dtype,
            kind: pinion_cuda::NormKind::Layer,
        }
    }

    /// Norms in place on `groups` groups of columns of rows that are `stride` wide.
    fn rms_columns(&self, rows: u32, x: Span, (weight, width): (Span, u32), groups: u32, stride: u32) -> Rms {
        Rms {
            x,
            weight,
            out: x,
            rows,
            groups,
            width,
            x_stride: stride,
            out_stride: stride,
            epsilon: self.shape.model.norm.epsilon as f32,
            dtype: self.dtype,
            order: order_of(self.shape.model.norm.kind),
        }
    }

    /// Norms on queries and keys, and their rotation, in place.
    fn place(&self, stream: &Stream, index: usize, layer: &Layer, step: &StepPart) -> Result<(), CudaError> {
        let (model, batch, qkv) = (&self.shape.model, &step.batch, self.memory.qkv);
        let (q_width, kv_width, stride) = (model.query_width(), model.kv_width(), self.shape.qkv_width());
        let parts = [(layer.q_norm, 0, q_width), (layer.k_norm, q_width, kv_width)];
        for (norm, column, width) in parts {
            if let Some(weight) = norm {
                let x = qkv.from(column as usize * self.dtype.size());
                stream.rms(&self.rms_columns(batch.tokens, x, weight, width / weight.1, stride))?;
            }
        }
        let Some(rotary) = model.layers[index].rotary else { return Ok(()) };
        let angles = self.weights.angles[rotary];
        stream.rope(&Rope {
            x: qkv,
            positions: batch.positions,
            angles: angles.table,
            tokens: batch.tokens,
            heads: batch.heads + batch.kv_heads,
            head_dim: batch.head_dim,
            dim: angles.dim,
            stride,
            positions_max: self.shape.max_context,
            dtype: self.dtype,
        })
    }

    /// Attention between the two products, for one layer.
    fn attend(&self, stream: &Stream, index: usize, step: &StepPart) -> Result<(), CudaError> {
        let (memory, model, batch) = (&self.memory, &self.shape.model, step.batch);
        let cache = self.cache.layer(index);
        let column = |width: u32| memory.qkv.from(width as usize * self.dtype.size());
        let (q_width, stride) = (model.query_width(), self.shape.qkv_width());
        let (k, v) = (column(q_width), column(q_width + model.kv_width()));
        let mut args = Attention {
            batch,
            q: memory.qkv,
            q_stride: stride,
            append: None,
            cache,
            out: memory.attended,
            out_stride: q_width,
            queries: None,
            split: None,
            scale: model.layers[index].scale,
        };
        let is_general = self.shape.is_general(index);
        if step.kind == Kind::Decode && !is_general {
            args.split = self.split(batch.tokens);
            args.append = Some((k, v, stride));
            return stream.attention(&args);
        }
        stream.kv_append(&Append { batch, k, v, cache, stride })?;
        let filled = match step.kind {
            Kind::Decode => return stream.general_attention(&self.general(index, &args)),
            Kind::Mixed(filled) => filled,
        };
        if filled.singles > 0 {
            let queries = memory.inputs.part(step.layout.token_array(3), 4 * filled.singles as usize);
            args.queries = Some((queries, filled.singles));
            if is_general {
                stream.general_attention(&self.general(index, &args))?;
            } else {
                args.split = self.split(filled.singles);
                stream.attention(&args)?;
            }
        }
        if filled.tiles > 0 {
            stream.prefill_attention(&Prefill {
                batch,
                q: args.q,
                q_stride: stride,
                cache,
                out: args.out,
                out_stride: args.out_stride,
                tiles: memory.inputs.part(step.layout.tiles(), 8 * filled.tiles as usize),
                count: filled.tiles,
                scale: args.scale,
            })?;
        }
        Ok(())
    }

    /// The same attention by the general kernel.
    fn general(&self, index: usize, args: &Attention) -> GeneralAttention {
        GeneralAttention {
            batch: args.batch,
            q: args.q,
            q_stride: args.q_stride,
            cache: args.cache,
            out: args.out,
            out_stride: args.out_stride,
            queries: args.queries,
            window: self.shape.window(index),
            scale: args.scale,
            soft_cap: self.shape.model.attention.soft_cap,
        }
    }
}

/// The norm, after the sum that is pending in `delta`.
fn with_sum(norm: pinion_cuda::Norm, delta: Span, before: Pending) -> pinion_cuda::Norm {
    pinion_cuda::Norm { delta: Some(delta), delta_bias: before.bias, ..norm }
}
