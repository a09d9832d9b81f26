//! Between tch tensors and bytes; and libtorch's threads.

use crate::attention::OperandError;
use crate::kv_pool::Dtype;
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
        Self { operation: "computing activations", message: error.to_string() }
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

/// Asks the C allocator to keep what is freed. libtorch allocates the result of each of its operations anew; by default
/// the larger ones are mapped, zeroed page by page and unmapped again in every step, which costs more than the
/// operations on them. Affects the whole process, which is an engine's. Does nothing on a C library other than glibc.
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
