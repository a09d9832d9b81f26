//! Products whose weights are the integers of a quantised checkpoint, as they are.

use super::tensors::Tensors;
use crate::load::LoadError;
use pinion_architecture::Source;
use pinion_ops::quantized::{Integers, QuantizedWeights, WeightForm};

/// The form that holds the integers of all parts of a product exactly, if there is one.
pub(super) fn form(
    tensors: &Tensors<'_>,
    source: &Source,
    parts: &[u32],
    inputs: u32,
) -> Result<Option<WeightForm>, LoadError> {
    let mut common = None;
    for (name, &rows) in source.names.iter().zip(parts) {
        let full = tensors.weight(name)?;
        let Some(form) = tensors.exact_form(&full, rows, inputs)? else { return Ok(None) };
        common = match (common, form) {
            (None, form) => Some(form),
            (Some(WeightForm::Int8), WeightForm::Int8) => Some(WeightForm::Int8),
            (Some(WeightForm::Int4 { group: one }), WeightForm::Int4 { group: other }) => {
                Some(WeightForm::Int4 { group: one.min(other) })
            }
            (Some(_), _) => return Ok(None),
        };
    }
    Ok(common)
}

/// Packs the integers of a tensor into the outputs from `first` on.
pub(super) fn pack(
    tensors: &mut Tensors<'_>,
    full: &str,
    weights: &mut QuantizedWeights,
    first: u32,
    rows: u32,
    threads: u32,
) -> Result<(), LoadError> {
    let (inputs, form) = (weights.inputs() as u32, weights.form());
    tensors.take_integers(full, (rows, inputs), form, |values, scales| {
        let packed = weights.pack_integers(first as usize, Integers { values, scales }, threads);
        packed.map_err(|error| LoadError::Backend {
            operation: "packing weights",
            message: format!("{full}: {error}"),
        })
    })
}
