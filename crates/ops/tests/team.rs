//! Kernels on a team of threads have the bits that they have on libgomp's threads and on one. A process has one team,
//! so this is a program of its own, with one test.
// A failed step of a test is a failed test.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use pinion_ops::attention::{Attend, Batch, Launch, Rows, SpanRoom, kv_append, paged_attention};
use pinion_ops::packed::PackedWeights;
use pinion_ops::quantized::{IntegerLaunch, QuantizedWeights, Source, SourceType, WeightForm};
use pinion_ops::rows::{Place, RmsNorm, RmsOrder, rms_norm};
use pinion_ops::team::{TeamOptions, deal, start, stop};
use pinion_ops::{Epilogue, IntegerLevel, KernelLevel, KvDtype, KvPool, KvShape};
use pinion_random::Random;
use std::time::Duration;

/// Outputs of a product: tiles that neither two nor three threads share evenly, and a part of one.
const OUTPUTS: usize = 16 * 37 + 5;
const INPUTS: usize = 192;
/// Positions of the one sequence: several spans, which are dealt out.
const CONTEXT: usize = 2000;

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.value()).collect()
}

fn source(bytes: &[u8]) -> Source<'_> {
    Source { bytes, source_type: SourceType::F32, rows: OUTPUTS, is_transposed: false }
}

/// Packs weights both ways and multiplies a few and many rows by them.
fn products(threads: u32) -> Vec<f32> {
    let bytes: Vec<u8> = numbers(1, OUTPUTS * INPUTS).iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut floats = PackedWeights::new(SourceType::Bf16, OUTPUTS, INPUTS).unwrap();
    floats.pack(0, source(&bytes), threads).unwrap();
    let mut integers = QuantizedWeights::new(WeightForm::Int8, OUTPUTS, INPUTS).unwrap();
    integers.pack(0, source(&bytes), threads).unwrap();
    let mut all = Vec::new();
    for rows in [1, 2, 60] {
        let x = numbers(2, rows * INPUTS);
        let mut out = vec![0f32; rows * OUTPUTS];
        let epilogue = Epilogue::default;
        floats.multiply(&x, epilogue(), &mut out, Launch { level: KernelLevel::best(), threads }).unwrap();
        all.extend(&out);
        let launch = IntegerLaunch { level: IntegerLevel::best(), threads };
        integers.multiply(&x, epilogue(), &mut out, launch).unwrap();
        all.extend(&out);
    }
    all
}

/// Appends a prompt and attends to it: by all its tokens, and by the last, whose spans are dealt out.
fn attention(threads: u32) -> Vec<f32> {
    let (shape, heads) = (KvShape { layers: 1, blocks: 125, heads: 1, block_size: 16, head_dim: 32 }, 2);
    let mut pool = KvPool::new(shape, KvDtype::Float(pinion_ops::Dtype::F32)).unwrap();
    let (launch, attend) = (Launch { level: KernelLevel::best(), threads }, Attend::plain(heads, 0.2));
    let blocks: Vec<u32> = (0..125).rev().collect();
    let kv = numbers(3, CONTEXT * 32);
    let mut all = Vec::new();
    for queries in [CONTEXT, 1] {
        let batch = Batch {
            query_start: &[0, queries as u32],
            context_len: &[CONTEXT as u32],
            prompt_len: &[CONTEXT as u32 - 1],
            table_start: &[0],
            blocks: &blocks,
        };
        let batch = batch.check(&shape).unwrap();
        let rows = Rows { data: &kv[(CONTEXT - queries) * 32..], stride: 32 };
        kv_append(&mut pool, 0, &batch, rows, rows, launch).unwrap();
        let q = numbers(4, queries * heads * 32);
        let (mut out, mut room) = (vec![0f32; q.len()], SpanRoom::new(threads, heads, 32));
        let q = Rows { data: &q, stride: heads * 32 };
        paged_attention(&mut pool, 0, &batch, q, &mut out, heads * 32, attend, launch, &mut room).unwrap();
        all.extend(&out);
    }
    all
}

fn norms(threads: u32) -> Vec<f32> {
    let mut rows = numbers(5, 300 * 200);
    let weight = numbers(6, 200);
    let place = Place { tokens: 300, stride: 200, column: 0, groups: 1, width: 200 };
    let norm = RmsNorm { weight: &weight, epsilon: 1e-5, order: RmsOrder::RoundFirst };
    rms_norm(&mut rows, place, &norm, Launch { level: KernelLevel::best(), threads }).unwrap();
    rows
}

fn bits(threads: u32) -> Vec<u32> {
    let all = [products(threads), attention(threads), norms(threads)].concat();
    all.iter().map(|value| value.to_bits()).collect()
}

/// Names of the threads that did something of a deal, the caller's left out. Waits until there is one.
fn helpers(threads: usize) -> Vec<String> {
    let own = std::thread::current().id();
    let seen = std::sync::Mutex::new(Vec::new());
    deal(&mut vec![(); threads], &mut [(); 64], |(), ()| {
        if std::thread::current().id() != own {
            let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            seen.lock().unwrap().push(name.trim().to_owned());
        }
        while threads > 1 && seen.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
    });
    seen.into_inner().unwrap()
}

#[test]
fn a_team_changes_no_bit() {
    let want = bits(1);
    assert_eq!(want, bits(3), "before there is a team");
    for (threads, spin) in [(3, Duration::ZERO), (3, Duration::from_micros(100)), (2, Duration::ZERO)] {
        stop();
        start(TeamOptions { threads, spin, cpus: Vec::new() }).unwrap();
        assert!(helpers(3).iter().all(|name| name.starts_with("kernels-")));
        for used in [1, 2, 3, 4] {
            assert!(want == bits(used), "a team of {threads} that spins for {spin:?}, on {used} threads");
        }
        assert_eq!(helpers(1), [""; 0]);
    }
    stop();
    assert!(want == bits(3), "after the team");
    start(TeamOptions { threads: 2, ..TeamOptions::default() }).unwrap();
    let mut none = QuantizedWeights::new(WeightForm::Int8, OUTPUTS, INPUTS).unwrap();
    let source = Source { bytes: &[], source_type: SourceType::F32, rows: 0, is_transposed: false };
    none.pack(0, source, 2).unwrap();
}
