//! Normal numbers by the Box-Muller transform: the same on every machine up to the last bit of `ln`, `sin` and `cos`.

use pinion_random::{Random, mix};

/// A seeded source.
pub(crate) struct Rng(Random);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// A generator of its own for each name, so that no tensor depends on the order of writing.
    pub(crate) fn named(seed: u64, name: &str) -> Self {
        // FNV-1a over the name, then mixed with the seed.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self::new(hash ^ mix(seed))
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0.bits()
    }

    /// Two independent standard normal numbers.
    pub(crate) fn normal_pair(&mut self) -> (f32, f32) {
        const ONE: f32 = (1_u32 << 24) as f32;
        let bits = self.next_u64();
        // (0, 1]: the logarithm below must not see zero.
        let radius_draw = ((bits >> 40) as f32 + 1.0) / ONE;
        let angle_draw = ((bits & 0x00ff_ffff) as f32) / ONE;
        let radius = (-2.0 * radius_draw.ln()).sqrt();
        let (sine, cosine) = (std::f32::consts::TAU * angle_draw).sin_cos();
        (radius * cosine, radius * sine)
    }
}
