//! Linear layers with oneDNN-prepacked or plain weights.

use crate::ffi;
use crate::{Activation, LinearKind, tensor::TensorError};
use std::ffi::{CStr, c_char, c_void};
use tch::{Kind, Tensor};

/// As the shim has them.
fn code(activation: Activation) -> i32 {
    match activation {
        Activation::None => 0,
        Activation::GeluTanh => 1,
        Activation::GeluErf => 2,
    }
}

/// Length of the shim's error message buffer, bytes.
const ERROR_BYTES: usize = 512;

/// y = act(x . weight^T + bias).
#[derive(Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    activation: Activation,
    kind: LinearKind,
    in_features: i64,
}

fn pointer(tensor: &Tensor) -> *const c_void {
    tensor.as_ptr().cast()
}

/// Runs a shim call and turns its message into an error.
fn shim_call(
    operation: &'static str,
    call: impl FnOnce(*mut *mut c_void, *mut c_char, u64) -> i32,
) -> Result<Tensor, TensorError> {
    let mut result = std::ptr::null_mut();
    let mut error = [0 as c_char; ERROR_BYTES];
    let status = call(&mut result, error.as_mut_ptr(), ERROR_BYTES as u64);
    if status == 0 && !result.is_null() {
        // SAFETY: on success the shim hands over a new at::Tensor, which is what tch's C_tensor is; tch frees it.
        return Ok(unsafe { Tensor::from_ptr(result.cast()) });
    }
    error[ERROR_BYTES - 1] = 0;
    // SAFETY: the buffer is NUL-terminated, at the latest by the line above.
    let message = unsafe { CStr::from_ptr(error.as_ptr()) }.to_string_lossy().into_owned();
    Err(TensorError { operation, message })
}

impl Linear {
    /// A linear of `weight` \[out, in\] and `bias` \[out\], both of one dtype (f32 or bf16) on the CPU. Packing reorders
    /// the weight once; the caller's copy is no longer needed.
    ///
    /// # Errors
    /// The tensor library's message; no packing for this dtype on this CPU, for one.
    pub fn new(
        weight: &Tensor,
        bias: Option<&Tensor>,
        activation: Activation,
        kind: LinearKind,
    ) -> Result<Self, TensorError> {
        let [_, in_features] = weight.size()[..] else {
            let message = format!("expected a weight of 2 axes, got {:?}", weight.size());
            return Err(TensorError { operation: "linear weight", message });
        };
        let weight = weight.detach().contiguous();
        let held = match kind {
            LinearKind::Plain => weight,
            LinearKind::Packed => shim_call("pack linear weight", |result, error, error_len| {
                // SAFETY: a live tensor, and a buffer of the length given.
                unsafe { ffi::pinion_linear_pack(pointer(&weight), result, error, error_len) }
            })?,
        };
        let bias = bias.map(|bias| bias.detach().contiguous());
        Ok(Self { weight: held, bias, activation, kind, in_features })
    }

    /// y \[rows, out\] from x \[rows, in\].
    ///
    /// # Errors
    /// The tensor library's message.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, TensorError> {
        match self.kind {
            LinearKind::Packed => self.run_packed(x, None),
            LinearKind::Plain => {
                let y = x.f_linear(&self.weight, self.bias.as_ref())?;
                Ok(match self.activation {
                    Activation::None => y,
                    Activation::GeluTanh => y.f_gelu("tanh")?,
                    Activation::GeluErf => y.f_gelu("none")?,
                })
            }
        }
    }

    /// y \[rows, out\] = linear(x) + residual \[rows, out\]. Only for a linear without activation.
    ///
    /// # Errors
    /// The tensor library's message, or that there is an activation.
    pub fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor, TensorError> {
        if self.activation != Activation::None {
            let message = "a residual cannot follow an activation".into();
            return Err(TensorError { operation: "linear", message });
        }
        match self.kind {
            LinearKind::Packed => self.run_packed(x, Some(residual)),
            LinearKind::Plain => Ok(x.f_linear(&self.weight, self.bias.as_ref())?.f_add_(residual)?),
        }
    }

    fn run_packed(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor, TensorError> {
        // oneDNN would read past a wrong shape's end on some paths; libtorch checks it only in debug builds.
        let size = x.size();
        if size.len() != 2 || size[1] != self.in_features || !matches!(x.kind(), Kind::Float | Kind::BFloat16)
        {
            let message = format!("expected [rows, {}] of f32 or bf16, got {size:?}", self.in_features);
            return Err(TensorError { operation: "linear", message });
        }
        let args = ffi::PinionLinear {
            x: pointer(x),
            weight: pointer(&self.weight),
            bias: self.bias.as_ref().map_or(std::ptr::null(), pointer),
            other: residual.map_or(std::ptr::null(), pointer),
            activation: code(self.activation),
        };
        shim_call("packed linear", |result, error, error_len| {
            // SAFETY: all pointers are live tensors or null where the contract allows it.
            unsafe { ffi::pinion_linear_run(&args, result, error, error_len) }
        })
    }
}
