//! The row kernels against their plain Rust twins, at every level this machine has, over a sweep of widths.
//!
//! Tolerances: fp32 4e-6 relative to the largest value (sums in another order); bf16 2^-7, as a norm may round twice.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use half::bf16;
use pinion_ops::attention::Launch;
use pinion_ops::rows::{
    GateActivation, LayerNorm, Place, RmsNorm, RmsOrder, Rotation, gate, layer_norm, rms_norm, rotate, twin,
};
use pinion_ops::{Dtype, Element, KernelLevel};
use pinion_random::Random;

/// Values in [-2, 2) that differ from place to place.
fn values<T: Element>(count: usize, seed: u64) -> Vec<T> {
    let mut random = Random::new(seed);
    (0..count).map(|_| T::from_f32(2.0 * random.value())).collect()
}

fn assert_near<T: Element>(have: &[T], want: &[T], what: &str) {
    let largest = want.iter().fold(1f32, |max, value| max.max(value.to_f32().abs()));
    let tolerance = largest * if T::DTYPE == Dtype::F32 { 4e-6 } else { 1.0 / 128.0 };
    for (index, (have, want)) in have.iter().zip(want).enumerate() {
        let apart = (have.to_f32() - want.to_f32()).abs();
        assert!(apart <= tolerance, "{what}: element {index} is {have:?}, expected {want:?}");
    }
}

fn launches() -> Vec<Launch> {
    let levels = KernelLevel::available().into_iter();
    levels.flat_map(|level| [1, 3].map(|threads| Launch { level, threads })).collect()
}

const WIDTHS: [usize; 12] = [1, 2, 7, 8, 15, 16, 17, 40, 64, 96, 112, 333];

fn check_norm<T: Element>() {
    for width in WIDTHS {
        for (tokens, groups) in [(1, 1), (5, 3), (300, 2)] {
            let place = Place { tokens, stride: groups * width + 9, column: 4, groups, width };
            let before: Vec<T> = values(tokens * place.stride, width as u64);
            let weight: Vec<f32> = values(width, 3);
            for order in [RmsOrder::RoundFirst, RmsOrder::RoundLast, RmsOrder::OnePlus] {
                let norm = RmsNorm { weight: &weight, epsilon: 1e-5, order };
                let mut want = before.clone();
                twin::rms_norm(&mut want, place, &norm);
                for launch in launches() {
                    let mut have = before.clone();
                    rms_norm(&mut have, place, &norm, launch).unwrap();
                    assert_near(&have, &want, &format!("{place:?} {order:?} {launch:?}"));
                }
            }
        }
    }
}

fn check_layer_norm<T: Element>() {
    for width in WIDTHS {
        for rows in [1, 5, 300] {
            // Far from zero: the mean is taken off before anything is squared.
            let before: Vec<T> = values::<T>(rows * width, width as u64)
                .iter()
                .map(|value| T::from_f32(value.to_f32() + 3.0))
                .collect();
            let (weight, bias): (Vec<f32>, Vec<f32>) = (values(width, 3), values(width, 4));
            let norm = LayerNorm { weight: &weight, bias: &bias, epsilon: 1e-5 };
            let mut want = before.clone();
            twin::layer_norm(&mut want, &norm);
            for launch in launches() {
                let mut have = before.clone();
                layer_norm(&mut have, &norm, launch).unwrap();
                assert_near(&have, &want, &format!("{rows} rows of {width} {launch:?}"));
            }
        }
    }
}

fn check_rotate<T: Element>() {
    for head_dim in [2, 8, 16, 20, 64, 80, 96, 112, 256] {
        for dim in [head_dim, head_dim / 4 * 2, 2] {
            let (tokens, groups) = (7, 3);
            let place = Place { tokens, stride: groups * head_dim + 5, column: 5, groups, width: head_dim };
            let before: Vec<T> = values(tokens * place.stride, head_dim as u64);
            let table: Vec<f32> = values(tokens * dim, 9);
            let rotation = Rotation { table: &table, dim };
            let mut want = before.clone();
            twin::rotate(&mut want, place, rotation);
            for launch in launches() {
                let mut have = before.clone();
                rotate(&mut have, place, rotation, launch).unwrap();
                assert_near(&have, &want, &format!("{place:?} of {dim} {launch:?}"));
            }
        }
    }
}

