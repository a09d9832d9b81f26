//! Weights that are integers already: packed as they are, without rounding.

use super::{BLOCK_K, QuantizedWeights, TILE_OUTPUTS, WeightForm};
use crate::attention::OperandError;

/// Bytes of a block of 4-bit weights of a tile.
const BLOCK_BYTES_4: usize = 512;
/// Bytes of the scales of a group of 4-bit weights of a tile.
const SCALE_BYTES: usize = 64;

/// The integers of some outputs, and what they are multiplied with.
#[derive(Debug, Clone, Copy)]
pub struct Integers<'a> {
    /// \[rows, inputs\]: any signed byte, or -8 to 7.
    pub values: &'a [i8],
    /// \[rows, groups\], one group of all inputs with 8 bits.
    pub scales: &'a [f32],
}

impl QuantizedWeights {
    /// Packs the outputs from `first_output` on.
    ///
    /// # Errors
    /// When the integers do not fit the form or the shape.
    pub fn pack_integers(
        &mut self,
        first_output: usize,
        integers: Integers<'_>,
        threads: u32,
    ) -> Result<(), OperandError> {
        let Integers { values, scales } = integers;
        let group = self.group_inputs();
        let (rows, groups) = (values.len() / self.inputs, self.inputs.div_ceil(group));
        if values.len() != rows * self.inputs || scales.len() != rows * groups {
            return Err(OperandError("integers or their scales are not those of whole outputs"));
        }
        if first_output.checked_add(rows).is_none_or(|end| end > self.outputs) {
            return Err(OperandError("a product has fewer outputs than are packed"));
        }
        if self.form == WeightForm::Int8 {
            for (row, scale) in scales.iter().enumerate() {
                let sum = values[row * self.inputs..][..self.inputs].iter().map(|&q| i32::from(q)).sum();
                self.scales[first_output + row] = *scale;
                self.sums[first_output + row] = sum;
            }
        } else if values.iter().any(|value| !(-8..=7).contains(value)) {
            return Err(OperandError("an integer of 4 bits is not in -8 to 7"));
        }
        let tile_bytes = self.packed.len() / self.outputs.div_ceil(TILE_OUTPUTS);
        let shape = Shape { form: self.form, inputs: self.inputs, inputs_padded: self.inputs_padded };
        let tiles = self.packed.chunks_mut(tile_bytes).enumerate().skip(first_output / TILE_OUTPUTS);
        let mut tiles: Vec<_> =
            tiles.take_while(|(tile, _)| tile * TILE_OUTPUTS < first_output + rows).collect();
        let share = tiles.len().div_ceil(threads.clamp(1, 64) as usize).max(1);
        std::thread::scope(|scope| {
            for some in tiles.chunks_mut(share) {
                scope.spawn(move || {
                    for (tile, bytes) in some {
                        shape.pack_tile(*tile * TILE_OUTPUTS, bytes, first_output, integers);
                    }
                });
            }
        });
        Ok(())
    }

    /// Inputs that share a scale.
    fn group_inputs(&self) -> usize {
        match self.form {
            WeightForm::Int8 => self.inputs,
            WeightForm::Int4 { group } => group as usize,
        }
    }
}

/// What the place of a weight follows from.
#[derive(Clone, Copy)]
struct Shape {
    form: WeightForm,
    inputs: usize,
    inputs_padded: usize,
}

impl Shape {
    /// Those of the integers' outputs, the first of which is `first_output`, that are of the tile that begins with
    /// output `begin`.
    fn pack_tile(self, begin: usize, tile: &mut [u8], first_output: usize, integers: Integers<'_>) {
        let rows = integers.values.len() / self.inputs;
        let of_tile = begin.saturating_sub(first_output)..(begin + TILE_OUTPUTS - first_output).min(rows);
        for row in of_tile {
            let (output, values) = (first_output + row, &integers.values[row * self.inputs..][..self.inputs]);
            match self.form {
                WeightForm::Int8 => {
                    for (k, &value) in values.iter().enumerate() {
                        tile[k / 4 * BLOCK_K + (output - begin) * 4 + k % 4] = value as u8;
                    }
                }
                WeightForm::Int4 { group } => {
                    let groups = self.inputs.div_ceil(group as usize);
                    let scales = &integers.scales[row * groups..][..groups];
                    self.pack_4(tile, output - begin, group as usize, values, scales);
                }
            }
        }
    }

    fn pack_4(self, tile: &mut [u8], lane: usize, group: usize, values: &[i8], scales: &[f32]) {
        // Blocks before the scales that belong to them, and groups of such a run.
        let (blocks, groups) = if group < BLOCK_K { (1, BLOCK_K / group) } else { (group / BLOCK_K, 1) };
        let run_bytes = blocks * BLOCK_BYTES_4 + groups * SCALE_BYTES;
        for k in 0..self.inputs_padded {
            let run = &mut tile[k / (blocks * BLOCK_K) * run_bytes..][..run_bytes];
            let (block, at) = (k / BLOCK_K % blocks, k % BLOCK_K);
            let byte = &mut run[block * BLOCK_BYTES_4 + at % 32 / 4 * 64 + lane * 4 + k % 4];
            let nibble = values.get(k).map_or(8, |value| (value + 8) as u8);
            *byte = if at < 32 { *byte & 0xf0 | nibble } else { *byte & 0x0f | nibble << 4 };
        }
        for first in (0..self.inputs_padded).step_by(group) {
            let scale = scales.get(first / group).copied().unwrap_or(0.0);
            let place = first / group % groups * SCALE_BYTES + lane * 4;
            let run = first / (blocks * BLOCK_K) * run_bytes;
            tile[run + blocks * BLOCK_BYTES_4 + place..][..4].copy_from_slice(&scale.to_le_bytes());
        }
    }
}
