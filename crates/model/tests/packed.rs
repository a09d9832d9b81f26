//! Weights of 16 bits that stay in their type (`LinearKind::Packed`), in whole models of every family: near what oneDNN
//! computes from the same file in fp32, and one request has the same bits alone, in a batch, in chunks, after a
//! preemption and over a cached prefix. What checkpoints in fp32 give stands in parity.rs and families.rs.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::company::{check_ids, check_logits, last_logits};
use crate::tiny::{Folder, Golden, StoredAs, folder, golden, names, relative_error, safetensors_as};
use half::{bf16, f16};
use pinion_model::{
    DtypeChoice, KvSize, LinearKind, ModelOptions, OwnedBatch, Quantization, RowOutcome, SampleParams,
    StepOutput, load,
};
use pinion_ops::attention::Launch;
use pinion_ops::packed::PackedWeights;
use pinion_ops::quantized::{Source, SourceType};
use pinion_ops::{Epilogue, KernelLevel, has_tiles, supports_bf16};
use std::path::Path;

/// Prompts of each golden that are run; all of them take minutes.
const CASES: usize = 4;
/// Relative to the largest logit: sums in another order.
const LOGIT_TOLERANCE: f32 = 1e-4;

/// The type of a tensor by its name.
type TypeOf<'a> = &'a dyn Fn(&str) -> &'static str;

fn stored(dtype: &str) -> StoredAs {
    match dtype {
        "BF16" => ("BF16", |value| bf16::from_f32(value).to_le_bytes().to_vec()),
        "F16" => ("F16", |value| f16::from_f32(value).to_le_bytes().to_vec()),
        _ => ("F32", |value| value.to_le_bytes().to_vec()),
    }
}

/// The model's folder, with its tensors in the types that `dtype` says.
fn narrow(name: &str, golden: &Golden, dtype: impl Fn(&str) -> &'static str) -> Folder {
    let folder = folder(name, golden);
    folder.write("model.safetensors", &safetensors_as(golden.tensors.iter(), |name| stored(dtype(name))));
    folder
}

fn options(golden: &Golden, linear: LinearKind, threads: u32) -> ModelOptions {
    ModelOptions {
        dtype: DtypeChoice::F32,
        threads,
        kv: KvSize::Blocks(256),
        max_model_len: Some(golden.served),
        linear,
        ..ModelOptions::default()
    }
}

#[test]
fn logits_are_those_of_the_same_weights_widened_to_fp32() {
    for (at, name) in names().iter().enumerate() {
        let golden = golden(name);
        let form = ["BF16", "F16"][at % 2];
        let folder = narrow(name, &golden, |_| form);
        let mut on_onednn = load(&folder.0, &options(&golden, LinearKind::OneDnn, 1)).unwrap();
        let mut packed = load(&folder.0, &options(&golden, LinearKind::Packed, 1)).unwrap();
        assert_eq!(on_onednn.info().packed, None, "{name}");
        assert_eq!(packed.info().packed, Some(if form == "BF16" { "bf16" } else { "f16" }), "{name}");
        let (wide, half) = (on_onednn.info().weight_bytes, packed.info().weight_bytes);
        assert!(half < wide, "{name}: {half} bytes instead of {wide}");
        for case in golden.cases.iter().take(CASES) {
            let want = last_logits(&mut *on_onednn, &case.prompt, 0, 0);
            let error = relative_error(&last_logits(&mut *packed, &case.prompt, 0, 0), &want);
            assert!(error <= LOGIT_TOLERANCE, "{name} in {form}: relative error {error:e}");
        }
    }
}

