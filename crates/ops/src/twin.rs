//! The kernels again in plain Rust: what they compute, without how. Tests hold the two against each other.

use crate::attention::{Attend, CheckedBatch, Rows};
use crate::kv_pool::{Element, KvDtype, KvShape};

/// Magnitudes of a row of integers below which it is zeros.
const SMALLEST: f32 = 1e-30;

/// Number in a layer of the K row of `position`; its V row is `block_size` rows further.
fn row_number(shape: &KvShape, table: &[u32], head: usize, position: usize) -> usize {
    let block = table[position / shape.block_size] as usize;
    // [blocks, heads, 2, block_size]
    (block * shape.heads + head) * 2 * shape.block_size + position % shape.block_size
}

/// Twin of [`crate::attention::kv_append`] on one layer's elements.
pub fn kv_append<T: Element>(layer: &mut [T], batch: &CheckedBatch<'_>, k: Rows<'_, T>, v: Rows<'_, T>) {
    let dim = batch.shape().head_dim;
    append(batch, k, v, |row, values| layer[row * dim..][..dim].copy_from_slice(values));
}

/// Twin of [`crate::attention::kv_append`] on one layer's bytes, in a pool of [`KvDtype::Int8`].
pub fn kv_append_int8<T: Element>(
    layer: &mut [u8],
    batch: &CheckedBatch<'_>,
    k: Rows<'_, T>,
    v: Rows<'_, T>,
) {
    let bytes = KvDtype::Int8.row_bytes(batch.shape().head_dim);
    append(batch, k, v, |row, values| round_row(values, &mut layer[row * bytes..][..bytes]));
}

/// A row as integers, zeros up to its scale, and that.
fn round_row<T: Element>(values: &[T], to: &mut [u8]) {
    let magnitudes = || values.iter().map(|value| value.to_f32().abs());
    let largest = magnitudes().fold(0.0, f32::max);
    let (scale, inverse) = match largest {
        _ if !magnitudes().all(f32::is_finite) => (f32::NAN, 0.0),
        largest if largest < SMALLEST => (0.0, 0.0),
        largest => (largest / 127.0, 127.0 / largest),
    };
    let (integers, end) = to.split_at_mut(to.len() - size_of::<f32>());
    integers.fill(0);
    end.copy_from_slice(&scale.to_ne_bytes());
    if inverse != 0.0 {
        for (to, value) in integers.iter_mut().zip(values) {
            *to = ((value.to_f32() * inverse).round_ties_even() as i8).cast_unsigned();
        }
    }
}

/// The numbers of one layer of a pool of [`KvDtype::Int8`], `[blocks, heads, 2, block_size, head_dim]`.
pub fn widened(layer: &[u8], shape: &KvShape) -> Vec<f32> {
    let rows = layer.chunks_exact(KvDtype::Int8.row_bytes(shape.head_dim));
    let widen = |row: &[u8]| {
        let (integers, end) = row.split_at(row.len() - size_of::<f32>());
        let scale = f32::from_ne_bytes(end.try_into().expect("four bytes"));
        integers[..shape.head_dim]
            .iter()
            .map(|&byte| f32::from(byte.cast_signed()) * scale)
            .collect::<Vec<_>>()
    };
    rows.flat_map(widen).collect()
}

/// Calls `store` with the number of each row that the batch adds to a layer, and the row.
fn append<T: Element>(
    batch: &CheckedBatch<'_>,
    k: Rows<'_, T>,
    v: Rows<'_, T>,
    mut store: impl FnMut(usize, &[T]),
) {
    let (shape, arrays) = (batch.shape(), batch.arrays());
    let dim = shape.head_dim;
    for seq in 0..arrays.context_len.len() {
        let table = &arrays.blocks[arrays.table_start[seq] as usize..];
        let (first, end) = (arrays.query_start[seq] as usize, arrays.query_start[seq + 1] as usize);
        for token in first..end {
            let position = arrays.context_len[seq] as usize - (end - token);
            for head in 0..shape.heads {
                let k_row = row_number(shape, table, head, position);
                store(k_row, &k.data[token * k.stride + head * dim..][..dim]);
                store(k_row + shape.block_size, &v.data[token * v.stride + head * dim..][..dim]);
            }
        }
    }
}

/// Twin of [`crate::attention::paged_attention`] on one layer's elements, of integers the [`widened`] ones:
/// softmax(cap(scale * q . K)) . V for each query and head over the positions that it sees, in two passes.
pub fn paged_attention<T: Element, C: Element>(
    layer: &[C],
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
                let row_of = |position| row_number(shape, table, head / group, position) * shape.head_dim;
                attend_one(layer, shape, query, begin..end_seen, row_of, attend, to);
            }
        }
    }
}

/// One query of one head over the positions that it sees.
fn attend_one<T: Element, C: Element>(
    layer: &[C],
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
