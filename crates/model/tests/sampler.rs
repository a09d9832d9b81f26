//! The sampler against a naive one that sorts the whole vocabulary, and the properties that serving relies on.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use pinion_model::{RowOutcome, SampleParams, Sampler};
use proptest::prelude::*;

/// Ids sorted by logit, then id; each with exp((logit - max) / temperature).
fn sorted_weights(logits: &[f32], temperature: f32) -> Vec<(u32, f64)> {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    ids.into_iter()
        .map(|id| (id, ((f64::from(logits[id as usize]) - max) / f64::from(temperature)).exp()))
        .collect()
}

/// What top-k, then top-p, then min-p leave, likeliest first.
fn kept(logits: &[f32], params: &SampleParams) -> Vec<(u32, f64)> {
    let mut all = sorted_weights(logits, params.temperature);
    if params.top_k > 0 {
        all.truncate(params.top_k as usize);
    }
    let total: f64 = all.iter().map(|(_, weight)| weight).sum();
    let mut mass = 0.0;
    let mut count = 0;
    for (_, weight) in &all {
        count += 1;
        mass += weight;
        if params.top_p < 1.0 && mass >= f64::from(params.top_p) * total {
            break;
        }
    }
    all.truncate(count);
    let least = f64::from(params.min_p) * all[0].1;
    all.retain(|&(_, weight)| weight >= least);
    all
}

fn token(logits: &[f32], params: &SampleParams) -> u32 {
    match Sampler::default().sample(logits, params) {
        RowOutcome::Token(token) => token,
        other => panic!("{other:?}"),
    }
}

fn logits() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        prop::collection::vec(-20.0f32..20.0, 1..400),
        // Few distinct values: many ties.
        prop::collection::vec((-4i8..4).prop_map(f32::from), 1..400),
        prop::collection::vec(-0.01f32..0.01, 1..400),
    ]
}

fn params() -> impl Strategy<Value = SampleParams> {
    let top_k = prop_oneof![Just(0u32), 1u32..50, Just(10_000)];
    let top_p = prop_oneof![Just(1.0f32), 0.01f32..1.0];
    let min_p = prop_oneof![Just(0.0f32), 0.0f32..=1.0];
    (0.05f32..3.0, top_k, top_p, min_p, any::<u64>(), any::<u64>()).prop_map(
        |(temperature, top_k, top_p, min_p, seed, position)| SampleParams {
            temperature,
            top_k,
            top_p,
            min_p,
            logprobs: None,
            seed,
            position,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn greedy_is_the_first_of_the_largest(logits in logits()) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = logits.iter().position(|&logit| logit == max).unwrap() as u32;
        prop_assert_eq!(token(&logits, &SampleParams::GREEDY), first);
    }

    #[test]
    fn the_token_is_one_that_the_naive_filter_keeps(logits in logits(), params in params()) {
        let token = token(&logits, &params);
        let kept = kept(&logits, &params);
        let last = kept[kept.len() - 1].1;
        // Weights are f32 here and f64 in the naive filter, so the edge of a nucleus may lie one token further.
        let all = sorted_weights(&logits, params.temperature);
        let next = all.get(kept.len()).filter(|_| params.top_p < 1.0).map(|&(id, _)| id);
        let is_kept = kept.iter().any(|&(id, _)| id == token);
        // So may the edge of min-p.
        let share = all.iter().find(|&&(id, _)| id == token).map(|&(_, weight)| weight / all[0].1).unwrap();
        let at_edge = (share - f64::from(params.min_p)).abs() < 1e-5;
        prop_assert!(share >= f64::from(params.min_p) - 1e-5);
        prop_assert!(is_kept || next == Some(token) || at_edge, "{} of {} kept, last {}", token, kept.len(), last);
    }

    #[test]
    fn only_seed_and_position_move_the_draw(logits in logits(), params in params()) {
        let mut warm = Sampler::new(8);
        warm.sample(&[0.5; 700], &SampleParams { temperature: 2.0, ..params });
        let expected = RowOutcome::Token(token(&logits, &params));
        prop_assert_eq!(warm.sample(&logits, &params), expected);
        prop_assert_eq!(warm.sample(&logits, &params), expected);
    }

    #[test]
    fn a_draw_does_not_depend_on_how_ids_are_numbered(values in prop::collection::hash_set(-1000i32..1000, 3..100), params in params()) {
        // Distinct logits, so that their order says all; with a filter on, candidates are walked in that order.
        let logits: Vec<f32> = values.iter().map(|&value| value as f32 / 100.0).collect();
        let params = SampleParams { top_k: params.top_k.clamp(2, logits.len() as u32 - 1), ..params };
        let reversed: Vec<f32> = logits.iter().rev().copied().collect();
        let (a, b) = (token(&logits, &params), token(&reversed, &params));
        prop_assert_eq!(logits[a as usize].to_bits(), reversed[b as usize].to_bits());
    }

    #[test]
    fn a_value_that_is_not_finite_is_reported(mut logits in logits(), at in any::<prop::sample::Index>(), params in params(), bad in 0..3) {
        let index = at.index(logits.len());
        logits[index] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][bad as usize];
        prop_assert_eq!(Sampler::default().sample(&logits, &params), RowOutcome::NonFinite);
        prop_assert_eq!(Sampler::default().sample(&logits, &SampleParams::GREEDY), RowOutcome::NonFinite);
    }
}

