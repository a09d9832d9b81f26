//! Logprobs from the device against those of the host's sampler: the same tokens, the same likeliest, and logprobs that
//! differ by the order of one sum. Rows that follow a grammar, with logprobs and without. Straight to the kernels, then
//! through two engines side by side. On the emulated device.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use crate::cuda_sweeps::logprobs;
use crate::cuda_sweeps::logprobs::assert_same;
use crate::emulated;
use crate::emulated::{emulated, options, ready};
use pinion_model::cuda::{CudaDecoder, CudaOptions};
use pinion_model::{
    FUTURE_TOKEN, MaskState, Pipeline, Row, RowOutcome, RowShaping, SampleParams, Shaping, StepBatch,
    StepOutput, TokenMask, WindowTables,
};
use pinion_random::Random;
use std::sync::{Arc, Mutex};

const VOCAB: usize = 257;
const ROWS: usize = 5;
const STEPS: usize = 4;
/// Held by each test: the device's counts are the process's.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn the_kernels_score_as_the_host_does() {
    let _alone = emulated::alone();
    let _alone = ALONE.lock();
    logprobs::sweep(&emulated(), 40, 700);
}

/// One request of the test: it may want logprobs, and have penalties and biases.
#[derive(Debug, Clone)]
struct Wish {
    prompt: Vec<u32>,
    output: Vec<u32>,
    penalty: Option<f32>,
    bias: Vec<(u32, f32)>,
    mask: Option<Arc<dyn TokenMask>>,
    sample: SampleParams,
}

/// Has nothing to give.
#[derive(Debug)]
struct Without(MaskState);

impl TokenMask for Without {
    fn read(&self, _: u64, _: &mut Vec<u32>) -> MaskState {
        self.0
    }
}

#[derive(Debug, Clone)]
struct Wishes(Vec<Wish>);

impl Wishes {
    fn random(seed: u64) -> Wishes {
        let mut random = Random::new(seed);
        let mut wish = |_| Wish {
            prompt: (0..4).map(|_| random.below(VOCAB) as u32).collect(),
            output: Vec::new(),
            penalty: (random.below(2) == 0).then_some([0.6, 1.4][random.below(2)]),
            bias: (0..random.below(3)).map(|n| (n as u32 * 9, [f32::MIN, 4.0][random.below(2)])).collect(),
            mask: None,
            sample: SampleParams {
                temperature: [0.0, 0.9, 1.5][random.below(3)],
                logprobs: random.below(22).checked_sub(1).map(|n| n as u32),
                seed: random.between(0, 999),
                ..SampleParams::GREEDY
            },
        };
        Wishes((0..ROWS).map(&mut wish).collect())
    }
}

impl RowShaping for Wishes {
    fn shaping(&self, row: usize) -> Option<Shaping<'_>> {
        let Wish { prompt, output, penalty, bias, mask, .. } = &self.0[row];
        let penalty = penalty.unwrap_or(1.0);
        (penalty != 1.0 || !bias.is_empty() || mask.is_some()).then_some(Shaping {
            prompt,
            output,
            repetition_penalty: penalty,
            presence_penalty: penalty - 1.0,
            bias,
            mask: mask.as_ref(),
            ..Shaping::OFF
        })
    }
}

