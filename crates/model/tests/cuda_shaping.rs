//! Penalties, biases and banned ids in the sampler kernel against the host's code for them: the same logits, requests and
//! seeds give the same tokens, in prompts and in replayed decode steps. On the emulated device, two engines side by side.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

mod emulated;

use emulated::{options, ready};
use pinion_model::cuda::{CudaGpt2, CudaOptions};
use pinion_model::{Model, Row, RowOutcome, RowShaping, SampleParams, Shaping, StepBatch, StepOutput};

const VOCAB: u64 = 257;
const ROWS: usize = 4;
const PROMPT: usize = 6;
const STEPS: usize = 5;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }

    fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.below(options.len() as u64) as usize]
    }

    /// Up to `most` ids, a few of them outside the vocabulary.
    fn ids(&mut self, most: u64) -> Vec<u32> {
        (0..self.below(most + 1)).map(|_| self.below(VOCAB + 3) as u32).collect()
    }
}

/// What one request of the test does.
#[derive(Debug)]
struct Wish {
    /// Prompt, then output.
    ids: Vec<u32>,
    penalties: [f32; 3],
    bias: Vec<(u32, f32)>,
    banned_ids: Vec<u32>,
    banned_id: Option<u32>,
    is_off: bool,
    sample: SampleParams,
}

impl Wish {
    fn random(random: &mut Random) -> Wish {
        let mut bias: Vec<(u32, f32)> = random
            .ids(30)
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
            banned_ids: random.ids(200),
            banned_id: (random.below(2) == 0).then_some(random.below(VOCAB) as u32),
            is_off: random.below(4) == 0,
            sample: SampleParams {
                temperature,
                top_k: random.pick(&[0, 5, 40]),
                top_p: random.pick(&[1.0, 0.9]),
                seed: random.below(1000),
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
            banned_id: wish.banned_id,
            banned_ids: &wish.banned_ids,
            mask: None,
        })
    }
}

/// One step of all rows: their prompts at first, then a token each.
fn step(model: &mut CudaGpt2, wishes: &Wishes, index: usize) -> Vec<RowOutcome> {
    let (mut tokens, mut positions, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for (lane, wish) in wishes.0.iter().enumerate() {
        let first = if index == 0 { 0 } else { wish.ids.len() - 1 };
        rows.push(Row {
            slot: lane as u32,
            query_start: tokens.len() as u32,
            query_len: (wish.ids.len() - first) as u32,
            context_len: wish.ids.len() as u32,
            prompt_len: PROMPT as u32,
            blocks_start: lane as u32,
            blocks_len: 1,
            sample: Some(SampleParams { position: index as u64, ..wish.sample }),
            scored: None,
        });
        tokens.extend_from_slice(&wish.ids[first..]);
        positions.extend(first as u32..wish.ids.len() as u32);
    }
    let batch = StepBatch {
        tokens: &tokens,
        positions: &positions,
        rows: &rows,
        blocks: &[8, 3, 5, 1],
        copies: &[],
        shaping: wishes,
    };
    let mut out = StepOutput::default();
    Model::step(model, &batch, &mut out).unwrap();
    out.rows
}

#[test]
fn the_device_shapes_as_the_host_does() {
    let mut device = ready("tiny-a", &options());
    let mut host = ready("tiny-a", &CudaOptions { shaped_on_device: false, ..options() });
    let (mut to_host, mut different) = ([0; 2], 0);
    for seed in 0..12 {
        let mut random = Random(seed);
        let mut wishes = Wishes((0..ROWS).map(|_| Wish::random(&mut random)).collect());
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
