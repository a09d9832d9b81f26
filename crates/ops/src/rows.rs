//! What stands between a layer's products, row by row: the safe side of kernels/include/pinion_rows.h.

use crate::attention::{Launch, OperandError};
use crate::ffi;
use crate::kv_pool::Element;
use std::ffi::c_void;

/// What an RMS norm does with its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RmsOrder {
    /// Rounds to the rows' dtype, then multiplies.
    RoundFirst,
    /// Multiplies, then rounds.
    RoundLast,
    /// Multiplies with 1 + weight, then rounds.
    OnePlus,
}

/// What goes through the gate of an MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateActivation {
    /// x * sigmoid(x).
    Silu,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// GELU with erf.
    GeluErf,
}

/// A norm of many rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsNorm<'a> {
    /// \[width\], for every row.
    pub weight: &'a [f32],
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// What is done with the weight.
    pub order: RmsOrder,
}

/// A norm of many rows, with their mean taken off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerNorm<'a> {
    /// \[width\], for every row.
    pub weight: &'a [f32],
    /// \[width\], for every row.
    pub bias: &'a [f32],
    /// Added to the variance.
    pub epsilon: f32,
}

/// Where rows stand in an operand: \[tokens, groups, width\], groups side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Tokens.
    pub tokens: usize,
    /// Elements between tokens.
    pub stride: usize,
    /// The first group's first column.
    pub column: usize,
    /// Groups of each token.
    pub groups: usize,
    /// Columns of a group.
    pub width: usize,
}

impl Place {
    /// Whether all of it lies within `elements`.
    pub(crate) fn check(&self, elements: usize) -> Result<(), OperandError> {
        let row = self.groups.checked_mul(self.width).and_then(|row| row.checked_add(self.column));
        let Some(row) = row.filter(|&row| row <= self.stride) else {
            return Err(OperandError("a row is longer than its stride"));
        };
        let last = self.tokens.saturating_sub(1).checked_mul(self.stride).and_then(|at| at.checked_add(row));
        match last {
            _ if self.tokens == 0 => Ok(()),
            Some(end) if end <= elements => Ok(()),
            Some(_) | None => Err(OperandError("an operand is shorter than its rows")),
        }
    }
}

/// How pairs of columns are rotated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotation<'a> {
    /// \[tokens, 2, dim / 2\]: cosines, then sines.
    pub table: &'a [f32],
    /// Columns of a head that are rotated, from its first on.
    pub dim: usize,
}

/// Norms `x` in place: each group on its own.
///
/// # Errors
/// [`OperandError`] when operands and place do not fit together.
pub fn rms_norm<T: Element>(
    x: &mut [T],
    place: Place,
    norm: &RmsNorm<'_>,
    launch: Launch,
) -> Result<(), OperandError> {
    place.check(x.len())?;
    let to: *mut c_void = x.as_mut_ptr().cast();
    // SAFETY: the place lies within the slice, which is borrowed mutably.
    unsafe { rms_norm_raw(to.cast_const(), to, place, place, norm, T::DTYPE.code(), launch) }
}

/// # Safety
/// `from` lies within readable memory at `x`, `to` within writable memory at `out`, both of the dtype's elements; the
/// two are the same place or apart.
pub(crate) unsafe fn rms_norm_raw(
    x: *const c_void,
    out: *mut c_void,
    from: Place,
    to: Place,
    norm: &RmsNorm<'_>,
    dtype: i32,
    launch: Launch,
) -> Result<(), OperandError> {
    if norm.weight.len() != from.width
        || (from.tokens, from.groups, from.width) != (to.tokens, to.groups, to.width)
    {
        return Err(OperandError("a norm's rows, weight and result differ in size"));
    }
    if from.tokens * from.groups == 0 || from.width == 0 {
        return Ok(());
    }
    let element = if dtype == 0 { 4 } else { 2 };
    let args = ffi::PinionRmsNorm {
        x: x.wrapping_byte_add(from.column * element),
        out: out.wrapping_byte_add(to.column * element),
        weight: norm.weight.as_ptr(),
        x_stride: from.stride as u64,
        out_stride: to.stride as u64,
        tokens: from.tokens as u64,
        groups: from.groups as u32,
        width: from.width as u32,
        epsilon: norm.epsilon,
        order: match norm.order {
            RmsOrder::RoundFirst => 0,
            RmsOrder::RoundLast => 1,
            RmsOrder::OnePlus => 2,
        },
        dtype,
    };
    // SAFETY: the caller vouches for both places; the weight has `width` elements.
    unsafe { ffi::pinion_rms_norm(&args, launch.level_code(), launch.thread_count()) };
    Ok(())
}

