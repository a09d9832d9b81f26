//! The kernels again in plain Rust: what they compute, without how. Tests hold the two against each other.

use crate::attention::{Attend, CheckedBatch, Rows};
use crate::kv_pool::{Element, KvShape};

/// Index in a layer of the K row of `position`; its V row lies `block_size * head_dim` further.
fn row_index(shape: &KvShape, table: &[u32], head: usize, position: usize) -> usize {
    let block = table[position / shape.block_size] as usize;
    // [blocks, heads, 2, block_size, head_dim]
    ((block * shape.heads + head) * 2 * shape.block_size + position % shape.block_size) * shape.head_dim
}

/// Twin of [`crate::attention::kv_append`] on one layer's elements.
pub fn kv_append<T: Element>(layer: &mut [T], batch: &CheckedBatch<'_>, k: Rows<'_, T>, v: Rows<'_, T>) {
    let (shape, arrays) = (batch.shape(), batch.arrays());
    let dim = shape.head_dim;
    for seq in 0..arrays.context_len.len() {
        let table = &arrays.blocks[arrays.table_start[seq] as usize..];
        let (first, end) = (arrays.query_start[seq] as usize, arrays.query_start[seq + 1] as usize);
        for token in first..end {
            let position = arrays.context_len[seq] as usize - (end - token);
            for head in 0..shape.heads {
                let k_row = row_index(shape, table, head, position);
                let v_row = k_row + shape.block_size * dim;
                layer[k_row..k_row + dim].copy_from_slice(&k.data[token * k.stride + head * dim..][..dim]);
                layer[v_row..v_row + dim].copy_from_slice(&v.data[token * v.stride + head * dim..][..dim]);
            }
        }
    }
}

/// Twin of [`crate::attention::paged_attention`] on one layer's elements: softmax(cap(scale * q . K)) . V for each
/// query and head over the positions that it sees, in two passes.
pub fn paged_attention<T: Element>(
    layer: &[T],
    batch: &CheckedBatch<'_>,
    q: Rows<'_, T>,
    out: &mut [T],
    out_stride: usize,
    attend: Attend,
) {
    let (shape, arrays) = (batch.shape(), batch.arrays());
    let group = attend.heads / shape.heads;
    for seq in 0..arrays.context_len.len() {
        let table = &arrays.blocks[arrays.table_start[seq] as usize..];
        let (first, end) = (arrays.query_start[seq] as usize, arrays.query_start[seq + 1] as usize);
        for token in first..end {
            let end_seen = arrays.context_len[seq] as usize - (end - token) + 1;
            let begin = attend.window.map_or(0, |window| end_seen.saturating_sub(window as usize));
            for head in 0..attend.heads {
                let query = &q.data[token * q.stride + head * shape.head_dim..][..shape.head_dim];
                let to = &mut out[token * out_stride + head * shape.head_dim..][..shape.head_dim];
                let row_of = |position| row_index(shape, table, head / group, position);
                attend_one(layer, shape, query, begin..end_seen, row_of, attend, to);
            }
        }
    }
}

/// One query of one head over the positions that it sees.
fn attend_one<T: Element>(
    layer: &[T],
    shape: &KvShape,
    query: &[T],
    seen: std::ops::Range<usize>,
    row_of: impl Fn(usize) -> usize,
    attend: Attend,
    to: &mut [T],
) {
    let score = |position: usize| {
        let key = &layer[row_of(position)..][..shape.head_dim];
        let score = query.iter().zip(key).map(|(a, b)| a.to_f32() * b.to_f32()).sum::<f32>() * attend.scale;
        attend.soft_cap.map_or(score, |cap| cap * (score / cap).tanh())
    };
    let scores: Vec<f32> = seen.clone().map(score).collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
    let mass: f32 = weights.iter().sum();
    for (dim, value) in to.iter_mut().enumerate() {
        let weighed = |(weight, position): (&f32, usize)| {
            weight * layer[row_of(position) + shape.block_size * shape.head_dim + dim].to_f32()
        };
        *value = T::from_f32(weights.iter().zip(seen.clone()).map(weighed).sum::<f32>() / mass);
    }
}
