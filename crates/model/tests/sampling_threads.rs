//! The rows of a step drawn by one thread and by several, by every level of instructions: the same tokens and the same
//! bits of logprobs, and no allocation.

#![cfg(feature = "torch")]

use pinion_model::{
    HostSampler, MaskState, Row, RowOutcome, RowShaping, SampleParams, Sampler, Shaping, StepBatch,
    StepOutput, TokenMask, WindowTables,
};
use pinion_ops::KernelLevel;
use pinion_ops::walks::Walks;
use pinion_random::Random;
use std::sync::Arc;

/// No multiple of what any walk takes at once.
const VOCAB: usize = 5003;

/// The ids that may be drawn, or why there are none.
#[derive(Debug)]
struct Known(MaskState, Vec<u32>);

impl TokenMask for Known {
    fn read(&self, _: u64, bits: &mut Vec<u32>) -> MaskState {
        bits.clone_from(&self.1);
        self.0
    }
}

/// What one row asks for.
#[derive(Debug)]
struct Wish {
    sample: Option<SampleParams>,
    output: Vec<u32>,
    penalties: [f32; 3],
    bias: Vec<(u32, f32)>,
    banned: Vec<u32>,
    mask: Option<Arc<dyn TokenMask>>,
    is_shaped: bool,
}

impl Wish {
    fn random(random: &mut Random) -> Wish {
        let mut ids = |most: usize| -> Vec<u32> {
            (0..random.below(most + 1)).map(|_| random.below(VOCAB) as u32).collect()
        };
        let (output, biased, banned) = (ids(40), ids(9), ids(20));
        let state = random.pick(&[
            MaskState::Ready,
            MaskState::Ready,
            MaskState::Ready,
            MaskState::Complete,
            MaskState::Late,
            MaskState::Failed,
        ]);
        let words = (0..VOCAB.div_ceil(32)).map(|_| (random.bits() & random.bits()) as u32).collect();
        let mask: Arc<dyn TokenMask> = Arc::new(Known(state, words));
        let sample = SampleParams {
            temperature: random.pick(&[0.0, 0.5, 1.0, 2.0]),
            top_k: random.pick(&[0, 0, 1, 20, 900]),
            top_p: random.pick(&[1.0, 0.95, 0.3]),
            min_p: random.pick(&[0.0, 0.0, 0.05]),
            logprobs: random.pick(&[None, None, Some(0), Some(5), Some(20)]),
            seed: random.bits(),
            position: random.between(0, 99),
        };
        Wish {
            sample: (random.below(8) > 0).then_some(sample),
            bias: biased.into_iter().map(|id| (id, 4.0 * random.value())).collect(),
            output,
            penalties: [random.pick(&[1.0, 1.3]), random.pick(&[0.0, 0.6]), random.pick(&[0.0, -0.8])],
            banned,
            mask: (random.below(4) == 0).then_some(mask),
            is_shaped: random.below(2) == 0,
        }
    }
}

#[derive(Debug)]
struct Wishes(Vec<Wish>);

impl RowShaping for Wishes {
    fn shaping(&self, row: usize) -> Option<Shaping<'_>> {
        let wish = &self.0[row];
        let [repetition_penalty, frequency_penalty, presence_penalty] = wish.penalties;
        (wish.is_shaped || wish.mask.is_some()).then_some(Shaping {
            prompt: &wish.output,
            output: &wish.output,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            bias: &wish.bias,
            banned_ids: &wish.banned,
            banned_ends: &[],
            mask: wish.mask.as_ref(),
        })
    }
}

/// A step of `count` rows of one token each, and the logits of those that sample.
fn step(count: usize, seed: u64) -> (Wishes, Vec<Row>, Vec<f32>) {
    let mut random = Random::new(seed);
    let wishes: Vec<Wish> = (0..count).map(|_| Wish::random(&mut random)).collect();
    let row = |(index, wish): (usize, &Wish)| Row {
        slot: index as u32,
        query_start: index as u32,
        query_len: 1,
        context_len: 1,
        prompt_len: 1,
        blocks_start: 0,
        blocks_len: 0,
        sample: wish.sample,
        scored: None,
    };
    let rows: Vec<Row> = wishes.iter().enumerate().map(row).collect();
    let mut logits = Vec::new();
    for _ in rows.iter().filter(|row| row.sample.is_some()) {
        // Few likely tokens, many, and ties; now and then a row that the model failed.
        let scale = random.pick(&[30.0, 8.0, 0.5]);
        let begin = logits.len();
        logits.extend((0..VOCAB).map(|_| (random.value() * scale * 16.0).round() / 16.0));
        if random.below(12) == 0 {
            logits[begin + random.below(VOCAB)] = random.pick(&[f32::NAN, f32::INFINITY]);
        }
    }
    (Wishes(wishes), rows, logits)
}

