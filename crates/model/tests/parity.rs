//! GPT-2 against goldens that Hugging Face transformers computed in fp32 (tests/fixtures): logits of the last prompt
//! position, and 64 greedy ids, alone and in a batch whose requests come at different steps.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::driver::{Policy, Request, run};
use pinion_model::{
    AttentionKernel, DtypeChoice, KvSize, LinearKind, Model, ModelOptions, OwnedBatch, SampleParams, load,
};
use serde::Deserialize;
use std::path::PathBuf;

const NAMES: [&str; 3] = ["tiny-a", "tiny-b", "tiny-c"];

/// Relative to the largest logit. Sums in another order than Hugging Face's cost about 1e-6.
const LOGIT_TOLERANCE: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    /// Left out of most cases to keep the files small.
    logits_last: Option<Vec<f32>>,
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn golden(name: &str) -> Vec<Case> {
    let text = std::fs::read_to_string(folder(name).join("golden.json")).unwrap();
    let golden: Golden = serde_json::from_str(&text).unwrap();
    assert_eq!(golden.cases.len(), 16, "{name}");
    assert!(golden.cases.iter().filter(|case| case.logits_last.is_some()).count() >= 4, "{name}");
    golden.cases
}

fn options(linear: LinearKind, attention: AttentionKernel, block_size: u32) -> ModelOptions {
    ModelOptions {
        dtype: DtypeChoice::F32,
        block_size,
        kv: KvSize::Blocks(4096 / block_size),
        linear,
        attention,
        ..ModelOptions::default()
    }
}

/// Every switch that may not change a result.
fn every_option() -> Vec<ModelOptions> {
    let mut all = Vec::new();
    for linear in [LinearKind::OneDnn, LinearKind::Plain, LinearKind::Packed] {
        for attention in [AttentionKernel::Vector, AttentionKernel::Twin] {
            for block_size in [16, 4] {
                all.push(options(linear, attention, block_size));
            }
        }
    }
    all
}

fn last_logits(model: &mut dyn Model, prompt: &[u32]) -> Vec<f32> {
    let block_count = (prompt.len() as u32).div_ceil(model.info().block_size);
    let blocks: Vec<u32> = (0..block_count).rev().map(|block| block * 3 + 1).collect();
    let mut batch = OwnedBatch::default();
    batch.push(0, 0, prompt, &blocks);
    let mut logits = Vec::new();
    model.logits(&batch.as_step(), &mut logits).unwrap();
    logits
}

fn relative_error(have: &[f32], want: &[f32]) -> f32 {
    assert_eq!(have.len(), want.len());
    let largest = want.iter().fold(0f32, |max, value| max.max(value.abs()));
    have.iter().zip(want).fold(0f32, |max, (a, b)| max.max((a - b).abs())) / largest
}

#[test]
fn logits_equal_the_goldens() {
    for name in NAMES {
        let cases = golden(name);
        for options in every_option() {
            let mut model = load(&folder(name), &options).unwrap();
            for (index, case) in cases.iter().enumerate() {
                let Some(want) = &case.logits_last else { continue };
                let error = relative_error(&last_logits(&mut *model, &case.prompt), want);
                assert!(
                    error <= LOGIT_TOLERANCE,
                    "{name} case {index}: relative error {error:e} with {options:?}"
                );
            }
        }
    }
}

fn requests(cases: &[Case], arrival: impl Fn(usize) -> usize) -> Vec<Request> {
    cases
        .iter()
        .enumerate()
        .map(|(index, case)| Request {
            prompt: case.prompt.clone(),
            output_len: case.greedy.len(),
            arrival: arrival(index),
            params: SampleParams::GREEDY,
        })
        .collect()
}

#[test]
fn greedy_ids_of_single_requests_equal_the_goldens() {
    for name in NAMES {
        let cases = golden(name);
        for options in every_option() {
            let mut model = load(&folder(name), &options).unwrap();
            for (index, request) in requests(&cases, |_| 0).into_iter().enumerate() {
                let policy = Policy { chunk: usize::MAX, preempt_at: &[] };
                let ids = run(&mut *model, &[request], policy);
                assert_eq!(ids[0], cases[index].greedy, "{name} case {index} with {options:?}");
            }
        }
    }
}

#[test]
fn greedy_ids_of_a_staggered_batch_equal_the_goldens() {
    for name in NAMES {
        let cases = golden(name);
        for options in every_option() {
            let mut model = load(&folder(name), &options).unwrap();
            // A chunk of 24 splits the longer prompts, so that prefill chunks meet decode rows in one step.
            for policy in [
                Policy { chunk: usize::MAX, preempt_at: &[] },
                Policy { chunk: 24, preempt_at: &[] },
                Policy { chunk: 24, preempt_at: &[9, 20, 21, 40] },
            ] {
                let ids = run(&mut *model, &requests(&cases, |index| index * 3 % 17), policy);
                for (index, case) in cases.iter().enumerate() {
                    assert_eq!(
                        ids[index], case.greedy,
                        "{name} case {index} with {policy:?} and {options:?}"
                    );
                }
            }
        }
    }
}

/// Threads split work, not sums: two give what one gives.
#[test]
fn two_threads_give_the_goldens_too() {
    let cases = golden(NAMES[1]);
    for linear in [LinearKind::OneDnn, LinearKind::Packed] {
        let options = ModelOptions { threads: 2, ..options(linear, AttentionKernel::Vector, 16) };
        let mut model = load(&folder(NAMES[1]), &options).unwrap();
        let policy = Policy { chunk: usize::MAX, preempt_at: &[] };
        let ids = run(&mut *model, &requests(&cases, |index| index), policy);
        for (index, case) in cases.iter().enumerate() {
            assert_eq!(ids[index], case.greedy, "case {index} with {linear:?}");
        }
    }
}

/// bf16 cannot meet the fp32 goldens to the token; its logits must stay within what 8 bits of mantissa explain.
#[test]
fn bf16_logits_are_near_the_goldens() {
    let bf16 = ModelOptions { dtype: DtypeChoice::Bf16, ..ModelOptions::default() };
    for name in NAMES {
        for linear in [LinearKind::OneDnn, LinearKind::Plain, LinearKind::Packed] {
            let mut model = match load(&folder(name), &ModelOptions { linear, ..bf16.clone() }) {
                Ok(model) => model,
                Err(error) => {
                    assert!(error.to_string().contains("no bf16 instructions"), "{error}");
                    return;
                }
            };
            for (index, case) in golden(name).iter().enumerate() {
                let Some(want) = &case.logits_last else { continue };
                let error = relative_error(&last_logits(&mut *model, &case.prompt), want);
                assert!(error <= 0.05, "{name} case {index}: relative error {error:e} with {linear:?}");
            }
        }
    }
}
