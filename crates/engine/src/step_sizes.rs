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
    /// Counts a step of this number of tokens.
    pub(crate) fn count(&mut self, tokens: u32) {
        let bucket = STEP_SIZES.partition_point(|(bound, _)| *bound < tokens).min(STEP_SIZES.len() - 1);
        self.steps[bucket] += 1;
        self.tokens += u64::from(tokens);
    }

    /// Shows all counts: the page may still have those of an engine that died.
    pub(crate) fn show(&self, ports: &impl Ports) {
        for ((_, gauge), steps) in STEP_SIZES.iter().zip(self.steps) {
            ports.set_gauge(*gauge, steps);
        }
        ports.set_gauge(Gauge::StepTokens, self.tokens);
    }
}
