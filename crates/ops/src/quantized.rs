//! Products with quantised weights: the safe side of kernels/include/pinion_quantized.h. [`twin`] says the same in
//! plain Rust.

mod integers;
pub mod twin;

pub use integers::Integers;

use crate::attention::OperandError;
use crate::kv_pool::Element;
use crate::weight_memory::WeightMemory;
use crate::{Activation, Epilogue, IntegerLevel, ffi};
use std::cell::RefCell;
use std::ffi::c_void;

/// Outputs of a packed tile.
const TILE_OUTPUTS: usize = 16;
/// K of a packed block.
const BLOCK_K: usize = 64;
/// Smallest group of 4-bit weights.
const GROUP_MIN: usize = 32;
/// Most inputs: their sums of products fit 32 bits.
const INPUTS_MAX: usize = 131_072;
/// Rows whose integers are held at once.
const ROWS_PER_PASS: usize = 256;

/// How weights stand in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightForm {
    /// 8 bits with a scale for each output.
    Int8,
    /// 4 bits with a scale for each group of this number of inputs of an output: 32, 64 or 128.
    Int4 {
        /// Inputs of a group.
        group: u32,
    },
}

impl WeightForm {
    /// 4 bits in the largest groups that divide the inputs, or of 32, the last of which is cut.
    pub fn int4(inputs: usize) -> Self {
        let group = [128, 64].into_iter().find(|&group| inputs.is_multiple_of(group)).unwrap_or(GROUP_MIN);
        Self::Int4 { group: group as u32 }
    }

    /// As the kernels take it.
    fn group(self) -> u32 {
        match self {
            Self::Int8 => 0,
            Self::Int4 { group } => group,
        }
    }
}

/// Type of the numbers of a tensor in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceType {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl SourceType {
    pub(crate) fn size(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// `"f32"`, `"bf16"` or `"f16"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// As the kernels take it.
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::F32 => 0,
            Self::Bf16 => 1,
            Self::F16 => 2,
        }
    }
}

/// A tensor as it stands in a file: little-endian, at any address.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// `[rows, inputs]`, or `[inputs, rows]`.
    pub bytes: &'a [u8],
    /// Type of its numbers.
    pub source_type: SourceType,
    /// Its outputs.
    pub rows: usize,
    /// Whether the inputs are the outer axis.
    pub is_transposed: bool,
}

/// How to run the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegerLaunch {
    /// Instruction-set level; one above what the machine has is lowered to it.
    pub level: IntegerLevel,
    /// Threads, at least 1. Without feature `torch` the calling thread does it all, unless there is a team.
    pub threads: u32,
}

impl IntegerLaunch {
    fn thread_count(self) -> i32 {
        i32::try_from(self.threads.clamp(1, 1024)).expect("1024 fits")
    }
}

/// Packed weights of one product.
#[derive(Debug)]
pub struct QuantizedWeights {
    form: WeightForm,
    inputs: usize,
    outputs: usize,
    inputs_padded: usize,
    packed: WeightMemory,
    /// Of each output, with 8 bits.
    scales: Vec<f32>,
    /// Sum of each output's integers, with 8 bits.
    sums: Vec<i32>,
}

