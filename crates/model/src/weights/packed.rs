//! Products in our own packed layout, straight from the mapped file.

use super::tensors::Tensors;
use super::{backend, source_type};
use crate::checkpoint::Checkpoint;
use crate::load::{LoadError, ModelOptions};
use pinion_architecture::Layout;
use pinion_ops::attention::Launch;
use pinion_ops::packed::PackedWeights;
use pinion_ops::product::{PackedLinear, Product};
use pinion_ops::quantized::{Source as Stored, SourceType};
use pinion_ops::{Activation as Fused, Dtype, KernelLevel, LinearKind, has_tiles};
use tch::Kind;

/// Whether the products of a model are packed by us: all, so that `auto` asks the whole checkpoint.
pub(super) fn packs(options: &ModelOptions, dtype: Dtype, checkpoint: &Checkpoint) -> bool {
    match options.linear {
        LinearKind::Packed => true,
        LinearKind::OneDnn | LinearKind::Plain => false,
        LinearKind::Auto => {
            let level = KernelLevel::best();
            match dtype {
                Dtype::F32 => level >= KernelLevel::Avx2 && checkpoint.is_of_16_bits(),
                // Long prompts are several times as quick on tiles, which only oneDNN has.
                Dtype::Bf16 => level == KernelLevel::Avx512Bf16 && !has_tiles(),
            }
        }
    }
}

/// Memory for weights in bf16, or under fp32 activations in the one type that the tensors of these full names have in
/// the file, else in fp32.
pub(super) fn room(
    tensors: &Tensors<'_>,
    names: &[String],
    activations: Kind,
    outputs: u32,
    inputs: u32,
) -> Result<PackedWeights, LoadError> {
    let mut types = names.iter().map(|name| tensors.dtype(name).map(source_type));
    let first = types.next().flatten().unwrap_or(SourceType::F32);
    let weight_type = match activations {
        Kind::BFloat16 => SourceType::Bf16,
        _ if types.all(|other| other == Some(first)) => first,
        _ => SourceType::F32,
    };
    PackedWeights::new(weight_type, outputs as usize, inputs as usize).map_err(|error| LoadError::Backend {
        operation: "allocating packed weights",
        message: format!("{error} ({outputs} outputs of {inputs} inputs)"),
    })
}

/// Packs a tensor of the checkpoint into the outputs from `first` on.
pub(super) fn pack(
    tensors: &mut Tensors<'_>,
    full: &str,
    weights: &mut PackedWeights,
    first: u32,
    rows: u32,
    layout: Layout,
    threads: u32,
) -> Result<(), LoadError> {
    let inputs = weights.inputs() as u32;
    let is_transposed = layout == Layout::InOut;
    let shape = if is_transposed { [inputs, rows] } else { [rows, inputs] };
    tensors.take(full, &shape, |stored| {
        let source_type = source_type(stored.dtype);
        let source = Stored { bytes: &stored.data, source_type, rows: rows as usize, is_transposed };
        weights.pack(first as usize, source, threads).map_err(|error| LoadError::Backend {
            operation: "packing weights",
            message: format!("{full}: {error}"),
        })
    })
}

pub(super) fn product(
    weights: PackedWeights,
    bias: Option<Vec<f32>>,
    activation: Fused,
    threads: u32,
) -> Result<Product, LoadError> {
    let launch = Launch { level: KernelLevel::best(), threads };
    PackedLinear::new(weights, bias, activation, launch).map(Product::Packed).map_err(backend)
}