#[test]
fn extreme_parameters_do_not_fail() {
    let logits: Vec<f32> = (0..1000).map(|id| (id * 37 % 1000) as f32 / 50.0).collect();
    let best = token(&logits, &SampleParams::GREEDY);
    let base = SampleParams { temperature: 1.0, seed: 3, position: 9, ..SampleParams::GREEDY };
    for params in [
        SampleParams { temperature: f32::MIN_POSITIVE, ..base },
        SampleParams { temperature: 1e-45, ..base },
        SampleParams { temperature: -1.0, ..base },
        SampleParams { temperature: f32::NAN, ..base },
        SampleParams { top_p: 0.0, ..base },
        SampleParams { top_p: 1e-30, ..base },
        SampleParams { top_k: 1, ..base },
        SampleParams { min_p: 1.0, ..base },
        SampleParams { min_p: 7.0, top_p: 0.9, ..base },
    ] {
        assert_eq!(token(&logits, &params), best, "{params:?}");
    }
    for params in [
        SampleParams { temperature: f32::INFINITY, ..base },
        SampleParams { top_p: f32::NAN, ..base },
        SampleParams { min_p: f32::NAN, top_k: 9, ..base },
        SampleParams { top_p: 7.0, top_k: u32::MAX, ..base },
    ] {
        assert!(token(&logits, &params) < 1000, "{params:?}");
    }
    assert_eq!(Sampler::default().sample(&[], &base), RowOutcome::NonFinite);
    assert_eq!(token(&[f32::MAX, f32::MIN], &base), 0);
}

/// Frequencies over many positions match the distribution: chi-square over the kept ids, far below a 1e-6 chance.
#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = (0..40).map(|id| (id as f32 * 0.7).sin() * 2.0).collect();
    for (top_k, top_p, min_p) in [
        (0, 1.0, 0.0),
        (8, 1.0, 0.0),
        (0, 0.8, 0.0),
        (12, 0.7, 0.0),
        (0, 1.0, 0.4),
        (20, 0.9, 0.4),
        (30, 1.0, 0.1),
    ] {
        let mut params =
            SampleParams { temperature: 0.8, top_k, top_p, min_p, seed: 42, ..SampleParams::GREEDY };
        let kept = kept(&logits, &params);
        let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
        let draws = 200_000u32;
        let mut counts = vec![0u32; logits.len()];
        let mut sampler = Sampler::default();
        for position in 0..draws {
            params.position = u64::from(position);
            let RowOutcome::Token(token) = sampler.sample(&logits, &params) else { panic!("finite logits") };
            counts[token as usize] += 1;
        }
        let chi: f64 = kept
            .iter()
            .map(|&(id, weight)| {
                let expected = weight / total * f64::from(draws);
                (f64::from(counts[id as usize]) - expected).powi(2) / expected
            })
            .sum();
        assert_eq!(
            kept.iter().map(|&(id, _)| counts[id as usize]).sum::<u32>(),
            draws,
            "only kept ids are drawn"
        );
        assert!(chi < 110.0, "chi-square {chi} over {} ids: {params:?}", kept.len());
    }
}
