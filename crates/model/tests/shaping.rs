//! What requests do to their logits, against a naive reading of the definitions, and that the draw after it is the
//! one from logits that were changed by hand.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use pinion_model::{
    FakeModel, FakeOptions, FakeShape, MaskState, Model, Row, RowOutcome, RowShaping, SampleParams, Sampler,
    Shaping, StepBatch, StepOutput, TokenMask, WindowTables, fake_token,
};
use proptest::prelude::*;
use std::sync::Arc;

/// [`Shaping`] with lists of its own.
#[derive(Debug, Clone)]
struct Wish {
    prompt: Vec<u32>,
    output: Vec<u32>,
    repetition: f32,
    frequency: f32,
    presence: f32,
    bias: Vec<(u32, f32)>,
    banned: Vec<u32>,
}

impl Wish {
    fn shaping(&self) -> Shaping<'_> {
        Shaping {
            prompt: &self.prompt,
            output: &self.output,
            repetition_penalty: self.repetition,
            frequency_penalty: self.frequency,
            presence_penalty: self.presence,
            bias: &self.bias,
            banned_ends: self.banned.get(..2).unwrap_or(&self.banned),
            banned_ids: self.banned.get(2..).unwrap_or_default(),
            mask: None,
        }
    }
}

impl RowShaping for Wish {
    fn shaping(&self, row: usize) -> Option<Shaping<'_>> {
        (row == 0).then(|| self.shaping())
    }
}

/// Each id by itself, straight from the definitions.
fn naive(logits: &[f32], wish: &Wish) -> Vec<f32> {
    let shape = |(id, &logit): (usize, &f32)| {
        let id = id as u32;
        let in_output = wish.output.iter().filter(|&&other| other == id).count();
        let mut logit = logit;
        if in_output > 0 || wish.prompt.contains(&id) {
            logit = if logit > 0.0 { logit / wish.repetition } else { logit * wish.repetition };
        }
        logit -= wish.frequency * in_output as f32;
        logit -= if in_output > 0 { wish.presence } else { 0.0 };
        logit += wish.bias.iter().filter(|(other, _)| *other == id).map(|(_, bias)| bias).sum::<f32>();
        if wish.banned.contains(&id) { f32::MIN } else { logit }
    };
    logits.iter().enumerate().map(shape).collect()
}

fn wish() -> impl Strategy<Value = Wish> {
    // Ids up to 60 over vocabularies of 1 to 50: some are outside.
    let ids = |max| prop::collection::vec(0u32..60, 0..max);
    let additive = || prop_oneof![Just(0.0f32), -2.0f32..=2.0];
    let bias = prop::collection::btree_map(0u32..60, -100.0f32..=100.0, 0..6);
    (ids(40), ids(40), prop_oneof![Just(1.0f32), 0.01f32..100.0], additive(), additive(), bias, ids(5))
        .prop_map(|(prompt, output, repetition, frequency, presence, bias, banned)| Wish {
            prompt,
            output,
            repetition,
            frequency,
            presence,
            bias: bias.into_iter().collect(),
            banned,
        })
}

