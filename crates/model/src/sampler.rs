//! From one row of logits to one token: greedy, temperature, top-k, top-p, min-p.
//!
//! The random draw depends on (seed, position) only, and every order used has one winner (higher logit first, then
//! lower id), so a row draws the same token whichever batch it is in and however often it is computed again. All
//! arithmetic is plain IEEE `f32`/`f64` in a fixed order: the same logits give the same token on every machine.

use crate::batch::{RowOutcome, StepOutput};
use crate::logprobs::{Logprob, Scorer};
use crate::shaping::{MaskState, Shaper, Shaping, apply_mask};
use pinion_ops::walks::{Walks, find_above, twin::ordered_sum};
use pinion_random::mix;

/// How to sample one token. Mirrors the order of Hugging Face's `LogitsProcessorList` in `generation/utils.py`:
/// temperature, then top-k, then top-p over what top-k left, then min-p over what top-p left. Penalties and biases come
/// before all of them, see [`Shaping`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleParams {
    /// Divides the logits; 0 (or anything not above 0) means greedy.
    pub temperature: f32,
    /// Keep the `top_k` likeliest tokens; 0 is off.
    pub top_k: u32,
    /// Keep the smallest likeliest set whose mass reaches this; 1 or more is off. The likeliest token is always kept.
    pub top_p: f32,
    /// Of those, keep the tokens at least this share as likely as the likeliest; 0 is off.
    pub min_p: f32,
    /// Report the drawn token's logprob and those of this number of likeliest tokens, at most
    /// [`crate::ALTERNATIVES_MAX`].
    pub logprobs: Option<u32>,
    /// The request's seed.
    pub seed: u64,
    /// Index of the token to generate within the request's output, from 0; not its position in the context.
    pub position: u64,
}

impl SampleParams {
    /// The likeliest token, ties to the lowest id.
    pub const GREEDY: Self =
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, logprobs: None, seed: 0, position: 0 };

    pub(crate) fn is_greedy(&self) -> bool {
        self.temperature.is_nan() || self.temperature <= 0.0 || self.top_k == 1 || self.top_p <= 0.0
    }
}

/// Weights below these shares of the largest are left out of the first candidate lists; 0 takes every token.
const CANDIDATE_FLOORS: [f32; 3] = [1e-3, 1e-6, 0.0];

/// Reused buffers of the sampler; one for each thread that draws. A new one allocates nothing while it draws from rows
/// of the size that it was made for, but for the growth of outputs.
#[derive(Debug, Default)]
pub struct Sampler {
    walks: Walks,
    /// exp((logit - max) / temperature) of each id.
    weights: Vec<f32>,
    /// Candidates as sortable keys, see [`key_of`].
    keys: Vec<u64>,
    /// One bit for each id that a masked row may draw.
    allowed: Vec<u32>,
    shaper: Shaper,
    scorer: Scorer,
}

impl Sampler {
    /// A sampler with room for `vocab_size` logits.
    pub fn new(vocab_size: usize) -> Self {
        Self {
            weights: Vec::with_capacity(vocab_size),
            keys: Vec::with_capacity(vocab_size),
            allowed: Vec::with_capacity(vocab_size / u32::BITS as usize + 2),
            shaper: Shaper::new(vocab_size),
            scorer: Scorer::new(vocab_size),
            walks: Walks::default(),
        }
    }

    /// The same with rows walked so; what is drawn is the same.
    pub fn with_walks(mut self, walks: Walks) -> Self {
        self.walks = walks;
        self
    }

    /// Samples one token after what the row's request does to `logits` (\[vocab\]), which are changed in place. No
    /// token where the row's mask has none to give.
    pub fn draw(
        &mut self,
        logits: &mut [f32],
        params: &SampleParams,
        shaping: Option<Shaping<'_>>,
    ) -> RowOutcome {
        if let Some(shaping) = shaping {
            self.shaper.apply(&shaping, logits);
            if let Some(mask) = shaping.mask {
                match mask.read(params.position, &mut self.allowed) {
                    MaskState::Ready => apply_mask(&self.allowed, logits),
                    MaskState::Complete => return RowOutcome::Complete,
                    MaskState::Late => return RowOutcome::Late,
                    MaskState::Failed => return RowOutcome::Unmasked,
                }
            }
        }
        self.sample(logits, params)
    }

    /// [`Sampler::draw`] for the next row of a step: appends the outcome, and the logprobs if the row asks for them.
    pub fn draw_row(
        &mut self,
        logits: &mut [f32],
        params: &SampleParams,
        shaping: Option<Shaping<'_>>,
        out: &mut StepOutput,
    ) {
        let outcome = self.draw_scored(logits, params, shaping, &mut out.logprobs);
        out.push(outcome);
    }

    /// [`Sampler::draw`]; appends the logprobs if the row asks for them.
    pub(crate) fn draw_scored(
        &mut self,
        logits: &mut [f32],
        params: &SampleParams,
        shaping: Option<Shaping<'_>>,
        logprobs: &mut Vec<Logprob>,
    ) -> RowOutcome {
        if let Some(alternatives) = params.logprobs {
            // From a row that is not finite nothing is drawn, and so nothing is reported.
            self.scorer.read(self.walks, logits, alternatives);
        }
        let outcome = self.draw(logits, params, shaping);
        if let (RowOutcome::Token(token), Some(_)) = (outcome, params.logprobs) {
            self.scorer.report(token, logprobs);
        }
        outcome
    }

