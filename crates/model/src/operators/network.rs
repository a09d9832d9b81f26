//! From token ids to logits. Mirrors `LlamaForCausalLM` in transformers' models/llama/modeling_llama.py, and where the
//! architecture says so models/gpt2, gemma2, olmo2 and granite.

use super::attention::{LayerCache, RowPlaces, Rows, queries_at_once};
use super::decoder::{backend, kind_of, tensors_of};
use super::paged::{Kernels, PagedCache, PagedStep, StepWords};
use super::weights::{Angles, Layer, Norm, Weights};
use super::{OperatorOptions, OperatorPrefill};
use crate::batch::{BlockCopy, StepBatch};
use crate::load::LoadError;
use pinion_architecture::{Activation, Architecture, NormKind};
use pinion_ops::tensor::TensorError;
use pinion_ops::tensor_kernels::TensorStream;
use tch::{Device, Kind, Tensor};

/// Weights, cache, and what they are.
#[derive(Debug)]
pub(super) struct Network {
    model: Architecture,
    weights: Weights,
    cache: Cache,
    block_size: i64,
    kind: Kind,
    device: Device,
    prefill: OperatorPrefill,
    kernels: Option<Kernels>,
}

/// Keys and values, laid out for libtorch's operators or for the CUDA object's kernels.
#[derive(Debug)]
enum Cache {
    Rows(Vec<LayerCache>),
    Paged(PagedCache),
}

/// Attention of a layer: its index, `[queries, keys, values]` as `[tokens, heads, head_dim]` each.
type Attend<'a> = dyn FnMut(usize, [&Tensor; 3]) -> Result<Tensor, TensorError> + 'a;

/// A step's batch on the device.
#[derive(Debug)]
pub(super) struct Inputs {
    /// `[tokens]`
    tokens: Tensor,
    positions: Tensor,
    /// The last query token of each row that samples.
    sampled: Option<Tensor>,
    places: Places,
}

/// Where a step's tokens are in the cache.
#[derive(Debug)]
enum Places {
    Rows {
        /// Rows of the cache that the step writes, `[tokens]`.
        written: Tensor,
        rows: Vec<RowPlaces>,
    },
    Paged(StepWords),
}

impl Inputs {
    /// Of a batch that was checked.
    pub(super) fn new(batch: &StepBatch<'_>, network: &Network) -> Result<Self, TensorError> {
        let Some(kernels) = &network.kernels else { return Self::of_rows(batch, network) };
        let words = StepWords::new(batch, kernels, network.device)?;
        Ok(Self {
            tokens: words.tokens.shallow_clone(),
            positions: words.positions.shallow_clone(),
            sampled: words.sampled.as_ref().map(Tensor::shallow_clone),
            places: Places::Paged(words),
        })
    }

    fn of_rows(batch: &StepBatch<'_>, network: &Network) -> Result<Self, TensorError> {
        let on_device = |values: &[i64]| -> Result<Tensor, TensorError> {
            Ok(Tensor::f_from_slice(values)?.f_to_device(network.device)?)
        };
        let widened = |values: &[u32]| values.iter().map(|&value| i64::from(value)).collect::<Vec<i64>>();
        let (mut written, mut sampled, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for row in batch.rows {
            let blocks = &batch.blocks[row.block_range()];
            let place = |position: u32| {
                let (block, within) =
                    (position / network.block_size as u32, position % network.block_size as u32);
                i64::from(blocks[block as usize]) * network.block_size + i64::from(within)
            };
            let context: Vec<i64> = (0..row.context_len).map(place).collect();
            let first = row.context_len - row.query_len;
            written.extend(&context[first as usize..]);
            if row.sample.is_some() {
                sampled.push(i64::from(row.query_start + row.query_len) - 1);
            }
            let context = on_device(&context)?;
            let piece = queries_at_once(network.model.attention.heads, row.context_len);
            for begin in (0..row.query_len).step_by(piece as usize) {
                rows.push(RowPlaces {
                    query_start: i64::from(row.query_start + begin),
                    query_len: i64::from(piece.min(row.query_len - begin)),
                    context: context.shallow_clone(),
                    first: i64::from(first + begin),
                });
            }
        }
        Ok(Self {
            tokens: on_device(&widened(batch.tokens))?,
            positions: on_device(&widened(batch.positions))?,
            sampled: (!sampled.is_empty()).then(|| on_device(&sampled)).transpose()?,
            places: Places::Rows { written: on_device(&written)?, rows },
        })
    }
}

impl Network {
    pub(super) fn new(
        model: Architecture,
        weights: Weights,
        kernels: Option<Kernels>,
        options: &OperatorOptions,
        block_count: u32,
    ) -> Result<Self, LoadError> {
        let mut network = Self {
            model,
            weights,
            cache: Cache::Rows(Vec::new()),
            kernels,
            block_size: i64::from(options.block_size),
            kind: kind_of(options.dtype),
            device: tensors_of(options.device),
            prefill: options.prefill,
        };
        network.take_cache(block_count)?;
        Ok(network)
    }

