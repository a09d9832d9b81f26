//! Checkpoints that are quantised already, against goldens that tests/make_prequantized.py computed in float64
//! (tests/prequantized_goldens): AWQ, GPTQ, compressed-tensors and FP8. And damaged ones: each fault is one error that
//! names the tensor, never a panic.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::tiny::relative_error;
use crate::tiny_prequantized::{Golden, Rule, folder, goldens, safetensors};
use pinion_model::{DtypeChoice, KvSize, LoadError, Model, ModelOptions, OwnedBatch, Quantization, load};
use pinion_random::Random;
use std::collections::BTreeMap;
use std::path::Path;

/// Relative to the largest logit, where the weights are the golden's.
const TOLERANCE: f32 = 1e-4;

fn options(quantization: Quantization, threads: u32) -> ModelOptions {
    ModelOptions {
        dtype: DtypeChoice::F32,
        kv: KvSize::Blocks(16),
        quantization,
        threads,
        ..ModelOptions::default()
    }
}

fn open(folder: &Path, quantization: Quantization, threads: u32) -> Result<Box<dyn Model>, LoadError> {
    load(folder, &options(quantization, threads))
}

fn logits(model: &mut dyn Model, prompt: &[u32]) -> Vec<f32> {
    let (mut batch, mut logits) = (OwnedBatch::default(), Vec::new());
    batch.push(0, 0, prompt, &[3]);
    model.logits(&batch.as_step(), &mut logits).unwrap();
    logits
}

#[test]
fn logits_of_unpacked_weights_equal_the_goldens() {
    for (name, golden) in goldens() {
        let folder = folder(&golden);
        for threads in [1, 3] {
            let mut model =
                open(&folder.0, Quantization::None, threads).unwrap_or_else(|e| panic!("{name}: {e}"));
            for case in &golden.cases {
                let error = relative_error(&logits(&mut *model, &case.prompt), &case.logits);
                assert!(error <= TOLERANCE, "{name} {:?}: relative error {error:e}", case.prompt);
            }
        }
    }
}

/// What our products hold exactly stays integers, and only rounding the activations tells the logits from the golden's;
/// all else is unpacked.
#[test]
fn integers_are_kept_where_they_can_be() {
    for (name, golden) in goldens() {
        let folder = folder(&golden);
        let mut unpacked = open(&folder.0, Quantization::None, 1).unwrap();
        let mut kept = open(&folder.0, Quantization::Checkpoint, 2).unwrap();
        let (large, small) = (unpacked.info().weight_bytes, kept.info().weight_bytes);
        let share = small as f64 / large as f64;
        let expected = match golden.keeps.as_deref() {
            None => 1.0..=1.0,
            Some("int8") => 0.3..=0.55,
            Some("int4") => 0.15..=0.5,
            Some(other) => panic!("{other}"),
        };
        assert!(expected.contains(&share), "{name}: {small} of {large} bytes");
        for case in &golden.cases {
            let kept = logits(&mut *kept, &case.prompt);
            match golden.keeps {
                None => assert_eq!(kept, logits(&mut *unpacked, &case.prompt), "{name}"),
                Some(_) => {
                    let error = relative_error(&kept, &case.logits);
                    println!("{name}: {error:e}");
                    assert!(
                        error > 1e-6 && error <= 0.06,
                        "{name} {:?}: relative error {error:e}",
                        case.prompt
                    );
                }
            }
        }
    }
}

/// A form that is asked for is made of the numbers that the checkpoint stands for.
#[test]
fn a_packed_checkpoint_can_be_quantised_again() {
    for (name, golden) in goldens() {
        let folder = folder(&golden);
        for (quantization, most) in [(Quantization::Int8, 0.2), (Quantization::Int4, 1.0)] {
            let mut model = open(&folder.0, quantization, 1).unwrap();
            for case in &golden.cases {
                let error = relative_error(&logits(&mut *model, &case.prompt), &case.logits);
                assert!(error <= most, "{name} {quantization:?}: relative error {error:e}");
            }
        }
    }
}

fn refusal(name: &str, golden: &Golden) -> String {
    let folder = folder(golden);
    let of = |quantization| match open(&folder.0, quantization, 1) {
        Ok(_) => panic!("{name} loaded with {quantization:?}"),
        Err(error) => error.to_string(),
    };
    let message = of(Quantization::None);
    assert_eq!(message, of(Quantization::Checkpoint), "{name}");
    message
}

/// Every tensor of the first product, left out, in another shape and in another type.
#[test]
fn damaged_products_are_refused_by_the_tensor() {
    const PRODUCT: &str = "model.layers.0.self_attn.k_proj.";
    for (name, golden) in goldens() {
        let parts: Vec<&String> = golden.tensors.keys().filter(|key| key.starts_with(PRODUCT)).collect();
        for part in parts {
            let is_needed = !part.ends_with("g_idx") && !part.ends_with("weight_shape");
            let mut damaged = golden.clone();
            damaged.tensors.remove(part);
            if is_needed {
                let message = refusal(&name, &damaged);
                // Without the tensor that shows that it is packed, the prefix is not known.
                let bare = PRODUCT.trim_start_matches("model.");
                assert!(
                    message.contains(bare) && message.contains("missing"),
                    "{name} without {part}: {message}"
                );
            }
            if part.ends_with("weight_shape") {
                continue;
            }
            let mut damaged = golden.clone();
            let rule = damaged.tensors.get_mut(part).unwrap();
            rule.shape.push(2);
            rule.list = rule.list.as_ref().map(|list| [list.as_slice(), list].concat());
            let message = refusal(&name, &damaged);
            assert!(message.contains(part.as_str()) && message.contains("shape"), "{name} {part}: {message}");
            let mut damaged = golden.clone();
            let rule = damaged.tensors.get_mut(part).unwrap();
            (rule.dtype, rule.bits) = ("U8".into(), true);
            rule.list = None;
            let message = refusal(&name, &damaged);
            // Zero points of words and of bytes have different shapes.
            let is_told = message.contains("U8") || message.contains("shape");
            assert!(message.contains(part.as_str()) && is_told, "{name} {part}: {message}");
        }
    }
}