    /// Scores a token that is known: appends its logprob, those of the likeliest, and its rank. False if a logit is not
    /// finite; nothing is appended then. No allocation but for the growth of `out`.
    pub(crate) fn score_known(
        &mut self,
        logits: &[f32],
        token: u32,
        alternatives: u32,
        out: &mut StepOutput,
    ) -> bool {
        if !self.scorer.read(self.walks, logits, alternatives) {
            return false;
        }
        self.scorer.report(token, &mut out.prompt_logprobs);
        out.prompt_ranks.push(self.scorer.rank(token));
        true
    }

    /// Samples one token from `logits` (\[vocab\]). [`RowOutcome::NonFinite`] if any logit is a NaN or an infinity, or
    /// if there are none. O(vocab); sorts only the candidates that top-k and top-p can reach.
    pub fn sample(&mut self, logits: &[f32], params: &SampleParams) -> RowOutcome {
        let Some(max) = self.walks.finite_max(logits) else { return RowOutcome::NonFinite };
        if params.is_greedy() {
            let first = logits.iter().position(|&logit| logit == max);
            return RowOutcome::Token(first.expect("the maximum is one of the logits") as u32);
        }
        let inverse = 1.0 / params.temperature;
        let mut total = self.walks.weigh(logits, max, inverse, &mut self.weights);
        let draw = uniform(params.seed, params.position);

        let top_k = match params.top_k as usize {
            0 => logits.len(),
            k => k.min(logits.len()),
        };
        let top_p_is_on = params.top_p < 1.0;
        if top_k == logits.len() && !top_p_is_on {
            if params.min_p > 0.0 {
                // The likeliest token's weight is 1.
                self.weights
                    .iter_mut()
                    .filter(|weight| **weight < params.min_p)
                    .for_each(|weight| *weight = 0.0);
                total = ordered_sum(&self.weights);
            }
            return RowOutcome::Token(walk_all(&self.weights, draw * total));
        }
        self.collect_candidates(logits, top_k, f64::from(params.top_p), total);
        // The distribution that top-p acts on is the one that top-k left.
        let base = if top_k < logits.len() { self.candidate_mass() } else { total };
        let kept = self.keep(base * f64::from(params.top_p), top_p_is_on, params.min_p);
        RowOutcome::Token(self.walk_candidates(kept, draw))
    }

    /// Fills `keys` with the likeliest tokens, sorted, enough of them for `top_k` and `top_p`.
    fn collect_candidates(&mut self, logits: &[f32], top_k: usize, top_p: f64, total: f64) {
        let k_is_on = top_k < logits.len();
        for floor in CANDIDATE_FLOORS {
            self.keys.clear();
            let mut mass = 0.0f64;
            find_above(&self.weights, floor, |id| {
                mass += f64::from(self.weights[id]);
                self.keys.push(key_of(logits[id], id as u32));
                floor
            });
            // The margin keeps rounding from ending the list one token short of the nucleus.
            let enough = if k_is_on { self.keys.len() >= top_k } else { mass > top_p * total * (1.0 + 1e-9) };
            if enough {
                break;
            }
        }
        if k_is_on && self.keys.len() > top_k {
            self.keys.select_nth_unstable(top_k - 1);
            self.keys.truncate(top_k);
        }
        self.keys.sort_unstable();
    }

    fn candidate_mass(&self) -> f64 {
        self.keys.iter().map(|&key| self.weight_of(key)).sum()
    }

    fn weight_of(&self, key: u64) -> f64 {
        f64::from(self.weights[id_of(key) as usize])
    }

    /// How many candidates stay, at least 1: up to the one that reaches the nucleus, and none below the share `min_p`
    /// of the likeliest, whose weight is 1.
    fn keep(&self, nucleus: f64, top_p_is_on: bool, min_p: f32) -> usize {
        // What has no weight at all is never kept.
        let least = f64::from(min_p.max(f32::MIN_POSITIVE));
        let mut mass = 0.0f64;
        for (index, &key) in self.keys.iter().enumerate() {
            let weight = self.weight_of(key);
            if index > 0 && weight < least {
                return index;
            }
            mass += weight;
            if top_p_is_on && mass >= nucleus {
                return index + 1;
            }
        }
        self.keys.len()
    }

    fn walk_candidates(&self, kept: usize, draw: f64) -> u32 {
        let kept = &self.keys[..kept];
        let mass: f64 = kept.iter().map(|&key| self.weight_of(key)).sum();
        let target = draw * mass;
        let mut passed = 0.0f64;
        for &key in kept {
            passed += self.weight_of(key);
            if passed > target {
                return id_of(key);
            }
        }
        id_of(kept[kept.len() - 1])
    }
}

/// Walks the cumulative weights in id order up to `target`.
fn walk_all(weights: &[f32], target: f64) -> u32 {
    let mut passed = 0.0f64;
    let mut last = 0;
    for (id, &weight) in weights.iter().enumerate() {
        if weight > 0.0 {
            passed += f64::from(weight);
            last = id;
            if passed > target {
                break;
            }
        }
    }
    last as u32
}

/// A key whose ascending order is: higher logit first, then lower id.
pub(crate) fn key_of(logit: f32, id: u32) -> u64 {
    // +0.0 folds the two zeros into one, so that they tie.
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 };
    (u64::from(!ascending) << 32) | u64::from(id)
}

pub(crate) fn id_of(key: u64) -> u32 {
    key as u32
}

/// The draw of a token: uniform in \[0, 1), a hash of (seed, position) and nothing else.
pub(crate) fn uniform(seed: u64, position: u64) -> f64 {
    let bits = mix(mix(seed) ^ position.wrapping_mul(0xd6e8_feb8_6659_fd93));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}
