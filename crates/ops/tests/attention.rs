//! The C++ kernels against their plain Rust twins, at every level this machine has, over a sweep of shapes.
//!
//! Tolerances: fp32 2e-5 of the largest |V| (sums in another order); bf16 2^-7 of it, two roundings of a bf16 result
//! (its unit is 2^-8), and for prefill at the avx512_bf16 level softmax weights rounded to bf16 on top.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use crate::layers::{Layer, fill, fill_layer};
use half::bf16;
use pinion_ops::attention::{self, Attend, Batch, Launch, Rows, SpanRoom};
use pinion_ops::{Dtype, Element, KernelLevel, KvDtype, KvPool, KvShape};
use pinion_random::Random;

#[derive(Debug, Clone, Copy)]
struct Case {
    seed: u64,
    heads: usize,
    /// Query heads of each of them.
    group: usize,
    window: Option<u32>,
    soft_cap: Option<f32>,
    head_dim: usize,
    block_size: usize,
    /// Upper bounds of the random lengths.
    max_query: usize,
    max_past: usize,
    seqs: usize,
    threads: u32,
}

/// Sequences with scattered, disjoint block tables.
struct Arrays {
    query_start: Vec<u32>,
    context_len: Vec<u32>,
    prompt_len: Vec<u32>,
    table_start: Vec<u32>,
    blocks: Vec<u32>,
    block_count: usize,
}

fn arrays(case: &Case, random: &mut Random) -> Arrays {
    let mut out = Arrays {
        query_start: vec![0],
        context_len: Vec::new(),
        prompt_len: Vec::new(),
        table_start: Vec::new(),
        blocks: Vec::new(),
        block_count: 0,
    };
    for seq in 0..case.seqs {
        // Decode and prefill rows mixed; the first sequence has the longest query.
        let query = match random.below(3) {
            0 if seq > 0 => 1,
            _ if seq == 0 => case.max_query,
            _ => 1 + random.below(case.max_query),
        };
        let context = query + random.below(case.max_past + 1);
        out.query_start.push(out.query_start[seq] + query as u32);
        out.context_len.push(context as u32);
        // All prompt, none, or some of both.
        let prompt = [context, 0, random.below(context + 1)][random.below(3)];
        out.prompt_len.push(prompt as u32);
        out.table_start.push(out.blocks.len() as u32);
        // One block more than needed, as the engine may have allocated ahead.
        for _ in 0..context.div_ceil(case.block_size) + 1 {
            out.blocks.push(out.blocks.len() as u32);
        }
    }
    out.block_count = out.blocks.len() + 3;
    for i in (1..out.blocks.len()).rev() {
        out.blocks.swap(i, random.below(i + 1));
    }
    out
}

