//! Every family on the emulated device, against the goldens that Hugging Face transformers computed (tests/families)
//! and that the CPU engine meets in tests/families.rs: logits, and greedy ids of requests that come at different steps,
//! in chunks, with preemption.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use crate::driver::{Policy, Request, run};
use crate::emulated::{SHAPES, options};
use crate::tiny;
use crate::tiny::{Golden, folder, golden, names, relative_error};
use pinion_cuda::CudaDtype;
use pinion_model::cuda::{CudaDecoder, CudaOptions, DecodePath, load_cuda, load_cuda_watched};
use pinion_model::{LoadError, LoadEvent, Model, OwnedBatch, Pipeline, SampleParams};
use serde_json::Value;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Relative to the largest logit.
const LOGIT_TOLERANCE: f32 = 1e-4;
/// Models at once, in one test.
const THREADS_MAX: usize = 4;
/// Fixtures whose heads are no multiple of 16 bytes in half precision; every other one is served in it.
const ODD_HEADS: [&str; 5] = ["gemma3", "llama-all-heads", "mistral", "mistral-window", "phi3-window"];

fn served(golden: &Golden) -> CudaOptions {
    CudaOptions { max_model_len: Some(golden.served), ..options() }
}

fn ready(name: &str, golden: &Golden, options: &CudaOptions) -> CudaDecoder {
    let mut model =
        load_cuda(&folder(name, golden).0, options).unwrap_or_else(|error| panic!("{name}: {error}"));
    Pipeline::warm_up(&mut model, &SHAPES).unwrap_or_else(|error| panic!("{name}: {error}"));
    model
}

/// A golden's name without its variant.
fn family(name: &str) -> &str {
    name.split('-').next().unwrap()
}

/// Checks the families on some of the CPUs: a thread's device is its own, and other tests run beside this one.
fn for_each(names: &[String], check: impl Fn(&str, &Golden) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            check(name, &golden(name));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX) {
            scope.spawn(work);
        }
    });
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

fn requests(golden: &Golden) -> Vec<Request> {
    let request = |(index, case): (usize, &tiny::Case)| Request {
        prompt: case.prompt.clone(),
        output_len: case.greedy.len(),
        arrival: index * 3 % 17,
        params: SampleParams::GREEDY,
    };
    golden.cases.iter().enumerate().map(request).collect()
}

fn check_logits(model: &mut dyn Model, name: &str, golden: &Golden) {
    for (index, case) in golden.cases.iter().enumerate() {
        let Some(want) = &case.logits_last else { continue };
        for cached in [0, case.prompt.len() - 1] {
            let error = relative_error(&last_logits(model, &case.prompt, cached), want);
            assert!(
                error <= LOGIT_TOLERANCE,
                "{name} case {index}, {cached} cached: relative error {error:e}"
            );
        }
    }
}

/// Logits, and 64 greedy ids in a batch with prompt chunks among decode rows and two preemptions. The first golden of a
/// family fills the widest batch that a captured graph has; its others, of other rotations or windows, have the longest
/// prompts and two more.
#[test]
fn logits_and_greedy_ids_of_every_family_equal_the_goldens() {
    assert!(names().len() >= 20);
    for_each(&names(), |name, golden| {
        let mut model = ready(name, golden, &served(golden));
        check_logits(&mut model, name, golden);
        let mut requests = requests(golden);
        let is_first =
            names().iter().find(|other| family(other) == family(name)).is_some_and(|one| one == name);
        requests.truncate(if is_first { 16 } else { 4 });
        assert!(requests.iter().all(|request| request.output_len == 64));
        let ids = run(&mut model, &requests, Policy { chunk: 24, preempt_at: &[9, 20] });
        for (index, case) in golden.cases.iter().take(requests.len()).enumerate() {
            assert_eq!(ids[index], case.greedy, "{name} case {index}");
        }
    });
}

