//! Models whose layers with a window keep only that, in a ring of window blocks: the same bits of logits as with whole
//! contexts, and batches that do not name what a query sees are refused.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::tiny::{Golden, folder, golden};
use pinion_model::{
    BlockCopy, DtypeChoice, KvSize, Model, ModelOptions, NO_WINDOW_BLOCK, OwnedBatch, StepBatch, StepError,
    Unshaped, WindowTables, load,
};

const BLOCK_SIZE: u32 = 4;
const FAMILIES: [&str; 6] =
    ["gemma2", "gemma3", "mistral-window", "phi3-window", "qwen2-window", "smollm3-window"];

fn options(golden: &Golden, dtype: DtypeChoice, window_blocks: Option<u32>) -> ModelOptions {
    ModelOptions {
        dtype,
        block_size: BLOCK_SIZE,
        kv: KvSize::Blocks(64),
        window_blocks,
        max_model_len: Some(golden.served),
        ..ModelOptions::default()
    }
}

fn window_of(golden: &Golden) -> u32 {
    golden.config["sliding_window"].as_u64().unwrap() as u32
}

/// For the first `end` tokens, from `start` on new: the window block of block n is n modulo the ring's length, and
/// blocks that no new token sees have none.
fn ring_table(window: u32, ring: u32, start: u32, end: u32) -> Vec<u32> {
    let seen = (start + 1).saturating_sub(window) / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE);
    assert!(seen.len() <= ring as usize, "the ring is too small");
    (0..seen.end).map(|block| if seen.contains(&block) { block % ring } else { NO_WINDOW_BLOCK }).collect()
}

/// The logits after each of these numbers of tokens, with window blocks in a ring or with whole contexts.
fn logits(
    model: &mut dyn Model,
    ids: &[u32],
    prompt_len: u32,
    ends: &[u32],
    ring: Option<u32>,
) -> Vec<Vec<f32>> {
    let (mut all, mut start) = (Vec::new(), 0);
    for &end in ends {
        let blocks: Vec<u32> = (0..end.div_ceil(BLOCK_SIZE)).map(|block| 63 - block).collect();
        let mut batch = OwnedBatch::default();
        batch.push(0, start, &ids[start as usize..end as usize], &blocks).prompt_len = prompt_len;
        if let Some(ring) = ring {
            let window = model.info().window.unwrap().tokens;
            batch.push_windows(&ring_table(window, ring, start, end));
        }
        let mut logits = Vec::new();
        model.logits(&batch.as_step(), &mut logits).unwrap();
        all.push(logits);
        start = end;
    }
    all
}

#[test]
fn logits_of_a_ring_of_window_blocks_are_those_of_whole_contexts() {
    let forms = [(DtypeChoice::F32, false), (DtypeChoice::F32, true), (DtypeChoice::Bf16, false)];
    for (dtype, int8_kv) in forms {
        for name in FAMILIES {
            let options =
                |golden: &Golden, dtype, blocks| ModelOptions { int8_kv, ..options(golden, dtype, blocks) };
            let golden = golden(name);
            let folder = folder(name, &golden);
            let case = &golden.cases[1];
            let ids: Vec<u32> = case.prompt.iter().chain(&case.greedy).copied().collect();
            let prompt_len = case.prompt.len() as u32;
            // Chunks longer and shorter than the window, then token by token.
            let ends: Vec<u32> =
                [50, 53, 60, 61, 90].into_iter().chain(prompt_len..ids.len() as u32).collect();
            let ring = 50 / BLOCK_SIZE + 1;
            let mut whole = match load(&folder.0, &options(&golden, dtype, None)) {
                Ok(model) => model,
                Err(error) => {
                    assert!(error.to_string().contains("no bf16 instructions"), "{error}");
                    return;
                }
            };
            let mut windowed = load(&folder.0, &options(&golden, dtype, Some(ring))).unwrap();
            let (small, large) = (windowed.info(), whole.info());
            let window = small.window.unwrap();
            assert_eq!((window.tokens, window.blocks, large.window), (window_of(&golden), ring, None));
            assert_eq!(small.kv_block_bytes + window.block_bytes, large.kv_block_bytes, "{name}");
            assert_eq!(small.kv_block_bytes == 0, ["mistral-window", "phi3-window"].contains(&name));
            let have = logits(&mut *windowed, &ids, prompt_len, &ends, Some(ring));
            let want = logits(&mut *whole, &ids, prompt_len, &ends, None);
            assert!(have == want, "{name} {dtype:?}, int8 KV: {int8_kv}");
        }
    }
}

