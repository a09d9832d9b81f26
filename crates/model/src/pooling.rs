//! From a decoder's outputs to one vector for each prompt.
//!
//! The last norm's outputs are pooled, as sentence-transformers pools `last_hidden_state`. A prompt that is computed in
//! chunks keeps the sum of its outputs here, by lane, from one step to the next.

#[cfg(feature = "torch")]
use crate::batch::{RowOutcome, StepOutput};
use crate::batch::{StepBatch, StepError};

/// Which of a prompt's outputs make its vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolingKind {
    /// The last token's.
    Last,
    /// The mean over all tokens.
    Mean,
}

/// Refuses rows that draw tokens: a model that pools has no head.
///
/// # Errors
/// [`StepError::BadBatch`] names the first one.
pub(crate) fn check(batch: &StepBatch<'_>) -> Result<(), StepError> {
    match batch.rows.iter().position(|row| row.sample.is_some() || row.scored.is_some()) {
        None => Ok(()),
        Some(row) => Err(StepError::BadBatch { row, reason: "a model that pools draws and scores no token" }),
    }
}

/// The pooling of one model.
#[cfg(feature = "torch")]
#[derive(Debug)]
pub(crate) struct Pooler {
    kind: PoolingKind,
    width: usize,
    /// Of each lane's prompt so far, `[lanes, width]`: in the order of the tokens, so that chunks change nothing.
    sums: Vec<f64>,
}

#[cfg(feature = "torch")]
impl Pooler {
    pub(crate) fn new(kind: PoolingKind, width: usize) -> Pooler {
        Pooler { kind, width, sums: Vec::new() }
    }

    /// Whether the outputs of all query tokens are wanted; otherwise those of [`Pooler::ends`] are.
    pub(crate) fn wants_all(&self) -> bool {
        self.kind == PoolingKind::Mean
    }

    /// Indices of the query tokens that are the last of a prompt, in order.
    pub(crate) fn ends(&self, batch: &StepBatch<'_>, tokens: &mut Vec<i64>) {
        let ending = batch.rows.iter().filter(|row| row.ends_prompt());
        tokens.clear();
        tokens.extend(ending.map(|row| row.query_range().end as i64 - 1));
    }

    /// Takes the outputs of the wanted tokens, `[wanted, width]`; gives the rows that end a prompt their vectors. A row
    /// whose vector has a number that is not finite fails.
    pub(crate) fn pool(&mut self, batch: &StepBatch<'_>, outputs: &[f32], out: &mut StepOutput) {
        let mut outputs = outputs.chunks_exact(self.width);
        for (index, row) in batch.rows.iter().enumerate() {
            let begin = out.pooled.len();
            match self.kind {
                PoolingKind::Last if row.ends_prompt() => {
                    out.pooled.extend_from_slice(outputs.next().expect("one output for each prompt's end"));
                }
                PoolingKind::Last => continue,
                PoolingKind::Mean => {
                    let lane = row.slot as usize * self.width..(row.slot as usize + 1) * self.width;
                    if self.sums.len() < lane.end {
                        self.sums.resize(lane.end, 0.0);
                    }
                    let sums = &mut self.sums[lane];
                    if row.context_len == row.query_len {
                        sums.fill(0.0);
                    }
                    for output in outputs.by_ref().take(row.query_len as usize) {
                        sums.iter_mut().zip(output).for_each(|(sum, value)| *sum += f64::from(*value));
                    }
                    if !row.ends_prompt() {
                        continue;
                    }
                    let count = f64::from(row.context_len);
                    out.pooled.extend(sums.iter().map(|sum| (sum / count) as f32));
                }
            }
            if !out.pooled[begin..].iter().all(|value| value.is_finite()) {
                out.rows[index] = RowOutcome::NonFinite;
                out.pooled.truncate(begin);
            }
            out.end_pooled(index);
        }
    }
}