/// Half precision where the head is a multiple of 16 bytes; what the fixtures have beyond that is refused by name.
#[test]
fn bf16_logits_are_near_the_goldens() {
    let refused = Mutex::new(Vec::new());
    for_each(&names(), |name, golden| {
        let bf16 = CudaOptions { dtype: CudaDtype::Bf16, ..served(golden) };
        let mut model = match load_cuda(&folder(name, golden).0, &bf16) {
            Ok(model) => model,
            Err(error) => {
                assert!(
                    error.to_string().contains("is not supported by the CUDA object (a multiple of 8"),
                    "{name}: {error}"
                );
                refused.lock().unwrap().push(name.to_owned());
                return;
            }
        };
        for (index, case) in golden.cases.iter().enumerate() {
            let Some(want) = &case.logits_last else { continue };
            let error = relative_error(&last_logits(&mut model, &case.prompt, 0), want);
            assert!(error <= 0.15, "{name} case {index}: relative error {error:e}");
        }
    });
    let mut refused = refused.into_inner().unwrap();
    refused.sort();
    assert_eq!(refused, ODD_HEADS);
}

/// Every type of block is unpacked to the engine's own, as on the CPU (tests/gguf.rs).
#[test]
fn logits_of_gguf_files_equal_the_goldens() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gguf_goldens"));
    for name in ["llama", "llama-pieces", "qwen2", "qwen3"] {
        let mut model = load_cuda(&folder.join(format!("{name}.gguf")), &options())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        Pipeline::warm_up(&mut model, &SHAPES).unwrap();
        let golden: Value =
            serde_json::from_slice(&std::fs::read(folder.join(format!("{name}.json"))).unwrap()).unwrap();
        let cases = golden["cases"].as_array().unwrap();
        assert!(!cases.is_empty(), "{name}");
        for case in cases {
            let prompt: Vec<u32> = serde_json::from_value(case["prompt"].clone()).unwrap();
            let want: Vec<f32> = serde_json::from_value(case["logits"].clone()).unwrap();
            let error = relative_error(&last_logits(&mut model, &prompt, 0), &want);
            assert!(error <= LOGIT_TOLERANCE, "{name} {prompt:?}: relative error {error:e}");
        }
    }
}

/// As the CPU engine (tests/checkpoints.rs, tests/gguf.rs).
#[test]
fn what_a_load_does_not_use_is_told_or_refused() {
    let mut golden = golden("llama-llama3");
    let stray = golden.tensors["model.norm.weight"].clone();
    golden.tensors.insert("model.stray.weight".to_owned(), stray);
    golden.config.insert("final_logit_softcapping".to_owned(), 30.into());
    let (mut read, mut unused, mut ignored) = ((0, 0), Vec::new(), Vec::new());
    let mut watch = |event: LoadEvent<'_>| match event {
        LoadEvent::Bytes { done, total } => read = (done, total),
        LoadEvent::Unused(names) => unused.extend_from_slice(names),
        LoadEvent::Ignored(reasons) => ignored.extend_from_slice(reasons),
        LoadEvent::WithoutKernels(reason) => panic!("the kernels are what is loaded: {reason}"),
    };
    load_cuda_watched(&folder("watched", &golden).0, &served(&golden), &mut watch).unwrap();
    assert_eq!(read.1 - read.0, 48 * 4, "all but the stray vector of 48 numbers");
    assert_eq!(unused, ["model.stray.weight"]);
    assert!(ignored.len() == 1 && ignored[0].contains("final_logit_softcapping"), "{ignored:?}");
    let biases = tiny::llama_with_biases();
    let error = load_cuda(&biases.0.join("model.gguf"), &options()).unwrap_err().to_string();
    assert!(error.contains(tiny::LOST_BIAS), "{error}");
}

#[test]
fn the_fused_decode_step_refuses_what_it_does_not_compute() {
    for name in ["llama-llama3", "gemma2", "olmo2"] {
        let golden = golden(name);
        let fused = CudaOptions { decode: DecodePath::Fused, ..served(&golden) };
        let error = load_cuda(&folder(name, &golden).0, &fused).unwrap_err();
        assert!(matches!(error, LoadError::Options { .. }), "{error:?}");
        assert!(error.to_string().contains("does not fit the fused decode step"), "{error}");
    }
}