    /// A cache of this size, zeroed, in place of the one that is there.
    pub(super) fn take_cache(&mut self, block_count: u32) -> Result<(), LoadError> {
        self.cache = Cache::Rows(Vec::new());
        self.cache = self.new_cache(block_count).map_err(backend)?;
        Ok(())
    }

    fn new_cache(&self, block_count: u32) -> Result<Cache, TensorError> {
        let (model, kind, device) = (&self.model, self.kind, self.device);
        if self.kernels.is_some() {
            let cache = PagedCache::new(model, block_count, self.block_size, kind, device)?;
            return Ok(Cache::Paged(cache));
        }
        let rows = i64::from(block_count) * self.block_size;
        let layers = model.layers.iter().map(|_| LayerCache::new(rows, model, kind, device));
        Ok(Cache::Rows(layers.collect::<Result<Vec<_>, _>>()?))
    }

    pub(super) fn copy_block(&mut self, copy: &BlockCopy) -> Result<(), TensorError> {
        let (from, to) = (i64::from(copy.from) * self.block_size, i64::from(copy.to) * self.block_size);
        match &mut self.cache {
            Cache::Paged(cache) => cache.copy(copy),
            Cache::Rows(layers) => {
                layers.iter_mut().try_for_each(|layer| layer.copy(from, to, i64::from(copy.tokens)))
            }
        }
    }

    /// The last layer's output, `[tokens, hidden]`.
    pub(super) fn layers(&mut self, inputs: &Inputs) -> Result<Tensor, TensorError> {
        let weights = &self.weights;
        let mut hidden = weights.token_embedding.f_index_select(0, &inputs.tokens)?;
        if let Some(positions) = &weights.position_embedding {
            hidden = hidden.f_add(&positions.f_index_select(0, &inputs.positions)?)?;
        }
        if let Some(factor) = self.model.embedding_multiplier {
            // The factor is rounded to the activations' type first.
            let factor = Tensor::f_from_slice(&[factor])?.f_to_kind(self.kind)?.f_to_device(self.device)?;
            hidden = hidden.f_mul(&factor)?;
        }
        // [tokens, 1, dim / 2] of each rotation
        let angle = |table: &Tensor| -> Result<Tensor, TensorError> {
            Ok(table.f_index_select(0, &inputs.positions)?.f_unsqueeze(1)?)
        };
        let angles: Result<Vec<Angles>, TensorError> = (weights.angles.iter())
            .map(|table| Ok(Angles { cosines: angle(&table.cosines)?, sines: angle(&table.sines)? }))
            .collect();
        let (angles, model, prefill) = (angles?, &self.model, self.prefill);
        let soft_cap = model.attention.soft_cap;
        let mut through = |attend: &mut Attend<'_>| -> Result<(), TensorError> {
            for (index, layer) in weights.layers.iter().enumerate() {
                let before = std::mem::replace(&mut hidden, Tensor::new());
                hidden = layer_of(model, index, layer, before, &angles, attend)?;
            }
            Ok(())
        };
        match (&mut self.cache, &inputs.places, &self.kernels) {
            (Cache::Rows(layers), Places::Rows { written, rows }, _) => {
                let rows = Rows { places: rows, written, prefill };
                through(&mut |index, [queries, keys, values]| {
                    layers[index].append(&rows, keys, values)?;
                    layers[index].attend(queries, &rows, &model.layers[index], soft_cap)
                })?;
            }
            (Cache::Paged(cache), Places::Paged(words), Some(kernels)) => {
                let step = PagedStep { kernels, cache, words, stream: kernels.stream()? };
                through(&mut |index, qkv| step.attend(index, qkv, model.layers[index].scale, soft_cap))?;
            }
            _ => unreachable!("inputs are made for the cache that there is"),
        }
        Ok(hidden)
    }

    /// The logits of the rows that sample, if there are some.
    pub(super) fn sampled(&self, hidden: &Tensor, inputs: &Inputs) -> Result<Option<Tensor>, TensorError> {
        let Some(sampled) = &inputs.sampled else { return Ok(None) };
        Ok(Some(self.head(&hidden.f_index_select(0, sampled)?)?))
    }

    /// The object's kernels, on libtorch's stream.
    pub(super) fn stream(&self) -> Result<Option<TensorStream>, TensorError> {
        self.kernels.as_ref().map(Kernels::stream).transpose()
    }

    /// The last norm and the head: `[some, hidden]` to fp32 `[some, vocab]`.
    pub(super) fn head(&self, hidden: &Tensor) -> Result<Tensor, TensorError> {
        let (head, norm) = (self.model.head, &self.weights.final_norm);
        let found = self.weights.head.forward(&norm_of(&self.model, hidden, norm)?)?;
        let mut found = found.f_to_kind(Kind::Float)?;
        if let Some(divisor) = head.divisor {
            let _ = found.f_div_scalar_(f64::from(divisor))?;
        }
        if let Some(cap) = head.soft_cap {
            let _ = found.f_div_scalar_(f64::from(cap))?.f_tanh_()?.f_mul_scalar_(f64::from(cap))?;
        }
        Ok(found)
    }
}

