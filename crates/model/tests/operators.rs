//! The forward of libtorch's operators on the CPU, against the goldens that Hugging Face transformers computed
//! (tests/families, tests/fixtures) and that the tuned forwards meet: what a CUDA device runs of it is the same code.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

mod driver;
mod tiny;
mod tiny_prequantized;

use driver::{Policy, Request, run};
use pinion_model::operators::{OperatorDevice, OperatorDtype, OperatorOptions, load_operators};
use pinion_model::{
    DtypeChoice, KvSize, LoadError, Model, ModelOptions, OwnedBatch, SampleParams, Scored, StepOutput, load,
};
use std::path::Path;
use tiny::{Case, Golden, folder, golden, names, relative_error};

/// Relative to the largest logit.
const LOGIT_TOLERANCE: f32 = 1e-4;

fn options(dtype: OperatorDtype) -> OperatorOptions {
    OperatorOptions {
        device: OperatorDevice::Cpu,
        dtype,
        threads: 1,
        block_size: 16,
        kv: KvSize::Blocks(256),
        max_model_len: None,
    }
}

fn model(name: &str, golden: &Golden, dtype: OperatorDtype) -> Box<dyn Model> {
    let options = OperatorOptions { max_model_len: Some(golden.served), ..options(dtype) };
    load_operators(&folder(name, golden).0, &options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn requests(cases: &[Case]) -> Vec<Request> {
    let request = |(index, case): (usize, &Case)| Request {
        prompt: case.prompt.clone(),
        output_len: case.greedy.len(),
        arrival: index * 3 % 17,
        params: SampleParams::GREEDY,
    };
    cases.iter().enumerate().map(request).collect()
}

/// Logits after `prompt`, whose first `cached` tokens are computed in a step of their own.
fn last_logits(model: &mut dyn Model, prompt: &[u32], cached: usize) -> Vec<f32> {
    let blocks: Vec<u32> = (0..8).rev().map(|block| block * 3 + 1).collect();
    let mut logits = Vec::new();
    for (start, end) in [(0, cached), (cached, prompt.len())] {
        let mut batch = OwnedBatch::default();
        if start < end {
            batch.push(0, start as u32, &prompt[start..end], &blocks);
            model.logits(&batch.as_step(), &mut logits).unwrap();
        }
    }
    logits
}

#[test]
fn logits_and_greedy_ids_of_every_family_equal_the_goldens() {
    assert!(names().len() >= 20);
    for name in names() {
        let golden = golden(&name);
        let mut model = model(&name, &golden, OperatorDtype::F32);
        for (index, case) in golden.cases.iter().enumerate() {
            let Some(want) = &case.logits_last else { continue };
            for cached in [0, case.prompt.len() / 2, case.prompt.len() - 1] {
                let error = relative_error(&last_logits(&mut *model, &case.prompt, cached), want);
                assert!(
                    error <= LOGIT_TOLERANCE,
                    "{name} case {index}, {cached} cached: relative error {error:e}"
                );
            }
        }
        let policy = Policy { chunk: 24, preempt_at: &[9, 20] };
        let ids = run(&mut *model, &requests(&golden.cases), policy);
        for (index, case) in golden.cases.iter().enumerate() {
            assert_eq!(ids[index], case.greedy, "{name} case {index}");
        }
    }
}

/// Eight bits of mantissa, and random weights that make much of each: 0.152 is the largest seen.
#[test]
fn bf16_logits_are_near_the_goldens() {
    for name in names() {
        let golden = golden(&name);
        let mut model = model(&name, &golden, OperatorDtype::Bf16);
        for (index, case) in golden.cases.iter().enumerate() {
            let Some(want) = &case.logits_last else { continue };
            let error = relative_error(&last_logits(&mut *model, &case.prompt, 0), want);
            assert!(error <= 0.2, "{name} case {index}: relative error {error:e}");
        }
    }
}

/// Checkpoints that are quantised already (tests/prequantized.rs): unpacked.
#[test]
fn logits_of_quantised_checkpoints_equal_the_goldens() {
    for (name, golden) in tiny_prequantized::goldens() {
        let folder = tiny_prequantized::folder(&golden);
        let mut model = load_operators(&folder.0, &options(OperatorDtype::F32))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for case in &golden.cases {
            let error = relative_error(&last_logits(&mut *model, &case.prompt, 0), &case.logits);
            assert!(error <= LOGIT_TOLERANCE, "{name} {:?}: relative error {error:e}", case.prompt);
        }
    }
}

/// GPT-2, whose positions are learned and whose norms have biases: the tuned forward's logits, a copied block, and
/// scores of prompt tokens.
#[test]
fn gpt2_is_what_the_tuned_forward_computes() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-a");
    let mut own = load_operators(&fixture, &options(OperatorDtype::F32)).unwrap();
    let tuned = ModelOptions { dtype: DtypeChoice::F32, kv: KvSize::Blocks(256), ..ModelOptions::default() };
    let mut tuned = load(&fixture, &tuned).unwrap();
    let prompt: Vec<u32> = (0..29).map(|at| at * 7 % 50).collect();
    for cached in [0, 13, 28] {
        let (have, want) =
            (last_logits(&mut *own, &prompt, cached), last_logits(&mut *tuned, &prompt, cached));
        let error = relative_error(&have, &want);
        assert!(error <= LOGIT_TOLERANCE, "{cached} cached: relative error {error:e}");
    }
    let scores = |model: &mut dyn Model| {
        let (mut batch, mut out) = (OwnedBatch::default(), StepOutput::default());
        let row = batch.push(0, 0, &prompt, &[4, 9]);
        row.scored = Some(Scored { first: 0, len: 28, after: 0, alternatives: 2 });
        model.step(&batch.as_step(), &mut out).unwrap();
        out.prompt_scores(0).logprobs.to_vec()
    };
    let (have, want) = (scores(&mut *own), scores(&mut *tuned));
    assert!(have.len() >= 28);
    assert_eq!(have.len(), want.len());
    for (have, want) in have.iter().zip(&want) {
        assert_eq!(have.token, want.token);
        assert!((have.logprob - want.logprob).abs() <= 1e-3, "{have:?} {want:?}");
    }
}

#[test]
fn a_device_that_is_not_there_is_refused_in_a_sentence() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-a");
    let cuda = OperatorOptions { device: OperatorDevice::Cuda(9), ..options(OperatorDtype::F32) };
    let error = load_operators(&fixture, &cuda).err().unwrap();
    assert!(matches!(error, LoadError::Options { .. }), "{error:?}");
    assert!(error.to_string().contains("CUDA devices, so there is no device 9"), "{error}");
}
