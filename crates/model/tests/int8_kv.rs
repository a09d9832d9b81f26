//! K and V of 8 bits in every family's tiny model: a request's ids and logits are the same to the bit alone, in a
//! batch, in chunks, after a preemption and over a cached prefix; they stay near those over K and V in the type of the
//! activations, and the vector kernels agree with their twins. windows.rs has rings of window blocks.

#![cfg(feature = "torch")]

use crate::company::{check_ids, check_logits, last_logits};
use crate::quantized::relative_error;
use crate::tiny::{Golden, folder, golden, names};
use pinion_model::{AttentionKernel, DtypeChoice, KvSize, Model, ModelOptions, Quantization, load};

fn model(name: &str, golden: &Golden, change: impl Fn(ModelOptions) -> ModelOptions) -> Box<dyn Model> {
    let options = ModelOptions {
        dtype: DtypeChoice::F32,
        kv: KvSize::Blocks(256),
        max_model_len: Some(golden.served),
        int8_kv: true,
        ..ModelOptions::default()
    };
    load(&folder(name, golden).0, &change(options)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// With products of integers, whose rows do not depend on the rows beside them either.
fn exact(options: ModelOptions) -> ModelOptions {
    ModelOptions { quantization: Quantization::Int8, ..options }
}

#[test]
fn greedy_ids_do_not_depend_on_the_batch() {
    for name in names() {
        let golden = golden(&name);
        check_ids(&mut *model(&name, &golden, exact), &golden, 6, &name);
    }
}

#[test]
fn logits_do_not_depend_on_a_cached_prefix_or_on_other_rows() {
    for name in names() {
        let golden = golden(&name);
        check_logits(&mut *model(&name, &golden, exact), &golden, &name);
    }
}

/// Uncorrelated logits would be 1.4 apart; weights of 8 bits are 0.25 off at most in quantized.rs.
#[test]
fn logits_stay_near_and_blocks_shrink() {
    let mut errors = Vec::new();
    for name in names() {
        let golden = golden(&name);
        let mut floats = model(&name, &golden, |options| ModelOptions { int8_kv: false, ..options });
        let mut integers = model(&name, &golden, |options| options);
        let (large, small) = (floats.info().kv_block_bytes, integers.info().kv_block_bytes);
        assert!(small * 2 < large, "{name}: blocks of {small} bytes, not {large}");
        for case in golden.cases.iter().filter(|case| case.prompt.len() > 16) {
            let want = last_logits(&mut *floats, &case.prompt, 16, 0);
            let error = relative_error(&last_logits(&mut *integers, &case.prompt, 16, 0), &want);
            assert!(error > 0.0 && error.is_finite(), "{name}: relative error {error:e}");
            errors.push(error);
        }
    }
    let mean = errors.iter().sum::<f32>() / errors.len() as f32;
    println!("mean relative error of {} cases: {mean}", errors.len());
    assert!(mean <= 0.05, "mean relative error {mean}");
}

#[test]
fn vector_kernels_agree_with_their_twins() {
    for name in names() {
        let golden = golden(&name);
        let mut vector = model(&name, &golden, |options| options);
        let mut twin =
            model(&name, &golden, |options| ModelOptions { attention: AttentionKernel::Twin, ..options });
        let prompt = &golden.cases[1].prompt;
        let want = last_logits(&mut *twin, prompt, 16, 0);
        let error = relative_error(&last_logits(&mut *vector, prompt, 16, 0), &want);
        // Sums in another order now and then round a number of a later layer to the integer beside.
        assert!(error <= 0.02, "{name}: relative error {error:e}");
    }
}
