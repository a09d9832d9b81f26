//! The tensors of a GGUF file under the names of a Hugging Face checkpoint.

use crate::checkpoint::{Checkpoint, Entry, File};
use crate::load::LoadError;
use crate::prequantized::floats_by_outputs;
use pinion_gguf::{BlockType, Header, Turned, place};
use pinion_ops::MappedFile;
use pinion_ops::quantized::WeightForm;
use safetensors::Dtype;
use std::borrow::Cow;
use std::path::Path;

/// Integers `[outputs, inputs]`, and their scales by groups.
type Integers = (Vec<i8>, Vec<f32>);

/// How a tensor of a GGUF file stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GgufTensor {
    kind: BlockType,
    /// Heads whose rows stand in the order for rotating neighbours.
    turned_heads: Option<usize>,
}

impl GgufTensor {
    /// Where in the file the row of an output stands.
    fn row(self, output: usize, outputs: usize) -> usize {
        let Some(heads) = self.turned_heads else { return output };
        let width = outputs / heads;
        let (head, at) = (output / width, output % width);
        let (part, pair) = (at / (width / 2), at % (width / 2));
        head * width + 2 * pair + part
    }

    /// Type of the numbers that [`GgufTensor::unpacked`] gives: blocks are unpacked to fp32.
    fn dtype(self) -> Dtype {
        match self.kind {
            BlockType::F16 => Dtype::F16,
            BlockType::Bf16 => Dtype::BF16,
            _ => Dtype::F32,
        }
    }

    /// Whether the bytes of the file are those of a checkpoint.
    fn is_plain(self) -> bool {
        self.kind.numbers() == 1 && self.turned_heads.is_none()
    }

    /// Its numbers as the bytes of a checkpoint. The shape was checked.
    pub(crate) fn unpacked<'a>(self, data: &'a [u8], shape: &[u32], threads: u32) -> Cow<'a, [u8]> {
        if self.is_plain() {
            return Cow::Borrowed(data);
        }
        // A bias is as many rows of one number; it has no blocks.
        let (outputs, inputs) = match *shape {
            [outputs, inputs] => (outputs as usize, inputs as usize),
            [width] if self.turned_heads.is_some() => (width as usize, 1),
            _ => (1, shape.iter().map(|&axis| axis as usize).product()),
        };
        let row_bytes = inputs / self.kind.numbers() * self.kind.bytes();
        let row = |output: usize| &data[self.row(output, outputs) * row_bytes..][..row_bytes];
        if self.kind.numbers() == 1 {
            return Cow::Owned((0..outputs).flat_map(row).copied().collect());
        }
        Cow::Owned(floats_by_outputs(outputs, inputs, threads, |range, out| {
            let mut numbers = vec![0f32; inputs];
            for (output, to) in range.zip(out.chunks_exact_mut(inputs)) {
                self.kind.unpack(row(output), &mut numbers);
                to.iter_mut().zip(&numbers).for_each(|(to, number)| *to = number.to_le_bytes());
            }
        }))
    }

    /// The form of our products that holds the same numbers, if there is one.
    pub(crate) fn exact_form(self) -> Option<WeightForm> {
        (self.kind == BlockType::Q4_0).then_some(WeightForm::Int4 { group: 32 })
    }
}

impl Checkpoint {
    /// Maps a file and notes its tensors.
    pub(crate) fn add_gguf(&mut self, path: &Path) -> Result<(), LoadError> {
        let fault = |reason: String| LoadError::Weights { path: path.to_owned(), reason };
        let header = Header::open(path).map_err(|error| fault(error.to_string()))?;
        let map = MappedFile::open(path).map_err(|error| fault(error.to_string()))?;
        let architecture = header.text("general.architecture").ok().flatten().unwrap_or_default();
        let heads = |key: &str| header.number(&format!("{architecture}.attention.{key}")).ok().flatten();
        let query_heads = heads("head_count");
        let kv_heads = heads("head_count_kv").or(query_heads);
        for tensor in &header.tensors {
            if tensor.range.end > map.bytes().len() {
                return Err(fault(format!("ends before tensor {} does", tensor.name.escape_debug())));
            }
            let place = place(architecture, &tensor.name);
            let turned = place.as_ref().map_or(Turned::No, |place| place.turned);
            let turned_heads = match turned {
                Turned::No => None,
                Turned::Queries => query_heads,
                Turned::Keys => kv_heads,
            };
            let turned_heads = turned_heads.map(|heads| heads as usize);
            let rows = tensor.shape[0];
            if turned_heads.is_some_and(|heads| heads == 0 || !rows.is_multiple_of(2 * heads)) {
                let name = tensor.name.escape_debug();
                return Err(fault(format!("tensor {name} has {rows} rows, which are no whole heads")));
            }
            if turned_heads.is_some() && tensor.shape.len() == 1 && tensor.kind.numbers() != 1 {
                let name = tensor.name.escape_debug();
                return Err(fault(format!("tensor {name} is a bias in blocks, which is not supported")));
            }
            let stored = GgufTensor { kind: tensor.kind, turned_heads };
            let entry = Entry {
                file: self.files.len(),
                dtype: stored.dtype(),
                shape: tensor.shape.clone(),
                range: tensor.range.clone(),
                // The config was made of it.
                is_used: tensor.name == pinion_gguf::ROPE_FACTORS,
                gguf: Some(stored),
            };
            let name = place.map_or_else(|| tensor.name.clone(), |place| place.name);
            if self.tensors.insert(name, entry).is_some() {
                return Err(fault(format!("has the tensor {} twice", tensor.name.escape_debug())));
            }
        }
        self.files.push(File { path: path.to_owned(), map });
        Ok(())
    }

    /// The integers of a tensor of Q4_0 `[outputs, inputs]` and their scales, in groups of 32.
    pub(crate) fn gguf_integers(
        &self,
        name: &str,
        outputs: u32,
        inputs: u32,
    ) -> Result<Option<Integers>, LoadError> {
        let Some(entry) = self.tensors.get(name) else { return Ok(None) };
        let Some(tensor) = entry.gguf.filter(|tensor| tensor.kind == BlockType::Q4_0) else {
            return Ok(None);
        };
        let (outputs, inputs) = (outputs as usize, inputs as usize);
        if entry.shape != [outputs, inputs] {
            let reason = format!("has shape {:?}, expected [{outputs}, {inputs}]", entry.shape);
            return Err(self.fault(name, reason));
        }
        let data = &self.files[entry.file].map.bytes()[entry.range.clone()];
        let (groups, row_bytes) = (inputs / 32, inputs / 32 * BlockType::Q4_0.bytes());
        let mut values = vec![0i8; outputs * inputs];
        let mut scales = vec![0f32; outputs * groups];
        for output in 0..outputs {
            let from = &data[tensor.row(output, outputs) * row_bytes..][..row_bytes];
            let (values, scales) = (&mut values[output * inputs..], &mut scales[output * groups..]);
            BlockType::integers_of_q4_0(from, &mut values[..inputs], &mut scales[..groups]);
        }
        Ok(Some((values, scales)))
    }
}
