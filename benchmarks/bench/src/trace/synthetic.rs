//! Arrivals that no trace gave: gaps from a Gamma distribution of mean 1/rate. Shape 1 is a Poisson process; below 1
//! the arrivals come in bursts.

use super::{Row, Trace};
use crate::random::Random;

/// What to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Synthetic {
    pub rate_per_s: f64,
    /// Shape of the gaps' distribution; their coefficient of variation is 1/√shape.
    pub shape: f64,
    pub requests: usize,
    pub input_tokens: u32,
    pub output_tokens: u32,
    /// Lengths are drawn evenly from ± this share around the mean.
    pub length_spread: f64,
    pub seed: u64,
}

impl Synthetic {
    pub(crate) fn trace(&self) -> Trace {
        let mut random = Random::stream(self.seed, 0xa5);
        let mut at_s = 0.0;
        let mut rows = Vec::with_capacity(self.requests);
        for _ in 0..self.requests {
            rows.push(Row {
                at_s,
                input_tokens: self.length(self.input_tokens, &mut random),
                output_tokens: self.length(self.output_tokens, &mut random),
                blocks: Vec::new(),
            });
            at_s += random.gamma(self.shape) / self.rate_per_s;
        }
        Trace { rows, block_tokens: 0 }
    }

    fn length(&self, mean: u32, random: &mut Random) -> u32 {
        let spread = (2.0 * random.unit() - 1.0) * self.length_spread * f64::from(mean);
        (f64::from(mean) + spread).round().max(1.0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_burstiness_are_as_asked() {
        for shape in [0.25, 1.0] {
            let made = Synthetic {
                rate_per_s: 20.0,
                shape,
                requests: 20_000,
                input_tokens: 100,
                output_tokens: 10,
                length_spread: 0.5,
                seed: 3,
            };
            let rows = made.trace().rows;
            let gaps: Vec<f64> = rows.windows(2).map(|pair| pair[1].at_s - pair[0].at_s).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let square = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean * 20.0 - 1.0).abs() < 0.05, "shape {shape}: mean gap {mean}");
            assert!((square / (mean * mean) * shape - 1.0).abs() < 0.15, "shape {shape}: {square}");
            assert!(rows.iter().all(|row| (50..=150).contains(&row.input_tokens)));
            let mean_input = rows.iter().map(|row| f64::from(row.input_tokens)).sum::<f64>() / 20_000.0;
            assert!((mean_input - 100.0).abs() < 1.5, "{mean_input}");
        }
    }
}
