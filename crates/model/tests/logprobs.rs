//! Reported logprobs against log-softmax in `f64`, whatever the draw does to the logits.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use pinion_model::{Logprob, RowOutcome, SampleParams, Sampler, Shaping, StepOutput};
use proptest::prelude::*;

/// Ids by logprob, ties to the lower id.
fn naive(logits: &[f32]) -> Vec<(u32, f64)> {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    let mut all: Vec<(u32, f64)> =
        (0u32..).zip(logits).map(|(id, &logit)| (id, f64::from(logit) - max - sum.ln())).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all
}

fn logits() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        prop::collection::vec(-30.0f32..30.0, 1..300),
        // Few distinct values: many ties.
        prop::collection::vec((-4i8..4).prop_map(f32::from), 1..300),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn they_are_those_of_the_model_itself(
        rows in prop::collection::vec((logits(), prop::option::of(0u32..=20), any::<bool>()), 1..5), seed: u64,
    ) {
        let (mut sampler, mut out) = (Sampler::new(8), StepOutput::default());
        for (logits, logprobs, is_shaped) in &rows {
            let params = SampleParams { temperature: 0.7, top_k: 5, logprobs: *logprobs, seed, ..SampleParams::GREEDY };
            let bias = [(0, 3.5), (2, -2.0)];
            let shaping = Shaping { prompt: &[0, 1, 2], repetition_penalty: 2.0, bias: &bias, ..Shaping::OFF };
            sampler.draw_row(&mut logits.clone(), &params, is_shaped.then_some(shaping), &mut out);
        }
        for (row, (logits, logprobs, _)) in rows.iter().enumerate() {
            let have = out.logprobs(row);
            let Some(count) = *logprobs else {
                prop_assert!(have.is_empty());
                continue;
            };
            let expected = naive(logits);
            let close = |have: &Logprob, want: f64| (f64::from(have.logprob) - want).abs() < 1e-4;
            let drawn = expected.iter().find(|(id, _)| Some(*id) == out.token(row)).unwrap();
            prop_assert!(have[0].token == drawn.0 && close(&have[0], drawn.1), "{:?} beside {:?}", have[0], drawn);
            prop_assert_eq!(have.len() - 1, expected.len().min(count as usize));
            for (have, want) in have[1..].iter().zip(&expected) {
                prop_assert!(have.token == want.0 && close(have, want.1), "{:?} beside {:?}", have, want);
            }
        }
        prop_assert!(out.logprobs(rows.len()).is_empty());
    }
}

#[test]
fn extreme_logits_have_finite_logprobs() {
    let params = SampleParams { logprobs: Some(3), ..SampleParams::GREEDY };
    let (mut sampler, mut out) = (Sampler::new(8), StepOutput::default());
    sampler.draw_row(&mut [f32::MAX, f32::MIN, 0.0], &params, None, &mut out);
    let have = out.logprobs(0);
    assert_eq!((have[0], have[1]), (Logprob { token: 0, logprob: 0.0 }, Logprob { token: 0, logprob: 0.0 }));
    assert!(have.len() == 4 && have.iter().all(|entry| entry.logprob.is_finite()), "{have:?}");
    sampler.draw_row(&mut [f32::NAN, 1.0], &params, None, &mut out);
    assert_eq!((out.rows[1], out.logprobs(1).len()), (RowOutcome::NonFinite, 0));
    out.clear();
    assert!(out.rows.is_empty() && out.logprobs(0).is_empty());
}

/// Nothing else has weight beside it, and clients are told 0 and not -0.
#[test]
fn a_certain_token_has_logprob_zero() {
    for zero in [0.0, -0.0] {
        let params = SampleParams { logprobs: Some(1), ..SampleParams::GREEDY };
        let (mut sampler, mut out) = (Sampler::new(8), StepOutput::default());
        sampler.draw_row(&mut [-1e9, zero, -1e9], &params, None, &mut out);
        let have: Vec<(u32, u32)> =
            out.logprobs(0).iter().map(|one| (one.token, one.logprob.to_bits())).collect();
        assert_eq!(have, [(1, 0), (1, 0)], "of {zero}");
    }
}
