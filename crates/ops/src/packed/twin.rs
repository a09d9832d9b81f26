//! What the kernels must equal to the bit, in plain Rust.

use crate::Epilogue;
use crate::quantized::SourceType;
use half::{bf16, f16};

/// Weights as they are multiplied, not packed.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    weight_type: SourceType,
    inputs: usize,
    outputs: usize,
    /// \[outputs, inputs\], each a value of the type.
    values: Vec<f32>,
}

/// The nearest value of a type.
pub fn rounded(weight_type: SourceType, value: f32) -> f32 {
    match weight_type {
        SourceType::F32 => value,
        SourceType::Bf16 => bf16::from_f32(value).to_f32(),
        SourceType::F16 => f16::from_f32(value).to_f32(),
    }
}

impl Weights {
    /// From \[outputs, inputs\], rounded to the type.
    pub fn new(weight_type: SourceType, weights: &[f32], inputs: usize) -> Self {
        let values = weights.iter().map(|&value| rounded(weight_type, value)).collect();
        Self { weight_type, inputs, outputs: weights.len() / inputs, values }
    }

    /// The layout of kernels/include/pinion_packed.h.
    pub fn packed(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for tile in 0..self.outputs.div_ceil(16) {
            for pair in 0..self.inputs.next_multiple_of(32) / 2 {
                for at in 0..32 {
                    let (lane, half) = if self.weight_type == SourceType::Bf16 {
                        (at / 2, at % 2)
                    } else {
                        (at % 16, at / 16)
                    };
                    self.push(tile * 16 + lane, pair * 2 + half, &mut bytes);
                }
            }
        }
        bytes
    }

    fn push(&self, output: usize, k: usize, bytes: &mut Vec<u8>) {
        let is_there = output < self.outputs && k < self.inputs;
        let value = if is_there { self.values[output * self.inputs + k] } else { 0.0 };
        match self.weight_type {
            SourceType::F32 => bytes.extend(value.to_le_bytes()),
            SourceType::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
            SourceType::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
        }
    }

    /// \[outputs\] = `epilogue` of `x` \[inputs\] of `x_type` . weights^T, before it is rounded.
    pub fn multiply(&self, x_type: SourceType, x: &[f32], epilogue: Epilogue<'_, f32>) -> Vec<f32> {
        let in_pairs = x_type == SourceType::Bf16 && self.weight_type == SourceType::Bf16;
        let product = |output: usize| {
            let weights = &self.values[output * self.inputs..][..self.inputs];
            if in_pairs {
                return sum_of_pairs(weights, x);
            }
            // Of the even and of the odd inputs.
            let mut sums = [0f32; 2];
            for (k, (&weight, &x)) in weights.iter().zip(x).enumerate() {
                sums[k % 2] = x.mul_add(weight, sums[k % 2]);
            }
            sums[0] + sums[1]
        };
        (0..self.outputs).map(|output| epilogue.apply(output, product(output))).collect()
    }
}

/// As vdpbf16ps adds it up: the odd input of each pair first, and no denormal numbers.
fn sum_of_pairs(weights: &[f32], x: &[f32]) -> f32 {
    let at = |values: &[f32], k: usize| flushed(values.get(k).copied().unwrap_or(0.0));
    let added = |sum: f32, k: usize| flushed(at(x, k).mul_add(at(weights, k), sum));
    (0..weights.len()).step_by(2).fold(0.0, |sum, k| added(added(sum, k + 1), k))
}

fn flushed(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0f32.copysign(value) } else { value }
}
