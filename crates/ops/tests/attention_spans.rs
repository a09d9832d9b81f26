//! Contexts that are summed in spans: what a token gives depends on what it sees, and not on threads, room or company.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use crate::layers::{Layer, fill, fill_layer};
use half::bf16;
use pinion_ops::attention::{self, Attend, Batch, CheckedBatch, Launch, Rows, SpanRoom};
use pinion_ops::{Dtype, Element, KernelLevel, KvDtype, KvPool, KvShape};
use pinion_random::Random;

/// `PINION_SPAN` and `PINION_MAX_SPANS`.
const SPAN: usize = 256;
const MAX_SPANS: usize = 64;

const BLOCK_SIZE: usize = 16;

/// Sequences over one layer of random keys and values.
struct Setup<T> {
    pool: KvPool,
    heads: usize,
    attend: Attend,
    query_start: Vec<u32>,
    context_len: Vec<u32>,
    prompt_len: Vec<u32>,
    table_start: Vec<u32>,
    blocks: Vec<u32>,
    q: Vec<T>,
}

impl<T: Element> Setup<T> {
    /// Each of `seqs` is its query tokens, context and prompt.
    fn new(seqs: &[[usize; 3]], heads: usize, head_dim: usize, attend: Attend) -> Self {
        Self::over(T::DTYPE.into(), seqs, heads, head_dim, attend)
    }

    fn over(stored: KvDtype, seqs: &[[usize; 3]], heads: usize, head_dim: usize, attend: Attend) -> Self {
        let mut random = Random::new((head_dim + seqs[0][1]) as u64);
        let (mut query_start, mut table_start, mut block_count) = (vec![0], Vec::new(), 0u32);
        for &[queries, context, _] in seqs {
            query_start.push(query_start.last().unwrap() + queries as u32);
            table_start.push(block_count);
            block_count += context.div_ceil(BLOCK_SIZE) as u32;
        }
        let shape =
            KvShape { layers: 1, blocks: block_count as usize, heads, block_size: BLOCK_SIZE, head_dim };
        let mut pool = KvPool::new(shape, stored).unwrap();
        fill_layer(&mut pool, 0, &mut random);
        let tokens = *query_start.last().unwrap() as usize;
        Self {
            pool,
            heads,
            attend,
            query_start,
            context_len: seqs.iter().map(|seq| seq[1] as u32).collect(),
            prompt_len: seqs.iter().map(|seq| seq[2] as u32).collect(),
            table_start,
            blocks: (0..block_count).rev().collect(),
            q: fill(&mut random, tokens * attend.heads * head_dim),
        }
    }

    fn width(&self) -> usize {
        self.attend.heads * self.pool.shape().head_dim
    }

    /// A room for this many threads.
    fn room(&self, threads: u32) -> SpanRoom {
        SpanRoom::new(threads, self.attend.heads / self.heads, self.pool.shape().head_dim)
    }

    fn run(&mut self, level: KernelLevel, threads: u32, room: &mut SpanRoom) -> Vec<T> {
        let batch = Batch {
            query_start: &self.query_start,
            context_len: &self.context_len,
            prompt_len: &self.prompt_len,
            table_start: &self.table_start,
            blocks: &self.blocks,
        };
        let batch = batch.check(self.pool.shape()).unwrap();
        let width = self.width();
        let mut out = vec![T::from_f32(7.0); self.q.len()];
        let (q, launch) = (Rows { data: &self.q[..], stride: width }, Launch { level, threads });
        attention::paged_attention(&mut self.pool, 0, &batch, q, &mut out, width, self.attend, launch, room)
            .unwrap();
        out
    }

    /// Query tokens `first` to `end` of the only sequence, by themselves.
    fn part(&mut self, [first, end]: [usize; 2], level: KernelLevel, threads: u32) -> Vec<T> {
        let (all, width) = (self.query_start[1] as usize, self.width());
        let context = self.context_len[0] - (all - end) as u32;
        let batch = Batch {
            query_start: &[0, (end - first) as u32],
            context_len: &[context],
            prompt_len: &self.prompt_len,
            table_start: &[0],
            blocks: &self.blocks,
        };
        let batch: CheckedBatch<'_> = batch.check(self.pool.shape()).unwrap();
        let mut room = self.room(threads);
        let q = Rows { data: &self.q[first * width..end * width], stride: width };
        let mut out = vec![T::default(); (end - first) * width];
        let launch = Launch { level, threads };
        attention::paged_attention(
            &mut self.pool,
            0,
            &batch,
            q,
            &mut out,
            width,
            self.attend,
            launch,
            &mut room,
        )
        .unwrap();
        out
    }