/// Runs one case over a pool of `stored` numbers at every level and compares with the twin.
fn check<T: Element>(case: Case, stored: KvDtype) {
    let mut random = Random::new(case.seed);
    let arrays = arrays(&case, &mut random);
    let (heads, dim) = (case.heads, case.head_dim);
    let shape =
        KvShape { layers: 2, blocks: arrays.block_count, heads, block_size: case.block_size, head_dim: dim };
    let batch = Batch {
        query_start: &arrays.query_start,
        context_len: &arrays.context_len,
        prompt_len: &arrays.prompt_len,
        table_start: &arrays.table_start,
        blocks: &arrays.blocks,
    };
    let batch = batch.check(&shape).expect("a well-formed batch");
    let tokens = batch.tokens();
    let width = heads * case.group * dim;
    // Q, K and V side by side, as the fused projection gives them.
    let columns = [0, width, width + heads * dim];
    let stride = width + 2 * heads * dim;
    let qkv: Vec<T> = fill(&mut random, tokens * stride);
    let rows = |part: usize| Rows { data: &qkv[columns[part]..], stride };
    let scale = 1.0 / (dim as f32).sqrt() * 2.0;
    let plain = Attend::plain(heads * case.group, scale);
    let attend = Attend { window: case.window, soft_cap: case.soft_cap, ..plain };
    let mut room = SpanRoom::new(case.threads, case.group, dim);

    let mut pool = KvPool::new(shape, stored).unwrap();
    fill_layer(&mut pool, 1, &mut random);
    let mut expected_cache = Layer::of(&mut pool, 1);
    expected_cache.append(&batch, rows(1), rows(2));
    let launch = Launch { level: KernelLevel::best(), threads: case.threads };
    attention::kv_append(&mut pool, 1, &batch, rows(1), rows(2), launch).unwrap();
    assert!(expected_cache.is_same(&mut pool, 1), "append differs: {case:?}");
    assert!(pool.layer_bytes_mut(0).iter().all(|&byte| byte == 0), "another layer was written: {case:?}");

    let expected = expected_cache.attend(&batch, rows(0), attend);
    let tolerance = match T::DTYPE {
        Dtype::F32 => 2e-5,
        Dtype::Bf16 => 1.0 / 128.0,
    };
    for level in KernelLevel::available() {
        // A sentinel after the end shows writes past it.
        let mut out = vec![T::from_f32(7.0); tokens * width + 64];
        let launch = Launch { level, threads: case.threads };
        attention::paged_attention(&mut pool, 1, &batch, rows(0), &mut out, width, attend, launch, &mut room)
            .unwrap();
        assert!(
            out[tokens * width..].iter().all(|v| v.to_f32() == 7.0),
            "{level:?} wrote past the end: {case:?}"
        );
        for (index, (have, want)) in out.iter().zip(&expected).enumerate() {
            let difference = (have.to_f32() - want.to_f32()).abs();
            assert!(
                difference <= tolerance,
                "{level:?}: element {index} (token {}) is {have:?}, expected {want:?}: {case:?}",
                index / width
            );
        }
    }
}

fn check_both(case: Case) {
    check::<f32>(case, Dtype::F32.into());
    check::<bf16>(case, Dtype::Bf16.into());
    match case.seed % 2 {
        0 => check::<f32>(case, KvDtype::Int8),
        _ => check::<bf16>(case, KvDtype::Int8),
    }
}

#[test]
fn head_dims_and_block_sizes() {
    let mut seed = 1;
    for head_dim in
        [1, 2, 3, 7, 8, 12, 16, 17, 20, 24, 31, 32, 33, 40, 48, 64, 72, 80, 96, 100, 112, 120, 128]
    {
        for block_size in [1, 4, 8, 16, 32] {
            seed += 1;
            check_both(Case {
                seed,
                group: 1,
                window: None,
                soft_cap: None,
                heads: 2,
                head_dim,
                block_size,
                max_query: 37,
                max_past: 70,
                seqs: 3,
                threads: 1,
            });
        }
    }
}

#[test]
fn large_heads() {
    for (seed, head_dim) in [(100, 192), (101, 250), (102, 256), (103, 257), (104, 320), (105, 512)] {
        check_both(Case {
            seed,
            group: 1,
            window: None,
            soft_cap: None,
            heads: 1,
            head_dim,
            block_size: 16,
            max_query: 9,
            max_past: 40,
            seqs: 2,
            threads: 1,
        });
    }
}

#[test]
fn query_lengths_around_the_tile() {
    for (seed, max_query) in [1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 130].into_iter().enumerate() {
        for max_past in [0, 1, 63, 64, 200] {
            let seed = 1000 + seed as u64;
            check_both(Case {
                seed,
                group: 1,
                window: None,
                soft_cap: None,
                heads: 3,
                head_dim: 64,
                block_size: 16,
                max_query,
                max_past,
                seqs: 2,
                threads: 1,
            });
        }
    }
}

#[test]
fn decode_batches_on_threads() {
    for seed in 2000..2008 {
        check_both(Case {
            seed,
            group: 1,
            window: None,
            soft_cap: None,
            heads: 12,
            head_dim: 64,
            block_size: 16,
            max_query: 1,
            max_past: 400,
            seqs: 9,
            threads: 2,
        });
        check_both(Case {
            seed,
            group: 1,
            window: None,
            soft_cap: None,
            heads: 4,
            head_dim: 32,
            block_size: 8,
            max_query: 90,
            max_past: 90,
            seqs: 6,
            threads: 3,
        });
    }
}

