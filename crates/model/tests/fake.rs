//! The fake model against its oracle, however its requests are cut, mixed, preempted or given cached prefixes.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

mod driver;

use driver::{Policy, Request, run};
use pinion_model::{
    BlockCopy, FakeModel, FakeOptions, FakeShape, Model, OwnedBatch, Row, RowOutcome, SampleParams,
    StepBatch, StepError, StepOutput, Unshaped, WindowTables, fake_repeating_token, fake_token,
};
use proptest::prelude::*;
use std::time::{Duration, Instant};

const SHAPE: FakeShape =
    FakeShape { vocab_size: 1000, max_context: 512, eos: Some(7), block_size: 4, block_count: 2048 };

fn oracle(prompt: &[u32], count: usize) -> Vec<u32> {
    (0..count as u64).map(|index| fake_token(prompt, index, SHAPE.vocab_size, SHAPE.eos)).collect()
}

proptest! {
    #[test]
    fn tokens_are_in_the_vocabulary_and_never_eos(
        prompt in prop::collection::vec(any::<u32>(), 0..20), index: u64, vocab in 2u32..70_000, eos: Option<u32>,
    ) {
        let token = fake_token(&prompt, index, vocab, eos);
        prop_assert!(token < vocab);
        prop_assert_ne!(Some(token), eos);
    }

    #[test]
    fn any_schedule_gives_the_oracles_tokens(
        requests in prop::collection::vec((prop::collection::vec(0u32..1000, 1..60), 1usize..40, 0usize..30), 1..12),
        chunk in 1usize..70,
        preempt in any::<bool>(),
    ) {
        let requests: Vec<Request> = requests
            .into_iter()
            .map(|(prompt, output_len, arrival)| Request { prompt, output_len, arrival, params: SampleParams::GREEDY })
            .collect();
        let mut model = FakeModel::new(SHAPE, FakeOptions::default());
        let preempt_at: &[usize] = if preempt { &[3, 4, 5, 9, 13, 20] } else { &[] };
        let ids = run(&mut model, &requests, Policy { chunk, preempt_at });
        for (request, ids) in requests.iter().zip(ids) {
            prop_assert_eq!(ids, oracle(&request.prompt, request.output_len));
        }
    }
}

#[test]
fn a_repeating_text_goes_round_but_for_some_tokens() {
    let prompt = vec![3, 1, 4, 1, 5];
    let token = |index| fake_repeating_token(&prompt, index, 6, SHAPE.vocab_size, SHAPE.eos);
    let expected: Vec<u32> = (0..200).map(token).collect();
    let again = expected.iter().enumerate().filter(|&(index, token)| *token == expected[index % 6]).count();
    assert!((150..195).contains(&again), "{again} of 200 tokens repeat an earlier one");
    let request = Request { prompt, output_len: 200, arrival: 0, params: SampleParams::GREEDY };
    let mut model = FakeModel::new(SHAPE, FakeOptions::default()).repeating(6);
    let ids = run(&mut model, &[request], Policy { chunk: 2, preempt_at: &[7, 90] });
    assert_eq!(ids[0], expected);
}

/// One row whose query starts at `cached`, over `blocks`.
fn step(model: &mut FakeModel, ids: &[u32], cached: usize, prompt_len: usize, blocks: &[u32]) -> RowOutcome {
    let mut batch = OwnedBatch::default();
    batch.push(0, cached as u32, &ids[cached..], blocks).prompt_len = prompt_len as u32;
    let batch = batch.as_step();
    let mut out = StepOutput::default();
    model.step(&batch, &mut out).unwrap();
    let mut logits = Vec::new();
    model.logits(&batch, &mut logits).unwrap();
    let hottest = logits.iter().position(|&logit| logit == 1.0).unwrap();
    assert_eq!(out.token(0), Some(hottest as u32), "step and logits agree");
    out.rows[0]
}

/// A prefix-cache hit feeds only the rest of the prompt; blocks of the shared prefix come from another request.
#[test]
fn a_cached_prefix_counts_as_fed() {
    let mut model = FakeModel::new(SHAPE, FakeOptions::default());
    let shared: Vec<u32> = (10..18).collect();
    step(&mut model, &shared, 0, 8, &[5, 6]);
    let mut prompt = shared.clone();
    prompt.extend([99, 98, 97]);
    assert_eq!(step(&mut model, &prompt, 8, 11, &[5, 6, 9]), RowOutcome::Token(oracle(&prompt, 1)[0]));
    // A wrong block in the table shows.
    assert_ne!(step(&mut model, &prompt, 8, 11, &[5, 7, 9]), RowOutcome::Token(oracle(&prompt, 1)[0]));
}