fn params() -> impl Strategy<Value = SampleParams> {
    let warm = (0.05f32..3.0, 0u32..20, 0.05f32..=1.0, 0.0f32..0.5, any::<u64>(), any::<u64>()).prop_map(
        |(temperature, top_k, top_p, min_p, seed, position)| SampleParams {
            temperature,
            top_k,
            top_p,
            min_p,
            logprobs: None,
            seed,
            position,
        },
    );
    prop_oneof![Just(SampleParams::GREEDY), warm]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn logits_and_tokens_equal_the_naive_ones(
        logits in prop::collection::vec(-20.0f32..20.0, 1..50), wishes in prop::collection::vec(wish(), 1..4),
        params in params(),
    ) {
        // One sampler for all: nothing may stay behind from the request before.
        let mut sampler = Sampler::new(8);
        for wish in &wishes {
            let expected = naive(&logits, wish);
            let mut shaped = logits.clone();
            let outcome = sampler.draw(&mut shaped, &params, Some(wish.shaping()));
            for (id, (have, want)) in shaped.iter().zip(&expected).enumerate() {
                let error = (have - want).abs() / want.abs().max(1.0);
                prop_assert!(have == want || error < 1e-5, "id {}: {} instead of {}", id, have, want);
            }
            prop_assert_eq!(outcome, Sampler::default().sample(&shaped, &params));
            let RowOutcome::Token(token) = outcome else { panic!("{outcome:?}") };
            let all_banned = (0..logits.len() as u32).all(|id| wish.banned.contains(&id));
            prop_assert!(all_banned || !wish.banned.contains(&token), "drew the banned {}", token);
        }
    }

    #[test]
    fn what_is_off_changes_no_bit(
        mut logits in prop::collection::vec(any::<f32>(), 1..50), ids in prop::collection::vec(0u32..60, 0..40),
    ) {
        let before: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
        let off = Shaping { prompt: &ids, output: &ids, ..Shaping::OFF };
        Sampler::default().draw(&mut logits, &SampleParams::GREEDY, Some(off));
        prop_assert_eq!(before, logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>());
    }

    #[test]
    fn a_value_that_is_not_finite_is_reported_whatever_is_asked(
        mut logits in prop::collection::vec(-20.0f32..20.0, 1..50), at in any::<prop::sample::Index>(), wish in wish(),
        params in params(), bad in 0..3,
    ) {
        let index = at.index(logits.len());
        logits[index] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][bad as usize];
        let outcome = Sampler::default().draw(&mut logits, &params, Some(wish.shaping()));
        prop_assert_eq!(outcome, RowOutcome::NonFinite);
    }
}

/// A mask that is known from the start.
#[derive(Debug)]
struct Known(MaskState, Vec<u32>);

impl TokenMask for Known {
    fn read(&self, _index: u64, bits: &mut Vec<u32>) -> MaskState {
        bits.clone_from(&self.1);
        self.0
    }
}

fn mask_of(allowed: &[u32]) -> Arc<dyn TokenMask> {
    let mut bits = vec![0; 2];
    allowed.iter().for_each(|id| bits[(id / 32) as usize] |= 1 << (id % 32));
    Arc::new(Known(MaskState::Ready, bits))
}

proptest! {
    #[test]
    fn only_what_the_mask_allows_is_drawn(
        logits in prop::collection::vec(-20.0f32..20.0, 1..60), wish in wish(), params in params(),
        allowed in prop::collection::vec(any::<prop::sample::Index>(), 1..12),
    ) {
        let allowed: Vec<u32> = allowed.iter().map(|at| at.index(logits.len()) as u32).collect();
        let mask = mask_of(&allowed);
        let shaping = Shaping { mask: Some(&mask), ..wish.shaping() };
        let outcome = Sampler::default().draw(&mut logits.clone(), &params, Some(shaping));
        let RowOutcome::Token(token) = outcome else { panic!("{outcome:?}") };
        prop_assert!(allowed.contains(&token), "{} is not one of {:?}", token, allowed);
        let all_banned = allowed.iter().all(|id| wish.banned.contains(id));
        prop_assert!(all_banned || !wish.banned.contains(&token), "drew the banned {}", token);
        // The draw is the one from the allowed logits alone.
        let mut alone = logits.clone();
        Sampler::default().draw(&mut alone, &params, Some(wish.shaping()));
        for (id, logit) in alone.iter_mut().enumerate() {
            let masked = !allowed.contains(&(id as u32));
            *logit = if masked { f32::MIN } else if all_banned { 0.0 } else { *logit };
        }
        prop_assert_eq!(outcome, Sampler::default().sample(&alone, &params));
    }
}

