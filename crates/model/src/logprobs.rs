//! How likely the model itself held a token: log-softmax of the logits as the model gives them, before penalties,
//! biases and temperature. That is `raw_logprobs`, the default of vLLM's `--logprobs-mode`.

use crate::sampler::{id_of, key_of};
use pinion_ops::walks::{Walks, find_above};

/// Most alternatives that a row may ask for.
pub const ALTERNATIVES_MAX: usize = 20;

/// A token and the logarithm of its probability.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Logprob {
    /// The token.
    pub token: u32,
    /// Finite and at most 0, but for rounding.
    pub logprob: f32,
}

/// What one row's logits say, before anything changes them: the likeliest tokens, and how to score any other.
#[derive(Debug, Default)]
pub(crate) struct Scorer {
    /// A copy of the row.
    logits: Vec<f32>,
    /// Keys of the likeliest, likeliest first; see [`key_of`].
    best: Vec<u64>,
    max: f32,
    /// ln of the sum of exp(logit - max).
    log_sum: f64,
}

impl Scorer {
    /// A scorer with room for `vocab_size` logits.
    pub(crate) fn new(vocab_size: usize) -> Self {
        Self {
            logits: Vec::with_capacity(vocab_size),
            best: Vec::with_capacity(ALTERNATIVES_MAX + 1),
            ..Self::default()
        }
    }

    /// Reads a row of logits. O(vocab), and no allocation within the room that it was made with. False if one is not
    /// finite; then there is nothing to report.
    pub(crate) fn read(&mut self, walks: Walks, logits: &[f32], alternatives: u32) -> bool {
        let Some(max) = walks.finite_max(logits) else { return false };
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.max = max;
        self.log_sum = walks.sum(logits, max).ln();
        self.find_best((alternatives as usize).min(ALTERNATIVES_MAX));
        true
    }

    /// One walk with a short sorted list: nearly every logit is below the list's last.
    fn find_best(&mut self, count: usize) {
        self.best.clear();
        if count == 0 {
            return;
        }
        find_above(&self.logits, f32::MIN, |id| {
            let key = key_of(self.logits[id], id as u32);
            let at = self.best.partition_point(|&other| other < key);
            self.best.insert(at, key);
            self.best.truncate(count);
            match self.best.last() {
                Some(&last) if self.best.len() == count => self.logits[id_of(last) as usize],
                Some(_) | None => f32::MIN,
            }
        });
    }

    /// Appends the drawn token, then the alternatives, likeliest first; ties go to the lower id.
    pub(crate) fn report(&self, drawn: u32, out: &mut Vec<Logprob>) {
        out.push(self.score(drawn));
        out.extend(self.best.iter().map(|&key| self.score(id_of(key))));
    }

    /// The place of a token among all, from 1: one behind those that are likelier. O(vocab).
    pub(crate) fn rank(&self, token: u32) -> u32 {
        let own = self.logits.get(token as usize).copied().unwrap_or(f32::MIN);
        1 + self.logits.iter().filter(|&&logit| logit > own).count() as u32
    }

    fn score(&self, token: u32) -> Logprob {
        let logit = self.logits.get(token as usize).copied().unwrap_or(f32::MIN);
        // The largest of all is 0 if it is a zero of either sign, and so is its distance to itself.
        let logprob = f64::from(logit) - f64::from(self.max) + 0.0 - self.log_sum;
        Logprob { token, logprob: (logprob as f32).max(f32::MIN) }
    }
}