/// A block that held another request's generated tokens serves as prompt of a next turn.
#[test]
fn generated_tokens_can_become_a_prompt() {
    let mut model = FakeModel::new(SHAPE, FakeOptions::default());
    let prompt = [1, 2, 3];
    let mut ids = prompt.to_vec();
    for index in 0..5 {
        let outcome = step(&mut model, &ids, if index == 0 { 0 } else { ids.len() - 1 }, 3, &[0, 1]);
        let token = oracle(&prompt, 6)[index];
        assert_eq!(outcome, RowOutcome::Token(token));
        ids.push(token);
    }
    step(&mut model, &ids, ids.len() - 1, 3, &[0, 1]);
    ids.extend([50, 51]);
    // 8 of the 10 tokens are cached; all 10 are prompt now.
    assert_eq!(step(&mut model, &ids, 8, 10, &[0, 1, 2]), RowOutcome::Token(oracle(&ids, 1)[0]));
}

#[test]
fn malformed_batches_are_errors_and_name_the_row() {
    let good = Row {
        slot: 0,
        query_start: 0,
        query_len: 2,
        context_len: 5,
        prompt_len: 5,
        blocks_start: 0,
        blocks_len: 2,
        sample: None,
        scored: None,
    };
    let mut model = FakeModel::new(FakeShape { block_count: 4, ..SHAPE }, FakeOptions::default());
    let mut step = |tokens: &[u32], positions: &[u32], row: Row, blocks: &[u32]| {
        let mut out = StepOutput::default();
        model
            .step(
                &StepBatch {
                    tokens,
                    positions,
                    rows: &[row],
                    blocks,
                    copies: &[],
                    windows: WindowTables::NONE,
                    shaping: &Unshaped,
                },
                &mut out,
            )
            .map(|()| out.rows)
    };
    assert_eq!(step(&[1, 2], &[3, 4], good, &[0, 3]), Ok(vec![RowOutcome::None]));
    let bad = [
        step(&[1], &[3, 4], good, &[0, 3]),
        step(&[1, 2], &[2, 3], good, &[0, 3]),
        step(&[1, 2, 3], &[3, 4, 5], good, &[0, 3]),
        step(&[1, 1000], &[3, 4], good, &[0, 3]),
        step(&[1, 2], &[3, 4], good, &[0, 4]),
        step(&[1, 2], &[3, 4], good, &[0]),
        step(&[1, 2], &[3, 4], Row { blocks_len: 1, ..good }, &[0, 3]),
        step(&[1, 2], &[3, 4], Row { query_start: 1, ..good }, &[0, 3]),
        step(&[1, 2], &[3, 4], Row { query_len: 0, ..good }, &[0, 3]),
        step(&[1, 2], &[3, 4], Row { query_len: 3, ..good }, &[0, 3]),
        step(&[1, 2], &[3, 4], Row { context_len: 1, ..good }, &[0, 3]),
        step(&[1, 2], &[3, 4], Row { context_len: 513, ..good }, &[0, 3]),
    ];
    for (index, result) in bad.into_iter().enumerate() {
        assert!(matches!(result, Err(StepError::BadBatch { .. })), "case {index}: {result:?}");
    }
}

#[test]
fn programmed_times_are_kept() {
    let timing = FakeOptions { step_us: 3_000.0, prefill_us_per_token: 500.0, ..FakeOptions::default() };
    let mut model = FakeModel::new(SHAPE, timing);
    let ids: Vec<u32> = (0..10).collect();
    let mut time = |query_len: u32| {
        let mut batch = OwnedBatch::default();
        let first = 10 - query_len;
        let row = batch.push(0, first, &ids[first as usize..], &[0, 1, 2]);
        (row.prompt_len, row.sample) = (9, None);
        let batch = batch.as_step();
        let start = Instant::now();
        model.step(&batch, &mut StepOutput::default()).unwrap();
        start.elapsed()
    };
    assert!(time(10) >= Duration::from_millis(8));
    assert!(time(1) >= Duration::from_millis(3));
}

/// The block in which a prompt parts from another one is copied up to there, and the tokens are those of the prompt.
#[test]
fn a_copied_beginning_of_a_block_is_as_good_as_a_computed_one() {
    let shape = FakeShape { block_count: 4, ..SHAPE };
    let size = shape.block_size as usize;
    let first: Vec<u32> = (1..=2 * size as u32).collect();
    let mut second = first[..2 * size - 1].to_vec();
    second.push(77);
    for copied in [true, false] {
        let mut model = FakeModel::new(shape, FakeOptions::default());
        step(&mut model, &first, 0, first.len(), &[0, 1]);
        let cached = second.len() - 1;
        let copies = [BlockCopy { from: 1, to: 3, tokens: (cached - size) as u32 }];
        let mut batch = OwnedBatch::default();
        batch.push(0, cached as u32, &second[cached..], &[0, 3]);
        let batch = StepBatch { copies: if copied { &copies } else { &[] }, ..batch.as_step() };
        let mut out = StepOutput::default();
        model.step(&batch, &mut out).unwrap();
        let expected = fake_token(&second, 0, shape.vocab_size, shape.eos);
        assert_eq!(out.token(0) == Some(expected), copied, "without the copy the fake must notice");
    }
}
