//! Penalties, biases and banned ids in the sampler kernel against the host's code for them: the same logits, requests
//! and seeds give the same tokens, in prompts and in replayed decode steps. On the emulated device, two engines side by
//! side.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use crate::emulated;
use crate::emulated::{options, ready};
use pinion_model::cuda::{CudaDecoder, CudaOptions};
use pinion_model::{
    FUTURE_TOKEN, Pipeline, Row, RowOutcome, RowShaping, SampleParams, Shaping, StepBatch, StepOutput,
    WindowTables,
};
use pinion_random::Random;

const VOCAB: usize = 257;
const ROWS: usize = 4;
const PROMPT: usize = 6;
const STEPS: usize = 5;

/// Up to `most` ids, a few of them outside the vocabulary.
fn ids(random: &mut Random, most: usize) -> Vec<u32> {
    (0..random.below(most + 1)).map(|_| random.below(VOCAB + 3) as u32).collect()
}

/// What one request of the test does.
#[derive(Debug)]
struct Wish {
    /// Prompt, then output.
    ids: Vec<u32>,
    penalties: [f32; 3],
    bias: Vec<(u32, f32)>,
    banned_ids: Vec<u32>,
    banned_ends: Vec<u32>,
    is_off: bool,
    sample: SampleParams,
}

impl Wish {
    fn random(random: &mut Random) -> Wish {
        let mut bias: Vec<(u32, f32)> = ids(random, 30)
            .into_iter()
            .map(|id| (id, random.pick(&[-100.0, -1.5, 0.25, 3.0, f32::MAX])))
            .collect();
        // Now and then an id has two biases, and the row is the host's.
        if random.below(4) > 0 {
            bias.sort_by_key(|(id, _)| *id);
            bias.dedup_by_key(|(id, _)| *id);
        }
        let temperature = random.pick(&[0.0, 0.0, 0.8, 1.5]);
        Wish {
            ids: (0..PROMPT).map(|_| random.below(VOCAB) as u32).collect(),
            penalties: [
                random.pick(&[1.0, 0.5, 1.3, 2.0]),
                random.pick(&[0.0, 0.7, -1.0]),
                random.pick(&[0.0, 0.4, 2.0]),
            ],
            bias,
            banned_ids: ids(random, 200),
            banned_ends: ids(random, 4),
            is_off: random.below(4) == 0,
            sample: SampleParams {
                temperature,
                top_k: random.pick(&[0, 5, 40]),
                top_p: random.pick(&[1.0, 0.9]),
                seed: random.between(0, 999),
                ..SampleParams::GREEDY
            },
        }
    }
}

#[derive(Debug)]
struct Wishes(Vec<Wish>);

impl RowShaping for Wishes {
    fn shaping(&self, row: usize) -> Option<Shaping<'_>> {
        let wish = &self.0[row];
        let (prompt, output) = wish.ids.split_at(PROMPT);
        let [repetition_penalty, frequency_penalty, presence_penalty] = wish.penalties;
        (!wish.is_off).then_some(Shaping {
            prompt,
            output,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            bias: &wish.bias,
            banned_ends: &wish.banned_ends,
            banned_ids: &wish.banned_ids,
            mask: None,
        })
    }
}

/// What of its sequence a row computes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    /// All that is known: a prompt, or what a preempted request computes again.
    Whole,
    /// The last token.
    Last,
    /// The token that the step in flight draws.
    Future,
}

