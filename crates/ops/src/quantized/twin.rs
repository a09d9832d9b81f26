//! What the kernels must equal to the bit, in plain Rust.

use super::WeightForm;
use crate::Epilogue;

/// Weights as integers, not packed.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    form: WeightForm,
    inputs: usize,
    outputs: usize,
    /// \[outputs, inputs\].
    values: Vec<i8>,
    /// \[outputs, groups\], one group of all inputs with 8 bits.
    scales: Vec<f32>,
}

/// Integers from -127 to 127 and their scale.
pub fn quantize(x: &[f32]) -> (Vec<i8>, f32) {
    let largest =
        x.iter().fold(0f32, |max, value| if value.is_nan() { f32::NAN } else { max.max(value.abs()) });
    if !x.iter().all(|value| value.is_finite()) {
        return (vec![0; x.len()], f32::NAN);
    }
    if largest < 2f32.powi(-118) {
        return (vec![0; x.len()], 0.0);
    }
    let inverse = 127.0 / largest;
    (x.iter().map(|value| (value * inverse).round_ties_even() as i8).collect(), largest / 127.0)
}

/// Integers from -8 to 7 and their scale.
fn quantize_group(x: &[f32]) -> (Vec<i8>, f32) {
    let largest = x.iter().fold(0f32, |most, &value| if value.abs() > most.abs() { value } else { most });
    if !x.iter().all(|value| value.is_finite()) {
        return (vec![0; x.len()], f32::NAN);
    }
    if largest.abs() < 2f32.powi(-118) {
        return (vec![0; x.len()], 0.0);
    }
    let inverse = -8.0 / largest;
    (x.iter().map(|value| (value * inverse).round_ties_even().min(7.0) as i8).collect(), largest / -8.0)
}

impl Weights {
    /// From \[outputs, inputs\].
    pub fn new(form: WeightForm, weights: &[f32], inputs: usize) -> Self {
        let (mut values, mut scales) = (Vec::new(), Vec::new());
        for row in weights.chunks_exact(inputs) {
            let parts = match form {
                WeightForm::Int8 => vec![quantize(row)],
                WeightForm::Int4 { group } => row.chunks(group as usize).map(quantize_group).collect(),
            };
            for (integers, scale) in parts {
                values.extend(integers);
                scales.push(scale);
            }
        }
        Self { form, inputs, outputs: weights.len() / inputs, values, scales }
    }

    /// From integers \[outputs, inputs\] and scales \[outputs, groups\].
    pub fn of_integers(form: WeightForm, values: Vec<i8>, scales: Vec<f32>, inputs: usize) -> Self {
        Self { form, inputs, outputs: values.len() / inputs, values, scales }
    }

    fn groups(&self) -> usize {
        self.scales.len() / self.outputs
    }

    /// The layout of kernels/include/pinion_quantized.h.
    pub fn packed(&self) -> Vec<u8> {
        let padded = self.inputs.next_multiple_of(64);
        let mut bytes = Vec::new();
        for tile in 0..self.outputs.div_ceil(16) {
            for block in 0..padded / 64 {
                self.pack_block(tile, block, &mut bytes);
            }
        }
        bytes
    }

    fn value(&self, output: usize, k: usize) -> i8 {
        if k < self.inputs { self.values[output * self.inputs + k] } else { 0 }
    }

    fn pack_block(&self, tile: usize, block: usize, bytes: &mut Vec<u8>) {
        let outputs = tile * 16..(tile + 1) * 16;
        let WeightForm::Int4 { group } = self.form else {
            for quad in 0..16 {
                for (output, j) in outputs.clone().flat_map(|output| (0..4).map(move |j| (output, j))) {
                    let is_there = output < self.outputs;
                    bytes.push(if is_there {
                        self.value(output, block * 64 + quad * 4 + j) as u8
                    } else {
                        0
                    });
                }
            }
            return;
        };
        for p in 0..8 {
            for (output, j) in outputs.clone().flat_map(|output| (0..4).map(move |j| (output, j))) {
                let nibble = |k: usize| (self.value(output, block * 64 + k) + 8) as u8;
                let both = |output| {
                    if output < self.outputs { nibble(p * 4 + j) | nibble(32 + p * 4 + j) << 4 } else { 0 }
                };
                bytes.push(both(output));
            }
        }
        let group = group as usize;
        let ended = (block * 64 + 1..=(block + 1) * 64).filter(|end| end % group == 0);
        for ends in ended {
            for output in outputs.clone() {
                let at = ends / group - 1;
                let is_there = output < self.outputs && at < self.groups();
                let scale = if is_there { self.scales[output * self.groups() + at] } else { 0.0 };
                bytes.extend(scale.to_le_bytes());
            }
        }
    }

    /// \[outputs\] = `epilogue` of `x` \[inputs\] . weights^T, before it is rounded.
    pub fn multiply(&self, x: &[f32], epilogue: Epilogue<'_, f32>) -> Vec<f32> {
        let (x, x_scale) = quantize(x);
        let group = match self.form {
            WeightForm::Int8 => self.inputs,
            WeightForm::Int4 { group } => group as usize,
        };
        let product = |output: usize| {
            let weights = &self.values[output * self.inputs..][..self.inputs];
            let scales = &self.scales[output * self.groups()..][..self.groups()];
            let sums = weights.chunks(group).zip(x.chunks(group)).map(|(weights, x)| {
                weights.iter().zip(x).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum::<i32>()
            });
            match self.form {
                WeightForm::Int8 => sums.sum::<i32>() as f32 * (x_scale * scales[0]),
                WeightForm::Int4 { .. } => {
                    let whole = sums.zip(scales).fold(0f32, |whole, (sum, scale)| whole + sum as f32 * scale);
                    whole * x_scale
                }
            }
        };
        (0..self.outputs).map(|output| epilogue.apply(output, product(output))).collect()
    }
}
