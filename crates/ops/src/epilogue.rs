//! What follows the sums of a product before they are rounded: bias, activation, residual. [`Epilogue::apply`] is what
//! the kernels must equal to the bit (kernels/cpu/product_activation.h), in plain Rust.

use crate::Activation;

/// out = activation(sum + bias) + residual, in fp32.
#[derive(Debug, Clone, Copy)]
pub struct Epilogue<'a, T> {
    /// Added to the sums: \[outputs\].
    pub bias: Option<&'a [f32]>,
    /// Applied to what that gives.
    pub activation: Activation,
    /// Added last: \[rows, outputs\].
    pub residual: Option<&'a [T]>,
}

impl<T> Default for Epilogue<'_, T> {
    /// The sums alone.
    fn default() -> Self {
        Self { bias: None, activation: Activation::None, residual: None }
    }
}

impl Epilogue<'_, f32> {
    /// What becomes of the sum of one output; the residual is that of its row.
    pub fn apply(&self, output: usize, sum: f32) -> f32 {
        let mut value = sum;
        if let Some(bias) = self.bias {
            value += bias[output];
        }
        value = match self.activation {
            Activation::None => value,
            Activation::GeluTanh => gelu_tanh(value),
            Activation::GeluErf => gelu_erf(value),
        };
        if let Some(residual) = self.residual {
            value += residual[output];
        }
        value
    }
}

/// exp of a value up to 0: relative error about 2e-7; 0 below -87.
fn exp_of_negative(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    if x < -87.0 {
        return 0.0;
    }
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = x - n * (355.0 / 512.0) + n * 2.121_944_4e-4;
    let polynomial =
        [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0].iter().fold(1.0 / 720.0, |p, term| p * r + term);
    polynomial * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// x (1 + tanh u) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
fn gelu_tanh(x: f32) -> f32 {
    let shrunk = exp_of_negative(-((x + x * x * x * 0.044_715) * 1.595_769_2).abs());
    x * (if x >= 0.0 { 1.0 } else { shrunk } / (1.0 + shrunk))
}

/// x (1 + erf(x / sqrt(2))) / 2 by Abramowitz and Stegun's 7.1.26.
fn gelu_erf(x: f32) -> f32 {
    let shrunk = exp_of_negative(x * x * -0.5);
    let t = 1.0 / (1.0 + x.abs() * 0.231_641_89);
    let terms = [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6];
    let polynomial = terms.iter().fold(1.061_405_4, |p, term| p * t + term);
    let half = polynomial * t * shrunk * 0.5;
    x * if x >= 0.0 { 1.0 - half } else { half }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Their definitions in double precision, by series that converge for all of it.
    fn erf(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn both_are_gelu() {
        for step in -50_000..=50_000 {
            let x = f64::from(step as f32 * 1e-4);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            let want = [0.5 * x * (1.0 + inner.tanh()), 0.5 * x * (1.0 + erf(x / 2f64.sqrt()))];
            let have = [gelu_tanh(x as f32), gelu_erf(x as f32)].map(f64::from);
            for (have, want) in have.into_iter().zip(want) {
                assert!((have - want).abs() < 6e-7, "of {x}: {have:e}, not {want:e}");
            }
        }
    }

    #[test]
    fn values_without_a_neighbour() {
        for gelu in [gelu_tanh, gelu_erf] {
            assert!(gelu(f32::NAN).is_nan());
            assert_eq!(gelu(f32::INFINITY), f32::INFINITY);
            assert_eq!((gelu(50.0), gelu(-50.0), gelu(0.0)), (50.0, 0.0, 0.0));
            assert_eq!((gelu(1e30), gelu(-1e30)), (1e30, 0.0));
        }
    }
}