    fn twin(&mut self) -> Vec<T> {
        let batch = Batch {
            query_start: &self.query_start,
            context_len: &self.context_len,
            prompt_len: &self.prompt_len,
            table_start: &self.table_start,
            blocks: &self.blocks,
        };
        let shape = *self.pool.shape();
        let batch = batch.check(&shape).unwrap();
        let q = Rows { data: &self.q[..], stride: self.width() };
        Layer::of(&mut self.pool, 0).attend(&batch, q, self.attend)
    }
}

fn bits<T: Element>(values: &[T]) -> Vec<u32> {
    values.iter().map(|value| value.to_f32().to_bits()).collect()
}

/// One generated token over `context` positions, on 1, 2, 3 and 5 threads, with room and without, against the twin.
fn check<T: Element>(context: usize, heads: usize, group: usize, head_dim: usize, attend: Attend) {
    check_over::<T>(T::DTYPE.into(), context, heads, group, head_dim, attend);
}

fn check_over<T: Element>(
    stored: KvDtype,
    context: usize,
    heads: usize,
    group: usize,
    head_dim: usize,
    attend: Attend,
) {
    let attend = Attend { heads: heads * group, ..attend };
    let mut setup = Setup::<T>::over(stored, &[[1, context, 1]], heads, head_dim, attend);
    // The tolerances of tests/attention.rs.
    let tolerance = if T::DTYPE == Dtype::F32 { 2e-5 } else { 1.0 / 128.0 };
    let expected = setup.twin();
    for level in KernelLevel::available() {
        let case = format!(
            "{level:?} {:?} over {stored:?}: context {context}, {heads} x {group} heads of {head_dim}, {attend:?}",
            T::DTYPE
        );
        let one = setup.run(level, 1, &mut SpanRoom::default());
        for (have, want) in one.iter().zip(&expected) {
            let difference = (have.to_f32() - want.to_f32()).abs();
            assert!(difference <= tolerance, "{have:?} for {want:?}: {case}");
        }
        for threads in [2, 3, 5] {
            let mut room = setup.room(threads);
            // Twice: a call leaves nothing behind that the next one could trip over.
            for _ in 0..2 {
                let many = setup.run(level, threads, &mut room);
                assert!(bits(&many) == bits(&one), "{threads} threads: {case}");
            }
            let many = setup.run(level, threads, &mut SpanRoom::default());
            assert!(bits(&many) == bits(&one), "{threads} threads without room: {case}");
        }
    }
}

#[test]
fn threads_and_room_do_not_change_a_bit_around_the_borders_of_spans() {
    let plain = Attend::plain(1, 0.3);
    let limits = [
        plain,
        Attend { window: Some(512), ..plain },
        Attend { window: Some(257), soft_cap: Some(1.5), ..plain },
    ];
    let contexts =
        [SPAN - 1, SPAN, SPAN + 1, 2 * SPAN, 2 * SPAN + 1, 575, 576, 577, 3 * SPAN - 1, 1090, 4 * SPAN + 64];
    let shapes = [(1, 1, 64), (1, 4, 256), (2, 7, 80), (1, 9, 7), (3, 2, 128), (1, 2, 320)];
    for (turn, context) in contexts.into_iter().enumerate() {
        for (at, (heads, group, head_dim)) in shapes.into_iter().enumerate() {
            let attend = limits[(turn + at) % limits.len()];
            check::<f32>(context, heads, group, head_dim, attend);
            check::<bf16>(context, heads, group, head_dim, attend);
            check_over::<f32>(KvDtype::Int8, context, heads, group, head_dim, attend);
        }
    }
}

/// From here on spans are longer.
#[test]
fn there_are_64_spans_at_most() {
    for context in [MAX_SPANS * SPAN, MAX_SPANS * SPAN + 1, 3 * MAX_SPANS * SPAN + 5] {
        check::<f32>(context, 1, 2, 16, Attend::plain(1, 0.3));
        check::<bf16>(context, 1, 1, 32, Attend::plain(1, 0.3));
    }
}

