//! Rotary position embeddings: from a config's parameters to the inverse frequencies that a served length asks for.
//! Mirrors transformers' modeling_rope_utils.py, in fp32 and in its order; `dynamic` and `longrope`, which change with
//! the sequence there, are decided once for the served length, so that a cached key stays valid.

/// One rotation: pairs (i, i + dim / 2) of the first `dim` columns of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// Columns that are rotated, even, at most the head's.
    pub dim: u32,
    /// The base of the frequencies.
    pub theta: f32,
    /// How they are stretched.
    pub scaling: Scaling,
}

/// How frequencies are stretched to longer contexts.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// Not at all.
    Default,
    /// Divided.
    Linear {
        /// By this.
        factor: f32,
    },
    /// A larger base, once the served length exceeds `trained`.
    Dynamic {
        /// Growth.
        factor: f32,
        /// Positions of the training.
        trained: u32,
    },
    /// Long waves divided, short ones kept, a ramp between.
    Llama3 {
        /// Divides long waves.
        factor: f32,
        /// Waves longer than `trained / low` are divided.
        low: f32,
        /// Waves shorter than `trained / high` are kept.
        high: f32,
        /// Positions of the training.
        trained: u32,
    },
    /// A ramp over the dimensions, and a factor on cosines and sines.
    Yarn {
        /// Divides long waves.
        factor: f32,
        /// Rotations over the trained length above which a wave is kept.
        beta_fast: f32,
        /// Rotations below which it is divided.
        beta_slow: f32,
        /// Whether the ramp's ends are whole dimensions.
        truncate: bool,
        /// Positions of the training.
        trained: u32,
        /// Factor on cosines and sines.
        attention_factor: f32,
    },
    /// A divisor for each frequency, one list up to the trained length and one beyond it.
    Long {
        /// For served lengths up to `trained`.
        short: Vec<f32>,
        /// For longer ones.
        long: Vec<f32>,
        /// Positions of the training.
        trained: u32,
        /// Factor on cosines and sines.
        attention_factor: f32,
    },
}

/// What rotates queries and keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Frequencies {
    /// Radians per position, `[dim / 2]`.
    pub inverse: Vec<f32>,
    /// Factor on cosines and sines.
    pub attention_factor: f32,
}

impl Rotary {
    /// For sequences of at most `served` tokens.
    pub fn frequencies(&self, served: u32) -> Frequencies {
        let plain = |theta: f32| -> Vec<f32> { self.exponents().map(|e| 1.0 / theta.powf(e)).collect() };
        let (inverse, attention_factor) = match &self.scaling {
            Scaling::Default => (plain(self.theta), 1.0),
            Scaling::Linear { factor } => (plain(self.theta).iter().map(|f| f / factor).collect(), 1.0),
            Scaling::Dynamic { factor, trained } => {
                let (factor, dim) = (f64::from(*factor), f64::from(self.dim));
                let stretch = factor * f64::from(served.max(*trained)) / f64::from(*trained) - (factor - 1.0);
                let theta = f64::from(self.theta) * stretch.powf(dim / (dim - 2.0));
                (plain(theta as f32), 1.0)
            }
            Scaling::Llama3 { factor, low, high, trained } => {
                let trained = *trained as f32;
                let stretch = |f: f32| {
                    let wave = 2.0 * std::f32::consts::PI / f;
                    if wave > trained / low {
                        f / factor
                    } else if wave < trained / high {
                        f
                    } else {
                        let smooth = (trained / wave - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                (plain(self.theta).into_iter().map(stretch).collect(), 1.0)
            }
            Scaling::Yarn { factor, attention_factor, .. } => (self.yarn(*factor), *attention_factor),
            Scaling::Long { short, long, trained, attention_factor } => {
                let divisors = if served > *trained { long } else { short };
                let stretched = self.exponents().zip(divisors).map(|(e, d)| 1.0 / (d * self.theta.powf(e)));
                (stretched.collect(), *attention_factor)
            }
        };
        Frequencies { inverse, attention_factor }
    }

    /// 2 i / dim.
    fn exponents(&self) -> impl Iterator<Item = f32> {
        let dim = self.dim as f32;
        (0..self.dim / 2).map(move |i| (2 * i) as f32 / dim)
    }

    fn yarn(&self, factor: f32) -> Vec<f32> {
        let Scaling::Yarn { beta_fast, beta_slow, truncate, trained, .. } = self.scaling else {
            unreachable!("called for yarn only")
        };
        let (dim, theta) = (f64::from(self.dim), f64::from(self.theta));
        let correction = |rotations: f32| {
            let waves = f64::from(trained) / (f64::from(rotations) * 2.0 * std::f64::consts::PI);
            dim * waves.ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (correction(beta_fast), correction(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        let mix = |(i, e): (usize, f32)| {
            let wave = self.theta.powf(e);
            let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let kept = 1.0 - ramp;
            1.0 / (factor * wave) * (1.0 - kept) + 1.0 / wave * kept
        };
        self.exponents().enumerate().map(mix).collect()
    }
}