#[test]
fn random_shapes() {
    let mut random = Random::new(0x5eed);
    for seed in 3000..3060 {
        let case = Case {
            seed,
            heads: 1 + random.below(5),
            group: 1 + random.below(3),
            window: [None, Some(1 + random.below(150) as u32)][random.below(2)],
            soft_cap: [None, Some(0.5 + 3.0 * random.value().abs())][random.below(2)],
            head_dim: 1 + random.below(130),
            block_size: 1 + random.below(40),
            max_query: 1 + random.below(80),
            max_past: random.below(200),
            seqs: 1 + random.below(6),
            threads: 1 + random.below(2) as u32,
        };
        check_both(case);
    }
}

/// KV heads that serve one, some and all query heads, in groups that do and do not fill a tile or a pass.
#[test]
fn groups_windows_and_caps() {
    let limits = [(None, None), (Some(1), None), (Some(33), None), (Some(64), Some(1.5)), (None, Some(0.7))];
    let shapes = [(1, 1), (3, 1), (1, 2), (2, 3), (1, 4), (2, 5), (1, 7), (1, 8), (1, 9), (1, 33), (1, 40)];
    for (at, (heads, group)) in shapes.into_iter().enumerate() {
        for (turn, head_dim) in [16, 80, 96, 112, 256].into_iter().enumerate() {
            let (window, soft_cap) = limits[(at + turn) % limits.len()];
            let (seed, threads) = (4000 + 5 * at as u64 + turn as u64, 1 + turn as u32 % 2);
            let (block_size, max_query, max_past, seqs) = (16, 41, 150, 2);
            #[rustfmt::skip]
            check_both(Case {
                seed, heads, group, window, soft_cap, head_dim, block_size, max_query, max_past, seqs, threads,
            });
        }
    }
}

/// The split over threads must not show in the result: a row may not depend on what it is batched with.
#[test]
fn batch_mates_and_threads_do_not_change_a_bit() {
    let shape = KvShape { layers: 1, blocks: 64, heads: 4, block_size: 16, head_dim: 64 };
    let mut random = Random::new(77);
    let mut pool = KvPool::new(shape, Dtype::F32).unwrap();
    let past: Vec<f32> = fill(&mut random, shape.layer_elements().unwrap());
    pool.layer_mut::<f32>(0).copy_from_slice(&past);
    let blocks: Vec<u32> = (0..64).collect();
    let (query_start, context_len, table_start) = ([0u32, 1, 41, 42], [100u32, 90, 200], [0u32, 7, 14]);
    let prompt_len = [99u32, 80, 200];
    let all = Batch {
        query_start: &query_start,
        context_len: &context_len,
        prompt_len: &prompt_len,
        table_start: &table_start,
        blocks: &blocks,
    };
    let q: Vec<f32> = fill(&mut random, 42 * 256);
    let mut run = |batch: Batch<'_>, q: &[f32], threads: u32| {
        let batch = batch.check(&shape).unwrap();
        let mut out = vec![0f32; batch.tokens() * 256];
        let launch = Launch { level: KernelLevel::best(), threads };
        let (q, attend) = (Rows { data: q, stride: 256 }, Attend::plain(4, 0.125));
        let room = &mut SpanRoom::new(threads, 1, 64);
        attention::paged_attention(&mut pool, 0, &batch, q, &mut out, 256, attend, launch, room).unwrap();
        out
    };
    let together = run(all, &q, 1);
    assert_eq!(together, run(all, &q, 4));
    for seq in 0..3 {
        let (first, end) = (query_start[seq] as usize, query_start[seq + 1] as usize);
        let alone = Batch {
            query_start: &[0, (end - first) as u32],
            context_len: &context_len[seq..=seq],
            prompt_len: &prompt_len[seq..=seq],
            table_start: &table_start[seq..=seq],
            blocks: &blocks,
        };
        assert_eq!(together[first * 256..end * 256], run(alone, &q[first * 256..end * 256], 1));
    }
}

