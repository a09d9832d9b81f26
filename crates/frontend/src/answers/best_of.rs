//! `best_of`: of the candidates for a prompt those are shown that the model itself holds likeliest, token for token.

use pinion_protocol::scores::TokenScore;

/// Mean logprob of a text's tokens, as OpenAI ranks candidates; a text without tokens is as likely as can be.
fn mean_logprob(scores: &[TokenScore]) -> f64 {
    let sum: f64 = scores.iter().map(|score| f64::from(score.drawn.logprob)).sum();
    sum / scores.len().max(1) as f64
}

/// Of each prompt's `candidates` in a row the indices of the `kept` best, best first; of equals the earlier one.
pub(crate) fn best(scores: &[&[TokenScore]], candidates: usize, kept: usize) -> Vec<usize> {
    let mut best = Vec::new();
    for begin in (0..scores.len()).step_by(candidates.max(1)) {
        let end = scores.len().min(begin + candidates);
        let mut order: Vec<usize> = (begin..end).collect();
        order.sort_by(|&a, &b| mean_logprob(scores[b]).total_cmp(&mean_logprob(scores[a])));
        best.extend(order.into_iter().take(kept));
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_protocol::scores::Score;

    #[test]
    fn the_mean_counts_and_not_the_sum() {
        let text = |logprobs: &[f32]| -> Vec<TokenScore> {
            let score = |&logprob| Score { token: 1, logprob, bytes: Vec::new(), special: false };
            logprobs
                .iter()
                .map(|logprob| TokenScore { drawn: score(logprob), alternatives: Vec::new() })
                .collect()
        };
        let texts = [
            text(&[-1.0]),
            text(&[-0.5, -0.5, -0.5]),
            text(&[-2.0]),
            text(&[-3.0]),
            text(&[-0.1]),
            text(&[-3.0]),
        ];
        let texts: Vec<&[TokenScore]> = texts.iter().map(Vec::as_slice).collect();
        assert_eq!(best(&texts, 3, 1), [1, 4]);
        assert_eq!(best(&texts, 3, 3), [1, 0, 2, 4, 3, 5]);
        assert_eq!(best(&texts, 6, 2), [4, 1]);
        assert!(best(&[], 2, 1).is_empty());
    }
}
