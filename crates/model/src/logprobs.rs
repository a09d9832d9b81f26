//! How likely the model itself held a token: log-softmax of the logits as the model gives them, before penalties,
//! biases and temperature. That is `raw_logprobs`, the default of vLLM's `--logprobs-mode`.

use crate::sampler::{exp_nonpositive, id_of, key_of, ordered_sum};

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
    weights: Vec<f32>,
    /// Keys of the likeliest, likeliest first; see [`key_of`].
    best: Vec<u64>,
    max: f32,
    /// ln of the sum of exp(logit - max).
    log_sum: f64,
}

impl Scorer {
    /// Reads a row of finite logits. O(vocab), and no allocation once it has seen the vocabulary.
    pub(crate) fn read(&mut self, logits: &[f32], alternatives: u32) {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        self.weights.clear();
        self.weights.extend(logits.iter().map(|&logit| exp_nonpositive(logit - max)));
        self.max = max;
        self.log_sum = ordered_sum(&self.weights).ln();
        self.find_best((alternatives as usize).min(ALTERNATIVES_MAX));
    }

    /// One walk with a short sorted list: nearly every logit is below the list's last.
    fn find_best(&mut self, count: usize) {
        self.best.clear();
        self.best.reserve(ALTERNATIVES_MAX + 1);
        if count == 0 {
            return;
        }
        for (id, &logit) in self.logits.iter().enumerate() {
            let key = key_of(logit, id as u32);
            if self.best.len() == count && self.best.last().is_some_and(|&last| last < key) {
                continue;
            }
            let at = self.best.partition_point(|&other| other < key);
            self.best.insert(at, key);
            self.best.truncate(count);
        }
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
        let logprob = f64::from(logit) - f64::from(self.max) - self.log_sum;
        Logprob { token, logprob: (logprob as f32).max(f32::MIN) }
    }
}
