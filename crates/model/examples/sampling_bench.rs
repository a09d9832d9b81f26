//! Times the sampling of a step on the host: `sampling_bench [THREADS] [ROUNDS]`.
//!
//! Rows of 50257 and 151936 logits, drawn by one thread with plain walks, by one with the machine's, and by THREADS; in
//! turns, in each of ROUNDS rounds. Prints for each the median of the rounds' medians and their range, in µs a step,
//! and a digest of what was drawn, which is the same for all of a line. The rows are bell-shaped, within 20 of 0.
//! Compare figures of one run only: the machine's speed drifts.

use pinion_model::{
    HostSampler, OwnedBatch, RowOutcome, SampleParams, Sampler, StepBatch, StepOutput, Unshaped,
};
use pinion_ops::KernelLevel;
use pinion_ops::walks::Walks;
use pinion_random::Random;
use std::time::Instant;

const VOCABULARIES: [usize; 2] = [50_257, 151_936];
const ROW_COUNTS: [usize; 4] = [1, 8, 32, 64];

/// A way to draw a step.
enum Way {
    /// Row after row, by a sampler whose walks may be the plain ones.
    Alone(Box<Sampler>),
    /// As the model draws.
    Together(HostSampler),
}

impl Way {
    fn draw(&mut self, batch: &StepBatch<'_>, logits: &mut [f32], vocab: usize, out: &mut StepOutput) {
        out.clear();
        match self {
            Way::Together(sampler) => sampler.draw_rows(batch, out, logits),
            Way::Alone(sampler) => {
                for (row, logits) in batch.rows.iter().zip(logits.chunks_exact_mut(vocab)) {
                    let params = row.sample.expect("all rows sample");
                    sampler.draw_row(logits, &params, None, out);
                }
            }
        }
    }
}

/// Folds tokens and bits of logprobs into one number.
fn digest(out: &StepOutput, mut so_far: u64) -> u64 {
    let mut add = |value: u32| so_far = (so_far ^ u64::from(value)).wrapping_mul(0x0000_0100_0000_01b3);
    for (row, outcome) in out.rows.iter().enumerate() {
        if let RowOutcome::Token(token) = *outcome {
            add(token);
        }
        for one in out.logprobs(row) {
            add(one.token);
            add(one.logprob.to_bits());
        }
    }
    so_far
}

/// The batch of a step; only its rows' parameters matter.
fn batch(rows: usize, sample: SampleParams) -> OwnedBatch {
    let mut batch = OwnedBatch::default();
    for row in 0..rows as u32 {
        batch.push(row, 0, &[0], &[0]).sample = Some(SampleParams { seed: u64::from(row), ..sample });
    }
    batch
}

/// The median time of a step, µs, and the digest of all of them.
fn time(way: &mut Way, rows: usize, sample: SampleParams, logits: &mut [f32], vocab: usize) -> (f64, u64) {
    let (mut times, mut drawn, mut out) = (Vec::new(), 0, StepOutput::with_capacity(rows));
    for position in 0..(300 / rows).clamp(7, 60) as u64 {
        let owned = batch(rows, SampleParams { position, ..sample });
        let batch = StepBatch { shaping: &Unshaped, ..owned.as_step() };
        let start = Instant::now();
        way.draw(&batch, &mut logits[..rows * vocab], vocab, &mut out);
        times.push(start.elapsed().as_secs_f64() * 1e6);
        drawn = digest(&out, drawn);
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], drawn)
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u32>().unwrap_or(0).max(1));
    let (threads, rounds) = (arguments.next().unwrap_or(2), arguments.next().unwrap_or(5));
    println!(
        "{threads} threads, {rounds} rounds, {:?}; us a step: median (range of rounds)",
        KernelLevel::best()
    );
    let sampled = SampleParams { temperature: 1.0, top_k: 20, top_p: 0.95, ..SampleParams::GREEDY };
    for vocab in VOCABULARIES {
        let mut random = Random::new(vocab as u64);
        let most = ROW_COUNTS[ROW_COUNTS.len() - 1];
        let bell = |random: &mut Random| (0..4).map(|_| random.value()).sum::<f32>() * 5.0;
        let mut logits: Vec<f32> = (0..most * vocab).map(|_| bell(&mut random)).collect();
        let mut ways = [
            Way::Alone(Box::new(Sampler::new(vocab).with_walks(Walks::at(KernelLevel::Scalar)))),
            Way::Together(HostSampler::new(vocab, 1)),
            Way::Together(HostSampler::new(vocab, threads)),
        ];
        for (name, sample, logprobs) in [
            ("greedy", SampleParams::GREEDY, None),
            ("greedy, 5 logprobs", SampleParams::GREEDY, Some(5)),
            ("top-k 20, top-p 0.95", sampled, None),
            ("top-k 20, top-p 0.95, 5 logprobs", sampled, Some(5)),
        ] {
            for rows in ROW_COUNTS {
                let mut medians = [const { Vec::new() }; 3];
                let mut digests = [0; 3];
                for _ in 0..rounds {
                    for (at, way) in ways.iter_mut().enumerate() {
                        let sample = SampleParams { logprobs, ..sample };
                        let (median, drawn) = time(way, rows, sample, &mut logits, vocab);
                        medians[at].push(median);
                        digests[at] = drawn;
                    }
                }
                assert!(digests.iter().all(|&digest| digest == digests[0]), "every way draws the same");
                print!("{vocab:>6} x {rows:<2} {name:<32}");
                for (way, times) in ["plain walks", "one thread", "threads"].iter().zip(&mut medians) {
                    times.sort_by(f64::total_cmp);
                    let (least, most) = (times[0], times[times.len() - 1]);
                    print!("  {way} {:>7.0} ({least:.0}-{most:.0})", times[times.len() / 2]);
                }
                println!("  {:016x}", digests[0]);
            }
        }
    }
}
