//! The fake backend's options.

use crate::sources::{Settings, Take};
use serde::{Deserialize, Serialize};

/// What the fake backend does beside giving tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fake {
    /// Time of one step, in µs.
    pub step_us: u64,
    /// Time added per prompt token in a step, in µs.
    pub prefill_us_per_token: u64,
    /// Token of a prompt that kills the engine.
    pub fatal_token: Option<u32>,
}

impl Fake {
    pub(crate) fn new(settings: &Settings) -> Fake {
        let take = Take(settings);
        Fake {
            step_us: take.number("fake-step-us"),
            prefill_us_per_token: take.number("fake-prefill-us-per-token"),
            fatal_token: settings.number("fake-fatal-token").and_then(|token| u32::try_from(token).ok()),
        }
    }
}
