//! Random numbers for tests: the seed is printed, and `PINION_TEST_SEED` repeats a run.

pub(crate) struct Seeded(u64);

impl Seeded {
    pub(crate) fn new(what: &str) -> Seeded {
        let given = std::env::var("PINION_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(pinion_os::clock::now_ns);
        println!("{what}: PINION_TEST_SEED={seed}");
        Seeded(seed)
    }

    /// splitmix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