fn check_gate<T: Element>() {
    for inner in WIDTHS {
        let rows = 40;
        // Large arguments too: the activation may not overflow on either side.
        let x: Vec<T> =
            values::<T>(rows * 2 * inner, 5).iter().map(|x| T::from_f32(x.to_f32() * 60.0)).collect();
        for activation in [GateActivation::Silu, GateActivation::GeluTanh] {
            let mut want = vec![T::default(); rows * inner];
            twin::gate(&x, &mut want, inner, activation);
            for launch in launches() {
                let mut have = vec![T::default(); rows * inner];
                gate(&x, &mut have, inner, activation, launch).unwrap();
                assert_near(&have, &want, &format!("{inner} {activation:?} {launch:?}"));
            }
        }
    }
}

#[test]
fn norms_agree_with_their_twin() {
    check_norm::<f32>();
    check_norm::<bf16>();
    check_layer_norm::<f32>();
    check_layer_norm::<bf16>();
}

#[test]
fn rotations_agree_with_their_twin() {
    check_rotate::<f32>();
    check_rotate::<bf16>();
}

#[test]
fn gates_agree_with_their_twin() {
    check_gate::<f32>();
    check_gate::<bf16>();
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    let launch = Launch { level: KernelLevel::best(), threads: 2 };
    let weight: Vec<f32> = values(100, 1);
    let norm = RmsNorm { weight: &weight, epsilon: 1e-6, order: RmsOrder::RoundFirst };
    let place = |tokens| Place { tokens, stride: 100, column: 0, groups: 1, width: 100 };
    let mut all: Vec<bf16> = values(100 * 700, 2);
    let mut one = all[100 * 650..100 * 651].to_vec();
    rms_norm(&mut all, place(700), &norm, launch).unwrap();
    rms_norm(&mut one, place(1), &norm, launch).unwrap();
    assert_eq!(one, all[100 * 650..100 * 651]);
    let norm = LayerNorm { weight: &weight, bias: &weight, epsilon: 1e-6 };
    layer_norm(&mut all, &norm, launch).unwrap();
    layer_norm(&mut one, &norm, launch).unwrap();
    assert_eq!(one, all[100 * 650..100 * 651]);
}

#[test]
fn operands_that_do_not_fit_are_errors() {
    let launch = Launch { level: KernelLevel::best(), threads: 1 };
    let weight = [1f32; 4];
    let norm = RmsNorm { weight: &weight, epsilon: 1e-6, order: RmsOrder::RoundFirst };
    let mut x = [0f32; 20];
    let place = Place { tokens: 2, stride: 10, column: 0, groups: 2, width: 4 };
    assert!(rms_norm(&mut x, place, &norm, launch).is_ok());
    for bad in [
        Place { tokens: 3, ..place },
        Place { column: 3, ..place },
        Place { width: 5, ..place },
        Place { groups: usize::MAX, ..place },
        Place { stride: usize::MAX, ..place },
    ] {
        assert!(rms_norm(&mut x, bad, &norm, launch).is_err(), "{bad:?}");
    }
    let table = [0f32; 8];
    for (dim, table) in [(3, &table[..6]), (6, &table[..]), (4, &table[..4])] {
        assert!(rotate(&mut x, place, Rotation { table, dim }, launch).is_err(), "{dim}");
    }
    assert!(rotate(&mut x, place, Rotation { table: &table, dim: 4 }, launch).is_ok());
    let norm = LayerNorm { weight: &weight, bias: &weight, epsilon: 1e-6 };
    assert!(layer_norm(&mut x, &norm, launch).is_ok());
    assert!(layer_norm(&mut x[..19], &norm, launch).is_err());
    assert!(layer_norm(&mut x, &LayerNorm { bias: &weight[..3], ..norm }, launch).is_err());
    assert!(layer_norm(&mut x, &LayerNorm { weight: &[], bias: &[], ..norm }, launch).is_err());
    let mut out = [0f32; 10];
    assert!(gate(&x, &mut out, 5, GateActivation::Silu, launch).is_ok());
    assert!(gate(&x, &mut out, 3, GateActivation::Silu, launch).is_err());
    assert!(gate(&x, &mut out[..5], 5, GateActivation::Silu, launch).is_err());
}
