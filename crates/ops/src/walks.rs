//! The sampler's walks over a row of logits: the safe side of kernels/include/pinion_walks.h, and their plain twins,
//! which have the same bits.

use crate::cpu::KernelLevel;

/// How a row is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walks {
    level: KernelLevel,
}

impl Default for Walks {
    fn default() -> Self {
        Self::at(KernelLevel::best())
    }
}

impl Walks {
    /// By this level's instructions, or by the best that the machine has below it.
    pub fn at(level: KernelLevel) -> Self {
        Self { level: level.min(KernelLevel::best()) }
    }

    /// The largest logit, or `None` if any is a NaN or an infinity or there are none. A zero is positive.
    pub fn finite_max(self, logits: &[f32]) -> Option<f32> {
        #[cfg(target_arch = "x86_64")]
        if self.level > KernelLevel::Scalar {
            let (count, mut max) = (logits.len() as u64, 0.0);
            // SAFETY: the slice has `count` elements; the machine has the level.
            let finite =
                unsafe { crate::ffi::pinion_finite_max(logits.as_ptr(), count, self.level.code(), &mut max) };
            return (finite != 0).then_some(max);
        }
        twin::finite_max(logits)
    }

    /// exp((logit - `max`) * `inverse`) of each logit, and the sum of these weights. `max` is the largest logit; its
    /// weight is 1 whatever `inverse` is. No allocation where `weights` has room for the row.
    pub fn weigh(self, logits: &[f32], max: f32, inverse: f32, weights: &mut Vec<f32>) -> f64 {
        #[cfg(target_arch = "x86_64")]
        if self.level > KernelLevel::Scalar {
            weights.resize(logits.len(), 0.0);
            let (count, to) = (logits.len() as u64, weights.as_mut_ptr());
            // SAFETY: both slices have `count` elements; the machine has the level.
            return unsafe {
                crate::ffi::pinion_weigh(logits.as_ptr(), count, max, inverse, self.level.code(), to)
            };
        }
        twin::weigh(logits, max, inverse, weights)
    }

    /// The sum of exp(logit - `max`), as [`Walks::weigh`] has it.
    pub fn sum(self, logits: &[f32], max: f32) -> f64 {
        #[cfg(target_arch = "x86_64")]
        if self.level > KernelLevel::Scalar {
            let (count, nowhere) = (logits.len() as u64, std::ptr::null_mut());
            // SAFETY: the slice has `count` elements; the machine has the level; no weights are wanted.
            return unsafe {
                crate::ffi::pinion_weigh(logits.as_ptr(), count, max, 1.0, self.level.code(), nowhere)
            };
        }
        twin::sum(logits, max)
    }
}

/// Elements of a row that [`find_above`] looks at together.
const RUN: usize = 16;

/// Calls `visit` with the index of each value that is at least `floor`, in their order; what `visit` gives is the floor
/// from then on. Runs without one are passed by as a whole, so a floor above nearly all values is cheap.
pub fn find_above(values: &[f32], mut floor: f32, mut visit: impl FnMut(usize) -> f32) {
    for (run, values) in values.chunks(RUN).enumerate() {
        if values.iter().fold(false, |any, &value| any | (value >= floor)) {
            for (at, &value) in values.iter().enumerate() {
                if value >= floor {
                    floor = visit(run * RUN + at);
                }
            }
        }
    }
}

/// The same in plain Rust.
pub mod twin {
    /// Twin of [`super::Walks::finite_max`]. Written in lanes so that it vectorises.
    pub fn finite_max(logits: &[f32]) -> Option<f32> {
        const LANES: usize = 16;
        let mut max = [f32::NEG_INFINITY; LANES];
        // x * 0 is 0 for a finite x and NaN for the others.
        let mut poison = [0.0f32; LANES];
        let chunks = logits.chunks_exact(LANES);
        let rest = chunks.remainder();
        let mut visit = |lane: usize, logit: f32| {
            max[lane] = if logit > max[lane] { logit } else { max[lane] };
            poison[lane] += logit * 0.0;
        };
        for chunk in chunks {
            for (lane, &logit) in chunk.iter().enumerate() {
                visit(lane, logit);
            }
        }
        for (lane, &logit) in rest.iter().enumerate() {
            visit(lane, logit);
        }
        let finite = !logits.is_empty() && poison.iter().all(|&value| value == 0.0);
        finite.then(|| max.into_iter().fold(f32::NEG_INFINITY, f32::max) + 0.0)
    }

    /// Twin of [`super::Walks::weigh`].
    pub fn weigh(logits: &[f32], max: f32, inverse: f32, weights: &mut Vec<f32>) -> f64 {
        weights.clear();
        weights.extend(logits.iter().map(|&logit| exp_nonpositive(scaled(logit - max, inverse))));
        ordered_sum(weights)
    }

    /// Twin of [`super::Walks::sum`].
    pub fn sum(logits: &[f32], max: f32) -> f64 {
        in_lanes(logits, |logit| exp_nonpositive(logit - max))
    }

    /// Sum in eight interleaved lanes: a fixed order, and quick.
    pub fn ordered_sum(values: &[f32]) -> f64 {
        in_lanes(values, |value| value)
    }

    fn in_lanes(values: &[f32], term: impl Fn(f32) -> f32) -> f64 {
        let mut lanes = [0.0f64; 8];
        let chunks = values.chunks_exact(8);
        let rest = chunks.remainder();
        for chunk in chunks {
            for (lane, &value) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(term(value));
            }
        }
        for (lane, &value) in lanes.iter_mut().zip(rest) {
            *lane += f64::from(term(value));
        }
        lanes.iter().sum()
    }

    /// `difference` (at most 0) over the temperature, with 0 for 0 / 0: exp of something below the smallest
    /// temperature's reach is 0 or 1, never a NaN. (l - max) <= 0, and the clamp in `exp_nonpositive` swallows -inf;
    /// 0 * inf is the one NaN, and reads as the maximum's weight.
    fn scaled(difference: f32, inverse: f32) -> f32 {
        if difference == 0.0 { 0.0 } else { difference * inverse }
    }

    /// exp(x) for x <= 0, relative error below 5e-6, exactly 1 at 0 and 0 below -87. Branch-free, so that it
    /// vectorises, and the same on every machine, which the platform's `expf` is not.
    pub fn exp_nonpositive(x: f32) -> f32 {
        const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to the nearest integer
        let clamped = if x > -87.0 { x } else { -87.0 };
        let power = clamped * std::f32::consts::LOG2_E;
        let shifted = power + ROUND;
        let whole = shifted - ROUND;
        // Taylor of 2^f = e^(f ln 2) on |f| <= 1/2.
        let f = (power - whole) * std::f32::consts::LN_2;
        let series =
            1.0 + f * (1.0 + f * (0.5 + f * (1.0 / 6.0 + f * (1.0 / 24.0 + f * (1.0 / 120.0 + f / 720.0)))));
        let scale = f32::from_bits(((shifted.to_bits() as i32 - ROUND.to_bits() as i32 + 127) as u32) << 23);
        if x > -87.0 { series * scale } else { 0.0 }
    }
}