/// One sequence of 150 tokens, 110 of them its prompt, in one batch, and cut into batches of `cut` tokens.
fn check_cuts<T: Element>(stored: KvDtype, level: KernelLevel, head_dim: usize, cut: usize, attend: Attend) {
    const TOKENS: usize = 150;
    let shape = KvShape { layers: 1, blocks: 10, heads: 3, block_size: 16, head_dim };
    let mut random = Random::new(head_dim as u64);
    let mut pool = KvPool::new(shape, stored).unwrap();
    fill_layer(&mut pool, 0, &mut random);
    let blocks: Vec<u32> = (0..10).rev().collect();
    let width = attend.heads * head_dim;
    let q: Vec<T> = fill(&mut random, TOKENS * width);
    let mut run = |first: usize, end: usize| {
        let batch = Batch {
            query_start: &[0, (end - first) as u32],
            context_len: &[end as u32],
            prompt_len: &[110],
            table_start: &[0],
            blocks: &blocks,
        };
        let batch = batch.check(&shape).unwrap();
        let mut out = vec![T::default(); (end - first) * width];
        let q = Rows { data: &q[first * width..end * width], stride: width };
        let (launch, room) = (Launch { level, threads: 1 }, &mut SpanRoom::default());
        attention::paged_attention(&mut pool, 0, &batch, q, &mut out, width, attend, launch, room).unwrap();
        out.iter().map(|value| value.to_f32().to_bits()).collect::<Vec<_>>()
    };
    let whole = run(0, TOKENS);
    for first in (0..TOKENS).step_by(cut) {
        let end = (first + cut).min(TOKENS);
        let same = whole[first * width..end * width] == run(first, end);
        assert!(same, "{level:?} {:?} over {stored:?}: {head_dim}, tokens {first} to {end}", T::DTYPE);
    }
}

/// What a prefix cache leaves of a prompt, or a budget cuts off, may be one token, and a preempted request computes
/// many generated ones at once: none of that may show in a bit.
#[test]
fn cuts_do_not_change_a_bit() {
    for level in KernelLevel::available() {
        for head_dim in [7, 32, 64, 80, 320] {
            for cut in [1, 2, 5, 31, 33, 64, 109, 111, 149] {
                let plain = Attend::plain(3, 0.3);
                let capped = Attend { heads: 12, window: Some(37), soft_cap: Some(2.0), ..plain };
                for attend in
                    [plain, Attend { heads: 9, ..plain }, Attend { window: Some(70), ..plain }, capped]
                {
                    check_cuts::<f32>(Dtype::F32.into(), level, head_dim, cut, attend);
                    check_cuts::<bf16>(Dtype::Bf16.into(), level, head_dim, cut, attend);
                    check_cuts::<bf16>(KvDtype::Int8, level, head_dim, cut, attend);
                }
            }
        }
    }
}

#[test]
fn a_nan_stays_in_its_row() {
    let shape = KvShape { layers: 1, blocks: 8, heads: 1, block_size: 16, head_dim: 20 };
    for level in KernelLevel::available() {
        for queries in [1u32, 5] {
            let mut pool = KvPool::new(shape, Dtype::F32).unwrap();
            pool.layer_mut::<f32>(0).fill(0.5);
            // Block 2 belongs to the second sequence.
            pool.layer_mut::<f32>(0)[2 * 2 * 16 * 20 + 3] = f32::NAN;
            let (starts, contexts, prompts, tables) = ([0, queries, 2 * queries], [20, 20], [17, 17], [0, 2]);
            let batch = Batch {
                query_start: &starts,
                context_len: &contexts,
                prompt_len: &prompts,
                table_start: &tables,
                blocks: &[0, 1, 2, 3],
            };
            let batch = batch.check(&shape).unwrap();
            let q = vec![0.25f32; batch.tokens() * 20];
            let mut out = vec![0f32; batch.tokens() * 20];
            let launch = Launch { level, threads: 1 };
            attention::paged_attention(
                &mut pool,
                0,
                &batch,
                Rows { data: &q, stride: 20 },
                &mut out,
                20,
                Attend::plain(1, 1.0),
                launch,
                &mut SpanRoom::default(),
            )
            .unwrap();
            let (clean, hit) = out.split_at(queries as usize * 20);
            assert!(clean.iter().all(|v| (v - 0.5).abs() < 1e-6), "{level:?}: {clean:?}");
            assert!(hit.iter().all(|v| v.is_nan()), "{level:?}: {hit:?}");
        }
    }
}

