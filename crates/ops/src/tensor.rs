//! Between tch tensors, bytes and the kernels; and libtorch's threads.

use crate::attention::{
    Attend, CheckedBatch, Launch, OperandError, RawRows, Rows, SpanRoom, kv_append_raw, paged_attention_raw,
};
use crate::kv_pool::{Dtype, Element, KvDtype, KvPool};
use crate::rows::{GateActivation, Place, RmsNorm, Rotation, gate_raw, rms_norm_raw, rotate_raw};
use crate::{AttentionKernel, twin};
use half::bf16;
use std::fmt;
use tch::{Device, Kind, Tensor};

/// An error of the tensor library, or of an operand on its way to a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorError {
    /// What was being done.
    pub operation: &'static str,
    /// The message.
    pub message: String,
}

impl fmt::Display for TensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.operation, self.message)
    }
}

impl std::error::Error for TensorError {}

impl From<tch::TchError> for TensorError {
    fn from(error: tch::TchError) -> Self {
        let text = error.to_string();
        // The rest of the text is a C++ stack trace.
        let message = text.lines().next().unwrap_or_default().to_owned();
        Self { operation: "tensor operation", message }
    }
}

impl From<OperandError> for TensorError {
    fn from(error: OperandError) -> Self {
        Self { operation: "attention", message: error.to_string() }
    }
}

/// Sets libtorch's thread counts: `threads` inside an operation, one between operations. Call it before the first
/// operation; counts are given, never inherited from the environment. A later call changes the number inside an
/// operation.
pub fn set_threads(threads: u32) {
    tch::set_num_threads(i32::try_from(threads.max(1)).unwrap_or(i32::MAX));
    // libtorch refuses a second setting of this pool, and tch panics on that, so it is set once per process.
    static INTEROP: std::sync::Once = std::sync::Once::new();
    INTEROP.call_once(|| tch::set_num_interop_threads(1));
}

/// Asks the C allocator to keep what is freed. libtorch allocates each activation anew; by default the larger ones are
/// mapped, zeroed page by page and unmapped again in every step, which costs more than the operations on them. Affects
/// the whole process, which is an engine's. Does nothing on a C library other than glibc.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const M_TRIM_THRESHOLD: i32 = -1;
        const M_TOP_PAD: i32 = -2;
        const M_MMAP_THRESHOLD: i32 = -3;
        /// The largest that glibc takes.
        const MMAP_FROM_BYTES: i32 = 32 << 20;
        const KEEP_BYTES: i32 = 512 << 20;
        const GROW_BYTES: i32 = 16 << 20;
        let settings =
            [(M_MMAP_THRESHOLD, MMAP_FROM_BYTES), (M_TRIM_THRESHOLD, KEEP_BYTES), (M_TOP_PAD, GROW_BYTES)];
        for (parameter, value) in settings {
            // SAFETY: mallopt takes its own lock and only stores the setting; a refused value changes nothing.
            unsafe { crate::ffi::mallopt(parameter, value) };
        }
    }
}

/// Copies a contiguous CPU tensor of f32 or bf16 into `out`, widened to f32; `out` is resized to fit. One pass.
///
/// # Errors
/// When the tensor is something else.
pub fn copy_to_f32(tensor: &Tensor, out: &mut Vec<f32>) -> Result<(), TensorError> {
    let fits = tensor.is_contiguous() && tensor.device() == Device::Cpu;
    out.resize(tensor.numel(), 0.0);
    match tensor.kind() {
        Kind::Float if fits => tensor.f_copy_data(out, tensor.numel())?,
        Kind::BFloat16 if fits => {
            // SAFETY: a contiguous CPU tensor of bf16 has numel elements from data_ptr on, aligned by the allocator;
            // the slice lives only for this statement, in which nothing writes to the tensor.
            let stored =
                unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<bf16>(), tensor.numel()) };
            for (to, from) in out.iter_mut().zip(stored) {
                *to = f32::from_bits(u32::from(from.to_bits()) << 16);
            }
        }
        kind => {
            let message = format!("a tensor of {kind:?} is not a contiguous f32 or bf16 one on the CPU");
            return Err(TensorError { operation: "copy to f32", message });
        }
    }
    Ok(())
}

/// tch's name of a dtype.
pub fn kind_of(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::F32 => Kind::Float,
        Dtype::Bf16 => Kind::BFloat16,
    }
}

/// A new CPU tensor of this shape and kind from little-endian bytes. Copies once.
///
/// # Errors
/// When the length of `bytes` is not that of the shape, or the tensor library refuses.
pub fn tensor_from_bytes(bytes: &[u8], shape: &[i64], kind: Kind) -> Result<Tensor, TensorError> {
    let elements = shape.iter().try_fold(1usize, |n, &axis| n.checked_mul(usize::try_from(axis).ok()?));
    let wanted = elements.and_then(|elements| elements.checked_mul(kind.elt_size_in_bytes()));
    if wanted != Some(bytes.len()) {
        let message = format!("{} bytes do not make a {shape:?} of {kind:?}", bytes.len());
        return Err(TensorError { operation: "tensor from bytes", message });
    }
    Ok(Tensor::f_from_data_size(bytes, shape, kind)?)
}