/// One step of all rows, launched. The requests' lanes differ from seed to seed.
fn launch(model: &mut CudaDecoder, wishes: &Wishes, lanes: u32, index: usize, part: Part) {
    let (mut tokens, mut positions, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for (place, wish) in wishes.0.iter().enumerate() {
        let mut ids = wish.ids.clone();
        ids.extend((part == Part::Future).then_some(FUTURE_TOKEN));
        let first = if part == Part::Whole { 0 } else { ids.len() - 1 };
        rows.push(Row {
            slot: (place as u32 + lanes) % ROWS as u32,
            query_start: tokens.len() as u32,
            query_len: (ids.len() - first) as u32,
            context_len: ids.len() as u32,
            prompt_len: PROMPT as u32,
            blocks_start: place as u32,
            blocks_len: 1,
            sample: Some(SampleParams { position: index as u64, ..wish.sample }),
            scored: None,
        });
        tokens.extend_from_slice(&ids[first..]);
        positions.extend(first as u32..ids.len() as u32);
    }
    let batch = StepBatch {
        tokens: &tokens,
        positions: &positions,
        rows: &rows,
        blocks: &[8, 3, 5, 1],
        copies: &[],
        windows: WindowTables::NONE,
        shaping: wishes,
    };
    Pipeline::launch(model, &batch).unwrap();
}

fn retire(model: &mut CudaDecoder) -> Vec<RowOutcome> {
    let mut out = StepOutput::default();
    Pipeline::retire(model, &mut out).unwrap();
    out.rows
}

/// One step of all rows: their prompts at first, then a token each.
fn step(model: &mut CudaDecoder, wishes: &Wishes, index: usize) -> Vec<RowOutcome> {
    launch(model, wishes, 0, index, if index == 0 { Part::Whole } else { Part::Last });
    retire(model)
}

impl Wishes {
    fn random(seed: u64) -> Wishes {
        let mut random = Random::new(seed);
        Wishes((0..ROWS).map(|_| Wish::random(&mut random)).collect())
    }

    fn take(&mut self, outcomes: &[RowOutcome]) {
        for (wish, outcome) in self.0.iter_mut().zip(outcomes) {
            let RowOutcome::Token(token) = *outcome else { panic!("{outcome:?}: {wish:?}") };
            wish.ids.push(token);
        }
    }
}

/// Each step is launched before the tokens of the one before are here, but where all are preempted and begin again.
fn ahead(model: &mut CudaDecoder, seed: u64) -> Wishes {
    let mut wishes = Wishes::random(seed);
    let preempted_at = 1 + seed as usize % (STEPS - 1);
    let lanes = seed as u32;
    launch(model, &wishes, lanes, 0, Part::Whole);
    for index in 1..STEPS {
        if index == preempted_at {
            wishes.take(&retire(model));
            launch(model, &wishes, lanes + 1, index, Part::Whole);
        } else {
            launch(model, &wishes, if index > preempted_at { lanes + 1 } else { lanes }, index, Part::Future);
            wishes.take(&retire(model));
        }
    }
    wishes.take(&retire(model));
    wishes
}

/// The token that the step in flight draws counts for the penalties of the next, wherever the row is sampled.
#[test]
fn overlap_penalised_rows_are_launched_ahead() {
    let _alone = emulated::alone();
    let mut device = ready("tiny-a", &options());
    let mut host = ready("tiny-a", &CudaOptions { shaped_on_device: false, ..options() });
    let (mut repeated, mut unlike) = (0, 0);
    for seed in 100..108 {
        let mut want = Wishes::random(seed);
        let mut free = Wishes::random(seed);
        free.0.iter_mut().for_each(|wish| wish.is_off = true);
        for wishes in [&mut want, &mut free] {
            for index in 0..STEPS {
                let outcomes = step(&mut host, wishes, index);
                wishes.take(&outcomes);
            }
        }
        for (name, model) in [("device", &mut device), ("host", &mut host)] {
            let have = ahead(model, seed);
            for (have, want) in have.0.iter().zip(&want.0) {
                assert_eq!(have.ids, want.ids, "seed {seed}, sampled by the {name}: {want:?}");
            }
        }
        for (want, free) in want.0.iter().zip(&free.0) {
            let output = &want.ids[PROMPT..];
            repeated += u32::from(output.windows(2).any(|pair| pair[0] == pair[1]));
            unlike += u32::from(want.ids != free.ids);
        }
    }
    // Penalties below nothing repeat a token, those above it avoid that: either way the last one counts.
    assert!(
        repeated > 2 && unlike > 12,
        "{repeated} repeat a token, {unlike} differ from what is drawn freely"
    );
}

#[test]
fn the_device_shapes_as_the_host_does() {
    let _alone = emulated::alone();
    let mut device = ready("tiny-a", &options());
    let mut host = ready("tiny-a", &CudaOptions { shaped_on_device: false, ..options() });
    let (mut to_host, mut different) = ([0; 2], 0);
    for seed in 0..12 {
        let mut wishes = Wishes::random(seed);
        for index in 0..STEPS {
            let before = device.counts().to_host_bytes;
            let have = step(&mut device, &wishes, index);
            let between = device.counts().to_host_bytes;
            let want = step(&mut host, &wishes, index);
            to_host[0] += between - before;
            to_host[1] += device.counts().to_host_bytes - between;
            assert_eq!(have, want, "seed {seed}, step {index}: {wishes:?}");
            for (wish, outcome) in wishes.0.iter_mut().zip(&have) {
                let RowOutcome::Token(token) = *outcome else { panic!("seed {seed}: {outcome:?}") };
                different += u32::from(!wish.ids.contains(&token));
                wish.ids.push(token);
            }
        }
    }
    assert!(different > 30, "{different} new tokens");
    // A row of logits has 1028 bytes and a token 8: few rows went to the host.
    assert!(to_host[0] * 2 < to_host[1], "{to_host:?}");
}