#[test]
fn a_mask_that_has_nothing_to_give_gives_no_token() {
    for (state, expected) in [
        (MaskState::Complete, RowOutcome::Complete),
        (MaskState::Late, RowOutcome::Late),
        (MaskState::Failed, RowOutcome::Unmasked),
    ] {
        let mask: Arc<dyn TokenMask> = Arc::new(Known(state, vec![u32::MAX]));
        let shaping = Shaping { mask: Some(&mask), ..Shaping::OFF };
        let mut out = StepOutput::default();
        let params = SampleParams { logprobs: Some(3), ..SampleParams::GREEDY };
        Sampler::default().draw_row(&mut [1.0, 2.0], &params, Some(shaping), &mut out);
        assert_eq!((&out.rows[..], out.logprobs(0).len()), (&[expected][..], 0));
    }
    // A mask does not hide what is not finite.
    let mask = mask_of(&[0]);
    let shaping = Shaping { mask: Some(&mask), ..Shaping::OFF };
    let mut logits = [1.0, f32::NAN];
    let outcome = Sampler::default().draw(&mut logits, &SampleParams::GREEDY, Some(shaping));
    assert_eq!(outcome, RowOutcome::NonFinite);
}

#[test]
fn extreme_logits_stay_finite() {
    let ids = [0, 1, 2, 3];
    for repetition_penalty in [0.01, 100.0] {
        let mut logits = [f32::MAX, f32::MIN, 0.0, -0.0];
        let bias = [(0, 100.0), (1, -100.0)];
        let shaping = Shaping {
            prompt: &ids,
            output: &ids,
            repetition_penalty,
            frequency_penalty: -2.0,
            bias: &bias,
            ..Shaping::OFF
        };
        let outcome = Sampler::default().draw(&mut logits, &SampleParams::GREEDY, Some(shaping));
        assert!(logits.iter().all(|logit| logit.is_finite()), "{logits:?}");
        assert_eq!(outcome, RowOutcome::Token(0));
    }
}

/// The fake model answers to the same requests: its one hot logit can be outbid, and only in the row that asks.
#[test]
fn the_fake_model_is_shaped_too() {
    let shape = FakeShape { vocab_size: 50, max_context: 64, eos: Some(7), block_size: 4, block_count: 8 };
    let mut model = FakeModel::new(shape, FakeOptions::default());
    let prompt = [1, 2, 3];
    let plain = fake_token(&prompt, 0, 50, Some(7));
    let other = (plain + 1) % 50;
    let row = |query_start, blocks_start| Row {
        slot: blocks_start,
        query_start,
        query_len: 3,
        context_len: 3,
        prompt_len: 3,
        blocks_start,
        blocks_len: 1,
        sample: Some(SampleParams { temperature: 1.0, ..SampleParams::GREEDY }),
        scored: None,
    };
    let none = Wish {
        prompt: prompt.to_vec(),
        output: vec![],
        repetition: 1.0,
        frequency: 0.0,
        presence: 0.0,
        bias: vec![],
        banned: vec![],
    };
    for (wish, expected) in [
        (none.clone(), plain),
        (Wish { bias: vec![(other, 0.5)], ..none.clone() }, plain),
        (Wish { bias: vec![(other, 1.5)], ..none.clone() }, other),
        (Wish { bias: vec![(other, 0.5)], output: vec![plain], presence: 0.75, ..none.clone() }, other),
        (Wish { bias: vec![(other, 0.5)], prompt: vec![plain], repetition: 4.0, ..none.clone() }, other),
        (Wish { bias: vec![(other, 0.5)], banned: vec![plain], ..none }, other),
    ] {
        let batch = StepBatch {
            tokens: &[1, 2, 3, 1, 2, 3],
            positions: &[0, 1, 2, 0, 1, 2],
            rows: &[row(0, 0), row(3, 1)],
            blocks: &[4, 5],
            copies: &[],
            windows: WindowTables::NONE,
            shaping: &wish,
        };
        let mut out = StepOutput::default();
        model.step(&batch, &mut out).unwrap();
        assert_eq!(out.rows, [RowOutcome::Token(expected), RowOutcome::Token(plain)], "{wish:?}");
    }
}