/// Checks that `tensor` is `[tokens, width]` on the CPU, contiguous, of the pool's dtype; gives the rows from `column`
/// on.
fn rows_of(tensor: &Tensor, dtype: Dtype, column: usize) -> Result<RawRows, TensorError> {
    let size = tensor.size();
    let fits = size.len() == 2 && tensor.is_contiguous() && tensor.device() == Device::Cpu;
    if !fits || tensor.kind() != kind_of(dtype) || size[1] < column as i64 {
        let message = format!("operand {size:?} of {:?} is not a contiguous [tokens, width]", tensor.kind());
        return Err(TensorError { operation: "attention", message });
    }
    let (tokens, width) = (size[0] as usize, size[1] as usize);
    let elements = (tokens * width).saturating_sub(column);
    // SAFETY: the storage holds tokens * width elements from data_ptr on, and column is at most width; with no tokens
    // the pointer is not moved.
    let data = unsafe { tensor.data_ptr().byte_add(if tokens == 0 { 0 } else { column * dtype.size() }) };
    Ok(RawRows { data: data.cast_const().cast(), dtype, elements, stride: width })
}

/// Whether the two spans share a byte.
fn overlap(a: &RawRows, b: &RawRows) -> bool {
    let span = |rows: &RawRows| (rows.data.addr(), rows.data.addr() + rows.elements * rows.dtype.size());
    let ((a_start, a_end), (b_start, b_end)) = (span(a), span(b));
    a_start < b_end && b_start < a_end
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

/// Appends K and V of one layer's `qkv` \[tokens, (heads + 2 * KV heads) * head_dim\] (Q, K, V side by side) to the
/// pool and attends into `out` \[tokens, heads * head_dim\].
///
/// # Errors
/// When operand, batch and pool do not fit together.
pub fn attend_qkv(
    pool: &mut KvPool,
    layer: usize,
    batch: &CheckedBatch<'_>,
    qkv: &Tensor,
    out: &mut Tensor,
    plan: AttentionPlan,
    room: &mut SpanRoom,
) -> Result<(), TensorError> {
    let dim = batch.shape().head_dim;
    let dtype = match pool.dtype() {
        KvDtype::Float(dtype) => dtype,
        KvDtype::Int8 if qkv.kind() == Kind::BFloat16 => Dtype::Bf16,
        KvDtype::Int8 => Dtype::F32,
    };
    let (q_width, kv_width) = (plan.attend.heads * dim, batch.shape().heads * dim);
    let (q, k) = (rows_of(qkv, dtype, 0)?, rows_of(qkv, dtype, q_width)?);
    let v = rows_of(qkv, dtype, q_width + kv_width)?;
    let to = rows_of(out, dtype, 0)?;
    if overlap(&q, &to) {
        return Err(OperandError("the output shares memory with Q, K and V").into());
    }
    match (plan.kernel, dtype) {
        (AttentionKernel::Vector, _) => {
            // SAFETY: `rows_of` took pointers and lengths from live CPU tensors of that dtype; libtorch allocated them,
            // so they are not in the pool's memory, and the check above keeps `out` apart from `qkv`. A tch tensor is
            // not Sync, so no other thread uses them during the call.
            unsafe {
                kv_append_raw(pool, layer, batch, &k, &v, plan.launch)?;
                paged_attention_raw(pool, layer, batch, &q, &to, plan.attend, plan.launch, room)?;
            }
            Ok(())
        }
        (AttentionKernel::Twin, Dtype::F32) => attend_twin::<f32>(pool, layer, batch, qkv, out, plan.attend),
        (AttentionKernel::Twin, Dtype::Bf16) => {
            attend_twin::<bf16>(pool, layer, batch, qkv, out, plan.attend)
        }
    }
}

/// The twins on copies of the operands, by way of f32, which holds each value of either dtype.
fn attend_twin<T: Element>(
    pool: &mut KvPool,
    layer: usize,
    batch: &CheckedBatch<'_>,
    qkv: &Tensor,
    out: &mut Tensor,
    attend: Attend,
) -> Result<(), TensorError> {
    let dim = batch.shape().head_dim;
    let (q_width, kv_width) = (attend.heads * dim, batch.shape().heads * dim);
    let (tokens, stride) = (batch.tokens(), q_width + 2 * kv_width);
    if qkv.size() != [tokens as i64, stride as i64]
        || layer >= batch.shape().layers
        || batch.shape() != pool.shape()
    {
        return Err(OperandError("the operand does not fit the batch and the pool").into());
    }
    let mut widened = Vec::new();
    copy_to_f32(qkv, &mut widened)?;
    let all: Vec<T> = widened.into_iter().map(T::from_f32).collect();
    let rows = |column: usize| Rows { data: &all[column..], stride };
    let (q, k, v) = (rows(0), rows(q_width), rows(q_width + kv_width));
    let mut result = vec![T::default(); tokens * q_width];
    if pool.dtype() == KvDtype::Int8 {
        let cache = pool.layer_bytes_mut(layer);
        twin::kv_append_int8(cache, batch, k, v);
        twin::paged_attention(&twin::widened(cache, batch.shape()), batch, q, &mut result, q_width, attend);
    } else {
        let cache = pool.layer_mut::<T>(layer);
        twin::kv_append(cache, batch, k, v);
        twin::paged_attention(cache, batch, q, &mut result, q_width, attend);
    }
    let result: Vec<f32> = result.into_iter().map(T::to_f32).collect();
    out.f_copy_(&Tensor::f_from_slice(&result)?.f_view([tokens as i64, q_width as i64])?)?;
    Ok(())
}

/// A contiguous CPU tensor of f32 or bf16 with two axes: its pointer, axes and dtype's code.
pub(crate) fn matrix(tensor: &Tensor) -> Result<(*mut std::ffi::c_void, [usize; 2], i32), TensorError> {
    let size = tensor.size();
    let dtype = match tensor.kind() {
        Kind::Float => Some(Dtype::F32),
        Kind::BFloat16 => Some(Dtype::Bf16),
        _ => None,
    };
    match (&size[..], dtype) {
        (&[rows, columns], Some(dtype)) if tensor.is_contiguous() && tensor.device() == Device::Cpu => {
            Ok((tensor.data_ptr(), [rows as usize, columns as usize], dtype.code()))
        }
        _ => {
            let message =
                format!("operand {size:?} of {:?} is not a contiguous [rows, columns]", tensor.kind());
            Err(TensorError { operation: "row operation", message })
        }
    }
}

/// The norm of each row of `x` \[rows, width\].
///
/// # Errors
/// When operands do not fit together.
pub fn rms_norm(x: &Tensor, norm: &RmsNorm<'_>, launch: Launch) -> Result<Tensor, TensorError> {
    let out = x.f_empty_like()?;
    let (from, [tokens, width], dtype) = matrix(x)?;
    let (to, _, _) = matrix(&out)?;
    let place = Place { tokens, stride: width, column: 0, groups: 1, width };
    // SAFETY: both are live CPU tensors of tokens * width elements, and the second is new.
    unsafe { rms_norm_raw(from, to, place, place, norm, dtype, launch)? };
    Ok(out)
}

/// Norms `groups` runs of columns of `x` \[tokens, columns\] in place, from `column` on.
///
/// # Errors
/// When operands do not fit together.
pub fn rms_norm_columns(
    x: &mut Tensor,
    column: usize,
    groups: usize,
    norm: &RmsNorm<'_>,
    launch: Launch,
) -> Result<(), TensorError> {
    let (data, [tokens, stride], dtype) = matrix(x)?;
    let place = Place { tokens, stride, column, groups, width: norm.weight.len() };
    place.check(tokens * stride)?;
    // SAFETY: the place lies within the tensor, which is borrowed mutably.
    unsafe { rms_norm_raw(data, data, place, place, norm, dtype, launch)? };
    Ok(())
}

/// Rotates the first `heads` runs of `head_dim` columns of `x` \[tokens, columns\] in place.
///
/// # Errors
/// When operands do not fit together.
pub fn rotate_columns(
    x: &mut Tensor,
    heads: usize,
    head_dim: usize,
    rotation: Rotation<'_>,
    launch: Launch,
) -> Result<(), TensorError> {
    let (data, [tokens, stride], dtype) = matrix(x)?;
    let place = Place { tokens, stride, column: 0, groups: heads, width: head_dim };
    place.check(tokens * stride)?;
    // SAFETY: the place lies within the tensor, which is borrowed mutably.
    unsafe { rotate_raw(data, place, rotation, dtype, launch)? };
    Ok(())
}

/// \[rows, inner\] = activation(gate) * up from `x` \[rows, 2 * inner\], the gate first.
///
/// # Errors
/// When `x` is something else.
pub fn gate(x: &Tensor, activation: GateActivation, launch: Launch) -> Result<Tensor, TensorError> {
    let (from, [rows, columns], dtype) = matrix(x)?;
    if !columns.is_multiple_of(2) {
        return Err(OperandError("a gate's operand has an odd width").into());
    }
    let out = Tensor::f_empty([rows as i64, columns as i64 / 2], (x.kind(), Device::Cpu))?;
    let (to, _, _) = matrix(&out)?;
    // SAFETY: both are live CPU tensors of these sizes, and the second is new.
    unsafe { gate_raw(from, to, rows, columns / 2, activation, dtype, launch) };
    Ok(out)
}