/// What a product needs beside its operands; a thread keeps it from product to product.
#[derive(Debug, Default)]
struct Scratch {
    x: Vec<i8>,
    scales: Vec<f32>,
    offsets: Vec<i32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Operands of a product as the kernels take them: `x` \[rows, inputs\], `bias` \[outputs\] (or null), `residual` (or
/// null) and `out` \[rows, outputs\], all contiguous and, but for the bias, of one dtype.
#[derive(Clone, Copy)]
pub(crate) struct RawOperands {
    pub(crate) x: *const c_void,
    pub(crate) bias: *const f32,
    pub(crate) activation: Activation,
    pub(crate) residual: *const c_void,
    pub(crate) out: *mut c_void,
    pub(crate) rows: usize,
    pub(crate) dtype: i32,
}

impl RawOperands {
    /// Those of a product of `inputs` to `outputs`. The rows are those of `out`.
    ///
    /// # Errors
    /// A length differs from them.
    pub(crate) fn of<T: Element>(
        x: &[T],
        epilogue: Epilogue<'_, T>,
        out: &mut [T],
        (inputs, outputs): (usize, usize),
    ) -> Result<RawOperands, OperandError> {
        let Epilogue { bias, activation, residual } = epilogue;
        let rows = out.len() / outputs;
        let fits = out.len() == rows * outputs && Some(x.len()) == rows.checked_mul(inputs);
        if !fits || residual.is_some_and(|residual| residual.len() != out.len()) {
            return Err(OperandError("a product's operands differ in their rows"));
        }
        if bias.is_some_and(|bias| bias.len() != outputs) {
            return Err(OperandError("a bias has not one value for each output"));
        }
        Ok(RawOperands {
            x: x.as_ptr().cast(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            activation,
            residual: residual.map_or(std::ptr::null(), |residual| residual.as_ptr().cast()),
            out: out.as_mut_ptr().cast(),
            rows,
            dtype: T::DTYPE.code(),
        })
    }
}

impl QuantizedWeights {
    /// Room for the weights of a product, on huge pages where the system grants them. All outputs are zero until they
    /// are packed.
    ///
    /// # Errors
    /// An empty or oversized shape, a group that does not fit it, or the system's error when there is not enough
    /// memory.
    pub fn new(form: WeightForm, outputs: usize, inputs: usize) -> std::io::Result<Self> {
        let invalid = |reason| std::io::Error::new(std::io::ErrorKind::InvalidInput, reason);
        let inputs_padded = inputs.next_multiple_of(BLOCK_K);
        let group = form.group() as usize;
        if inputs == 0 || inputs > INPUTS_MAX || outputs == 0 || outputs > i32::MAX as usize - TILE_OUTPUTS {
            return Err(invalid("a product has no weights, or more than 131072 inputs"));
        }
        if !matches!(group, 0 | 32 | 64 | 128) || group != 0 && !inputs_padded.is_multiple_of(group) {
            return Err(invalid("the inputs are not a whole number of groups of 32, 64 or 128"));
        }
        let tiles = outputs.div_ceil(TILE_OUTPUTS);
        // SAFETY: no pointers.
        let tile_bytes = unsafe { ffi::pinion_tile_bytes(inputs_padded as u32, form.group()) };
        let bytes = usize::try_from(tile_bytes).ok().and_then(|bytes| bytes.checked_mul(tiles));
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or_else(|| invalid("a product's weights are too large"))?;
        let packed = WeightMemory::zeroed(bytes)?;
        let padded = if form == WeightForm::Int8 { tiles * TILE_OUTPUTS } else { 0 };
        let (scales, sums) = (vec![0.0; padded], vec![0; padded]);
        Ok(Self { form, inputs, outputs, inputs_padded, packed, scales, sums })
    }

    /// Quantises and packs the outputs from `first_output` on.
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
        let threads = threads.clamp(1, 64);
        let mut scratch = vec![0f32; threads as usize * TILE_OUTPUTS * self.inputs];
        let (row_stride, k_stride) = if source.is_transposed { (1, source.rows) } else { (self.inputs, 1) };
        let args = ffi::PinionPack {
            source: source.bytes.as_ptr().cast(),
            row_stride: row_stride as u64,
            k_stride: k_stride as u64,
            rows: source.rows as u32,
            k: self.inputs as u32,
            k_padded: self.inputs_padded as u32,
            first_output: first_output as u32,
            group: self.form.group(),
            source_type: source.source_type.code(),
            packed: self.packed.as_mut_ptr(),
            scales: self.scales.as_mut_ptr(),
            sums: self.sums.as_mut_ptr(),
            scratch: scratch.as_mut_ptr(),
        };
        // SAFETY: the source has rows * inputs elements and is read byte by byte; the outputs lie within the packed
        // memory, whose size follows from the same shape; the scratch has 16 rows for each thread.
        unsafe { ffi::pinion_pack_parallel(&args, threads as i32) };
        Ok(())
    }

    /// How the weights stand in memory.
    pub fn form(&self) -> WeightForm {
        self.form
    }

    /// Inputs of the product.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Outputs of the product.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.packed.len() + self.scales.len() * 4 + self.sums.len() * 4) as u64
    }

    /// The packed weights, for tests of the layout.
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
        launch: IntegerLaunch,
    ) -> Result<(), OperandError> {
        let operands = RawOperands::of(x, epilogue, out, (self.inputs, self.outputs))?;
        // SAFETY: the lengths were checked above, and the result is borrowed mutably.
        unsafe { self.multiply_raw(&operands, launch) };
        Ok(())
    }