/// Norms each row of `x` \[rows, width\] in place.
///
/// # Errors
/// [`OperandError`] when `x` is no whole number of rows, or weight and bias differ in length.
pub fn layer_norm<T: Element>(x: &mut [T], norm: &LayerNorm<'_>, launch: Launch) -> Result<(), OperandError> {
    let width = norm.weight.len();
    if width == 0 || !x.len().is_multiple_of(width) {
        return Err(OperandError("a norm's rows and weight differ in size"));
    }
    let (rows, to): (usize, *mut c_void) = (x.len() / width, x.as_mut_ptr().cast());
    // SAFETY: the slice has rows * width elements and is borrowed mutably.
    unsafe { layer_norm_raw(to.cast_const(), to, rows, norm, T::DTYPE.code(), launch) }
}

/// # Safety
/// `x` is readable and `out` writable memory of `rows` rows of the weight's width, of the dtype's elements; the two are
/// the same or apart.
pub(crate) unsafe fn layer_norm_raw(
    x: *const c_void,
    out: *mut c_void,
    rows: usize,
    norm: &LayerNorm<'_>,
    dtype: i32,
    launch: Launch,
) -> Result<(), OperandError> {
    if norm.weight.len() != norm.bias.len() {
        return Err(OperandError("a norm's weight and bias differ in size"));
    }
    let args = ffi::PinionLayerNorm {
        x,
        out,
        weight: norm.weight.as_ptr(),
        bias: norm.bias.as_ptr(),
        rows: rows as u64,
        width: norm.weight.len() as u32,
        epsilon: norm.epsilon,
        dtype,
    };
    // SAFETY: the caller vouches for the rows; weight and bias have `width` elements.
    unsafe { ffi::pinion_layer_norm(&args, launch.level_code(), launch.thread_count()) };
    Ok(())
}

/// Rotates the first `rotation.dim` columns of each group of `x` in place.
///
/// # Errors
/// [`OperandError`] when operands and place do not fit together.
pub fn rotate<T: Element>(
    x: &mut [T],
    place: Place,
    rotation: Rotation<'_>,
    launch: Launch,
) -> Result<(), OperandError> {
    place.check(x.len())?;
    // SAFETY: the place lies within the slice, which is borrowed mutably.
    unsafe { rotate_raw(x.as_mut_ptr().cast(), place, rotation, T::DTYPE.code(), launch) }
}

/// # Safety
/// `place` lies within writable memory at `x`, of the dtype's elements.
pub(crate) unsafe fn rotate_raw(
    x: *mut c_void,
    place: Place,
    rotation: Rotation<'_>,
    dtype: i32,
    launch: Launch,
) -> Result<(), OperandError> {
    if !rotation.dim.is_multiple_of(2) || rotation.dim > place.width {
        return Err(OperandError("the rotated columns are odd or more than a head has"));
    }
    if rotation.table.len() != place.tokens * rotation.dim {
        return Err(OperandError("a rotation's table has another size"));
    }
    let element = if dtype == 0 { 4 } else { 2 };
    let args = ffi::PinionRotate {
        x: x.wrapping_byte_add(place.column * element),
        table: rotation.table.as_ptr(),
        stride: place.stride as u64,
        tokens: place.tokens as u64,
        heads: place.groups as u32,
        head_dim: place.width as u32,
        rotary_dim: rotation.dim as u32,
        dtype,
    };
    // SAFETY: the caller vouches for the place; the table has a row for each token.
    unsafe { ffi::pinion_rotate(&args, launch.level_code(), launch.thread_count()) };
    Ok(())
}

/// `out` \[rows, inner\] = activation(gate) * up, from `x` \[rows, 2, inner\], the gate first.
///
/// # Errors
/// [`OperandError`] when the two differ in size.
pub fn gate<T: Element>(
    x: &[T],
    out: &mut [T],
    inner: usize,
    activation: GateActivation,
    launch: Launch,
) -> Result<(), OperandError> {
    if inner == 0 || !out.len().is_multiple_of(inner) || x.len() != 2 * out.len() {
        return Err(OperandError("a gate's operand and result differ in size"));
    }
    let rows = out.len() / inner;
    // SAFETY: the slices have 2 * rows * inner and rows * inner elements.
    unsafe {
        gate_raw(x.as_ptr().cast(), out.as_mut_ptr().cast(), rows, inner, activation, T::DTYPE.code(), launch)
    };
    Ok(())
}

