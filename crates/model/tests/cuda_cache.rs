//! Copies of block beginnings in the CUDA engine, on the emulated device: a sequence that stands on a copied beginning
//! has the logits of one that computed everything, on this engine and on the CPU's.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::emulated::{fixture, options, ready};
use pinion_model::cuda::CudaOptions;
use pinion_model::{
    BlockCopy, DtypeChoice, FUTURE_TOKEN, KvSize, Model, ModelOptions, Pipeline, Row, SampleParams,
    StepBatch, StepOutput, Unshaped, WindowTables, load,
};

const BLOCK: usize = 16;
const VOCAB: u32 = 200;

/// Tokens of a prompt; prompts of one seed begin alike.
fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| (at * 37 + seed * 101 + at * at % 13) % VOCAB).collect()
}

/// Computes `tokens[cached..]` of the sequence in `lane`, after `copies`; gives the logits of its last token.
fn feed(
    model: &mut dyn Model,
    lane: u32,
    tokens: &[u32],
    cached: usize,
    blocks: &[u32],
    copies: &[BlockCopy],
) -> Vec<f32> {
    let rows = [Row {
        slot: lane,
        query_start: 0,
        query_len: (tokens.len() - cached) as u32,
        context_len: tokens.len() as u32,
        prompt_len: tokens.len() as u32,
        blocks_start: 0,
        blocks_len: blocks.len() as u32,
        sample: Some(SampleParams::GREEDY),
        scored: None,
    }];
    let positions: Vec<u32> = (cached as u32..tokens.len() as u32).collect();
    let batch = StepBatch {
        tokens: &tokens[cached..],
        positions: &positions,
        rows: &rows,
        blocks,
        copies,
        windows: WindowTables::NONE,
        shaping: &Unshaped,
    };
    let mut logits = Vec::new();
    model.logits(&batch, &mut logits).unwrap();
    logits
}

/// The logits of a sequence of which `shared` tokens are those of another one: all of its whole blocks, and the
/// beginning of the next by copies through `path`, the last of which it owns.
fn on_a_copy(model: &mut dyn Model, shared: usize, len: usize, path: &[u32]) -> Vec<f32> {
    let first = prompt(1, 60);
    let mut second = prompt(2, len);
    second[..shared].copy_from_slice(&first[..shared]);
    let first_blocks = [9, 4, 30, 2];
    feed(model, 5, &first, 0, &first_blocks, &[]);
    let whole = shared / BLOCK;
    let mut blocks = first_blocks[..whole].to_vec();
    let mut copies = Vec::new();
    if !shared.is_multiple_of(BLOCK) {
        let mut from = first_blocks[whole];
        for &to in path {
            copies.push(BlockCopy { from, to, tokens: (shared % BLOCK) as u32 });
            from = to;
        }
        blocks.push(from);
    }
    blocks.extend(40..40 + (len.div_ceil(BLOCK) - blocks.len()) as u32);
    feed(model, 11, &second, shared, &blocks, &copies)
}

fn cold(model: &mut dyn Model, shared: usize, len: usize) -> Vec<f32> {
    let mut second = prompt(2, len);
    second[..shared].copy_from_slice(&prompt(1, 60)[..shared]);
    let blocks: Vec<u32> = (60..60 + len.div_ceil(BLOCK) as u32).rev().collect();
    feed(model, 3, &second, 0, &blocks, &[])
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(1e-9f32, |max, value| max.max(value.abs()));
    a.iter().zip(b).fold(0f32, |max, (a, b)| max.max((a - b).abs())) / largest
}

#[test]
fn a_copied_beginning_is_as_good_as_a_computed_one() {
    let cpu = ModelOptions {
        dtype: DtypeChoice::F32,
        block_size: BLOCK as u32,
        kv: KvSize::Blocks(256),
        ..ModelOptions::default()
    };
    let mut cpu = load(&fixture("tiny-a"), &cpu).unwrap();
    for options in
        [options(), CudaOptions { graphs: false, fused_norms: false, fused_products: false, ..options() }]
    {
        let mut model = ready("tiny-a", &options);
        // One token more than is shared makes a decode row, and with it a replayed graph, of a step with copies.
        for (shared, len, path) in [
            (16, 40, &[][..]),
            (7, 30, &[20][..]),
            (24, 50, &[21]),
            (24, 25, &[22]),
            (47, 48, &[23, 24]),
            (31, 60, &[25, 26, 27]),
        ] {
            let have = on_a_copy(&mut model, shared, len, path);
            for (what, want) in [
                ("the CPU engine on the same copies", on_a_copy(&mut *cpu, shared, len, path)),
                ("the CPU engine without", cold(&mut *cpu, shared, len)),
                ("this engine without", cold(&mut model, shared, len)),
            ] {
                let error = distance(&have, &want);
                assert!(error < 1e-4, "{shared} of {len} tokens shared, {what}: {error:e}");
            }
            // That the tokens matter: another beginning gives other logits.
            let other = feed(&mut model, 3, &prompt(2, len), 0, &[70, 71, 72, 73], &[]);
            assert!(distance(&have, &other) > 1e-3, "{shared} of {len}");
        }
    }
}

/// The copy belongs to the step that is launched behind the one that writes the block's last tokens, and reads them.
#[test]
fn a_copy_reads_what_the_step_in_flight_writes() {
    let mut model = ready("tiny-b", &options());
    let first = prompt(4, 20);
    let sample = Some(SampleParams::GREEDY);
    let row = |lane, query_start, query_len, context_len, blocks_start| Row {
        slot: lane,
        query_start,
        query_len,
        context_len,
        prompt_len: context_len,
        blocks_start,
        blocks_len: 2,
        sample,
        scored: None,
    };
    let positions: Vec<u32> = (0..20).collect();
    let rows = [row(0, 0, 20, 20, 0)];
    let batch = StepBatch {
        tokens: &first,
        positions: &positions,
        rows: &rows,
        blocks: &[3, 8],
        copies: &[],
        windows: WindowTables::NONE,
        shaping: &Unshaped,
    };
    model.launch(&batch).unwrap();
    // The twin has the first 18 tokens and computes the last two; the first goes on with the token in flight.
    let rows = [row(0, 0, 1, 21, 0), row(1, 1, 2, 20, 2)];
    let batch = StepBatch {
        tokens: &[FUTURE_TOKEN, first[18], first[19]],
        positions: &[20, 18, 19],
        rows: &rows,
        blocks: &[3, 8, 3, 5],
        copies: &[BlockCopy { from: 8, to: 5, tokens: 2 }],
        windows: WindowTables::NONE,
        shaping: &Unshaped,
    };
    model.launch(&batch).unwrap();
    let (mut before, mut after) = (StepOutput::default(), StepOutput::default());
    model.retire(&mut before).unwrap();
    model.retire(&mut after).unwrap();
    assert!(before.token(0).is_some() && after.token(0).is_some());
    assert_eq!(after.token(1), before.token(0), "the twin draws what the first drew from the same tokens");
}
