//! How many drafts a sequence proposes: as many as its own text has shown to be likely.
//! docs/design/0017-speculation.md.
//!
//! Each draft that was verified says how likely the next is. Drafts are proposed up to the one whose chance to be
//! accepted, with all before it, is a half: a row beside others costs a part of a step, and an accepted one saves a
//! whole one. Below a half for the first, the sequence pauses for a time that doubles, and then tries a single one.

use pinion_protocol::limits::DRAFT_STEP_ROWS_MAX;

/// A certainty.
const ONE: u32 = 1024;
const HALF: u32 = ONE / 2;
/// What is believed at first.
const FIRST_CHANCE: u32 = ONE * 3 / 4;
/// One verified draft changes the chance by this part of the difference.
const MEMORY: u32 = 8;
/// Tokens without a draft, while they are not worth their rows.
const PAUSE_MIN: u32 = 8;
const PAUSE_MAX: u32 = 512;

/// Most drafts of each sequence in a step with this number of decode rows.
pub(crate) fn drafts_each(rows: u32) -> u32 {
    (DRAFT_STEP_ROWS_MAX / rows.max(1)).saturating_sub(1)
}

/// Drafts of a request so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drafts {
    /// Those that steps have verified, or are about to.
    pub proposed: u64,
    /// Those that were sampled.
    pub accepted: u64,
}

/// What one sequence has learnt about its drafts.
#[derive(Debug, Clone)]
pub(crate) struct Speculation {
    /// Chance that the next draft is accepted, if those before it are; in parts of [`ONE`].
    chance: u32,
    /// Nothing is proposed before this number of generated tokens.
    resumes_at: u32,
    pause: u32,
    /// Drafts of the outstanding step that were accepted so far.
    accepted: u32,
    total: Drafts,
}

impl Speculation {
    pub(crate) fn new() -> Speculation {
        Speculation {
            chance: FIRST_CHANCE,
            resumes_at: 0,
            pause: PAUSE_MIN,
            accepted: 0,
            total: Drafts::default(),
        }
    }

    pub(crate) fn total(&self) -> Drafts {
        self.total
    }

    /// Drafts worth their rows, behind this number of generated tokens.
    pub(crate) fn wanted(&self, generated: u32) -> u32 {
        if generated < self.resumes_at {
            return 0;
        }
        let (mut count, mut chance) = (1, self.chance * self.chance / ONE);
        while chance >= HALF && count + 1 < DRAFT_STEP_ROWS_MAX {
            (count, chance) = (count + 1, chance * self.chance / ONE);
        }
        count
    }

    /// A step with this number of drafts is planned.
    pub(crate) fn propose(&mut self, count: u32) {
        self.accepted = 0;
        self.total.proposed += u64::from(count);
    }

    /// Drafts of the outstanding step that were accepted so far.
    pub(crate) fn accepted(&self) -> u32 {
        self.accepted
    }

    /// The next draft was accepted, or refused with those behind it; `generated` tokens are there now.
    pub(crate) fn learn(&mut self, accepted: bool, generated: u32) {
        if accepted {
            self.accepted += 1;
            self.total.accepted += 1;
            self.chance += (ONE - self.chance) / MEMORY;
        } else {
            self.chance -= self.chance / MEMORY;
        }
        if self.chance >= HALF {
            self.pause = PAUSE_MIN;
            return;
        }
        self.pause = if accepted { (self.pause / 2).max(PAUSE_MIN) } else { (self.pause * 2).min(PAUSE_MAX) };
        self.resumes_at = generated + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_drafts_beside_many_rows() {
        let each = [1, 2, 3, 4, 5, 8, 64].map(drafts_each);
        assert_eq!(each, [7, 3, 1, 1, 0, 0, 0]);
        assert!(
            (1..100)
                .all(|rows| drafts_each(rows) == 0 || rows * (1 + drafts_each(rows)) <= DRAFT_STEP_ROWS_MAX)
        );
    }

    /// (chance that a draft is accepted in percent, drafts per step at the end, how many of all tokens are refused
    /// drafts at most in percent)
    #[test]
    fn drafts_grow_while_they_are_accepted_and_stop_where_they_do_not_pay() {
        let seed = 20_261_123;
        println!("seed {seed}");
        let mut random = pinion_random::Random::new(seed);
        for (percent, least, most, refused_max) in
            [(100, 7.0, 7.0, 0), (97, 4.0, 7.0, 25), (75, 1.0, 5.0, 40), (20, 0.0, 0.3, 8), (0, 0.0, 0.01, 1)]
        {
            let (mut speculation, mut generated, mut refused, mut sizes) =
                (Speculation::new(), 0, 0, Vec::new());
            while generated < 20_000 {
                let wanted = speculation.wanted(generated);
                speculation.propose(wanted);
                sizes.push(wanted);
                let accepted = (0..wanted).take_while(|_| random.chance(percent)).count() as u32;
                for index in 0..wanted.min(accepted + 1) {
                    generated += 1;
                    speculation.learn(index < accepted, generated);
                }
                // The last row samples one more.
                generated += u32::from(accepted == wanted);
                refused += wanted - accepted;
                assert_eq!(speculation.accepted(), accepted);
            }
            let late = &sizes[sizes.len() / 2..];
            let mean = late.iter().sum::<u32>() as f64 / late.len() as f64;
            println!("{percent} percent: {mean} drafts a step, {refused} refused for {generated} tokens");
            assert!((least..=most).contains(&mean), "{percent}: {mean} drafts");
            assert!(refused * 100 <= refused_max * generated, "{percent}: {refused} of {generated}");
        }
    }
}
