//! Quantised weights in whole models: every family's tiny model gives one request the same greedy ids alone, in a
//! batch, in chunks, after a preemption and over a cached prefix, to the bit of its logits; and they stay near the
//! unquantised ones.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::company::{check_ids, check_logits, last_logits};
use crate::tiny::{Golden, folder, golden, names, safetensors};
use pinion_model::{
    DtypeChoice, KvSize, Model, ModelOptions, OwnedBatch, Quantization, RowOutcome, SampleParams, StepOutput,
    load,
};

/// Prompts of each golden that are run; all of them take minutes.
const CASES: usize = 6;

fn options(golden: &Golden, quantization: Quantization) -> ModelOptions {
    ModelOptions {
        dtype: DtypeChoice::F32,
        kv: KvSize::Blocks(256),
        max_model_len: Some(golden.served),
        quantization,
        ..ModelOptions::default()
    }
}

fn model(name: &str, golden: &Golden, quantization: Quantization) -> Box<dyn Model> {
    load(&folder(name, golden).0, &options(golden, quantization))
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Of the root mean squares.
pub(crate) fn relative_error(have: &[f32], want: &[f32]) -> f32 {
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>();
    let apart = squares(&mut have.iter().zip(want).map(|(a, b)| a - b));
    (apart / squares(&mut want.iter().copied())).sqrt()
}

#[test]
fn greedy_ids_do_not_depend_on_the_batch() {
    for name in names() {
        let golden = golden(&name);
        for quantization in [Quantization::Int8, Quantization::Int4] {
            let what = format!("{name} {quantization:?}");
            check_ids(&mut *model(&name, &golden, quantization), &golden, CASES, &what);
        }
    }
}

/// Attention may sum in another order after a cut, but for that a prefix from the cache and rows beside it change
/// nothing.
#[test]
fn logits_do_not_depend_on_a_cached_prefix_or_on_other_rows() {
    for name in names() {
        let golden = golden(&name);
        for quantization in [Quantization::Int8, Quantization::Int4] {
            let what = format!("{name} {quantization:?}");
            check_logits(&mut *model(&name, &golden, quantization), &golden, &what);
        }
    }
}

/// The tiny models' random weights amplify what rounding does, so that one case says little: uncorrelated logits would
/// be 1.4 apart.
#[test]
fn logits_stay_near_the_goldens_and_weights_shrink() {
    let mut errors = [Vec::new(), Vec::new()];
    for name in names() {
        let golden = golden(&name);
        let full = model(&name, &golden, Quantization::None).info().weight_bytes;
        for (errors, quantization) in errors.iter_mut().zip([Quantization::Int8, Quantization::Int4]) {
            let mut model = model(&name, &golden, quantization);
            assert!(model.info().weight_bytes < full, "{name}: {} of {full}", model.info().weight_bytes);
            for case in &golden.cases {
                let Some(want) = &case.logits_last else { continue };
                let error = relative_error(&last_logits(&mut *model, &case.prompt, 0, 0), want);
                assert!(
                    error > 0.0 && error.is_finite(),
                    "{name} {quantization:?}: relative error {error:e}"
                );
                errors.push(error);
            }
        }
    }
    let mean = |errors: &Vec<f32>| errors.iter().sum::<f32>() / errors.len() as f32;
    let [int8, int4] = errors.each_ref().map(mean);
    println!("mean relative error of {} cases: int8 {int8}, int4 {int4}", errors[0].len());
    assert!(
        int8 <= 0.25 && int4 <= 1.2 && int8 * 2.0 < int4,
        "mean relative errors: int8 {int8}, int4 {int4}"
    );
}

/// A weight that is no number ends rows as it does without quantisation, and nothing else.
#[test]
fn a_weight_that_is_not_a_number_ends_the_row() {
    let name = &names()[0];
    let golden = golden(name);
    let folder = folder(name, &golden);
    let mut bytes = safetensors(golden.tensors.iter());
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8;
    let text = String::from_utf8(bytes[8..header].to_vec()).unwrap();
    let entries: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
    let down = entries
        .as_object()
        .unwrap()
        .iter()
        .find(|(name, _)| name.contains("down_proj.weight") || name.contains("mlp.c_proj.weight"));
    let start = down.unwrap().1["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[header + start..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    folder.write("model.safetensors", &bytes);
    for quantization in [Quantization::None, Quantization::Int8, Quantization::Int4] {
        let mut model = load(&folder.0, &options(&golden, quantization)).unwrap();
        let mut batch = OwnedBatch::default();
        batch.push(0, 0, &golden.cases[0].prompt, &[0, 1, 2, 3, 4, 5, 6, 7]).sample =
            Some(SampleParams::GREEDY);
        let mut out = StepOutput::default();
        model.step(&batch.as_step(), &mut out).unwrap();
        assert_eq!(out.rows, [RowOutcome::NonFinite], "{name} {quantization:?}");
    }
}
