//! What this machine can do at most, for the roofline shares of kernels/README.md: read bandwidth, and the rate of a
//! large matrix product through libtorch in fp32 and bf16, each with one thread and with all.
//!
//! `machine_limits [THREADS]`. Takes the best of several rounds: interference only ever makes a round slower.

use std::hint::black_box;
use std::time::Instant;
use tch::{Device, Kind, Tensor};

/// Far larger than any cache.
const READ_BYTES: usize = 1 << 30;
const PRODUCT_DIM: i64 = 2048;
const ROUNDS: usize = 7;

fn best_seconds(mut work: impl FnMut()) -> f64 {
    let round = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

/// Eight sums at once, so that loads and not additions set the pace.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 8];
    for chunk in words.chunks_exact(8) {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

fn read_gb_per_s(words: &[u64], threads: usize) -> f64 {
    let seconds = best_seconds(|| {
        std::thread::scope(|scope| {
            for part in words.chunks(words.len() / threads) {
                scope.spawn(move || black_box(sum(black_box(part))));
            }
        });
    });
    size_of_val(words) as f64 / seconds / 1e9
}

fn product_gflop_per_s(kind: Kind) -> f64 {
    let operand = || Tensor::rand([PRODUCT_DIM, PRODUCT_DIM], (Kind::Float, Device::Cpu)).to_kind(kind);
    let (a, b) = (operand(), operand());
    let seconds = best_seconds(|| _ = black_box(a.matmul(&b)));
    2.0 * (PRODUCT_DIM as f64).powi(3) / seconds / 1e9
}

fn main() {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = std::env::args().nth(1).and_then(|threads| threads.parse().ok()).unwrap_or(all);
    let words: Vec<u64> = (0..(READ_BYTES / 8) as u64).collect();
    for threads in if threads > 1 { vec![1, threads] } else { vec![1] } {
        tch::set_num_threads(threads as i32);
        println!(
            "{threads} thread(s): read {:.1} GB/s, product fp32 {:.0} GFLOP/s, bf16 {:.0} GFLOP/s",
            read_gb_per_s(&words, threads),
            product_gflop_per_s(Kind::Float),
            product_gflop_per_s(Kind::BFloat16)
        );
    }
}
