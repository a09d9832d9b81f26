//! Repeatable numbers from a seed: SplitMix64 (Steele, Lea and Flood, 2014).
//!
//! The same seed gives the same numbers on every machine and in every version: sampled tokens, measured workloads and
//! replayed tests depend on it. The numbers can be guessed, so they are for no secret.

/// From one state to the next: 2^64 over the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A 64-bit hash of `x`: the first number of the stream with this seed.
///
/// ```
/// assert_eq!(pinion_random::mix(0), 0xe220_a839_7b1d_cdaf);
/// ```
#[inline]
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(STEP);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Number `place` of the stream of `seed`, counted from 1.
///
/// ```
/// let mut random = pinion_random::Random::new(7);
/// assert_eq!([1, 2].map(|place| pinion_random::nth(7, place)), [random.bits(), random.bits()]);
/// ```
pub const fn nth(seed: u64, place: u64) -> u64 {
    mix(seed.wrapping_add(place.wrapping_sub(1).wrapping_mul(STEP)))
}

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of this seed. A test prints the seed, so that a failure can be run again.
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        bits
    }

    /// Below `bound`, which is not 0.
    pub const fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// From `low` to `high`, both included.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low + 1)
    }

    /// True `percent` times in a hundred.
    pub const fn chance(&mut self, percent: u64) -> bool {
        self.bits() % 100 < percent
    }

    /// One of these, of which there is at least one.
    pub const fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// In [-1, 1).
    pub const fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation (<https://prng.di.unimi.it/splitmix64.c>).
    #[test]
    fn the_stream_is_the_reference_s() {
        let mut random = Random::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(expected.map(|_| random.bits()), expected);
        for (place, number) in (1..).zip(expected) {
            assert_eq!(nth(1_234_567, place), number);
        }
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let mut random = Random::new(1);
        let (mut below, mut between, mut value) = ([false; 3], [false; 3], (0.0_f32, 0.0_f32));
        for _ in 0..1000 {
            below[random.below(3)] = true;
            between[random.between(5, 7) as usize - 5] = true;
            let next = random.value();
            assert!((-1.0..1.0).contains(&next));
            value = (value.0.min(next), value.1.max(next));
        }
        assert_eq!((below, between), ([true; 3], [true; 3]));
        assert!(value.0 < -0.9 && value.1 > 0.9, "{value:?}");
        assert_eq!([0, 100].map(|percent| (0..100).filter(|_| random.chance(percent)).count()), [0, 100]);
        assert_eq!(random.pick(&["only"]), "only");
    }
}
