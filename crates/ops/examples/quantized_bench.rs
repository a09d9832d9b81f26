//! Times products with quantised weights, one thread: GB/s of packed weights and thousand millions of multiplications a
//! second for one to 256 rows. Forty copies of a product of 1024 inputs and 3072 outputs (the shape of Qwen3-0.6B's
//! gate) are read one after another, so that they come from memory. A word of each cache line of the same bytes, four
//! copies side by side, is read in turn with them: what one core can read.
//!
//! Uses the thread's CPU time where the system tells it. `cargo run --release -p pinion-ops --no-default-features
//! --example quantized_bench`

use pinion_ops::quantized::{IntegerLaunch, QuantizedWeights, Source, SourceType, WeightForm};
use pinion_ops::{Epilogue, IntegerLevel};
use std::time::Instant;

const INPUTS: usize = 1024;
const OUTPUTS: usize = 3072;
const COPIES: usize = 40;
const ROUNDS: usize = 7;

fn cpu_seconds(start: Instant) -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok());
    nanos.map_or_else(|| start.elapsed().as_secs_f64(), |nanos| nanos / 1e9)
}

fn packed(form: WeightForm) -> Vec<QuantizedWeights> {
    let bytes: Vec<u8> =
        (0..INPUTS * OUTPUTS).flat_map(|at| ((at * 7919 % 251) as f32 / 251.0 - 0.5).to_le_bytes()).collect();
    let source = Source { bytes: &bytes, source_type: SourceType::F32, rows: OUTPUTS, is_transposed: false };
    let one = || {
        let mut weights = QuantizedWeights::new(form, OUTPUTS, INPUTS).expect("memory for the benchmark");
        weights.pack(0, source, 1).expect("the source has the shape of the product");
        weights
    };
    (0..COPIES).map(|_| one()).collect()
}

fn read(weights: &[QuantizedWeights]) -> u64 {
    let word = |line: &[u8]| u64::from_le_bytes(line[..8].try_into().expect("eight bytes"));
    let mut sum = 0u64;
    for four in weights.chunks_exact(4) {
        let lines = four[0].packed().chunks_exact(64).zip(four[1].packed().chunks_exact(64));
        let others = four[2].packed().chunks_exact(64).zip(four[3].packed().chunks_exact(64));
        for ((a, b), (c, d)) in lines.zip(others) {
            sum = sum.wrapping_add(word(a) ^ word(b)).wrapping_add(word(c) ^ word(d));
        }
    }
    sum
}

/// Median and range of seconds.
fn spread(mut seconds: Vec<f64>) -> (f64, f64, f64) {
    seconds.sort_by(f64::total_cmp);
    (seconds[seconds.len() / 2], seconds[0], seconds[seconds.len() - 1])
}

fn bench(form: WeightForm, rows: usize, level: IntegerLevel, weights: &[QuantizedWeights]) {
    let x: Vec<f32> = (0..rows * INPUTS).map(|at| (at * 104_729 % 1009) as f32 / 1009.0 - 0.5).collect();
    let mut out = vec![0f32; rows * OUTPUTS];
    let launch = IntegerLaunch { level, threads: 1 };
    let some = if rows > 32 { &weights[..4] } else { weights };
    let (mut products, mut reads) = (Vec::new(), Vec::new());
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let began = cpu_seconds(start);
        std::hint::black_box(read(weights));
        reads.push(cpu_seconds(start) - began);
        let began = cpu_seconds(start);
        for one in some {
            one.multiply(&x, Epilogue::default(), &mut out, launch).expect("operands of the product's shape");
        }
        products.push(cpu_seconds(start) - began);
    }
    let bytes = (weights[0].bytes() as usize * some.len()) as f64;
    let (median, least, most) = spread(products);
    let (read_median, _, _) = spread(reads);
    println!(
        "{form:?} {level:?} {rows:3} rows: {:5.1} GB/s ({:.1} to {:.1}), {:5.1} G multiplications/s; a core reads {:.1} GB/s",
        bytes / median / 1e9,
        bytes / most / 1e9,
        bytes / least / 1e9,
        (rows * INPUTS * OUTPUTS * some.len()) as f64 / median / 1e9,
        weights.iter().map(|one| one.packed().len()).sum::<usize>() as f64 / read_median / 1e9,
    );
}

fn main() {
    for form in [WeightForm::Int8, WeightForm::Int4 { group: 128 }, WeightForm::Int4 { group: 32 }] {
        let weights = packed(form);
        for rows in [1, 2, 4, 8, 32, 256] {
            bench(form, rows, IntegerLevel::best(), &weights);
        }
    }
}
