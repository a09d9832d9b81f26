//! Random numbers for tests: the seed is printed, and `PINION_TEST_SEED` repeats a run.

use pinion_random::Random;

pub(crate) struct Seeded(Random);

impl Seeded {
    pub(crate) fn new(what: &str) -> Seeded {
        let given = std::env::var("PINION_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(pinion_os::clock::now_ns);
        println!("{what}: PINION_TEST_SEED={seed}");
        Seeded(Random::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.bits()
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