fn batch<'a>(rows: &'a [Row], wishes: &'a Wishes) -> StepBatch<'a> {
    StepBatch {
        tokens: &[],
        positions: &[],
        rows,
        blocks: &[],
        copies: &[],
        windows: WindowTables::NONE,
        shaping: wishes,
    }
}

/// Outcomes, and tokens and bits of the logprobs of each row.
fn what_came(out: &StepOutput) -> Vec<(RowOutcome, Vec<(u32, u32)>)> {
    let scores = |row| out.logprobs(row).iter().map(|one| (one.token, one.logprob.to_bits())).collect();
    out.rows.iter().enumerate().map(|(row, &outcome)| (outcome, scores(row))).collect()
}

/// Row after row, by the plain twins of the walks.
fn plainly(batch: &StepBatch<'_>, logits: &[f32], walks: Walks) -> StepOutput {
    let (mut sampler, mut out) = (Sampler::new(VOCAB).with_walks(walks), StepOutput::default());
    let mut logits = logits.to_vec();
    let mut all = logits.chunks_exact_mut(VOCAB);
    for (index, row) in batch.rows.iter().enumerate() {
        match &row.sample {
            Some(params) => {
                let logits = all.next().expect("a row of logits for each row that samples");
                sampler.draw_row(logits, params, batch.shaping.shaping(index), &mut out);
            }
            None => out.push(RowOutcome::None),
        }
    }
    out
}

#[test]
fn threads_and_levels_do_not_change_a_bit() {
    let mut seen = [0; 6];
    for (seed, count) in [1, 2, 7, 8, 33, 64, 65, 150].into_iter().enumerate() {
        let (wishes, rows, logits) = step(count, seed as u64 + 1);
        let batch = batch(&rows, &wishes);
        let want = what_came(&plainly(&batch, &logits, Walks::at(KernelLevel::Scalar)));
        assert_eq!(want.len(), count);
        for (outcome, scores) in &want {
            seen[match outcome {
                RowOutcome::Token(_) => 0,
                RowOutcome::None => 1,
                RowOutcome::Complete => 2,
                RowOutcome::Late => 3,
                RowOutcome::Unmasked => 4,
                RowOutcome::NonFinite => 5,
            }] += 1;
            assert!(scores.is_empty() || matches!(outcome, RowOutcome::Token(_)), "{outcome:?}");
        }
        for level in KernelLevel::available() {
            assert_eq!(
                what_came(&plainly(&batch, &logits, Walks::at(level))),
                want,
                "{level:?}, {count} rows"
            );
        }
        for threads in [1, 2, 3, 8] {
            let mut sampler = HostSampler::new(VOCAB, threads);
            // Again with what the first step left in the buffers.
            for _ in 0..2 {
                let mut out = StepOutput::default();
                sampler.draw_rows(&batch, &mut out, &mut logits.clone());
                assert_eq!(what_came(&out), want, "{threads} threads, {count} rows, seed {seed}");
            }
        }
    }
    assert!(seen.iter().all(|&count| count > 0), "every outcome comes up: {seen:?}");
}

/// Whichever thread a row comes to, its sampler has all its room from the start: the first rows that one draws allocate
/// nothing, and neither does the thread that hands out.
#[test]
fn the_first_draws_of_a_sampler_allocate_nothing() {
    let (wishes, rows, logits) = step(64, 5);
    let batch = batch(&rows, &wishes);
    let mut out = plainly(&batch, &logits, Walks::default());
    let mut sampler = Sampler::new(VOCAB);
    let mut changed = logits.clone();
    out.clear();
    let counted = allocation_counter::measure(|| {
        let mut all = changed.chunks_exact_mut(VOCAB);
        for (index, row) in batch.rows.iter().enumerate() {
            if let (Some(params), Some(logits)) = (&row.sample, row.sample.and_then(|_| all.next())) {
                sampler.draw_row(logits, params, batch.shaping.shaping(index), &mut out);
            }
        }
    });
    assert!(out.rows.iter().any(|outcome| matches!(outcome, RowOutcome::Token(_))));
    assert_eq!(counted.count_total, 0);
    for threads in [1, 3] {
        let mut sampler = HostSampler::new(VOCAB, threads);
        out.clear();
        changed.copy_from_slice(&logits);
        let counted = allocation_counter::measure(|| sampler.draw_rows(&batch, &mut out, &mut changed));
        assert_eq!((out.rows.len(), counted.count_total), (64, 0), "{threads} threads");
    }
}