/// A sequence that shares a block with another one and goes on from a copy of half of its next one.
#[test]
fn both_parts_of_a_block_are_copied() {
    for name in ["gemma3", "mistral-window"] {
        let golden = golden(name);
        let folder = folder(name, &golden);
        let ids = &golden.cases[1].prompt;
        let mut model = load(&folder.0, &options(&golden, DtypeChoice::F32, Some(16))).unwrap();
        let want = logits(&mut *model, ids, 100, &[6, 9], Some(16)).pop().unwrap();
        let mut batch = OwnedBatch::default();
        batch.push(0, 6, &ids[6..9], &[63, 7, 8]).prompt_len = 100;
        let (own, window_blocks) = (batch.as_step(), [0, 9, 10]);
        let copy = |from, to| [BlockCopy { from, to, tokens: 2 }];
        for (window_copy, same) in [(copy(1, 9), true), (copy(2, 9), false)] {
            let windows = WindowTables { blocks: &window_blocks, copies: &window_copy };
            let step = StepBatch { copies: &copy(62, 7), windows, shaping: &Unshaped, ..own };
            let mut have = Vec::new();
            model.logits(&step, &mut have).unwrap();
            assert_eq!(have == want, same, "{name}");
        }
    }
}

#[test]
fn a_batch_that_does_not_name_what_a_query_sees_is_refused() {
    let golden = golden("gemma2");
    let folder = folder("gemma2", &golden);
    let mut model = load(&folder.0, &options(&golden, DtypeChoice::F32, Some(8))).unwrap();
    assert_eq!(window_of(&golden), 11);
    let ids = &golden.cases[1].prompt;
    let none = NO_WINDOW_BLOCK;
    // Position 20 sees 10 to 20: blocks 2 to 5.
    for (entries, reason) in [
        (vec![none, none, 3, 4, 5, 6], None),
        (vec![none, 900, 3, 4, 5, 6], None),
        (vec![none, none, none, 4, 5, 6], Some("a position within the window has no window block")),
        (vec![0, 1, 2, 3, 4, none], Some("a position within the window has no window block")),
        (vec![0, 1, 2, 3, 8, 5], Some("a position within the window has no window block")),
        (vec![0, 1, 2, 3, 4], Some("window tables and block tables differ in length")),
        (vec![], Some("window tables and block tables differ in length")),
    ] {
        let mut batch = OwnedBatch::default();
        batch.push(0, 20, &ids[20..21], &[0, 1, 2, 3, 4, 5]);
        batch.push_windows(&entries);
        let found = model.logits(&batch.as_step(), &mut Vec::new());
        let expected = reason.map_or(Ok(()), |reason| Err(StepError::BadBatch { row: 0, reason }));
        assert_eq!(found, expected, "{entries:?}");
    }
    let mut batch = OwnedBatch::default();
    batch.push(0, 0, &ids[..1], &[0]);
    batch.push_windows(&[0]);
    let copies = [BlockCopy { from: 0, to: 8, tokens: 1 }];
    let windows = WindowTables { copies: &copies, ..batch.as_step().windows };
    let found = model.logits(&StepBatch { windows, ..batch.as_step() }, &mut Vec::new());
    assert_eq!(
        found,
        Err(StepError::BadBatch { row: 0, reason: "a copy between window blocks out of range" })
    );
}
