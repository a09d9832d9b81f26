//! Weights of 8 bits in floating point (E4M3), with a scale for the tensor, for each output, or for each block.

use super::{Fault, Parts, floats, floats_by_outputs, required};
use safetensors::Dtype;

/// A weight `[outputs, inputs]` in E4M3.
#[derive(Debug)]
pub(crate) struct Float8<'a> {
    data: &'a [u8],
    outputs: usize,
    inputs: usize,
    /// Outputs and inputs that share a scale.
    block: [usize; 2],
    /// `[blocks of outputs, blocks of inputs]`.
    scales: Vec<f32>,
}

impl<'a> Float8<'a> {
    pub(super) fn find(
        block: Option<[u32; 2]>,
        parts: &impl Parts<'a>,
        outputs: usize,
        inputs: usize,
    ) -> Result<Self, Fault> {
        let data = required(parts, "weight", &[Dtype::F8_E4M3], &[outputs, inputs])?;
        let of_blocks = parts.part("weight_scale_inv").map(|raw| ("weight_scale_inv", raw));
        let found = of_blocks.or_else(|| parts.part("weight_scale").map(|raw| ("weight_scale", raw)));
        let Some((part, raw)) = found else {
            return Err(Fault { part: "weight_scale", reason: "missing".into() });
        };
        let block = match (block, raw.shape) {
            (Some([rows, columns]), &[_, _]) => [rows as usize, columns as usize],
            (None, [] | [1] | [1, 1]) => [outputs, inputs],
            (None, &[rows] | &[rows, 1]) if rows == outputs => [1, inputs],
            (_, shape) => {
                let reason =
                    format!("has shape {shape:?}, expected a scale for each block, output or tensor");
                return Err(Fault { part, reason });
            }
        };
        let [rows, columns] = [outputs.div_ceil(block[0]), inputs.div_ceil(block[1])];
        let scales = floats(raw, part)?;
        let is_table = raw.shape.len() != 2 || raw.shape == [rows, columns];
        if !is_table || scales.len() != rows * columns {
            let reason = format!("has shape {:?}, expected [{rows}, {columns}]", raw.shape);
            return Err(Fault { part, reason });
        }
        Ok(Self { data, outputs, inputs, block, scales })
    }

    pub(super) fn unpacked(&self, threads: u32) -> Vec<u8> {
        let table: [f32; 256] = std::array::from_fn(|bits| value(bits as u8));
        let columns = self.inputs.div_ceil(self.block[1]);
        floats_by_outputs(self.outputs, self.inputs, threads, |outputs, out| {
            for (output, row) in outputs.zip(out.chunks_exact_mut(self.inputs)) {
                let scales = &self.scales[output / self.block[0] * columns..][..columns];
                let bytes = &self.data[output * self.inputs..][..self.inputs];
                let blocks = row.chunks_mut(self.block[1]).zip(bytes.chunks(self.block[1]));
                for ((to, from), scale) in blocks.zip(scales) {
                    for (to, &byte) in to.iter_mut().zip(from) {
                        *to = (table[usize::from(byte)] * scale).to_le_bytes();
                    }
                }
            }
        })
    }
}

/// E4M3 without infinities: exponent bias 7, all ones is no number.
fn value(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn e4m3_has_its_values() {
        for (bits, expected) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x39, 1.125),
            (0xb8, -1.0),
            (0x7e, 448.0),
            (0xfe, -448.0),
        ] {
            assert!((value(bits) - expected).abs() == 0.0, "{bits:02x}: {}", value(bits));
        }
        assert!(value(0x7f).is_nan() && value(0xff).is_nan());
    }
}
