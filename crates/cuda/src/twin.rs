//! The CUDA kernels again in plain Rust, on f32 values that were rounded to the dtype: what they compute, without how.
//! The sampler's twin is `pinion_model`'s sampler.

use super::{CudaActivation, GateActivation, RmsOrder};

/// Twin of the norm: gives the new x and the output, each \[rows, width\]. `round` rounds to the dtype.
#[allow(clippy::too_many_arguments, reason = "the operands of one kernel; a struct would only rename them")]
pub fn norm(
    x: &[f32],
    delta: Option<&[f32]>,
    delta_bias: Option<&[f32]>,
    weight: &[f32],
    bias: Option<&[f32]>,
    epsilon: f32,
    is_rms: bool,
    round: impl Fn(f32) -> f32,
) -> (Vec<f32>, Vec<f32>) {
    let width = weight.len();
    let (mut sums, mut out) = (Vec::new(), Vec::new());
    for (row, values) in x.chunks_exact(width).enumerate() {
        let sum: Vec<f32> = (0..width)
            .map(|i| {
                let more = delta.map_or(0.0, |d| d[row * width + i]) + delta_bias.map_or(0.0, |b| b[i]);
                round(values[i] + more)
            })
            .collect();
        let mean_of = |f: &dyn Fn(f32) -> f64| sum.iter().map(|&value| f(value)).sum::<f64>() / width as f64;
        let mean = if is_rms { 0.0 } else { mean_of(&|value| f64::from(value)) };
        let variance = mean_of(&|value| (f64::from(value) - mean).powi(2));
        let scale = 1.0 / (variance + f64::from(epsilon)).sqrt();
        out.extend((0..width).map(|i| {
            let normed = (f64::from(sum[i]) - mean) * scale * f64::from(weight[i]);
            round((normed + f64::from(bias.map_or(0.0, |b| b[i]))) as f32)
        }));
        sums.extend(sum);
    }
    (sums, out)
}

/// Twin of an activation.
pub fn activate(x: f32, activation: CudaActivation) -> f32 {
    let x = f64::from(x);
    let y = match activation {
        CudaActivation::None => x,
        CudaActivation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
        CudaActivation::GeluErf => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
    };
    y as f32
}

/// erf by its Taylor series for small x and its continued fraction for large: 1e-12 everywhere that a test looks.
fn erf(x: f64) -> f64 {
    if x.abs() > 3.0 {
        let square = x * x;
        let tail = (1..60).rev().fold(0.0, |rest, n| f64::from(n) / 2.0 / (x.abs() + rest));
        return x.signum() * (1.0 - (-square).exp() / (x.abs() + tail) / std::f64::consts::PI.sqrt());
    }
    let mut term = x;
    let mut sum = x;
    for n in 1..80 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    2.0 / std::f64::consts::PI.sqrt() * sum
}

/// Twin of the product: x \[m, k\], weight \[n, k\], result \[m, n\] before rounding.
pub fn product(
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    k: usize,
    activation: CudaActivation,
) -> Vec<f32> {
    let mut y = Vec::new();
    for x in x.chunks_exact(k) {
        for (output, weight) in weight.chunks_exact(k).enumerate() {
            let sum: f64 = x.iter().zip(weight).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let sum = sum + f64::from(bias.map_or(0.0, |bias| bias[output]));
            y.push(activate(sum as f32, activation));
        }
    }
    y
}

/// Twin of the RMS norm of one group. `round` rounds to the dtype.
pub fn rms(x: &[f32], weight: &[f32], epsilon: f32, order: RmsOrder, round: impl Fn(f32) -> f32) -> Vec<f32> {
    let squares: f64 = x.iter().map(|&value| f64::from(value).powi(2)).sum();
    let inverse = 1.0 / (squares / x.len() as f64 + f64::from(epsilon)).sqrt();
    let scaled = x.iter().zip(weight).map(|(&value, &weight)| {
        let normed = (f64::from(value) * inverse) as f32;
        round(match order {
            RmsOrder::RoundFirst => round(normed) * weight,
            RmsOrder::RoundLast => normed * weight,
            RmsOrder::OnePlus => normed * (1.0 + weight),
        })
    });
    scaled.collect()
}

