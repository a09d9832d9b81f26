//! The distributions that arrivals need. The same seed gives the same workload on every machine and in every version of
//! this tool.

/// A seeded source.
#[derive(Clone, Debug)]
pub(crate) struct Random(pinion_random::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(pinion_random::Random::new(seed))
    }

    /// A source of its own for one (seed, stream) pair.
    pub(crate) fn stream(seed: u64, stream: u64) -> Random {
        let mut outer = Random::new(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        Random::new(outer.bits() ^ stream)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// Below `bound`, which is above 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// In (0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Gamma with this shape and mean 1 (Marsaglia and Tsang, 2000). A shape below 1 comes in bursts.
    pub(crate) fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = self.unit().powf(1.0 / shape);
            return self.gamma(shape + 1.0) * (shape + 1.0) * boost / shape;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.unit().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v / shape;
            }
        }
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_and_variance(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let values: Vec<f64> = (0..40_000).map(|_| draw()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, square)
    }

    #[test]
    fn distributions_have_their_mean_and_variance() {
        let mut random = Random::new(7);
        for shape in [0.25, 0.5, 1.0, 4.0] {
            let (mean, variance) = mean_and_variance(|| random.gamma(shape));
            assert!((mean - 1.0).abs() < 0.05, "shape {shape}: mean {mean}");
            assert!((variance * shape - 1.0).abs() < 0.1, "shape {shape}: variance {variance}");
        }
    }

    #[test]
    fn streams_repeat_and_differ() {
        let first = |stream| Random::stream(1, stream).bits();
        assert_eq!(first(5), first(5));
        assert_ne!(first(5), first(6));
        let mut items: Vec<u32> = (0..50).collect();
        Random::new(3).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