/// # Safety
/// `x` is \[rows, 2, inner\] and readable, `out` is \[rows, inner\] and writable, both of the dtype's elements and
/// apart.
pub(crate) unsafe fn gate_raw(
    x: *const c_void,
    out: *mut c_void,
    rows: usize,
    inner: usize,
    activation: GateActivation,
    dtype: i32,
    launch: Launch,
) {
    let activation = match activation {
        GateActivation::Silu => 0,
        GateActivation::GeluTanh => 1,
        GateActivation::GeluErf => 2,
    };
    let args = ffi::PinionGate { x, out, rows: rows as u64, inner: inner as u32, activation, dtype };
    // SAFETY: the caller vouches for both operands.
    unsafe { ffi::pinion_gate(&args, launch.level_code(), launch.thread_count()) };
}

/// The same in plain Rust.
pub mod twin {
    use super::{GateActivation, LayerNorm, Place, RmsNorm, RmsOrder, Rotation};
    use crate::kv_pool::Element;

    /// Twin of [`super::rms_norm`].
    pub fn rms_norm<T: Element>(x: &mut [T], place: Place, norm: &RmsNorm<'_>) {
        for row in 0..place.tokens * place.groups {
            let start = row / place.groups * place.stride + place.column + row % place.groups * place.width;
            let row = &mut x[start..start + place.width];
            let squares: f32 = row.iter().map(|value| value.to_f32() * value.to_f32()).sum();
            let inverse = 1.0 / (squares / place.width as f32 + norm.epsilon).sqrt();
            for (value, &weight) in row.iter_mut().zip(norm.weight) {
                let normed = value.to_f32() * inverse;
                *value = T::from_f32(match norm.order {
                    RmsOrder::RoundFirst => T::from_f32(normed).to_f32() * weight,
                    RmsOrder::RoundLast => normed * weight,
                    RmsOrder::OnePlus => normed * (1.0 + weight),
                });
            }
        }
    }

    /// Twin of [`super::layer_norm`].
    pub fn layer_norm<T: Element>(x: &mut [T], norm: &LayerNorm<'_>) {
        let width = norm.weight.len();
        for row in x.chunks_exact_mut(width) {
            let mean = row.iter().map(|value| value.to_f32()).sum::<f32>() / width as f32;
            let squares: f32 = row.iter().map(|value| (value.to_f32() - mean).powi(2)).sum();
            let inverse = 1.0 / (squares / width as f32 + norm.epsilon).sqrt();
            for ((value, weight), bias) in row.iter_mut().zip(norm.weight).zip(norm.bias) {
                *value = T::from_f32((value.to_f32() - mean) * inverse * weight + bias);
            }
        }
    }

    /// Twin of [`super::rotate`].
    pub fn rotate<T: Element>(x: &mut [T], place: Place, rotation: Rotation<'_>) {
        let half = rotation.dim / 2;
        for token in 0..place.tokens {
            let (cosines, sines) = rotation.table[token * rotation.dim..][..rotation.dim].split_at(half);
            for group in 0..place.groups {
                let head = &mut x[token * place.stride + place.column + group * place.width..][..place.width];
                for pair in 0..half {
                    let (first, second) = (head[pair].to_f32(), head[half + pair].to_f32());
                    head[pair] = T::from_f32(first * cosines[pair] - second * sines[pair]);
                    head[half + pair] = T::from_f32(second * cosines[pair] + first * sines[pair]);
                }
            }
        }
    }

    /// Twin of [`super::gate`] for the activations that need no erf.
    pub fn gate<T: Element>(x: &[T], out: &mut [T], inner: usize, activation: GateActivation) {
        for (row, out) in x.chunks_exact(2 * inner).zip(out.chunks_exact_mut(inner)) {
            let (gates, ups) = row.split_at(inner);
            for ((gate, up), out) in gates.iter().zip(ups).zip(out) {
                let x = f64::from(gate.to_f32());
                let activated = match activation {
                    GateActivation::Silu => x / (1.0 + (-x).exp()),
                    GateActivation::GeluTanh | GateActivation::GeluErf => {
                        0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh())
                    }
                };
                *out = T::from_f32(activated as f32 * up.to_f32());
            }
        }
    }
}
