//! Weights of checkpoints that are quantised already: AWQ, GPTQ, compressed-tensors and FP8.
//!
//! A packed weight is several tensors, such as `qweight`, `qzeros` and `scales`. [`find`] checks them against one
//! another and against the shape that the model wants; what it gives can be unpacked to the exact floating-point
//! numbers that the tensors stand for, or handed over as integers. Nothing here reads a file or knows a tensor library.

mod affine;
mod float8;

pub(crate) use affine::Affine;
pub(crate) use float8::Float8;

use pinion_architecture::{Packed, Packing};
use safetensors::Dtype;

/// The tensors that a packed product may have, `weight` among them.
pub(crate) const PARTS: [&str; 13] = [
    "weight",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_g_idx",
    "weight_shape",
    "input_scale",
    "input_zero_point",
];

/// A tensor as it stands in its file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Raw<'a> {
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [usize],
    pub(crate) data: &'a [u8],
}

/// What is wrong with one of the tensors of a product.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) part: &'static str,
    pub(crate) reason: String,
}

/// A packed weight `[outputs, inputs]`.
#[derive(Debug)]
pub(crate) enum Weight<'a> {
    Affine(Affine<'a>),
    Float8(Float8<'a>),
}

impl Weight<'_> {
    /// The numbers that it stands for, in fp32 as bytes.
    pub(crate) fn unpacked(&self, threads: u32) -> Vec<u8> {
        match self {
            Self::Affine(weight) => weight.unpacked(threads),
            Self::Float8(weight) => weight.unpacked(threads),
        }
    }
}

/// The tensors of one product by their names in it.
pub(crate) trait Parts<'a> {
    /// The tensor of this name.
    fn part(&self, name: &str) -> Option<Raw<'a>>;
}

impl<'a, F: Fn(&str) -> Option<Raw<'a>>> Parts<'a> for F {
    fn part(&self, name: &str) -> Option<Raw<'a>> {
        self(name)
    }
}

/// Whether a product with these tensors is packed; products that the config leaves out are not.
pub(crate) fn is_packed<'a>(packing: Packing, parts: &impl Parts<'a>) -> bool {
    let weight_is = |dtype: Dtype| parts.part("weight").is_some_and(|raw| raw.dtype == dtype);
    match packing {
        Packing::Awq | Packing::Gptq { .. } => parts.part("qweight").is_some(),
        Packing::PackedIntegers { .. } => parts.part("weight_packed").is_some(),
        Packing::Integers { .. } => weight_is(Dtype::I8),
        Packing::Float8 { .. } => weight_is(Dtype::F8_E4M3),
    }
}

/// The packed weight of a product.
///
/// # Errors
/// A tensor that is missing, or that does not fit the shape or the others.
pub(crate) fn find<'a>(
    packed: &Packed,
    parts: &impl Parts<'a>,
    outputs: usize,
    inputs: usize,
) -> Result<Weight<'a>, Fault> {
    match packed.packing {
        Packing::Float8 { block } => Float8::find(block, parts, outputs, inputs).map(Weight::Float8),
        _ => Affine::find(packed, parts, outputs, inputs).map(Weight::Affine),
    }
}

/// A tensor that must be there, of one of these types and this shape.
fn required<'a>(
    parts: &impl Parts<'a>,
    part: &'static str,
    dtypes: &[Dtype],
    shape: &[usize],
) -> Result<&'a [u8], Fault> {
    let fault = |reason: String| Fault { part, reason };
    let Some(raw) = parts.part(part) else { return Err(fault("missing".into())) };
    if raw.shape != shape {
        return Err(fault(format!("has shape {:?}, expected {shape:?}", raw.shape)));
    }
    if !dtypes.contains(&raw.dtype) {
        return Err(fault(format!("has dtype {:?}, expected {dtypes:?}", raw.dtype)));
    }
    Ok(raw.data)
}

/// The numbers of a floating-point tensor.
fn floats(raw: Raw<'_>, part: &'static str) -> Result<Vec<f32>, Fault> {
    let pairs = || raw.data.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    match raw.dtype {
        Dtype::F32 => {
            Ok(raw.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        }
        Dtype::F16 => Ok(pairs().map(|bits| half::f16::from_bits(bits).to_f32()).collect()),
        Dtype::BF16 => Ok(pairs().map(|bits| half::bf16::from_bits(bits).to_f32()).collect()),
        other => Err(Fault { part, reason: format!("has dtype {other:?}, expected F32, F16 or BF16") }),
    }
}

/// The 32-bit word at `index`.
fn word(data: &[u8], index: usize) -> u32 {
    let at = index * 4;
    u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

/// Fills `[outputs, width]` by ranges of outputs, on several threads.
fn by_outputs<T: Send>(
    all: &mut [T],
    width: usize,
    threads: u32,
    fill: impl Fn(std::ops::Range<usize>, &mut [T]) + Sync,
) {
    // As many as share a word, a line of the cache or a block of scales, times a few.
    const AT_ONCE: usize = 64;
    let outputs = all.len() / width.max(1);
    let share = outputs.div_ceil(threads.clamp(1, 64) as usize).next_multiple_of(AT_ONCE);
    std::thread::scope(|scope| {
        for (index, some) in all.chunks_mut((share * width).max(1)).enumerate() {
            let fill = &fill;
            scope.spawn(move || {
                for (at, few) in some.chunks_mut(AT_ONCE * width).enumerate() {
                    let first = index * share + at * AT_ONCE;
                    fill(first..first + few.len() / width, few);
                }
            });
        }
    });
}

/// Fills bytes of fp32 numbers the same way.
pub(crate) fn floats_by_outputs(
    outputs: usize,
    inputs: usize,
    threads: u32,
    fill: impl Fn(std::ops::Range<usize>, &mut [[u8; 4]]) + Sync,
) -> Vec<u8> {
    let mut bytes = vec![[0u8; 4]; outputs * inputs];
    by_outputs(&mut bytes, inputs, threads, fill);
    bytes.into_flattened()
}
