//! Products whose weights are the integers of a quantised checkpoint, as they are.

use super::{Reader, room};
use crate::load::LoadError;
use pinion_architecture::Source;
use pinion_ops::product::Product;
use pinion_ops::quantized::{Integers, QuantizedWeights, WeightForm};
use pinion_ops::{Activation as Fused, Quantization};

impl Reader<'_> {
    /// The full name of a product's weight.
    pub(super) fn weight(&self, name: &str) -> Result<String, LoadError> {
        self.checkpoint.full_name(self.model.names.prefixes, &format!("{name}.weight"))
    }

    /// The form that holds the integers of all parts exactly, if they are to be kept and there is one.
    pub(super) fn kept_form(
        &self,
        source: &Source,
        parts: &[u32],
        inputs: u32,
    ) -> Result<Option<WeightForm>, LoadError> {
        if self.options.quantization != Quantization::Checkpoint {
            return Ok(None);
        }
        let mut common = None;
        for (name, &rows) in source.names.iter().zip(parts) {
            let full = self.weight(name)?;
            let Some(form) = self.checkpoint.exact_form(&full, rows, inputs)? else { return Ok(None) };
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

    /// A product whose rows are `parts` one after another, in a form that [`Reader::kept_form`] gave.
    pub(super) fn kept_linear(
        &mut self,
        source: &Source,
        parts: &[u32],
        (form, inputs): (WeightForm, u32),
        has_bias: bool,
        activation: Fused,
    ) -> Result<Product, LoadError> {
        let mut weights = room(form, parts.iter().sum(), inputs)?;
        let (mut first, mut biases) = (0, Vec::new());
        for (name, &rows) in source.names.iter().zip(parts) {
            let full = self.weight(name)?;
            self.keep(&full, &mut weights, first, rows)?;
            first += rows;
            if has_bias {
                biases.extend(self.values(&format!("{name}.bias"), rows)?);
            }
        }
        self.quantized(weights, has_bias.then_some(biases), activation)
    }

    /// The head from the tensor of this full name, if its integers are kept.
    pub(super) fn kept_head(&mut self, full: &str) -> Result<Option<Product>, LoadError> {
        let (vocab, hidden) = (self.model.vocab, self.model.hidden);
        if self.options.quantization != Quantization::Checkpoint {
            return Ok(None);
        }
        let Some(form) = self.checkpoint.exact_form(full, vocab, hidden)? else { return Ok(None) };
        let mut weights = room(form, vocab, hidden)?;
        self.keep(full, &mut weights, 0, vocab)?;
        self.quantized(weights, None, Fused::None).map(Some)
    }

    /// Packs the integers of a tensor into the outputs from `first` on.
    fn keep(
        &mut self,
        full: &str,
        weights: &mut QuantizedWeights,
        first: u32,
        rows: u32,
    ) -> Result<(), LoadError> {
        let inputs = weights.inputs() as u32;
        let (values, scales) = self.checkpoint.integers(full, rows, inputs, weights.form())?;
        let integers = Integers { values: &values, scales: &scales };
        let packed = weights.pack_integers(first as usize, integers, self.options.threads);
        packed.map_err(|error| LoadError::Backend {
            operation: "packing weights",
            message: format!("{full}: {error}"),
        })?;
        self.checkpoint.release(full);
        self.tell();
        Ok(())
    }
}