#[test]
fn auto_packs_weights_of_16_bits_and_no_others() {
    let name = &names()[0];
    let golden = golden(name);
    let quick = KernelLevel::best() >= KernelLevel::Avx2;
    let (wide, _) = golden.tensors.iter().find(|(_, rule)| rule.shape.len() == 2).unwrap();
    let cases: [(TypeOf<'_>, Option<&str>); 5] = [
        (&|_| "BF16", quick.then_some("bf16")),
        (&|_| "F16", quick.then_some("f16")),
        (&|_| "F32", None),
        // Norms in fp32 are usual and are no weights of products.
        (
            &|name| if name.contains("norm") || name.contains("ln_") { "F32" } else { "BF16" },
            quick.then_some("bf16"),
        ),
        (&|name| if name == wide { "F32" } else { "BF16" }, None),
    ];
    for (dtype, expected) in cases {
        let folder = narrow(name, &golden, dtype);
        let model = load(&folder.0, &options(&golden, LinearKind::Auto, 1)).unwrap();
        assert_eq!(model.info().packed, expected, "{name}");
    }
    if supports_bf16() {
        let folder = narrow(name, &golden, |_| "F32");
        let in_bf16 = ModelOptions { dtype: DtypeChoice::Bf16, ..options(&golden, LinearKind::Auto, 1) };
        let expected = (!has_tiles()).then_some("bf16");
        assert_eq!(load(&folder.0, &in_bf16).unwrap().info().packed, expected, "{name} in bf16");
    }
}

/// Q in one type and K in another are packed as one product, in fp32.
#[test]
fn parts_of_two_types_become_one_product() {
    let name = names().into_iter().find(|name| name.starts_with("llama")).unwrap();
    let golden = golden(&name);
    let folder = narrow(&name, &golden, |name| if name.contains("k_proj") { "F16" } else { "BF16" });
    let mut on_onednn = load(&folder.0, &options(&golden, LinearKind::OneDnn, 1)).unwrap();
    let mut packed = load(&folder.0, &options(&golden, LinearKind::Packed, 1)).unwrap();
    for case in golden.cases.iter().take(CASES) {
        let want = last_logits(&mut *on_onednn, &case.prompt, 0, 0);
        let error = relative_error(&last_logits(&mut *packed, &case.prompt, 0, 0), &want);
        assert!(error <= LOGIT_TOLERANCE, "{name}: relative error {error:e}");
    }
}

#[test]
fn greedy_ids_do_not_depend_on_the_batch() {
    for name in names() {
        let golden = golden(&name);
        let folder = narrow(&name, &golden, |_| "BF16");
        let mut model = load(&folder.0, &options(&golden, LinearKind::Packed, 2)).unwrap();
        check_ids(&mut *model, &golden, CASES, &name);
    }
}

/// Attention sums a prefix from the cache as it sums a whole prompt, and products know no other row.
#[test]
fn logits_do_not_depend_on_a_cached_prefix_or_on_other_rows() {
    for name in names() {
        let golden = golden(&name);
        let folder = narrow(&name, &golden, |_| "BF16");
        let mut model = load(&folder.0, &options(&golden, LinearKind::Packed, 1)).unwrap();
        check_logits(&mut *model, &golden, &name);
    }
}

/// Activations in bf16, too: sums of pairs. A CPU without instructions for them has no such models.
#[test]
fn in_bf16_logits_do_not_depend_on_other_rows() {
    if !supports_bf16() {
        return;
    }
    for name in names() {
        let golden = golden(&name);
        let folder = narrow(&name, &golden, |_| "BF16");
        let in_bf16 = ModelOptions { dtype: DtypeChoice::Bf16, ..options(&golden, LinearKind::Packed, 1) };
        let mut model = load(&folder.0, &in_bf16).unwrap();
        let prompt = &golden.cases.iter().map(|case| &case.prompt).max_by_key(|prompt| prompt.len()).unwrap();
        let alone = last_logits(&mut *model, prompt, 0, 0);
        assert_eq!(last_logits(&mut *model, prompt, 0, 5), alone, "{name} beside others");
    }
}

/// A product takes no memory but its result, which the caller has.
#[test]
fn products_allocate_nothing() {
    let (inputs, outputs, rows) = (96, 40, 5);
    let mut weights = PackedWeights::new(SourceType::Bf16, outputs, inputs).unwrap();
    let bytes = vec![1; outputs * inputs * 2];
    let source = Source { bytes: &bytes, source_type: SourceType::Bf16, rows: outputs, is_transposed: false };
    weights.pack(0, source, 1).unwrap();
    let launch = Launch { level: KernelLevel::best(), threads: 1 };
    let (x, mut out) = (vec![1f32; rows * inputs], vec![0f32; rows * outputs]);
    let (narrow_x, mut narrow) = (vec![bf16::ONE; rows * inputs], vec![bf16::ZERO; rows * outputs]);
    // The first one makes room for activations widened to fp32.
    weights.multiply(&narrow_x, Epilogue::default(), &mut narrow, launch).unwrap();
    let counted = allocation_counter::measure(|| {
        weights.multiply(&x, Epilogue::default(), &mut out, launch).unwrap();
        weights.multiply(&narrow_x, Epilogue::default(), &mut narrow, launch).unwrap();
    });
    assert_eq!(counted.count_total, 0);
}

/// Allocations by Rust in four decoding steps of three rows, after a first one, with products of ours.
fn allocations(folder: &Path, quantization: Quantization) -> u64 {
    let linear = if quantization == Quantization::None { LinearKind::Packed } else { LinearKind::Auto };
    let options = ModelOptions {
        dtype: DtypeChoice::F32,
        kv: KvSize::Blocks(64),
        max_model_len: Some(64),
        linear,
        quantization,
        ..ModelOptions::default()
    };
    let mut model = load(folder, &options).unwrap();
    let mut batch = OwnedBatch::default();
    for row in 0..3 {
        let blocks: Vec<u32> = (row * 2..row * 2 + 2).collect();
        batch.push(row, 16 + row, &[row + 1], &blocks).sample = Some(SampleParams::GREEDY);
    }
    let mut out = StepOutput::default();
    let mut step = || model.step(&batch.as_step(), &mut out).unwrap();
    step();
    allocation_counter::measure(|| (0..4).for_each(|_| step())).count_total
}

#[test]
fn decoding_steps_allocate_nothing() {
    let gpt2 = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-b");
    for quantization in [Quantization::None, Quantization::Int8] {
        assert_eq!(allocations(&gpt2, quantization), 0, "gpt2 {quantization:?}");
        for name in names() {
            let folder = narrow(&name, &golden(&name), |_| "BF16");
            assert_eq!(allocations(&folder.0, quantization), 0, "{name} {quantization:?}");
        }
    }
}

/// A weight that is no number ends the row and nothing else.
#[test]
fn a_weight_that_is_not_a_number_ends_the_row() {
    let name = &names()[0];
    let golden = golden(name);
    let folder = folder(name, &golden);
    let mut bytes = safetensors_as(golden.tensors.iter(), |_| stored("BF16"));
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8;
    let entries: serde_json::Value = serde_json::from_slice(bytes[8..header].trim_ascii_end()).unwrap();
    let is_down = |name: &str| name.contains("down_proj.weight") || name.contains("mlp.c_proj.weight");
    let (_, down) = entries.as_object().unwrap().iter().find(|(name, _)| is_down(name)).unwrap();
    let start = down["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[header + start..][..2].copy_from_slice(&bf16::NAN.to_le_bytes());
    folder.write("model.safetensors", &bytes);
    let mut model = load(&folder.0, &options(&golden, LinearKind::Packed, 1)).unwrap();
    let mut batch = OwnedBatch::default();
    batch.push(0, 0, &golden.cases[0].prompt, &[0, 1, 2, 3, 4, 5, 6, 7]).sample = Some(SampleParams::GREEDY);
    let mut out = StepOutput::default();
    model.step(&batch.as_step(), &mut out).unwrap();
    assert_eq!(out.rows, [RowOutcome::NonFinite], "{name}");
}
