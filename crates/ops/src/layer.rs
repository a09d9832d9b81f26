//! What a layer does between its products, over [`Matrix`]: norms, rotations, gates and attention.

use crate::attention::{
    Attend, CheckedBatch, Launch, OperandError, RawRows, Rows, SpanRoom, kv_append_raw, paged_attention_raw,
};
use crate::kv_pool::{Dtype, Element, KvDtype, KvPool};
use crate::matrix::Matrix;
use crate::rows::{
    GateActivation, LayerNorm, Place, RmsNorm, Rotation, gate_raw, layer_norm_raw, rms_norm_raw, rotate_raw,
};
use crate::{AttentionKernel, twin};
use half::bf16;

/// All columns of a matrix as one group.
fn whole(matrix: &Matrix) -> Place {
    let (tokens, width) = (matrix.rows(), matrix.columns());
    Place { tokens, stride: width, column: 0, groups: 1, width }
}

/// Gives `out` the axes of `x`, of which it must have the type.
fn make_like(out: &mut Matrix, x: &Matrix) -> Result<(), OperandError> {
    if out.dtype() != x.dtype() {
        return Err(OperandError("an operand and its result differ in dtype"));
    }
    out.resize(x.rows(), x.columns());
    Ok(())
}

/// The norm of each row of `x`.
///
/// # Errors
/// When operands do not fit together.
pub fn rms_norm(
    x: &Matrix,
    norm: &RmsNorm<'_>,
    out: &mut Matrix,
    launch: Launch,
) -> Result<(), OperandError> {
    make_like(out, x)?;
    let (from, to) = (whole(x), whole(out));
    // SAFETY: both have these rows and this dtype, and are borrowed; the second mutably.
    unsafe { rms_norm_raw(x.data(), out.data_mut(), from, to, norm, x.dtype().code(), launch) }
}

/// The norm of each row of `x` with its mean taken off.
///
/// # Errors
/// When operands do not fit together.
pub fn layer_norm(
    x: &Matrix,
    norm: &LayerNorm<'_>,
    out: &mut Matrix,
    launch: Launch,
) -> Result<(), OperandError> {
    if norm.weight.len() != x.columns() {
        return Err(OperandError("a norm's rows and weight differ in size"));
    }
    make_like(out, x)?;
    // SAFETY: both have these rows of the weight's width and this dtype, and are borrowed; the second mutably.
    unsafe { layer_norm_raw(x.data(), out.data_mut(), x.rows(), norm, x.dtype().code(), launch) }
}

/// Norms `groups` runs of columns of `x` in place, from `column` on.
///
/// # Errors
/// When operands do not fit together.
pub fn rms_norm_columns(
    x: &mut Matrix,
    column: usize,
    groups: usize,
    norm: &RmsNorm<'_>,
    launch: Launch,
) -> Result<(), OperandError> {
    let place = Place { column, groups, width: norm.weight.len(), ..whole(x) };
    place.check(x.rows() * x.columns())?;
    let (dtype, data) = (x.dtype().code(), x.data_mut());
    // SAFETY: the place lies within the matrix, which is borrowed mutably.
    unsafe { rms_norm_raw(data, data, place, place, norm, dtype, launch) }
}

/// Rotates the first `heads` runs of `head_dim` columns of `x` in place.
///
/// # Errors
/// When operands do not fit together.
pub fn rotate_columns(
    x: &mut Matrix,
    heads: usize,
    head_dim: usize,
    rotation: Rotation<'_>,
    launch: Launch,
) -> Result<(), OperandError> {
    let place = Place { groups: heads, width: head_dim, ..whole(x) };
    place.check(x.rows() * x.columns())?;
    let dtype = x.dtype().code();
    // SAFETY: the place lies within the matrix, which is borrowed mutably.
    unsafe { rotate_raw(x.data_mut(), place, rotation, dtype, launch) }
}

/// `out` \[rows, inner\] = activation(gate) * up from `x` \[rows, 2 * inner\], the gate first.
///
/// # Errors
/// When `x` has an odd number of columns, or `out` another dtype.
pub fn gate(
    x: &Matrix,
    activation: GateActivation,
    out: &mut Matrix,
    launch: Launch,
) -> Result<(), OperandError> {
    if !x.columns().is_multiple_of(2) || out.dtype() != x.dtype() {
        return Err(OperandError("a gate's operand has an odd width or another dtype than its result"));
    }
    let (rows, inner) = (x.rows(), x.columns() / 2);
    out.resize(rows, inner);
    // SAFETY: both have these sizes and one dtype, and are borrowed; the second mutably.
    unsafe { gate_raw(x.data(), out.data_mut(), rows, inner, activation, x.dtype().code(), launch) };
    Ok(())
}

