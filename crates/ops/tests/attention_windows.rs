//! What lies before a window is not read, neither by its block table nor within its first block.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use half::bf16;
use pinion_ops::attention::{self, Attend, Batch, Launch, Rows, SpanRoom};
use pinion_ops::{Element, KernelLevel, KvPool, KvShape};
use pinion_random::Random;

fn fill<T: Element>(random: &mut Random, len: usize) -> Vec<T> {
    (0..len).map(|_| T::from_f32(random.value())).collect()
}

/// Table entries below the window of a row's first query name a block of NaNs, and what stands there in its first block
/// is NaN, too.
fn check_window<T: Element>(
    level: KernelLevel,
    head_dim: usize,
    attend: Attend,
    queries: usize,
    prompt_len: u32,
) {
    const CONTEXT: usize = 333;
    let shape = KvShape { layers: 1, blocks: 43, heads: 3, block_size: 8, head_dim };
    let window = attend.window.expect("it has one") as usize;
    let mut random = Random::new(91);
    let mut pool = KvPool::new(shape, T::DTYPE).unwrap();
    let past: Vec<T> = fill(&mut random, shape.layer_elements().unwrap());
    let width = attend.heads * head_dim;
    let q: Vec<T> = fill(&mut random, queries * width);
    let run = |pool: &mut KvPool, blocks: &[u32]| {
        let (starts, contexts) = ([0, queries as u32], [CONTEXT as u32]);
        let batch = Batch {
            query_start: &starts,
            context_len: &contexts,
            prompt_len: &[prompt_len],
            table_start: &[0],
            blocks,
        };
        let batch = batch.check(&shape).unwrap();
        let mut out = vec![T::default(); queries * width];
        let (q, launch) = (Rows { data: &q, stride: width }, Launch { level, threads: 3 });
        let room = &mut SpanRoom::new(3, attend.heads / 3, head_dim);
        attention::paged_attention(pool, 0, &batch, q, &mut out, width, attend, launch, room).unwrap();
        out.iter().map(|value| value.to_f32().to_bits()).collect::<Vec<_>>()
    };
    let mut blocks: Vec<u32> = (1..43).collect();
    pool.layer_mut::<T>(0).copy_from_slice(&past);
    let whole = run(&mut pool, &blocks);
    // [blocks, heads, 2, block_size, head_dim]
    let block_len = 3 * 2 * 8 * head_dim;
    let first_seen = (CONTEXT - queries + 1).saturating_sub(window);
    blocks[..first_seen / 8].fill(0);
    let layer = pool.layer_mut::<T>(0);
    layer[..block_len].fill(T::from_f32(f32::NAN));
    let partly = blocks[first_seen / 8] as usize * block_len;
    for (at, value) in layer[partly..partly + block_len].iter_mut().enumerate() {
        if at / head_dim % 8 < first_seen % 8 {
            *value = T::from_f32(f32::NAN);
        }
    }
    let same = run(&mut pool, &blocks) == whole;
    assert!(same, "{level:?} {:?}: head_dim {head_dim}, {attend:?}, {queries} queries", T::DTYPE);
}

#[test]
fn what_lies_before_a_window_is_not_read() {
    for level in KernelLevel::available() {
        for (head_dim, window) in
            [(7, 1), (32, 5), (64, 63), (64, 64), (80, 70), (128, 130), (320, 33), (32, 333), (128, 300)]
        {
            let plain = Attend { window: Some(window), ..Attend::plain(3, 0.3) };
            for attend in [plain, Attend { heads: 12, soft_cap: Some(2.0), ..plain }] {
                // Generated tokens, prompt tokens, and both.
                for (queries, prompt_len) in [(1, 9), (1, 333), (3, 331), (40, 333), (70, 320), (150, 9)] {
                    check_window::<f32>(level, head_dim, attend, queries, prompt_len);
                    check_window::<bf16>(level, head_dim, attend, queries, prompt_len);
                }
            }
        }
    }
}
