//! Products in our own packed layout, straight from the mapped file.

use super::{Reader, backend, source_type};
use crate::checkpoint::Checkpoint;
use crate::load::{LoadError, ModelOptions};
use pinion_architecture::{Layout, Source};
use pinion_ops::attention::Launch;
use pinion_ops::packed::PackedWeights;
use pinion_ops::product::{PackedLinear, Product};
use pinion_ops::quantized::{Source as Stored, SourceType};
use pinion_ops::{Activation as Fused, Dtype, KernelLevel, LinearKind};
use tch::Kind;

/// Whether the products of a model are packed by us: all, so that `auto` asks the whole checkpoint.
pub(super) fn packs(options: &ModelOptions, dtype: Dtype, checkpoint: &Checkpoint) -> bool {
    match options.linear {
        LinearKind::Packed => true,
        LinearKind::OneDnn | LinearKind::Plain => false,
        LinearKind::Auto => {
            let is_quick = KernelLevel::best() >= KernelLevel::Avx2;
            dtype == Dtype::F32 && is_quick && checkpoint.is_of_16_bits()
        }
    }
}

impl Reader<'_> {
    /// A product whose rows are `parts` one after another.
    pub(super) fn packed_linear(
        &mut self,
        source: &Source,
        parts: &[u32],
        inputs: u32,
        has_bias: bool,
        activation: Fused,
    ) -> Result<Product, LoadError> {
        let full =
            |name: &String| self.checkpoint.full_name(self.model.names.prefixes, &format!("{name}.weight"));
        let names = source.names.iter().map(full).collect::<Result<Vec<_>, _>>()?;
        let mut weights = self.packed_room(&names, parts.iter().sum(), inputs)?;
        let (mut first, mut biases) = (0, Vec::new());
        for ((name, full), &rows) in source.names.iter().zip(&names).zip(parts) {
            self.pack_floats(full, &mut weights, first, rows, source.layout)?;
            first += rows;
            if has_bias {
                biases.extend(self.values(&format!("{name}.bias"), rows)?);
            }
        }
        self.packed(weights, has_bias.then_some(biases), activation)
    }

    /// The head, from the tensor of this full name.
    pub(super) fn packed_head(&mut self, full: &str) -> Result<Product, LoadError> {
        let (vocab, hidden) = (self.model.vocab, self.model.hidden);
        let mut weights = self.packed_room(&[full.to_owned()], vocab, hidden)?;
        self.pack_floats(full, &mut weights, 0, vocab, Layout::OutIn)?;
        self.packed(weights, None, Fused::None)
    }

    /// Memory for weights in bf16, or under fp32 activations in the one type that the tensors have in the file, else in
    /// fp32.
    fn packed_room(&self, names: &[String], outputs: u32, inputs: u32) -> Result<PackedWeights, LoadError> {
        let mut types = names.iter().map(|name| self.checkpoint.dtype(name).map(source_type));
        let first = types.next().flatten().unwrap_or(SourceType::F32);
        let weight_type = match self.kind {
            Kind::BFloat16 => SourceType::Bf16,
            _ if types.all(|other| other == Some(first)) => first,
            _ => SourceType::F32,
        };
        PackedWeights::new(weight_type, outputs as usize, inputs as usize).map_err(|error| {
            LoadError::Backend {
                operation: "allocating packed weights",
                message: format!("{error} ({outputs} outputs of {inputs} inputs)"),
            }
        })
    }

    /// Packs a tensor of the checkpoint into the outputs from `first` on.
    fn pack_floats(
        &mut self,
        full: &str,
        weights: &mut PackedWeights,
        first: u32,
        rows: u32,
        layout: Layout,
    ) -> Result<(), LoadError> {
        let inputs = weights.inputs() as u32;
        let is_transposed = layout == Layout::InOut;
        let shape = if is_transposed { [inputs, rows] } else { [rows, inputs] };
        let stored = self.checkpoint.tensor(full, &shape)?;
        let source = Stored {
            bytes: &stored.data,
            source_type: source_type(stored.dtype),
            rows: rows as usize,
            is_transposed,
        };
        weights.pack(first as usize, source, self.options.threads).map_err(|error| LoadError::Backend {
            operation: "packing weights",
            message: format!("{full}: {error}"),
        })?;
        self.checkpoint.release(full);
        self.tell();
        Ok(())
    }

    fn packed(
        &mut self,
        weights: PackedWeights,
        bias: Option<Vec<f32>>,
        activation: Fused,
    ) -> Result<Product, LoadError> {
        self.bytes += weights.packed().len() as u64;
        let launch = Launch { level: KernelLevel::best(), threads: self.options.threads };
        PackedLinear::new(weights, bias, activation, launch).map(Product::Packed).map_err(backend)
    }
}
