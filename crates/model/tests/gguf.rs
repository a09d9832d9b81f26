//! GGUF files against goldens that tests/make_gguf.py computed in float64 from what the package `gguf` unpacks; and
//! damaged ones.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::tiny::{LOST_BIAS, empty_folder, llama_with_biases, relative_error};
use pinion_model::{DtypeChoice, KvSize, LoadError, Model, ModelOptions, OwnedBatch, Quantization, load};
use pinion_random::Random;
use serde_json::Value;
use std::path::{Path, PathBuf};

const NAMES: [&str; 4] = ["llama", "llama-pieces", "qwen2", "qwen3"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/gguf_goldens/{name}.gguf"))
}

fn golden(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(path(name).with_extension("json")).unwrap()).unwrap()
}

fn cases(golden: &Value) -> Vec<(Vec<u32>, Vec<f32>)> {
    let numbers =
        |value: &Value| value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect::<Vec<f64>>();
    let case = |case: &Value| {
        let prompt = numbers(&case["prompt"]).into_iter().map(|id| id as u32).collect();
        (prompt, numbers(&case["logits"]).into_iter().map(|value| value as f32).collect())
    };
    golden["cases"].as_array().unwrap().iter().map(case).collect()
}

fn open(path: &Path, quantization: Quantization, threads: u32) -> Result<Box<dyn Model>, LoadError> {
    let options = ModelOptions {
        dtype: DtypeChoice::F32,
        kv: KvSize::Blocks(16),
        quantization,
        threads,
        ..ModelOptions::default()
    };
    load(path, &options)
}

fn logits(model: &mut dyn Model, prompt: &[u32]) -> Vec<f32> {
    let (mut batch, mut logits) = (OwnedBatch::default(), Vec::new());
    batch.push(0, 0, prompt, &[3, 0, 5]);
    model.logits(&batch.as_step(), &mut logits).unwrap();
    logits
}

#[test]
fn logits_equal_the_goldens() {
    for name in NAMES {
        let golden = golden(name);
        for threads in [1, 3] {
            let mut model =
                open(&path(name), Quantization::None, threads).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(u64::from(model.info().max_context), golden["context"].as_u64().unwrap(), "{name}");
            for (prompt, want) in cases(&golden) {
                let error = relative_error(&logits(&mut *model, &prompt), &want);
                assert!(error <= 1e-4, "{name} {prompt:?}: relative error {error:e}");
            }
        }
    }
}

/// Tensors of Q4_0 keep their integers; a file without one gives the bits of an unpacked one.
#[test]
fn integers_of_q4_0_are_kept() {
    for name in NAMES {
        let golden = golden(name);
        let keeps = golden["keeps"] == true;
        let mut unpacked = open(&path(name), Quantization::None, 1).unwrap();
        // libtorch's products have other last bits with other numbers of threads, on some CPUs.
        let mut kept = open(&path(name), Quantization::Checkpoint, if keeps { 2 } else { 1 }).unwrap();
        assert_eq!(kept.info().weight_bytes < unpacked.info().weight_bytes, keeps, "{name}");
        for (prompt, want) in cases(&golden) {
            let kept = logits(&mut *kept, &prompt);
            if keeps {
                let error = relative_error(&kept, &want);
                println!("{name}: {error:e}");
                assert!(error > 1e-6 && error <= 0.06, "{name} {prompt:?}: relative error {error:e}");
            } else {
                assert_eq!(kept, logits(&mut *unpacked, &prompt), "{name}");
            }
        }
    }
}

#[test]
fn a_file_can_be_quantised_again() {
    for name in NAMES {
        for (quantization, most) in [(Quantization::Int8, 0.2), (Quantization::Int4, 1.0)] {
            let mut model = open(&path(name), quantization, 1).unwrap();
            for (prompt, want) in cases(&golden(name)) {
                let error = relative_error(&logits(&mut *model, &prompt), &want);
                assert!(error <= most, "{name} {quantization:?}: relative error {error:e}");
            }
        }
    }
}

/// One model as safetensors in F32 and as files in F32 and in F16, which hold the same numbers. The bits of logits are
/// the same where the products are; where weights of 16 bits are kept, sums have another order.
#[test]
fn a_file_computes_what_the_folder_does_that_it_was_made_from() {
    let folder = path("plain").with_extension("");
    let mut of_folder = open(&folder, Quantization::Checkpoint, 1).unwrap();
    let prompts = [vec![7], vec![5, 260, 1, 33], (0..40).map(|at| at * 5 % 260).collect()];
    for name in ["plain-f32", "plain-f16"] {
        let mut of_file = open(&path(name), Quantization::Checkpoint, 1).unwrap();
        let infos = [&*of_file, &*of_folder].map(|model| (model.info().max_context, model.info().eos));
        assert_eq!(infos[0], infos[1], "{name}");
        for prompt in &prompts {
            let (have, want) = (logits(&mut *of_file, prompt), logits(&mut *of_folder, prompt));
            if name == "plain-f32" {
                assert_eq!(have, want, "{name} {prompt:?}");
            } else {
                let error = relative_error(&have, &want);
                assert!(error <= 1e-5, "{name} {prompt:?}: relative error {error:e}");
            }
        }
    }
}

#[test]
fn a_bias_that_the_family_lacks_is_refused() {
    let folder = llama_with_biases();
    let error = open(&folder.0.join("model.gguf"), Quantization::Checkpoint, 1).err().unwrap().to_string();
    assert!(error.contains(LOST_BIAS), "{error}");
}

#[test]
fn no_damage_panics() {
    let folder = empty_folder("gguf");
    let file = folder.0.join("model.gguf");
    let seed = 16;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for name in NAMES {
        let whole = std::fs::read(path(name)).unwrap();
        for round in 0..40 {
            let mut bytes = whole.clone();
            if round % 2 == 0 {
                bytes.truncate(random.below(whole.len()));
            } else {
                bytes[random.below(12_000)] = random.bits() as u8;
            }
            folder.write("model.gguf", &bytes);
            if let Err(error) = open(&file, Quantization::Checkpoint, 1) {
                let message = error.to_string();
                assert!(message.lines().count() == 1, "{name}: {message}");
                assert!(message.contains("model.gguf") || message.contains("KV pool"), "{name}: {message}");
            }
        }
    }
}
