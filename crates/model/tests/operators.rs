//! The forward of libtorch's operators on the CPU, against the goldens that Hugging Face transformers computed
//! (tests/families, tests/fixtures) and that the tuned forwards meet: what a CUDA device runs of it is the same code.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::driver::{Policy, Request, run};
use crate::tiny::{Case, Golden, folder, golden, names, relative_error};
use crate::tiny_prequantized;
use pinion_model::operators::{
    OperatorDevice, OperatorDtype, OperatorKv, OperatorOptions, OperatorPrefill, load_operators,
};
use pinion_model::{
    DtypeChoice, KvSize, LoadError, Model, ModelOptions, OwnedBatch, SampleParams, Scored, StepOutput, load,
};
use std::path::Path;

/// Relative to the largest logit.
const LOGIT_TOLERANCE: f32 = 1e-4;

fn options(dtype: OperatorDtype) -> OperatorOptions {
    OperatorOptions {
        device: OperatorDevice::Cpu,
        dtype,
        threads: 1,
        block_size: 16,
        kv: OperatorKv::Size(KvSize::Blocks(256)),
        max_model_len: None,
        max_rows: 16,
        max_tokens: 512,
        prefill: OperatorPrefill::Auto,
        kernels: None,
    }
}

fn loaded(folder: &Path, options: &OperatorOptions) -> Result<Box<dyn Model>, LoadError> {
    load_operators(folder, options, &mut |_| {})
}

fn model(name: &str, golden: &Golden, options: OperatorOptions) -> Box<dyn Model> {
    let options = OperatorOptions { max_model_len: Some(golden.served), ..options };
    loaded(&folder(name, golden).0, &options).unwrap_or_else(|error| panic!("{name}: {error}"))
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
        let mut model = model(&name, &golden, options(OperatorDtype::F32));
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

/// The two ways of attention of prompt chunks: whole prompts, which are causal, and chunks over a cached beginning,
/// with windows and groups of heads. A model that caps its scores has one way.
#[test]
fn prompt_chunks_attend_alike_by_the_library_and_by_products() {
    let (mut compared, mut refused) = (0, 0);
    for name in names() {
        let golden = golden(&name);
        let with = |prefill| OperatorOptions {
            prefill,
            max_model_len: Some(golden.served),
            ..options(OperatorDtype::F32)
        };
        let folder = folder(&name, &golden);
        let mut sdpa = match loaded(&folder.0, &with(OperatorPrefill::Sdpa)) {
            Ok(model) => model,
            Err(error) => {
                assert!(error.to_string().contains("caps its attention scores"), "{name}: {error}");
                refused += 1;
                continue;
            }
        };
        let mut plain = loaded(&folder.0, &with(OperatorPrefill::Plain)).unwrap();
        for (index, case) in golden.cases.iter().enumerate() {
            for cached in [0, case.prompt.len() / 3] {
                let have = last_logits(&mut *sdpa, &case.prompt, cached);
                let want = last_logits(&mut *plain, &case.prompt, cached);
                let error = relative_error(&have, &want);
                assert!(error <= 1e-5, "{name} case {index}, {cached} cached: relative error {error:e}");
                compared += usize::from(have != want);
            }
        }
    }
    assert!(compared > 0 && refused > 0, "{compared} logits differ in a bit, {refused} models are refused");
}

/// A step whose rows share a cached beginning gives what each gives alone.
#[test]
fn rows_over_a_shared_beginning_give_what_each_gives_alone() {
    let golden = golden("qwen3");
    let mut model = model("qwen3", &golden, options(OperatorDtype::F32));
    let prompt = &golden.cases[0].prompt;
    assert!(prompt.len() > 17, "more than a block of 16");
    let alone = last_logits(&mut *model, prompt, 16);
    let (mut batch, mut logits) = (OwnedBatch::default(), Vec::new());
    batch.push(0, 0, &prompt[..16], &[40]);
    model.logits(&batch.as_step(), &mut logits).unwrap();
    let mut batch = OwnedBatch::default();
    let others: Vec<u32> = (41..48).collect();
    let table = [&[40], &others[..]].concat();
    batch.push(0, 16, &prompt[16..], &table);
    let table = [40, 50, 51, 52, 53, 54, 55, 56];
    batch.push(1, 16, &prompt[16..], &table);
    model.logits(&batch.as_step(), &mut logits).unwrap();
    for row in logits.chunks(alone.len()) {
        let error = relative_error(row, &alone);
        assert!(error <= 1e-5, "relative error {error:e}");
    }
    assert_eq!(logits.len(), 2 * alone.len());
}

/// Eight bits of mantissa, and random weights that make much of each: 0.152 is the largest seen.
#[test]
fn bf16_logits_are_near_the_goldens() {
    for name in names() {
        let golden = golden(&name);
        let mut model = model(&name, &golden, options(OperatorDtype::Bf16));
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
        let mut model =
            loaded(&folder.0, &options(OperatorDtype::F32)).unwrap_or_else(|error| panic!("{name}: {error}"));
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
    let mut own = loaded(&fixture, &options(OperatorDtype::F32)).unwrap();
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

/// Files of a tied model may have a head with numbers of its own (tests/checkpoints.rs).
#[test]
fn a_tied_head_that_differs_is_the_head() {
    let mut golden = golden("llama-llama3");
    let prompt = golden.cases[0].prompt.clone();
    let mut tied = model("llama-llama3", &golden, options(OperatorDtype::F32));
    let tied = last_logits(&mut *tied, &prompt, 0);
    let table = golden.tensors["model.embed_tokens.weight"].clone();
    golden.tensors.insert("lm_head.weight".to_owned(), table);
    let mut both = model("both", &golden, options(OperatorDtype::F32));
    let both = last_logits(&mut *both, &prompt, 0);
    golden.config.insert("tie_word_embeddings".to_owned(), false.into());
    let mut untied = model("untied", &golden, options(OperatorDtype::F32));
    assert_eq!(both, last_logits(&mut *untied, &prompt, 0));
    assert_ne!(both, tied);
}

/// The set-up for the CPU has libtorch_cuda.so without what it needs; a whole one finds no device 99 anywhere.
#[test]
fn a_device_that_is_not_there_is_refused_in_a_sentence() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-a");
    let cuda = OperatorOptions { device: OperatorDevice::Cuda(99), ..options(OperatorDtype::F32) };
    let error = loaded(&fixture, &cuda).err().unwrap();
    assert!(matches!(error, LoadError::Backend { .. }), "{error:?}");
    let said = error.to_string();
    let is_known =
        ["sets libtorch up for CUDA", "so there is no device 99"].iter().any(|end| said.contains(end));
    assert!(is_known, "{said}");
    let share = OperatorOptions { kv: OperatorKv::FreeShare(0.5), ..options(OperatorDtype::F32) };
    let error = loaded(&fixture, &share).err().unwrap();
    assert!(error.to_string().contains("is one of a CUDA device's"), "{error}");
}
