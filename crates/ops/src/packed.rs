//! Products with packed floating-point weights: the safe side of kernels/include/pinion_packed.h. [`twin`] says the
//! same in plain Rust.

pub mod twin;

use crate::attention::{Launch, OperandError};
use crate::kv_pool::Element;
use crate::quantized::{RawOperands, Source, SourceType};
use crate::weight_memory::WeightMemory;
use crate::{Epilogue, ffi};
use half::bf16;
use std::cell::RefCell;

/// Outputs of a packed tile.
const TILE_OUTPUTS: usize = 16;
/// Most inputs.
const INPUTS_MAX: usize = 1 << 24;
/// Rows whose activations are widened at once.
const ROWS_PER_PASS: usize = 192;

/// Packed weights of one product.
#[derive(Debug)]
pub struct PackedWeights {
    weight_type: SourceType,
    inputs: usize,
    outputs: usize,
    packed: WeightMemory,
}

thread_local! {
    /// Activations in fp32; a thread keeps the room from product to product.
    static WIDENED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl PackedWeights {
    /// Room for the weights of a product. All outputs are zero until they are packed.
    ///
    /// # Errors
    /// An empty or oversized shape, or the system's error when there is not enough memory.
    pub fn new(weight_type: SourceType, outputs: usize, inputs: usize) -> std::io::Result<Self> {
        let invalid = |reason| std::io::Error::new(std::io::ErrorKind::InvalidInput, reason);
        if inputs == 0 || inputs > INPUTS_MAX || outputs == 0 || outputs > i32::MAX as usize - TILE_OUTPUTS {
            return Err(invalid("a product has no weights, or more than 16777216 inputs"));
        }
        // SAFETY: no pointers.
        let tile_bytes = unsafe { ffi::pinion_packed_tile_bytes(inputs as u32, weight_type.code()) };
        let bytes = usize::try_from(tile_bytes)
            .ok()
            .and_then(|bytes| bytes.checked_mul(outputs.div_ceil(TILE_OUTPUTS)));
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or_else(|| invalid("a product's weights are too large"))?;
        Ok(Self { weight_type, inputs, outputs, packed: WeightMemory::zeroed(bytes)? })
    }

    /// Packs the outputs from `first_output` on. The source has the weights' own type, or the weights are fp32, or they
    /// are bf16, to which the source is rounded.
    ///
    /// # Errors
    /// When the source does not fit.
    pub fn pack(
        &mut self,
        first_output: usize,
        source: Source<'_>,
        threads: u32,
    ) -> Result<(), OperandError> {
        let elements = source.rows.checked_mul(self.inputs);
        if elements.and_then(|count| count.checked_mul(source.source_type.size())) != Some(source.bytes.len())
        {
            return Err(OperandError("a tensor's bytes are not those of its shape"));
        }
        if first_output.checked_add(source.rows).is_none_or(|end| end > self.outputs) {
            return Err(OperandError("a product has fewer outputs than are packed"));
        }
        if self.weight_type == SourceType::F16 && source.source_type != SourceType::F16 {
            return Err(OperandError("weights in fp16 are packed from fp16 alone"));
        }
        let (row_stride, k_stride) = if source.is_transposed { (1, source.rows) } else { (self.inputs, 1) };
        let args = ffi::PinionPackFloats {
            source: source.bytes.as_ptr().cast(),
            row_stride: row_stride as u64,
            k_stride: k_stride as u64,
            rows: source.rows as u32,
            k: self.inputs as u32,
            first_output: first_output as u32,
            source_type: source.source_type.code(),
            weight_type: self.weight_type.code(),
            packed: self.packed.as_mut_ptr(),
        };
        // SAFETY: the source has rows * inputs elements and is read byte by byte; the outputs lie within the packed
        // memory, whose size follows from the same shape.
        unsafe { ffi::pinion_pack_floats_parallel(&args, threads.clamp(1, 64) as i32) };
        Ok(())
    }

    /// Type of the weights in memory.
    pub fn weight_type(&self) -> SourceType {
        self.weight_type
    }

    /// Inputs of the product.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Outputs of the product.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The packed weights.
    pub fn packed(&self) -> &[u8] {
        &self.packed
    }

    /// `out` \[rows, outputs\] = `epilogue` of `x` \[rows, inputs\] . weights^T. The number of rows is that of `out`.
    ///
    /// # Errors
    /// When operands do not fit together.
    pub fn multiply<T: Element>(
        &self,
        x: &[T],
        epilogue: Epilogue<'_, T>,
        out: &mut [T],
        launch: Launch,
    ) -> Result<(), OperandError> {
        let operands = RawOperands::of(x, epilogue, out, (self.inputs, self.outputs))?;
        // SAFETY: the lengths were checked above, and the result is borrowed mutably.
        unsafe { self.multiply_raw(&operands, launch) };
        Ok(())
    }

    /// # Safety
    /// The operands are memory of the sizes that [`RawOperands`] says, readable and aligned to their type, `out`
    /// writable and apart from `x`.
    pub(crate) unsafe fn multiply_raw(&self, operands: &RawOperands, launch: Launch) {
        let x_type = if operands.dtype == 0 { SourceType::F32 } else { SourceType::Bf16 };
        if x_type == SourceType::F32 || self.weight_type == SourceType::Bf16 {
            self.run(operands, x_type, launch);
            return;
        }
        WIDENED.with_borrow_mut(|widened| {
            for first in (0..operands.rows).step_by(ROWS_PER_PASS) {
                let rows = ROWS_PER_PASS.min(operands.rows - first);
                let at = first * self.inputs;
                // SAFETY: the caller vouches for rows * inputs elements of bf16.
                let x = unsafe {
                    std::slice::from_raw_parts(operands.x.cast::<bf16>().add(at), rows * self.inputs)
                };
                widened.clear();
                widened.extend(x.iter().map(|value| f32::from_bits(u32::from(value.to_bits()) << 16)));
                let out_bytes = first * self.outputs * size_of::<bf16>();
                let residual = match operands.residual.is_null() {
                    true => std::ptr::null(),
                    false => operands.residual.wrapping_byte_add(out_bytes),
                };
                let out = operands.out.wrapping_byte_add(out_bytes);
                let some = RawOperands { x: widened.as_ptr().cast(), residual, out, rows, ..*operands };
                self.run(&some, SourceType::F32, launch);
            }
        });
    }

    /// The operands' `x` is of `x_type`, whatever their dtype; the caller vouches for all of them.
    fn run(&self, operands: &RawOperands, x_type: SourceType, launch: Launch) {
        let args = ffi::PinionPacked {
            weights: self.packed.as_ptr(),
            x: operands.x,
            bias: operands.bias,
            residual: operands.residual,
            out: operands.out,
            rows: operands.rows as u64,
            n: self.outputs as u32,
            k: self.inputs as u32,
            weight_type: self.weight_type.code(),
            x_type: x_type.code(),
            dtype: operands.dtype,
            activation: operands.activation.code(),
        };
        // SAFETY: the caller vouches for the operands, and the packed weights, which start at cache lines, have the
        // size that follows from the same shape.
        unsafe { ffi::pinion_packed_parallel(&args, launch.level_code(), launch.thread_count()) };
    }
}
