//! Times paged attention alone, one thread, for each level and dtype: decode (32 sequences at a context of 320, 12
//! heads of 64, one layer after another over a cache far larger than L2) in GB/s of KV read, and a prefill of 256 in
//! GFLOP/s.
//!
//! Uses the thread's CPU time where the system tells it, so that a busy machine disturbs less. The share of the
//! roofline is these figures over those of `machine_limits`.
//!
//! `attention_bench spans [THREADS [ROUNDS]]` (2 threads, 5 rounds) times one generated token over long contexts with
//! and without `Attend::split_contexts` in turns, in microseconds of the clock for a layer; `attention_bench kv` does
//! so over K and V in the type of the activations and in 8 bits. More than one thread needs feature `torch`, which
//! brings OpenMP.

use half::bf16;
use pinion_ops::attention::{Attend, Batch, Launch, Rows, SpanRoom, paged_attention};
use pinion_ops::{Element, KernelLevel, KvDtype, KvPool, KvShape};
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
            let (q, attend) = (Rows { data: &q, stride: width }, Attend::plain(HEADS, 0.125));
            let room = &mut SpanRoom::default();
            paged_attention(&mut pool, layer, &batch, q, &mut out, width, attend, launch, room)
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

/// Rows of one generated token over a context.
struct Decode {
    name: &'static str,
    rows: usize,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    context: usize,
    window: Option<u32>,
}

/// A name, rows, context and window; KV heads, query heads of each and their size.
const fn decode(
    name: &'static str,
    [rows, context, window]: [usize; 3],
    [kv_heads, group, head_dim]: [usize; 3],
) -> Decode {
    Decode {
        name,
        rows,
        kv_heads,
        group,
        head_dim,
        context,
        window: if window == 0 { None } else { Some(window as u32) },
    }
}

const DECODES: [Decode; 7] = [
    decode("1 KV head (Gemma 3 1B)", [1, 8192, 0], [1, 4, 256]),
    decode("its window", [1, 8192, 512], [1, 4, 256]),
    decode("three rows of it", [3, 8192, 0], [1, 4, 256]),
    decode("2 KV heads (Qwen2.5-0.5B)", [1, 8192, 0], [2, 7, 64]),
    decode("8 KV heads (Qwen3-0.6B)", [1, 8192, 0], [8, 2, 128]),
    decode("eight rows of it", [8, 2048, 0], [8, 2, 128]),
    decode("one span", [1, 256, 0], [1, 4, 256]),
];

/// What differs between the two sides of a comparison.
#[derive(Clone, Copy)]
enum Compared {
    /// One thread for each token and KV head, or all for the spans of one.
    Spans,
    /// K and V in the type of the activations, or in 8 bits.
    Kv,
}

/// Rows of 8 bits, and a scale for each.
fn fill_int8(layer: &mut [u8], head_dim: usize) {
    for row in layer.chunks_exact_mut(KvDtype::Int8.row_bytes(head_dim)) {
        let (integers, scale) = row.split_at_mut(row.len() - 4);
        scale.copy_from_slice(&(0.5f32 / 127.0).to_ne_bytes());
        integers.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index * 7 % 251) as u8);
    }
}

/// Layers of K and V in the type of the activations, and as integers, which are touched only if they are compared.
fn pools<T: Element>(shape: KvShape, compared: Compared) -> [KvPool; 2] {
    let mut floats = KvPool::new(shape, T::DTYPE).expect("memory for the benchmark");
    let mut integers = KvPool::new(shape, KvDtype::Int8).expect("memory for the benchmark");
    for layer in 0..shape.layers {
        for (index, value) in floats.layer_mut::<T>(layer).iter_mut().enumerate() {
            *value = T::from_f32((index % 251) as f32 / 251.0 - 0.5);
        }
        if matches!(compared, Compared::Kv) {
            fill_int8(integers.layer_bytes_mut(layer), shape.head_dim);
        }
    }
    [floats, integers]
}

