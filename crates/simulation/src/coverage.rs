//! What runs have reached.

use std::collections::BTreeMap;
use std::fmt;

/// How often something was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<String, u64>);

impl Coverage {
    /// It was seen.
    pub fn see(&mut self, what: impl Into<String>) {
        self.add(what, 1);
    }

    /// It was seen so often.
    pub fn add(&mut self, what: impl Into<String>, count: u64) {
        *self.0.entry(what.into()).or_default() += count;
    }

    /// Adds what another run has seen.
    pub fn merge(&mut self, other: &Coverage) {
        other.0.iter().for_each(|(what, count)| self.add(what.clone(), *count));
    }

    /// How often.
    pub fn count(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, count)| writeln!(f, "{count:>10}  {what}"))
    }
}
