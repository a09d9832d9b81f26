//! Times paged attention alone, one thread, for each level and dtype: decode (32 sequences at a context of 320, 12
//! heads of 64, one layer after another over a cache far larger than L2) in GB/s of KV read, and a prefill of 256 in
//! GFLOP/s.
//!
//! Uses the thread's CPU time where the system tells it, so that a busy machine disturbs less. The share of the
//! roofline is these figures over those of `machine_limits`.

use half::bf16;
use pinion_ops::attention::{Attend, Batch, Launch, Rows, paged_attention};
use pinion_ops::{Element, KernelLevel, KvPool, KvShape};
use std::time::Instant;

const HEADS: usize = 12;
const HEAD_DIM: usize = 64;
const LAYERS: usize = 12;
const BLOCK_SIZE: usize = 16;

struct Workload {
    name: &'static str,
    seqs: usize,
    query: usize,
    context: usize,
}

fn cpu_seconds(start: Instant) -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok());
    nanos.map_or_else(|| start.elapsed().as_secs_f64(), |nanos| nanos / 1e9)
}

fn bench<T: Element>(workload: &Workload, level: KernelLevel) {
    let table = workload.context.div_ceil(BLOCK_SIZE);
    let shape = KvShape {
        layers: LAYERS,
        blocks: workload.seqs * table,
        heads: HEADS,
        block_size: BLOCK_SIZE,
        head_dim: HEAD_DIM,
    };
    let mut pool = KvPool::new(shape, T::DTYPE).expect("memory for the benchmark");
    pool.prefault();
    for layer in 0..LAYERS {
        for (index, value) in pool.layer_mut::<T>(layer).iter_mut().enumerate() {
            *value = T::from_f32((index % 251) as f32 / 251.0 - 0.5);
        }
    }
    let seqs = workload.seqs;
    // Tables interleaved, as they are after requests have come and gone.
    let blocks: Vec<u32> = (0..seqs).flat_map(|s| (0..table).map(move |b| (b * seqs + s) as u32)).collect();
    let query_start: Vec<u32> = (0..=seqs).map(|s| (s * workload.query) as u32).collect();
    let context_len = vec![workload.context as u32; seqs];
    // One query is a decode step, more are a prompt.
    let prompt_len = vec![(workload.context - usize::from(workload.query == 1)) as u32; seqs];
    let table_start: Vec<u32> = (0..seqs).map(|s| (s * table) as u32).collect();
    let batch = Batch {
        query_start: &query_start,
        context_len: &context_len,
        prompt_len: &prompt_len,
        table_start: &table_start,
        blocks: &blocks,
    };
    let batch = batch.check(&shape).expect("a well-formed batch");
    let width = HEADS * HEAD_DIM;
    let q: Vec<T> = (0..batch.tokens() * width).map(|i| T::from_f32((i % 13) as f32 / 13.0)).collect();
    let mut out = vec![T::default(); q.len()];
    let launch = Launch { level, threads: 1 };
    let origin = Instant::now();
    let mut best = f64::INFINITY;
    for _ in 0..if level == KernelLevel::Scalar { 2 } else { 8 } {
        let start = cpu_seconds(origin);
        for layer in 0..LAYERS {
            let q = Rows { data: &q, stride: width };
            paged_attention(
                &mut pool,
                layer,
                &batch,
                q,
                &mut out,
                width,
                Attend::plain(HEADS, 0.125),
                launch,
            )
            .expect("operands fit");
        }
        best = best.min(cpu_seconds(origin) - start);
    }
    let per_seq = LAYERS * HEADS * HEAD_DIM;
    let bytes = (seqs * per_seq * workload.context * 2 * T::DTYPE.size()) as f64;
    // Each query meets, on average over a causal tile, context - (query - 1) / 2 keys; two products of 2 flops each.
    let keys = workload.context as f64 - (workload.query as f64 - 1.0) / 2.0;
    let flops = (seqs * per_seq * workload.query) as f64 * keys * 4.0;
    println!(
        "{:8} {:5} {level:?}: {:8.2} ms  {:6.1} GB/s  {:6.1} GFLOP/s",
        workload.name,
        T::DTYPE.name(),
        best * 1e3,
        bytes / best / 1e9,
        flops / best / 1e9
    );
}

fn main() {
    let decode = Workload { name: "decode", seqs: 32, query: 1, context: 320 };
    let prefill = Workload { name: "prefill", seqs: 1, query: 256, context: 256 };
    for workload in [decode, prefill] {
        for level in KernelLevel::available() {
            bench::<f32>(&workload, level);
            bench::<bf16>(&workload, level);
        }
    }
}
