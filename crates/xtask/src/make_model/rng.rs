//! A small seeded generator: SplitMix64 and the Box-Muller transform. No dependency, the same on every machine
//! up to the last bit of `ln`, `sin` and `cos`.

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator of its own for each name, so that no tensor depends on the order of writing.
    pub(crate) fn named(seed: u64, name: &str) -> Self {
        // FNV-1a over the name, then mixed with the seed.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mixed_seed = Self::new(seed).next_u64();
        Self::new(hash ^ mixed_seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
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