/// Twin of scale and soft cap, before rounding.
pub fn scale(x: f32, factor: f32, divisor: f32, soft_cap: Option<f32>) -> f32 {
    let scaled = f64::from(x) * f64::from(factor) / f64::from(divisor);
    capped(scaled, soft_cap) as f32
}

fn capped(x: f64, soft_cap: Option<f32>) -> f64 {
    soft_cap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh())
}

/// Twin of the gate: x \[rows, 2, width\].
pub fn gate(x: &[f32], width: usize, activation: GateActivation) -> Vec<f32> {
    let activated = |x: f32| match activation {
        GateActivation::Silu => x / (1.0 + (-x).exp()),
        GateActivation::GeluTanh => activate(x, CudaActivation::GeluTanh),
        GateActivation::GeluErf => activate(x, CudaActivation::GeluErf),
    };
    let gated = |pair: &[f32]| -> Vec<f32> {
        let (gate, up) = pair.split_at(width);
        gate.iter().zip(up).map(|(&gate, &up)| activated(gate) * up).collect()
    };
    x.chunks_exact(2 * width).flat_map(gated).collect()
}

/// Twin of the rotation of one head at one position; `angles` is \[dim / 2\] of (cosine, sine), and the columns from
/// `dim` on stay as they are.
pub fn rope(head: &[f32], angles: &[(f32, f32)]) -> Vec<f32> {
    let half = angles.len();
    let low = (0..half).map(|i| head[i] * angles[i].0 - head[half + i] * angles[i].1);
    let high = (0..half).map(|i| head[half + i] * angles[i].0 + head[i] * angles[i].1);
    low.chain(high).chain(head[2 * half..].iter().copied()).collect()
}

/// The paged cache of one layer as the twins see it: \[blocks, kv_heads, 2, block_size, head_dim\].
#[derive(Debug, Clone)]
pub struct Cache {
    /// The elements.
    pub values: Vec<f32>,
    /// Heads of the cache.
    pub kv_heads: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
}

impl Cache {
    fn k_row(&self, table: &[u32], kv_head: usize, position: usize) -> usize {
        let block = table[position / self.block_size] as usize;
        ((block * self.kv_heads + kv_head) * 2 * self.block_size + position % self.block_size) * self.head_dim
    }

    /// Twin of the append of one token; k and v are \[kv_heads, head_dim\].
    pub fn append(&mut self, table: &[u32], position: usize, k: &[f32], v: &[f32]) {
        let dim = self.head_dim;
        for kv_head in 0..self.kv_heads {
            let row = self.k_row(table, kv_head, position);
            self.values[row..row + dim].copy_from_slice(&k[kv_head * dim..][..dim]);
            let row = row + self.block_size * dim;
            self.values[row..row + dim].copy_from_slice(&v[kv_head * dim..][..dim]);
        }
    }

    /// Twin of the attention of one query token `q` \[heads, head_dim\] at `position`.
    pub fn attend(&self, table: &[u32], position: usize, q: &[f32], scale: f32) -> Vec<f32> {
        self.attend_within(table, position, q, scale, None, None)
    }