#[test]
fn a_token_that_sees_one_span_is_summed_as_without_spans() {
    // A second span of a single position would be joined as it would be added.
    for (context, window, is_same) in
        [(SPAN, None, true), (3000, Some(190), true), (SPAN + 40, None, false), (3000, Some(600), false)]
    {
        for level in KernelLevel::available() {
            let attend = Attend { window, ..Attend::plain(3, 0.3) };
            let mut setup = Setup::<f32>::new(&[[1, context, 1]], 1, 64, attend);
            let mut room = setup.room(2);
            let split = setup.run(level, 2, &mut room);
            setup.attend.split_contexts = false;
            let plain = setup.run(level, 2, &mut room);
            assert_eq!(bits(&split) == bits(&plain), is_same, "{level:?}: context {context}, {window:?}");
        }
    }
}

/// Long and short rows, prompts, and a row of many generated tokens: which tokens are dealt out differs by batch.
#[test]
fn company_does_not_change_a_bit() {
    let seqs = [
        [1, 2100, 1],
        [1, 90, 1],
        [40, 700, 690],
        [1, 900, 899],
        [60, 400, 0],
        [1, 1030, 1030],
        [5, 600, 596],
    ];
    for level in KernelLevel::available() {
        for threads in [1, 2, 5] {
            let attend = Attend { window: Some(1500), ..Attend::plain(6, 0.3) };
            let stored = if threads == 2 { KvDtype::Int8 } else { Dtype::Bf16.into() };
            let mut setup = Setup::<bf16>::over(stored, &seqs, 2, 64, attend);
            let (mut room, width) = (setup.room(threads), setup.width());
            let together = setup.run(level, threads, &mut room);
            let (starts, q) = (setup.query_start.clone(), setup.q.clone());
            let (lens, prompts, tables) =
                (setup.context_len.clone(), setup.prompt_len.clone(), setup.table_start.clone());
            for seq in 0..seqs.len() {
                let range = starts[seq] as usize * width..starts[seq + 1] as usize * width;
                setup.query_start = vec![0, starts[seq + 1] - starts[seq]];
                setup.context_len = vec![lens[seq]];
                setup.prompt_len = vec![prompts[seq]];
                setup.table_start = vec![tables[seq]];
                setup.q = q[range.clone()].to_vec();
                for alone_on in [1, 3] {
                    let mut room = setup.room(alone_on);
                    let alone = setup.run(level, alone_on, &mut room);
                    assert!(
                        bits(&alone) == bits(&together[range.clone()]),
                        "{level:?}: sequence {seq}, {threads} threads together and {alone_on} alone"
                    );
                }
            }
        }
    }
}

/// A preempted request computes many generated tokens at once, speculation some, and decoding one.
#[test]
fn cuts_of_long_contexts_do_not_change_a_bit() {
    let plain = Attend::plain(4, 0.3);
    for level in KernelLevel::available() {
        for attend in [plain, Attend { window: Some(400), soft_cap: Some(2.0), ..plain }] {
            // 30 tokens of the prompt and 290 that were generated.
            let mut setup = Setup::<f32>::new(&[[320, 800, 510]], 2, 32, attend);
            let (mut room, width) = (setup.room(2), setup.width());
            let whole = setup.run(level, 2, &mut room);
            for cut in [1, 3, 29, 31, 100] {
                for first in (0..320).step_by(cut) {
                    let end = (first + cut).min(320);
                    let part = setup.part([first, end], level, 1 + (first as u32) % 3);
                    let same = bits(&part) == bits(&whole[first * width..end * width]);
                    assert!(same, "{level:?}: tokens {first} to {end}, {attend:?}");
                }
            }
        }
    }
}

#[test]
fn a_nan_in_any_span_reaches_the_output_of_its_head_alone() {
    for level in KernelLevel::available() {
        for position in [0, SPAN - 1, SPAN, 2 * SPAN + 63, 900] {
            let mut setup = Setup::<f32>::new(&[[1, 901, 1]], 2, 32, Attend::plain(2, 0.3));
            // [blocks, heads, 2, block_size, head_dim]
            let block = setup.blocks[position / BLOCK_SIZE] as usize;
            let row = ((block * 2 + 1) * 2 * BLOCK_SIZE + position % BLOCK_SIZE) * 32;
            setup.pool.layer_mut::<f32>(0)[row + 5] = f32::NAN;
            let mut room = setup.room(2);
            let out = setup.run(level, 2, &mut room);
            assert!(out[..32].iter().all(|value| value.is_finite()), "{level:?}: position {position}");
            assert!(out[32..].iter().all(|value| value.is_nan()), "{level:?}: position {position}");
        }
    }
}