/// Which attention to run, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionPlan {
    /// Vector kernels or twins.
    pub kernel: AttentionKernel,
    /// Level and threads of the vector kernels.
    pub launch: Launch,
    /// Heads, scale, window, cap and spans.
    pub attend: Attend,
}

/// The columns of a matrix from `column` on, which it has.
fn rows_of(data: *const std::ffi::c_void, matrix: Place, dtype: Dtype, column: usize) -> RawRows {
    let elements = (matrix.tokens * matrix.width).saturating_sub(column);
    let data = data.wrapping_byte_add(if matrix.tokens == 0 { 0 } else { column * dtype.size() });
    RawRows { data, dtype, elements, stride: matrix.width }
}

/// Appends K and V of one layer's `qkv` \[tokens, (heads + 2 * KV heads) * head_dim\] (Q, K, V side by side) to the
/// pool and attends into `out`, which becomes \[tokens, heads * head_dim\].
///
/// # Errors
/// When operand, batch and pool do not fit together.
pub fn attend_qkv(
    pool: &mut KvPool,
    layer: usize,
    batch: &CheckedBatch<'_>,
    qkv: &Matrix,
    out: &mut Matrix,
    plan: AttentionPlan,
    room: &mut SpanRoom,
) -> Result<(), OperandError> {
    let dim = batch.shape().head_dim;
    let dtype = qkv.dtype();
    let (q_width, kv_width) = (plan.attend.heads * dim, batch.shape().heads * dim);
    if out.dtype() != dtype || qkv.columns() != q_width + 2 * kv_width || qkv.rows() != batch.tokens() {
        return Err(OperandError(
            "Q, K and V have not the batch's rows, the heads' width or the result's dtype",
        ));
    }
    out.resize(qkv.rows(), q_width);
    match (plan.kernel, dtype) {
        (AttentionKernel::Vector, _) => {
            let rows = |column| rows_of(qkv.data(), whole(qkv), dtype, column);
            let (q, k, v) = (rows(0), rows(q_width), rows(q_width + kv_width));
            let place = whole(out);
            let to = rows_of(out.data_mut(), place, dtype, 0);
            // SAFETY: pointers and lengths are those of matrices of that dtype, borrowed for the call and apart: the
            // result mutably, so that it is not in the operand's memory, nor either in the pool's.
            unsafe {
                kv_append_raw(pool, layer, batch, &k, &v, plan.launch)?;
                paged_attention_raw(pool, layer, batch, &q, &to, plan.attend, plan.launch, room)
            }
        }
        (AttentionKernel::Twin, Dtype::F32) => attend_twin::<f32>(pool, layer, batch, qkv, out, plan.attend),
        (AttentionKernel::Twin, Dtype::Bf16) => {
            attend_twin::<bf16>(pool, layer, batch, qkv, out, plan.attend)
        }
    }
}

/// The twins.
fn attend_twin<T: Element>(
    pool: &mut KvPool,
    layer: usize,
    batch: &CheckedBatch<'_>,
    qkv: &Matrix,
    out: &mut Matrix,
    attend: Attend,
) -> Result<(), OperandError> {
    if layer >= batch.shape().layers || batch.shape() != pool.shape() || !pool.dtype().takes(T::DTYPE) {
        return Err(OperandError("the operand does not fit the batch and the pool"));
    }
    let (q_width, kv_width) = (out.columns(), (qkv.columns() - out.columns()) / 2);
    let all = qkv.values::<T>();
    let rows = |column: usize| Rows { data: &all[column.min(all.len())..], stride: qkv.columns() };
    let (q, k, v) = (rows(0), rows(q_width), rows(q_width + kv_width));
    let result = out.values_mut::<T>();
    if pool.dtype() == KvDtype::Int8 {
        let cache = pool.layer_bytes_mut(layer);
        twin::kv_append_int8(cache, batch, k, v);
        twin::paged_attention(&twin::widened(cache, batch.shape()), batch, q, result, q_width, attend);
    } else {
        let cache = pool.layer_mut::<T>(layer);
        twin::kv_append(cache, batch, k, v);
        twin::paged_attention(cache, batch, q, result, q_width, attend);
    }
    Ok(())
}
