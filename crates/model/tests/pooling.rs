//! Vectors of prompts against goldens that sentence-transformers computed in fp32 (tests/pooled.json): alone, in a
//! batch, in chunks, in lanes that were used before; and with our own products the same bits each time.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::tiny::{folder, golden, relative_error};
use pinion_model::{
    DtypeChoice, KvSize, LinearKind, Model, ModelOptions, OwnedBatch, PoolingKind, RowOutcome, StepOutput,
    load,
};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Relative to the largest number.
const TOLERANCE: f32 = 1e-4;
const BLOCKS_EACH: u32 = 16;

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    last: Vec<f32>,
    mean: Vec<f32>,
}

fn goldens() -> BTreeMap<String, Vec<Case>> {
    serde_json::from_str(include_str!("pooled.json")).unwrap()
}

fn model(name: &str, pooling: PoolingKind, linear: LinearKind) -> Box<dyn Model> {
    let mut golden = golden(name);
    // What sentence-transformers saves has neither the head nor the prefix.
    golden.tensors.retain(|tensor, _| !tensor.starts_with("lm_head"));
    let options = ModelOptions {
        dtype: DtypeChoice::F32,
        kv: KvSize::Blocks(256),
        max_model_len: Some(golden.served),
        pooling: Some(pooling),
        linear,
        ..ModelOptions::default()
    };
    load(&folder(name, &golden).0, &options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The vectors of all prompts, computed side by side in chunks of `chunk` tokens.
fn vectors(model: &mut dyn Model, prompts: &[&[u32]], chunk: usize) -> Vec<Vec<f32>> {
    let mut made = vec![Vec::new(); prompts.len()];
    let mut out = StepOutput::default();
    let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap();
    for start in (0..longest).step_by(chunk) {
        let mut batch = OwnedBatch::default();
        let here: Vec<usize> = (0..prompts.len()).filter(|&index| start < prompts[index].len()).collect();
        for &index in &here {
            let prompt = prompts[index];
            let blocks: Vec<u32> = (0..BLOCKS_EACH).map(|block| block * 4 + index as u32).collect();
            let tokens = &prompt[start..prompt.len().min(start + chunk)];
            let row = batch.push(index as u32, start as u32, tokens, &blocks);
            (row.prompt_len, row.sample) = (prompt.len() as u32, None);
        }
        model.step(&batch.as_step(), &mut out).unwrap();
        for (row, &index) in here.iter().enumerate() {
            let ends = prompts[index].len() <= start + chunk;
            assert_eq!((out.rows[row], out.pooled(row).is_empty()), (RowOutcome::None, !ends));
            made[index].extend_from_slice(out.pooled(row));
        }
    }
    made
}

#[test]
fn vectors_equal_the_goldens() {
    for (name, cases) in goldens() {
        for kind in [PoolingKind::Last, PoolingKind::Mean] {
            for linear in [LinearKind::OneDnn, LinearKind::Packed] {
                let mut model = model(&name, kind, linear);
                assert_eq!(model.info().vector_width, Some(cases[0].last.len() as u32));
                let prompts: Vec<&[u32]> = cases.iter().map(|case| case.prompt.as_slice()).collect();
                let alone = prompts.iter().flat_map(|prompt| vectors(&mut *model, &[prompt], usize::MAX / 2));
                let alone: Vec<Vec<f32>> = alone.collect();
                for (vector, case) in alone.iter().zip(&cases) {
                    let want = if kind == PoolingKind::Last { &case.last } else { &case.mean };
                    let error = relative_error(vector, want);
                    assert!(error <= TOLERANCE, "{name} {kind:?} {linear:?}: relative error {error:e}");
                }
                for chunk in [1 << 20, 24, 7] {
                    let together = vectors(&mut *model, &prompts, chunk);
                    for (vector, alone) in together.iter().zip(&alone) {
                        let error = relative_error(vector, alone);
                        assert!(error <= 1e-5, "{name} {kind:?} {linear:?} chunk {chunk}: {error:e}");
                        let same = vector == alone || linear != LinearKind::Packed;
                        assert!(same, "{name} {kind:?} chunk {chunk}: not the same bits");
                    }
                }
            }
        }
    }
}

#[test]
fn a_model_that_pools_draws_and_scores_no_token() {
    let mut model = model("qwen3", PoolingKind::Mean, LinearKind::OneDnn);
    let mut batch = OwnedBatch::default();
    batch.push(0, 0, &[1, 2], &[0]);
    let error = model.step(&batch.as_step(), &mut StepOutput::default()).unwrap_err();
    assert!(error.to_string().contains("draws and scores no token"), "{error}");
}
