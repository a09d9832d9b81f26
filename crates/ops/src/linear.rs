//! Linear layers on libtorch, with oneDNN-prepacked or plain weights.

use crate::ffi;
use crate::{Activation, tensor::TensorError};
use std::ffi::{CStr, c_char, c_void};
use tch::{Kind, Tensor};

/// Length of the shim's error message buffer, bytes.
const ERROR_BYTES: usize = 512;

/// Rows of the product that others are held against when the fewest rows are looked for.
const PROBE_ROWS: i64 = 48;

/// Row counts compared with it: small ones, and one of each remainder by the row blocks of oneDNN's kernels (4, 6, 8
/// and 16).
const PROBED_ROWS: [i64; 11] = [1, 2, 3, 8, 15, 16, 17, 19, 22, 29, 37];

/// Outputs compared for each of them, if the rows of the probe suffice: another order changes nearly all outputs in
/// fp32, and few in bf16, which rounds most differences away.
const PROBED_OUTPUTS: i64 = 1 << 16;

/// What may be the fewest rows.
const FEWEST_ROWS: [i64; 5] = [1, 2, 4, 8, 16];

/// Multiplications that a product of the fewest rows may take, unless they are two: those cost what one does, which is
/// to read the weights.
const PADDED_PRODUCT_MAX: i64 = 8 << 20;

/// How libtorch holds a linear's weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Reordered once into oneDNN's blocked layout.
    OneDnn,
    /// Row-major \[out, in\].
    Plain,
}

/// y = act(x . weight^T + bias).
#[derive(Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    activation: Activation,
    layout: Layout,
    dtype: Kind,
    in_features: i64,
    out_features: i64,
    /// A packed GEMM of fewer rows is padded to this number.
    fewest_rows: i64,
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
    /// A linear of `weight` \[out, in\] and `bias` \[out\], both of one dtype (f32 or bf16) on the CPU. Packing
    /// reorders the weight once; the caller's copy is no longer needed.
    ///
    /// # Errors
    /// The tensor library's message; no packing for this dtype on this CPU, for one.
    pub fn new(
        weight: &Tensor,
        bias: Option<&Tensor>,
        activation: Activation,
        layout: Layout,
    ) -> Result<Self, TensorError> {
        let [out_features, in_features] = weight.size()[..] else {
            let message = format!("expected a weight of 2 axes, got {:?}", weight.size());
            return Err(TensorError { operation: "linear weight", message });
        };
        let weight = weight.detach().contiguous();
        let dtype = weight.kind();
        let held = match layout {
            Layout::Plain => weight,
            Layout::OneDnn => shim_call("pack linear weight", |result, error, error_len| {
                // SAFETY: a live tensor, and a buffer of the length given.
                unsafe { ffi::pinion_linear_pack(pointer(&weight), result, error, error_len) }
            })?,
        };
        let bias = bias.map(|bias| bias.detach().contiguous());
        Ok(Self { weight: held, bias, activation, layout, dtype, in_features, out_features, fewest_rows: 1 })
    }

    /// oneDNN sums in another order where there are few rows, so that a row's last bits depend on how many others there
    /// are. Gives the number of rows from which on that ends, as far as some tries show, with the threads that are set
    /// now; `None` where it does not end at a small price, or the weights are not packed.
    ///
    /// # Errors
    /// The tensor library's message.
    pub fn find_fewest_rows(&self) -> Result<Option<i64>, TensorError> {
        if self.layout == Layout::Plain {
            return Ok(None);
        }
        let values = |width: i64| {
            let all = Tensor::f_arange(PROBE_ROWS * width, (Kind::Float, tch::Device::Cpu))?;
            all.f_sin()?.f_view([PROBE_ROWS, width])?.f_to_kind(self.dtype)
        };
        let (x, residual) = (values(self.in_features)?, values(self.out_features)?);
        // The way with a residual is another one; an activation excludes it.
        let ways = if self.activation == Activation::None { &[false, true][..] } else { &[false] };
        let mut disagree_up_to = 0;
        for &has_residual in ways {
            let run = |first: i64, rows: i64| {
                let residual = if has_residual { Some(residual.f_narrow(0, first, rows)?) } else { None };
                self.run_packed(&x.f_narrow(0, first, rows)?, residual.as_ref())
            };
            let whole = run(0, PROBE_ROWS)?;
            for rows in PROBED_ROWS {
                let windows = (PROBED_OUTPUTS / (rows * self.out_features).max(1) + 1).min(PROBE_ROWS / rows);
                for first in (0..windows).map(|window| window * rows) {
                    if !run(first, rows)?.f_equal(&whole.f_narrow(0, first, rows)?)? {
                        disagree_up_to = disagree_up_to.max(rows);
                        break;
                    }
                }
            }
        }
        let is_cheap =
            |rows: i64| rows <= 2 || rows * self.in_features * self.out_features <= PADDED_PRODUCT_MAX;
        Ok(FEWEST_ROWS.into_iter().find(|&rows| rows > disagree_up_to).filter(|&rows| is_cheap(rows)))
    }

    /// Pads packed GEMMs of fewer rows to this number from now on: the result of [`Linear::find_fewest_rows`].
    pub fn set_fewest_rows(&mut self, rows: i64) {
        self.fewest_rows = rows;
    }

    /// y \[rows, out\] from x \[rows, in\].
    ///
    /// # Errors
    /// The tensor library's message.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, TensorError> {
        match self.layout {
            Layout::OneDnn => self.run_padded(x, None),
            Layout::Plain => {
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
        match self.layout {
            Layout::OneDnn => self.run_padded(x, Some(residual)),
            Layout::Plain => Ok(x.f_linear(&self.weight, self.bias.as_ref())?.f_add_(residual)?),
        }
    }

    /// With zeros in the rows that are missing.
    fn run_padded(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor, TensorError> {
        let rows = x.size().first().copied().unwrap_or(0);
        if rows == 0 || rows >= self.fewest_rows {
            return self.run_packed(x, residual);
        }
        let pad = |tensor: &Tensor| tensor.f_constant_pad_nd([0, 0, 0, self.fewest_rows - rows]);
        let residual = residual.map(pad).transpose()?;
        Ok(self.run_packed(&pad(x)?, residual.as_ref())?.f_narrow(0, 0, rows)?)
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
            activation: self.activation.code(),
        };
        shim_call("packed linear", |result, error, error_len| {
            // SAFETY: all pointers are live tensors or null where the contract allows it.
            unsafe { ffi::pinion_linear_run(&args, result, error, error_len) }
        })
    }
}