fn launch(model: &mut CudaDecoder, wishes: &Wishes, index: usize, is_ahead: bool) {
    let (mut tokens, mut positions, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for (lane, wish) in wishes.0.iter().enumerate() {
        let mut ids = [&wish.prompt[..], &wish.output].concat();
        ids.extend(is_ahead.then_some(FUTURE_TOKEN));
        let first = if index == 0 { 0 } else { ids.len() - 1 };
        rows.push(Row {
            slot: lane as u32,
            query_start: tokens.len() as u32,
            query_len: (ids.len() - first) as u32,
            context_len: ids.len() as u32,
            prompt_len: wish.prompt.len() as u32,
            blocks_start: lane as u32,
            blocks_len: 1,
            sample: Some(SampleParams { position: index as u64, ..wish.sample }),
            scored: None,
        });
        tokens.extend_from_slice(&ids[first..]);
        positions.extend(first as u32..ids.len() as u32);
    }
    let blocks = [8, 3, 5, 1, 7];
    let (tokens, positions) = (&tokens, &positions);
    let batch = StepBatch {
        tokens,
        positions,
        rows: &rows,
        blocks: &blocks,
        copies: &[],
        windows: WindowTables::NONE,
        shaping: wishes,
    };
    Pipeline::launch(model, &batch).unwrap();
}

/// The outputs of all steps; with `is_ahead` each is launched before the tokens of the one before are taken.
fn run(model: &mut CudaDecoder, seed: u64, is_ahead: bool) -> Vec<StepOutput> {
    let mut wishes = Wishes::random(seed);
    let mut outs = Vec::new();
    launch(model, &wishes, 0, false);
    for index in 1..=STEPS {
        if is_ahead && index < STEPS {
            launch(model, &wishes, index, true);
        }
        let mut out = StepOutput::default();
        Pipeline::retire(model, &mut out).unwrap();
        for (wish, outcome) in wishes.0.iter_mut().zip(&out.rows) {
            let RowOutcome::Token(token) = *outcome else { panic!("seed {seed}: {outcome:?}") };
            wish.output.push(token);
        }
        if !is_ahead && index < STEPS {
            launch(model, &wishes, index, false);
        }
        outs.push(out);
    }
    outs
}

#[test]
fn overlap_rows_with_logprobs_are_scored_on_the_device() {
    let _alone = emulated::alone();
    let _alone = ALONE.lock();
    let mut device = ready("tiny-a", &options());
    let mut host = ready("tiny-a", &CudaOptions { scored_on_device: false, ..options() });
    let (mut scored, mut to_host) = (0, [0, 0]);
    for seed in 0..10 {
        let want = run(&mut host, seed, false);
        let before = device.counts().to_host_bytes;
        let have = run(&mut device, seed, false);
        let between = device.counts().to_host_bytes;
        let ahead = run(&mut device, seed, true);
        to_host[0] += device.counts().to_host_bytes - between;
        run(&mut host, seed, false);
        to_host[1] += device.counts().to_host_bytes - between - (between - before);
        for (step, want) in want.iter().enumerate() {
            for have in [&have[step], &ahead[step]] {
                assert_eq!(have.rows, want.rows, "seed {seed}, step {step}");
                for row in 0..ROWS {
                    let what = format!("seed {seed}, step {step}, row {row}");
                    assert_same(have.logprobs(row), want.logprobs(row), &what);
                    scored += have.logprobs(row).len();
                }
            }
        }
    }
    assert!(scored > 2000, "{scored}");
    // What comes is tokens and scores, not rows of 1028 bytes.
    assert!(to_host[0] * 2 < to_host[1], "{to_host:?}");
}

/// Masks that change from token to token, beside rows without one, and masks that have nothing to give.
#[test]
fn masks_on_the_device_allow_what_they_allow_on_the_host() {
    let _alone = emulated::alone();
    let _alone = ALONE.lock();
    let mut device = ready("tiny-a", &options());
    let mut host = ready("tiny-a", &CudaOptions { masked_on_device: false, ..options() });
    let (mut masked, mut ended, mut to_host) = (0, 0, [0, 0]);
    for seed in 0..12 {
        let mut random = Random::new(1000 + seed);
        let mut wishes = Wishes::random(seed);
        for index in 0..STEPS {
            for wish in &mut wishes.0 {
                wish.mask = match random.below(8) {
                    0 | 1 => None,
                    2 => {
                        let states = [MaskState::Complete, MaskState::Late, MaskState::Failed];
                        Some(Arc::new(Without(states[random.below(3)])))
                    }
                    _ => Some(Arc::new(logprobs::mask(&mut random, VOCAB))),
                };
            }
            let mut outs = [StepOutput::default(), StepOutput::default()];
            let before = device.counts().to_host_bytes;
            launch(&mut host, &wishes, index, false);
            Pipeline::retire(&mut host, &mut outs[0]).unwrap();
            let between = device.counts().to_host_bytes;
            launch(&mut device, &wishes, index, false);
            Pipeline::retire(&mut device, &mut outs[1]).unwrap();
            to_host[0] += device.counts().to_host_bytes - between;
            to_host[1] += between - before;
            let [want, have] = &outs;
            assert_eq!(have.rows, want.rows, "seed {seed}, step {index}");
            for (row, wish) in wishes.0.iter_mut().enumerate() {
                assert_same(
                    have.logprobs(row),
                    want.logprobs(row),
                    &format!("seed {seed}, step {index}, row {row}"),
                );
                // A row that draws nothing continues with a token of the test's.
                let drawn = have.token(row);
                ended += u32::from(drawn.is_none());
                masked += u32::from(drawn.is_some() && wish.mask.is_some());
                wish.output.push(drawn.unwrap_or(7));
            }
        }
    }
    assert!(masked > 100 && ended > 10, "{masked} drawn with a mask, {ended} not drawn");
    assert!(to_host[0] * 2 < to_host[1], "{to_host:?}");
}