#[test]
fn malformed_batches_are_errors() {
    let shape = KvShape { layers: 1, blocks: 4, heads: 1, block_size: 4, head_dim: 8 };
    let check = |query_start: &[u32], context_len: &[u32], table_start: &[u32], blocks: &[u32]| {
        Batch { query_start, context_len, prompt_len: context_len, table_start, blocks }
            .check(&shape)
            .map(|_| ())
    };
    assert_eq!(check(&[0, 1], &[5], &[0], &[0, 3]), Ok(()));
    for (query_start, context_len, table_start, blocks) in [
        (&[0, 1][..], &[5][..], &[0][..], &[0, 4][..]),
        (&[0, 1], &[9], &[0], &[0, 1]),
        (&[0, 1], &[5], &[1], &[0, 1]),
        (&[0, 6], &[5], &[0], &[0, 1]),
        (&[1, 2], &[5], &[0], &[0, 1]),
        (&[0], &[5], &[0], &[0, 1]),
        (&[0, 2, 1], &[5, 5], &[0, 0], &[0, 1]),
    ] {
        assert!(check(query_start, context_len, table_start, blocks).is_err());
    }
    let batch = Batch {
        query_start: &[0, 2],
        context_len: &[5],
        prompt_len: &[5],
        table_start: &[0],
        blocks: &[0, 3],
    };
    assert!(Batch { prompt_len: &[], ..batch }.check(&shape).is_err());
    let batch = batch.check(&shape).unwrap();
    let mut pool = KvPool::new(shape, Dtype::F32).unwrap();
    let launch = Launch { level: KernelLevel::best(), threads: 1 };
    let (short, enough) = (vec![0f32; 15], vec![0f32; 16]);
    let rows = |data| Rows { data, stride: 8 };
    assert!(attention::kv_append(&mut pool, 0, &batch, rows(&short), rows(&enough), launch).is_err());
    assert!(attention::kv_append(&mut pool, 1, &batch, rows(&enough), rows(&enough), launch).is_err());
    assert!(attention::kv_append(&mut pool, 0, &batch, rows(&enough), rows(&enough), launch).is_ok());
    let wide = [bf16::ZERO; 16];
    let wide = Rows { data: &wide[..], stride: 8 };
    assert!(attention::kv_append(&mut pool, 0, &batch, wide, wide, launch).is_err());
    let mut out = vec![0f32; 15];
    let mut run = |attend: Attend, out: &mut [f32]| {
        let room = &mut SpanRoom::default();
        attention::paged_attention(&mut pool, 0, &batch, rows(&enough), out, 8, attend, launch, room)
    };
    assert!(run(Attend::plain(1, 1.0), &mut out).is_err());
    let mut out = vec![0f32; 16];
    assert!(run(Attend::plain(1, 1.0), &mut out).is_ok());
    for bad in [
        Attend::plain(0, 1.0),
        Attend::plain(2, 1.0),
        Attend { window: Some(0), ..Attend::plain(1, 1.0) },
        Attend { soft_cap: Some(-1.0), ..Attend::plain(1, 1.0) },
    ] {
        assert!(run(bad, &mut out).is_err(), "{bad:?}");
    }
}
