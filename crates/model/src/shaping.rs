//! What a request does to its logits before anything is drawn from them: penalties, biases, ids that must wait.
//!
//! Everything is computed from the request's own tokens each time, in one walk over them, so there is no state that a
//! preemption could lose or a batch mate could touch. The walk is short beside the one over the vocabulary.
//!
//! The order: repetition, frequency and presence penalties as in `apply_penalties` of vLLM's
//! model_executor/layers/utils.py (the first is also `RepetitionPenaltyLogitsProcessor` of transformers'
//! generation/logits_process.py), then the biases, then the banned ids. vLLM adds biases before its penalties, which
//! differs only for a token that has a bias and a repetition penalty. A mask comes last: what it excludes cannot be
//! drawn, and where everything that it allows was banned before, those bans are void.

use std::sync::Arc;

/// A row's own tokens and what follows from them for its logits.
#[derive(Debug, Clone, Copy)]
pub struct Shaping<'a> {
    /// The client's prompt.
    pub prompt: &'a [u32],
    /// What was generated so far. Of a row that ends in a [`FUTURE_TOKEN`](crate::FUTURE_TOKEN) all but that one, which
    /// the [`Pipeline`](crate::Pipeline) adds when it is known.
    pub output: &'a [u32],
    /// Divides the positive and multiplies the negative logits of tokens in the prompt or the output; 1 is off.
    pub repetition_penalty: f32,
    /// Taken from a token's logit for each time it stands in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Taken once from the logit of each token that stands in the output; 0 is off.
    pub presence_penalty: f32,
    /// Token ids and what is added to their logits.
    pub bias: &'a [(u32, f32)],
    /// Ids that may not be drawn now, unless nothing else is left: those that end every text of the model.
    pub banned_ends: &'a [u32],
    /// More of them: the request's own.
    pub banned_ids: &'a [u32],
    /// The only ids that may be drawn. It wins over all of the above.
    pub mask: Option<&'a Arc<dyn TokenMask>>,
}

/// What a row's mask says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskState {
    /// The ids whose bits are set may be drawn.
    Ready,
    /// Nothing may be drawn: the text is complete.
    Complete,
    /// It is not known yet; the row gets no token in this step.
    Late,
    /// It will never be known.
    Failed,
}

/// The ids that a row may draw; another thread may still be computing them.
pub trait TokenMask: std::fmt::Debug + Send + Sync {
    /// Replaces `bits` by one bit for each id, for the token with this index in the output. May wait a little.
    fn read(&self, index: u64, bits: &mut Vec<u32>) -> MaskState;
}

impl Shaping<'_> {
    /// Changes nothing.
    pub const OFF: Shaping<'static> = Shaping {
        prompt: &[],
        output: &[],
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        bias: &[],
        banned_ends: &[],
        banned_ids: &[],
        mask: None,
    };

    /// Whether the output decides anything.
    pub(crate) fn reads_output(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

/// Gives each row of a step its shaping. The engine looks it up in its requests, so nothing is copied.
pub trait RowShaping: std::fmt::Debug {
    /// The shaping of this row, or `None` if its logits stay as the model gives them.
    fn shaping(&self, row: usize) -> Option<Shaping<'_>>;
}

/// Leaves the logits of every row as they are.
#[derive(Debug, Clone, Copy)]
pub struct Unshaped;

impl RowShaping for Unshaped {
    fn shaping(&self, _row: usize) -> Option<Shaping<'_>> {
        None
    }
}

/// Applies shapings; holds the reused counts.
#[derive(Debug, Default)]
pub(crate) struct Shaper {
    /// All 0 between two uses.
    counts: Vec<u32>,
}

impl Shaper {
    pub(crate) fn new(vocab_size: usize) -> Shaper {
        Shaper { counts: vec![0; vocab_size] }
    }

    /// Changes `logits` (\[vocab\]). Ids outside the vocabulary are skipped, and so are logits that are not finite: the
    /// sampler reports those. Results are finite. O(prompt + output + biases).
    pub(crate) fn apply(&mut self, shaping: &Shaping<'_>, logits: &mut [f32]) {
        if self.counts.len() < logits.len() {
            self.counts.resize(logits.len(), 0);
        }
        if shaping.repetition_penalty != 1.0 {
            let penalty = shaping.repetition_penalty;
            self.for_each_distinct(&[shaping.prompt, shaping.output], logits, |logit, _| {
                if logit > 0.0 { logit / penalty } else { logit * penalty }
            });
        }
        let (frequency, presence) = (shaping.frequency_penalty, shaping.presence_penalty);
        if frequency != 0.0 || presence != 0.0 {
            self.for_each_distinct(&[shaping.output], logits, |logit, count| {
                logit - frequency * count as f32 - presence
            });
        }
        for &(id, bias) in shaping.bias {
            change(logits, id, |logit| logit + bias);
        }
        for &id in shaping.banned_ids.iter().chain(shaping.banned_ends) {
            change(logits, id, |_| f32::MIN);
        }
    }

    /// Changes the logit of each id in `lists` once, given how often the id stands there.
    fn for_each_distinct(&mut self, lists: &[&[u32]], logits: &mut [f32], changed: impl Fn(f32, u32) -> f32) {
        let ids = || lists.iter().flat_map(|list| list.iter().copied());
        for id in ids() {
            if let Some(count) = self.counts.get_mut(id as usize) {
                *count += 1;
            }
        }
        for id in ids() {
            let Some(count) = self.counts.get_mut(id as usize) else { continue };
            match std::mem::take(count) {
                0 => {}
                count => change(logits, id, |logit| changed(logit, count)),
            }
        }
    }
}

/// Excludes every id whose bit is not set; an id without a bit is excluded too. Logits that are not finite stay: the
/// sampler reports those.
pub(crate) fn apply_mask(bits: &[u32], logits: &mut [f32]) {
    let mut best = f32::MIN;
    for (index, chunk) in logits.chunks_mut(u32::BITS as usize).enumerate() {
        let word = bits.get(index).copied().unwrap_or(0);
        for (bit, logit) in chunk.iter_mut().enumerate() {
            if word >> bit & 1 == 1 {
                best = best.max(*logit);
            } else if logit.is_finite() {
                *logit = f32::MIN;
            }
        }
    }
    if best == f32::MIN {
        for id in
            (0..logits.len()).filter(|id| bits.get(id / 32).is_some_and(|word| word >> (id % 32) & 1 == 1))
        {
            change(logits, id as u32, |_| 0.0);
        }
    }
}

fn change(logits: &mut [f32], id: u32, changed: impl FnOnce(f32) -> f32) {
    if let Some(logit) = logits.get_mut(id as usize).filter(|logit| logit.is_finite()) {
        *logit = changed(*logit).clamp(f32::MIN, f32::MAX);
    }
}