    /// The same over the last `window` positions, its own included, with a soft cap on the scores.
    pub fn attend_within(
        &self,
        table: &[u32],
        position: usize,
        q: &[f32],
        scale: f32,
        window: Option<u32>,
        soft_cap: Option<f32>,
    ) -> Vec<f32> {
        let first = window.map_or(0, |window| (position + 1).saturating_sub(window as usize));
        let (dim, heads) = (self.head_dim, q.len() / self.head_dim);
        let mut out = Vec::new();
        for head in 0..heads {
            let kv_head = head / (heads / self.kv_heads);
            let query = &q[head * dim..][..dim];
            let row = |p: usize| self.k_row(table, kv_head, p);
            let score = |p: usize| {
                let key = &self.values[row(p)..][..dim];
                let product = query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                capped(product * f64::from(scale), soft_cap)
            };
            let scores: Vec<f64> = (first..=position).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
            let mass: f64 = weights.iter().sum();
            out.extend((0..dim).map(|i| {
                let value = |p: usize| f64::from(self.values[row(p) + self.block_size * dim + i]);
                ((first..=position).map(|p| weights[p - first] * value(p)).sum::<f64>() / mass) as f32
            }));
        }
        out
    }
}

/// A layer as [`decode_step`] sees it: a weight \[out, in\] (or a norm's scale) and a bias each.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    /// Norm, QKV, projection, norm of the MLP, up, down.
    pub weights: [(Vec<f32>, Vec<f32>); 6],
    /// Factor on the scores.
    pub scale: f32,
}

/// What [`decode_step`] needs beside layers and caches.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    /// \[vocab, hidden\].
    pub tokens: Vec<f32>,
    /// \[positions, hidden\].
    pub positions: Vec<f32>,
    /// After the last layer.
    pub norm_final: (Vec<f32>, Vec<f32>),
    /// \[vocab, hidden\].
    pub head: Vec<f32>,
}

/// Twin of the fused decode step for one row: the next token of one sequence, whose keys and values it appends to
/// `caches` (one a layer). Gives the logits. `round` rounds to the dtype, where the kernels store.
pub fn decode_step(
    layers: &[Layer],
    tables: &Tables,
    caches: &mut [Cache],
    table: &[u32],
    (token, position): (u32, usize),
    (activation, epsilon): (CudaActivation, f32),
    round: impl Fn(f32) -> f32 + Copy,
) -> Vec<f32> {
    let hidden = tables.norm_final.0.len();
    let rounded = |values: Vec<f32>| values.into_iter().map(round).collect::<Vec<f32>>();
    let (tokens, positions) =
        (&tables.tokens[token as usize * hidden..], &tables.positions[position * hidden..]);
    let mut x = rounded((0..hidden).map(|i| tokens[i] + positions[i]).collect());
    let mut delta: Option<(Vec<f32>, &[f32])> = None;
    let mut add_norm = |delta: &Option<(Vec<f32>, &[f32])>, (weight, bias): &(Vec<f32>, Vec<f32>)| {
        let (delta, shift) = (delta.as_ref().map(|d| &d.0[..]), delta.as_ref().map(|d| d.1));
        let (sum, normed) = norm(&x, delta, shift, weight, Some(bias), epsilon, false, round);
        x = sum;
        normed
    };
    for (layer, cache) in layers.iter().zip(caches) {
        let [norm_attention, qkv, projection, norm_mlp, up, down] = &layer.weights;
        let linear = |x: &[f32], of: &(Vec<f32>, Vec<f32>), activation| {
            rounded(product(x, &of.0, Some(&of.1), x.len(), activation))
        };
        let unbiased =
            |x: &[f32], weight: &[f32]| rounded(product(x, weight, None, x.len(), CudaActivation::None));
        let q_k_v = linear(&add_norm(&delta, norm_attention), qkv, CudaActivation::None);
        cache.append(table, position, &q_k_v[hidden..2 * hidden], &q_k_v[2 * hidden..]);
        let attended = rounded(cache.attend(table, position, &q_k_v[..hidden], layer.scale));
        delta = Some((unbiased(&attended, &projection.0), &projection.1));
        let inner = linear(&add_norm(&delta, norm_mlp), up, activation);
        delta = Some((unbiased(&inner, &down.0), &down.1));
    }
    let normed = add_norm(&delta, &tables.norm_final);
    product(&normed, &tables.head, None, hidden, CudaActivation::None)
}