    /// # Safety
    /// The operands are memory of the sizes that [`RawOperands`] says, readable, `out` writable and apart from `x`.
    pub(crate) unsafe fn multiply_raw(&self, operands: &RawOperands, launch: IntegerLaunch) {
        let element = if operands.dtype == 0 { 4 } else { 2 };
        SCRATCH.with_borrow_mut(|scratch| {
            for first in (0..operands.rows).step_by(ROWS_PER_PASS) {
                let rows = ROWS_PER_PASS.min(operands.rows - first);
                let out_bytes = first * self.outputs * element;
                let residual = match operands.residual.is_null() {
                    true => std::ptr::null(),
                    false => operands.residual.wrapping_byte_add(out_bytes),
                };
                let some = RawOperands {
                    x: operands.x.wrapping_byte_add(first * self.inputs * element),
                    residual,
                    out: operands.out.wrapping_byte_add(out_bytes),
                    rows,
                    ..*operands
                };
                self.pass(&some, scratch, launch);
            }
        });
    }

    /// At most [`ROWS_PER_PASS`] rows, whose memory the caller vouches for.
    fn pass(&self, operands: &RawOperands, scratch: &mut Scratch, launch: IntegerLaunch) {
        let rows = operands.rows;
        scratch.x.resize(scratch.x.len().max(rows * self.inputs_padded), 0);
        scratch.scales.resize(scratch.scales.len().max(rows), 0.0);
        let groups = self.inputs_padded.checked_div(self.form.group() as usize).unwrap_or(0);
        scratch.offsets.resize(scratch.offsets.len().max(rows * groups), 0);
        let quantize = ffi::PinionQuantizeRows {
            x: operands.x,
            q: scratch.x.as_mut_ptr(),
            scales: scratch.scales.as_mut_ptr(),
            offsets: scratch.offsets.as_mut_ptr(),
            rows: rows as u64,
            k: self.inputs as u32,
            k_padded: self.inputs_padded as u32,
            group: self.form.group(),
            dtype: operands.dtype,
        };
        let args = ffi::PinionQuantized {
            weights: self.packed.as_ptr(),
            scales: self.scales.as_ptr(),
            sums: self.sums.as_ptr(),
            x: scratch.x.as_ptr(),
            x_scales: scratch.scales.as_ptr(),
            x_offsets: scratch.offsets.as_ptr(),
            bias: operands.bias,
            residual: operands.residual,
            out: operands.out,
            rows: rows as u64,
            n: self.outputs as u32,
            k_padded: self.inputs_padded as u32,
            group: self.form.group(),
            dtype: operands.dtype,
            activation: operands.activation.code(),
        };
        // SAFETY: the caller vouches for the operands, the scratch was made large enough, and the packed weights, which
        // start at cache lines, have the size that follows from the same shape.
        unsafe {
            ffi::pinion_quantized_parallel(&quantize, &args, launch.level.code(), launch.thread_count());
        }
    }
}