/// A norm over the last axis.
fn norm_of(model: &Architecture, x: &Tensor, norm: &Norm) -> Result<Tensor, TensorError> {
    let epsilon = model.norm.epsilon;
    if model.norm.kind == NormKind::Layer {
        let axes = norm.weight.size();
        return Ok(x.f_layer_norm(axes, Some(&norm.weight), norm.bias.as_ref(), epsilon, false)?);
    }
    let wide = x.f_to_kind(Kind::Float)?;
    let mean = wide.f_square()?.f_mean_dim(&[-1i64][..], true, Kind::Float)?;
    let normed = wide.f_mul(&mean.f_add_scalar(epsilon)?.f_rsqrt()?)?;
    Ok(match model.norm.kind {
        NormKind::Layer | NormKind::Rms => normed.f_to_kind(x.kind())?.f_mul(&norm.weight)?,
        // 1 + weight stands in the weight.
        NormKind::RmsWide | NormKind::RmsOnePlus => normed.f_mul(&norm.weight)?.f_to_kind(x.kind())?,
    })
}

fn normed(model: &Architecture, x: &Tensor, norm: Option<&Norm>) -> Result<Tensor, TensorError> {
    norm.map_or_else(|| Ok(x.shallow_clone()), |norm| norm_of(model, x, norm))
}

/// One layer: hidden `[tokens, hidden]` in and out.
fn layer_of(
    model: &Architecture,
    index: usize,
    weights: &Layer,
    hidden: Tensor,
    angles: &[Angles],
    attend: &mut Attend<'_>,
) -> Result<Tensor, TensorError> {
    let (attention, each) = (&model.attention, &model.layers[index]);
    let widths = [model.query_width(), model.kv_width(), model.kv_width()].map(i64::from);
    let qkv = weights.qkv.forward(&normed(model, &hidden, weights.attention_norm.as_ref())?)?;
    let parts = qkv.f_split_with_sizes(widths, 1)?;
    let head_dim = i64::from(attention.head_dim);
    // [tokens, heads, head_dim], normed and rotated
    let place = |part: &Tensor, norm: Option<&Norm>| -> Result<Tensor, TensorError> {
        let per_head = norm.is_some_and(|norm| norm.weight.size()[0] == head_dim);
        let whole = if per_head { part.shallow_clone() } else { normed(model, part, norm)? };
        let mut heads = whole.f_unflatten(1, [-1, head_dim])?;
        if per_head {
            heads = normed(model, &heads, norm)?;
        }
        each.rotary.map_or_else(|| Ok(heads.shallow_clone()), |rotary| rotated(&heads, &angles[rotary]))
    };
    let queries = place(&parts[0], weights.q_norm.as_ref())?;
    let keys = place(&parts[1], weights.k_norm.as_ref())?;
    let attended = attend(index, [&queries, &keys, &parts[2].f_unflatten(1, [-1, head_dim])?])?;
    let hidden = added(model, hidden, weights.out.forward(&attended)?, weights.attention_post_norm.as_ref())?;
    let up = weights.up.forward(&normed(model, &hidden, weights.mlp_norm.as_ref())?)?;
    let activate = |x: &Tensor| match model.mlp.activation {
        Activation::Silu => x.f_silu(),
        Activation::GeluTanh => x.f_gelu("tanh"),
        Activation::GeluErf => x.f_gelu("none"),
    };
    // In fp32, and rounded once.
    let wide = up.f_to_kind(Kind::Float)?;
    let inner = if model.mlp.gated {
        let halves = wide.f_chunk(2, 1)?;
        activate(&halves[0])?.f_mul(&halves[1])?
    } else {
        activate(&wide)?
    };
    let inner = inner.f_to_kind(up.kind())?;
    added(model, hidden, weights.down.forward(&inner)?, weights.mlp_post_norm.as_ref())
}

/// hidden + x, with a norm or a factor on x if there is one.
fn added(
    model: &Architecture,
    hidden: Tensor,
    x: Tensor,
    post_norm: Option<&Norm>,
) -> Result<Tensor, TensorError> {
    let mut x = normed(model, &x, post_norm)?;
    if let Some(factor) = model.residual_multiplier {
        x = x.f_mul_scalar(f64::from(factor))?;
    }
    Ok(hidden.f_add(&x)?)
}

/// The first columns of each head `[tokens, heads, head_dim]`, as `rotate_half` pairs them, by fp32 angles.
fn rotated(heads: &Tensor, angles: &Angles) -> Result<Tensor, TensorError> {
    let (half, head_dim) = (angles.cosines.size()[2], heads.size()[2]);
    let part = |from: i64| heads.f_narrow(2, from, half).and_then(|part| part.f_to_kind(Kind::Float));
    let (first, second) = (part(0)?, part(half)?);
    let (cosines, sines) = (&angles.cosines, &angles.sines);
    let turned = [
        first.f_mul(cosines)?.f_sub(&second.f_mul(sines)?)?.f_to_kind(heads.kind())?,
        second.f_mul(cosines)?.f_add(&first.f_mul(sines)?)?.f_to_kind(heads.kind())?,
        heads.f_narrow(2, 2 * half, head_dim - 2 * half)?,
    ];
    Ok(Tensor::f_cat(&turned, 2)?)
}