/// As AutoGPTQ once wrote it.
#[test]
fn a_file_beside_config_json_says_how_weights_are_packed() {
    let all: BTreeMap<String, Golden> = goldens().into_iter().collect();
    let whole = &all["gptq-g32"];
    let wanted = logits(&mut *open(&folder(whole).0, Quantization::None, 1).unwrap(), &[5, 60, 1]);
    let mut without = whole.clone();
    let said = without.config.as_object_mut().unwrap().remove("quantization_config").unwrap();
    let folder = folder(&without);
    folder.write("quantize_config.json", said.to_string().as_bytes());
    let found = logits(&mut *open(&folder.0, Quantization::None, 1).unwrap(), &[5, 60, 1]);
    assert_eq!(found, wanted);
    folder.write("quantize_config.json", b"[]");
    let error = open(&folder.0, Quantization::None, 1).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("quantize_config.json") && error.contains("is not a JSON object"), "{error}");
}

/// compressed-tensors fills with -1 what nothing sets.
fn order_that_is_unset_is_that_of_the_columns(golden: &Golden) {
    let wanted = logits(&mut *open(&folder(golden).0, Quantization::Checkpoint, 1).unwrap(), &[5, 60, 1]);
    let mut unset = golden.clone();
    let packed: Vec<String> = golden
        .tensors
        .keys()
        .filter_map(|name| name.strip_suffix("weight_packed"))
        .map(str::to_owned)
        .collect();
    for base in &packed {
        let inputs = golden.tensors[&format!("{base}weight_packed")].shape[1] * 8;
        let list = Some(vec![-1; inputs]);
        let rule =
            Rule { dtype: "I32".into(), shape: vec![inputs], base: 0.0, spread: 0.0, bits: false, list };
        unset.tensors.insert(format!("{base}weight_g_idx"), rule);
    }
    assert!(!packed.is_empty());
    let found = logits(&mut *open(&folder(&unset).0, Quantization::Checkpoint, 1).unwrap(), &[5, 60, 1]);
    assert_eq!(found, wanted);
}

#[test]
fn wrong_numbers_are_refused_or_change_nothing() {
    let all: BTreeMap<String, Golden> = goldens().into_iter().collect();
    let base = "model.layers.1.mlp.up_proj.";
    let mut order = all["gptq-act-order"].clone();
    order.tensors.get_mut(&format!("{base}g_idx")).unwrap().list.as_mut().unwrap()[7] = 2;
    assert!(refusal("order", &order).contains("g_idx: names group 2 of 2"));
    order.tensors.get_mut(&format!("{base}g_idx")).unwrap().list.as_mut().unwrap()[7] = -1;
    assert!(refusal("order", &order).contains("names group 4294967295"));
    order_that_is_unset_is_that_of_the_columns(&all["packed-g32"]);
    let mut group = all["awq-g32"].clone();
    group.config["quantization_config"]["group_size"] = 64.into();
    let message = refusal("group", &group);
    assert!(message.contains("scales: has 2 groups") && message.contains("group_size of 64"), "{message}");
    // A bias where the model has none: zeros change nothing, others would be lost.
    let mut bias = all["gptq-g32"].clone();
    let lost = "model.layers.0.self_attn.q_proj.bias";
    bias.tensors.get_mut(lost).unwrap().list.as_mut().unwrap()[3] = 1;
    let message = refusal("bias", &bias);
    assert!(message.contains(lost) && message.contains("is a bias of a product that has none"), "{message}");
    // What is said of activations and the KV cache is left aside.
    let mut more = all["float8-tensor"].clone();
    let scale = Rule { dtype: "F32".into(), shape: vec![1], base: 0.5, spread: 0.1, bits: false, list: None };
    for name in ["self_attn.k_scale", "self_attn.q_proj.input_scale"] {
        more.tensors.insert(format!("model.layers.0.{name}"), scale.clone());
    }
    let mut unused = Vec::new();
    let mut watch = |event: pinion_model::LoadEvent<'_>| {
        if let pinion_model::LoadEvent::Unused(names) = event {
            unused.extend_from_slice(names);
        }
    };
    let folder = folder(&more);
    pinion_model::load_watched(&folder.0, &options(Quantization::Checkpoint, 1), &mut watch).unwrap();
    assert_eq!(unused, Vec::<String>::new());
}

/// Cut anywhere, with any byte of the header changed: an error or a model, never a panic.
#[test]
fn no_damage_panics() {
    let mut random = Random::new(11);
    for (name, golden) in goldens() {
        let folder = folder(&golden);
        let whole = safetensors(&golden.tensors);
        let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize + 8;
        for round in 0..24 {
            let mut bytes = whole.clone();
            if round % 2 == 0 {
                bytes.truncate(random.below(whole.len()));
            } else {
                bytes[random.below(header)] = random.pick(b"0123456789[],\"{}F8I");
            }
            folder.write("model.safetensors", &bytes);
            if let Err(error) = open(&folder.0, Quantization::Checkpoint, 1) {
                let message = error.to_string();
                assert!(
                    message.contains("model.safetensors") && message.lines().count() == 1,
                    "{name}: {message}"
                );
            }
        }
    }
}