/// Both sides, `rounds` times in turns; prints the median of each and the ratios of the rounds.
fn compare<T: Element>(decode: &Decode, compared: Compared, threads: u32, rounds: usize) {
    /// Larger than caches, so that K and V come from memory.
    const CACHE_BYTES: usize = 256 << 20;
    let &Decode { rows, kv_heads, group, head_dim, context, .. } = decode;
    let table = context.div_ceil(BLOCK_SIZE);
    let one = KvShape { layers: 1, blocks: rows * table, heads: kv_heads, block_size: BLOCK_SIZE, head_dim };
    let layers = (CACHE_BYTES as u64).div_ceil(one.block_bytes(T::DTYPE) * one.blocks as u64) as usize;
    let shape = KvShape { layers, ..one };
    let [mut floats, mut integers] = pools::<T>(shape, compared);
    let blocks: Vec<u32> = (0..rows).flat_map(|s| (0..table).map(move |b| (b * rows + s) as u32)).collect();
    let batch = Batch {
        query_start: &(0..=rows as u32).collect::<Vec<_>>(),
        context_len: &vec![context as u32; rows],
        prompt_len: &vec![1; rows],
        table_start: &(0..rows).map(|row| (row * table) as u32).collect::<Vec<_>>(),
        blocks: &blocks,
    };
    let batch = batch.check(&shape).expect("a well-formed batch");
    let width = kv_heads * group * head_dim;
    let q: Vec<T> = (0..rows * width).map(|i| T::from_f32((i % 13) as f32 / 13.0)).collect();
    let (mut out, mut room) = (vec![T::default(); q.len()], SpanRoom::new(threads, group, head_dim));
    let launch = Launch { level: KernelLevel::best(), threads };
    let mut time = |is_second: bool| {
        let (pool, split_contexts) = match compared {
            Compared::Spans => (&mut floats, is_second),
            Compared::Kv => (if is_second { &mut integers } else { &mut floats }, true),
        };
        let plain = Attend::plain(kv_heads * group, (head_dim as f32).powf(-0.5));
        let attend = Attend { window: decode.window, split_contexts, ..plain };
        let start = Instant::now();
        for layer in 0..layers {
            let q = Rows { data: &q[..], stride: width };
            paged_attention(pool, layer, &batch, q, &mut out, width, attend, launch, &mut room)
                .expect("operands fit");
        }
        start.elapsed().as_secs_f64() * 1e6 / layers as f64
    };
    let (mut off, mut on, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        // The two begin in turns.
        let begins = round % 2 == 1;
        let times = [time(begins), time(!begins)];
        let [with, without] = if begins { times } else { [times[1], times[0]] };
        // The first round brings caches, pages and threads.
        if round > 0 {
            off.push(without);
            on.push(with);
            ratios.push(without / with);
        }
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let ratio = median(&mut ratios);
    let [first, second] = match compared {
        Compared::Spans => ["without spans", "with"],
        Compared::Kv => ["over floats", "over 8 bits"],
    };
    println!(
        "{:26} {:4} {threads} threads: {:8.1} us {first} {:8.1} {second}, {ratio:.2} times as fast ({:.2} to {:.2})",
        decode.name,
        T::DTYPE.name(),
        median(&mut off),
        median(&mut on),
        ratios[0],
        ratios[rounds - 1],
    );
}

fn main() {
    let mut words = std::env::args().skip(1);
    let compared = match words.next().as_deref() {
        Some("spans") => Some(Compared::Spans),
        Some("kv") => Some(Compared::Kv),
        _ => None,
    };
    if let Some(compared) = compared {
        let mut number = |preset| words.next().map_or(preset, |word| word.parse().expect("a number"));
        let (threads, rounds) = (number(2), number(5).max(1));
        for decode in &DECODES {
            compare::<f32>(decode, compared, threads as u32, rounds);
            compare::<bf16>(decode, compared, threads as u32, rounds);
        }
        return;
    }
    let decode = Workload { name: "decode", seqs: 32, query: 1, context: 320 };
    let prefill = Workload { name: "prefill", seqs: 1, query: 256, context: 256 };
    for workload in [decode, prefill] {
        for level in KernelLevel::available() {
            bench::<f32>(&workload, level);
            bench::<bf16>(&workload, level);
        }
    }
}
