//! K and V of 8 bits in every family's tiny model: a request's ids and logits are the same to the bit alone, in a
//! batch, in chunks, after a preemption and over a cached prefix; they stay near those over K and V in the type of the
//! activations, and the vector kernels agree with their twins. windows.rs has rings of window blocks.

#![cfg(feature = "torch")]

use crate::driver::{Policy, run};
use crate::quantized::{last_logits, relative_error, requests};
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
        let mut model = model(&name, &golden, exact);
        let whole = Policy { chunk: usize::MAX, preempt_at: &[] };
        let alone: Vec<Vec<u32>> = requests(&golden, |_| 0)
            .into_iter()
            .map(|request| run(&mut *model, &[request], whole).remove(0))
            .collect();
        for policy in
            [whole, Policy { chunk: 24, preempt_at: &[3, 9, 15] }, Policy { chunk: 1, preempt_at: &[] }]
        {
            let ids = run(&mut *model, &requests(&golden, |index| index * 3 % 7), policy);
            assert_eq!(ids, alone, "{name} with {policy:?}");
        }
    }
}

#[test]
fn logits_do_not_depend_on_a_cached_prefix_or_on_other_rows() {
    for name in names() {
        let golden = golden(&name);
        let mut model = model(&name, &golden, exact);
        let prompt = golden.cases.iter().map(|case| &case.prompt).max_by_key(|prompt| prompt.len());
        let prompt = prompt.expect("a golden has cases");
        let whole = last_logits(&mut *model, prompt, 0, 0);
        assert_eq!(last_logits(&mut *model, prompt, 0, 5), whole, "{name} beside others");
        for cached in [16, 48, 80] {
            assert_eq!(
                last_logits(&mut *model, prompt, cached, 0),
                whole,
                "{name} after {cached} cached tokens"
            );
        }
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
