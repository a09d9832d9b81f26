//! How many tokens steps have, as the buckets of a histogram on the status page.

use crate::ports::Ports;
use pinion_protocol::status::{Gauge, STEP_SIZES};

/// Counts since the engine's start.
#[derive(Default)]
pub(crate) struct StepSizes {
    /// Steps by the bucket of their size.
    steps: [u64; STEP_SIZES.len()],
    tokens: u64,
}

impl StepSizes {
    /// Counts a step of this number of tokens, refused drafts left out, and shows it. The first step zeroes the page,
    /// which may still have the counts of an engine that died.
    pub(crate) fn count(&mut self, tokens: u32, ports: &impl Ports) {
        if self.steps == [0; STEP_SIZES.len()] {
            STEP_SIZES.iter().for_each(|(_, gauge)| ports.set_gauge(*gauge, 0));
        }
        let bucket = STEP_SIZES.partition_point(|(bound, _)| *bound < tokens).min(STEP_SIZES.len() - 1);
        self.steps[bucket] += 1;
        self.tokens += u64::from(tokens);
        ports.set_gauge(STEP_SIZES[bucket].1, self.steps[bucket]);
        ports.set_gauge(Gauge::StepTokens, self.tokens);
    }
}
