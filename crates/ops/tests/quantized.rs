//! Products with quantised weights against their twin, bit by bit, at every level that this machine has.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use half::{bf16, f16};
use pinion_ops::quantized::{IntegerLaunch, QuantizedWeights, Source, SourceType, WeightForm, twin};
use pinion_ops::{Activation, Element, Epilogue, IntegerLevel};
use pinion_random::Random;
use proptest::prelude::*;

/// Numbers from -1 to 1 that depend on the seed and nothing else.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
    (0..count).map(|_| random.value()).collect()
}

fn bytes_of(weights: &[f32]) -> Vec<u8> {
    weights.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn forms(inputs: usize) -> Vec<WeightForm> {
    let divides = |group: &u32| inputs.next_multiple_of(64).is_multiple_of(*group as usize);
    let int4 = [32, 64, 128].into_iter().filter(divides).map(|group| WeightForm::Int4 { group });
    std::iter::once(WeightForm::Int8).chain(int4).collect()
}

fn packed(form: WeightForm, weights: &[f32], inputs: usize, threads: u32) -> QuantizedWeights {
    let outputs = weights.len() / inputs;
    let mut packed = QuantizedWeights::new(form, outputs, inputs).unwrap();
    let bytes = bytes_of(weights);
    let source = Source { bytes: &bytes, source_type: SourceType::F32, rows: outputs, is_transposed: false };
    packed.pack(0, source, threads).unwrap();
    packed
}

/// Equal bits, or both not a number.
fn same(have: f32, want: f32) -> bool {
    have.to_bits() == want.to_bits() || have.is_nan() && want.is_nan()
}

struct Case<'a> {
    weights: &'a [f32],
    x: &'a [f32],
    inputs: usize,
    epilogue: Epilogue<'a, f32>,
}

/// Every form, level and number of threads gives what the twin gives, in one dtype.
fn check<T: Element>(case: &Case<'_>) {
    let (inputs, outputs) = (case.inputs, case.weights.len() / case.inputs);
    let rows = case.x.len() / inputs;
    let typed = |values: &[f32]| values.iter().map(|&value| T::from_f32(value)).collect::<Vec<T>>();
    let (x, residual) = (typed(case.x), case.epilogue.residual.map(typed));
    let widened: Vec<f32> = x.iter().map(|value| value.to_f32()).collect();
    let residual_widened: Option<Vec<f32>> =
        residual.as_ref().map(|values| values.iter().map(|value| value.to_f32()).collect());
    for form in forms(inputs) {
        let twin = twin::Weights::new(form, case.weights, inputs);
        let kernel = packed(form, case.weights, inputs, 1);
        assert_eq!(kernel.packed(), twin.packed(), "{form:?} {outputs}x{inputs}");
        let want: Vec<f32> = (0..rows)
            .flat_map(|row| {
                let residual = residual_widened.as_ref().map(|all| &all[row * outputs..][..outputs]);
                twin.multiply(&widened[row * inputs..][..inputs], Epilogue { residual, ..case.epilogue })
            })
            .map(|value| T::from_f32(value).to_f32())
            .collect();
        for (level, threads) in
            IntegerLevel::available().into_iter().flat_map(|level| [(level, 1), (level, 3)])
        {
            let mut out = vec![T::from_f32(9.0); rows * outputs];
            let Epilogue { bias, activation, .. } = case.epilogue;
            let epilogue = Epilogue { bias, activation, residual: residual.as_deref() };
            let launch = IntegerLaunch { level, threads };
            kernel.multiply(&x, epilogue, &mut out, launch).unwrap();
            for (at, (have, &want)) in out.iter().zip(&want).enumerate() {
                let (row, output, have) = (at / outputs, at % outputs, have.to_f32());
                assert!(
                    same(have, want),
                    "{form:?} {level:?} {threads} threads, {rows}x{inputs}x{outputs}: row {row} output {output} is {have:e}, not {want:e}"
                );
            }
        }
    }
}

fn check_both(case: &Case<'_>) {
    check::<f32>(case);
    check::<bf16>(case);
}

#[test]
fn shapes_equal_the_twin() {
    for (inputs, outputs) in [
        (1, 1),
        (3, 17),
        (32, 16),
        (40, 120),
        (63, 15),
        (64, 33),
        (96, 288),
        (128, 48),
        (192, 31),
        (320, 64),
        (1024, 40),
    ] {
        for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 31] {
            let weights = numbers(1, inputs * outputs);
            let x = numbers(2, rows * inputs);
            let (bias, residual) = (numbers(3, outputs), numbers(4, rows * outputs));
            let (bias, residual) = (Some(&bias[..]), Some(&residual[..]));
            let all = Epilogue { bias, activation: Activation::None, residual };
            for epilogue in [
                Epilogue::default(),
                all,
                Epilogue { bias: None, ..all },
                Epilogue { residual: None, activation: Activation::GeluTanh, ..all },
                Epilogue { bias: None, activation: Activation::GeluErf, ..all },
            ] {
                check_both(&Case { weights: &weights, x: &x, inputs, epilogue });
            }
        }
    }
}

/// All products at their largest, with every combination of signs: a sum that saturates would show.
#[test]
fn extreme_values_equal_the_twin() {
    let (inputs, outputs, rows) = (256, 16, 4);
    let signs = |seed, count| {
        numbers(seed, count).into_iter().map(|value| value.signum() * 3.0).collect::<Vec<f32>>()
    };
    for (weights, x) in [
        (vec![1.0; inputs * outputs], vec![1.0; rows * inputs]),
        (vec![-1.0; inputs * outputs], vec![1.0; rows * inputs]),
        (vec![-1.0; inputs * outputs], vec![-1.0; rows * inputs]),
        (signs(5, inputs * outputs), signs(6, rows * inputs)),
        (vec![0.0; inputs * outputs], signs(6, rows * inputs)),
        (signs(5, inputs * outputs), vec![0.0; rows * inputs]),
        (vec![3e38; inputs * outputs], vec![3e38; rows * inputs]),
        (vec![1e-37; inputs * outputs], vec![1e-37; rows * inputs]),
        (vec![1e-30; inputs * outputs], vec![1e-45; rows * inputs]),
    ] {
        check_both(&Case { weights: &weights, x: &x, inputs, epilogue: Epilogue::default() });
    }
}

/// The sums of the longest product that is allowed stay within 32 bits.
#[test]
fn the_longest_product_does_not_wrap() {
    let inputs = 131_072;
    for sign in [1.0, -1.0] {
        let (weights, x) = (vec![sign; inputs], vec![1.0; inputs]);
        check::<f32>(&Case { weights: &weights, x: &x, inputs, epilogue: Epilogue::default() });
    }
    assert!(QuantizedWeights::new(WeightForm::Int8, 1, inputs + 1).is_err());
}

#[test]
fn what_is_not_finite_gives_nan_in_its_row_only() {
    let (inputs, outputs) = (96, 20);
    let weights = numbers(7, inputs * outputs);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = numbers(8, 3 * inputs);
        x[inputs + 5] = bad;
        check_both(&Case { weights: &weights, x: &x, inputs, epilogue: Epilogue::default() });
        for form in forms(inputs) {
            let mut out = vec![0f32; 3 * outputs];
            let launch = IntegerLaunch { level: IntegerLevel::best(), threads: 1 };
            packed(form, &weights, inputs, 1).multiply(&x, Epilogue::default(), &mut out, launch).unwrap();
            for (row, values) in out.chunks(outputs).enumerate() {
                assert!(
                    values.iter().all(|value| value.is_nan() == (row == 1)),
                    "{form:?} row {row}: {values:?}"
                );
            }
        }
        let mut broken = weights.clone();
        broken[2 * inputs + 7] = bad;
        check_both(&Case { weights: &broken, x: &numbers(8, inputs), inputs, epilogue: Epilogue::default() });
    }
}

/// Texts would depend on what is served beside them.
#[test]
fn the_rows_beside_a_row_do_not_change_a_bit() {
    let (inputs, outputs, rows) = (192, 72, 300);
    let (weights, x) = (numbers(9, inputs * outputs), numbers(10, rows * inputs));
    for form in forms(inputs) {
        let kernel = packed(form, &weights, inputs, 2);
        for launch in IntegerLevel::available().into_iter().map(|level| IntegerLaunch { level, threads: 1 }) {
            let mut whole = vec![0f32; rows * outputs];
            kernel.multiply(&x, Epilogue::default(), &mut whole, launch).unwrap();
            for (first, count) in
                (0..20).map(|first| (first * 13, 1)).chain([(0, 2), (3, 5), (7, 11), (1, 257), (250, 50)])
            {
                let mut some = vec![0f32; count * outputs];
                let threads = 1 + (count % 3) as u32;
                let launch = IntegerLaunch { threads, ..launch };
                kernel
                    .multiply(&x[first * inputs..][..count * inputs], Epilogue::default(), &mut some, launch)
                    .unwrap();
                assert_eq!(
                    some,
                    whole[first * outputs..][..count * outputs],
                    "{form:?} {launch:?} {count} rows from {first}"
                );
            }
        }
    }
}

/// Parts that begin and end within tiles, either layout, every type, any address, any number of threads: the same
/// bytes.
#[test]
fn packing_does_not_depend_on_how_the_tensor_stands() {
    let (inputs, outputs) = (72, 61);
    // Numbers that all types hold.
    let weights: Vec<f32> =
        numbers(11, inputs * outputs).into_iter().map(|value| (value * 60.0).round() / 64.0).collect();
    let transposed: Vec<f32> = (0..inputs)
        .flat_map(|k| (0..outputs).map(move |row| (row, k)))
        .map(|(row, k)| weights[row * inputs + k])
        .collect();
    let typed = |values: &[f32], source_type: SourceType| -> Vec<u8> {
        let bytes = |value: &f32| match source_type {
            SourceType::F32 => value.to_le_bytes().to_vec(),
            SourceType::Bf16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
            SourceType::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
        };
        // One byte more, so that the numbers begin at an odd address.
        std::iter::once(0).chain(values.iter().flat_map(bytes)).collect()
    };
    for form in forms(inputs) {
        let want = twin::Weights::new(form, &weights, inputs).packed();
        for source_type in [SourceType::F32, SourceType::Bf16, SourceType::F16] {
            for threads in [1, 2, 5] {
                for (values, is_transposed) in [(&weights, false), (&transposed, true)] {
                    let bytes = typed(values, source_type);
                    let mut whole = QuantizedWeights::new(form, outputs, inputs).unwrap();
                    let source = Source { bytes: &bytes[1..], source_type, rows: outputs, is_transposed };
                    whole.pack(0, source, threads).unwrap();
                    assert_eq!(
                        whole.packed(),
                        want,
                        "{form:?} {source_type:?} {threads} threads transposed {is_transposed}"
                    );
                }
                let mut parts = QuantizedWeights::new(form, outputs, inputs).unwrap();
                for (first, rows) in [(0, 23), (23, 1), (24, 30), (54, 7)] {
                    let bytes = typed(&weights[first * inputs..][..rows * inputs], source_type);
                    let source = Source { bytes: &bytes[1..], source_type, rows, is_transposed: false };
                    parts.pack(first, source, threads).unwrap();
                }
                assert_eq!(parts.packed(), want, "{form:?} {source_type:?} {threads} threads in parts");
            }
        }
    }
}

#[test]
fn halves_of_every_kind_are_read() {
    // Subnormals, the largest, signed zeros; an infinity and a NaN make their output's scale no number.
    for bits in [0x0001u16, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x8000, 0x3c00, 0x7c00, 0xfc00, 0x7e00] {
        let value = f16::from_bits(bits).to_f32();
        let weights = [value, value / 2.0, -value];
        let bytes: Vec<u8> = weights.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect();
        let exact: Vec<f32> = weights.iter().map(|&value| f16::from_f32(value).to_f32()).collect();
        let mut have = QuantizedWeights::new(WeightForm::Int8, 1, 3).unwrap();
        have.pack(
            0,
            Source { bytes: &bytes, source_type: SourceType::F16, rows: 1, is_transposed: false },
            1,
        )
        .unwrap();
        let (mut out, x) = ([0f32], [1.0f32, 0.5, 0.25]);
        have.multiply(
            &x,
            Epilogue::default(),
            &mut out,
            IntegerLaunch { level: IntegerLevel::Scalar, threads: 1 },
        )
        .unwrap();
        let want = twin::Weights::new(WeightForm::Int8, &exact, 3).multiply(&x, Epilogue::default())[0];
        assert!(same(out[0], want), "{bits:04x}: {} instead of {want}", out[0]);
    }
}

/// The integers lose what their number of bits explains, and no more.
#[test]
fn products_are_near_the_exact_ones() {
    let (inputs, outputs) = (512, 32);
    let (weights, x) = (numbers(12, inputs * outputs), numbers(13, inputs));
    let exact: Vec<f64> = weights
        .chunks(inputs)
        .map(|row| row.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum())
        .collect();
    let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    for (form, most) in [
        (WeightForm::Int8, 0.01),
        (WeightForm::Int4 { group: 128 }, 0.1),
        (WeightForm::Int4 { group: 32 }, 0.1),
    ] {
        let mut out = vec![0f32; outputs];
        let launch = IntegerLaunch { level: IntegerLevel::best(), threads: 1 };
        packed(form, &weights, inputs, 1).multiply(&x, Epilogue::default(), &mut out, launch).unwrap();
        let error: Vec<f64> = out.iter().zip(&exact).map(|(&have, want)| f64::from(have) - want).collect();
        let share = norm(&error) / norm(&exact);
        assert!(share < most && share > 1e-4, "{form:?}: {share}");
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let weights = packed(WeightForm::Int8, &numbers(1, 8 * 4), 8, 1);
    let launch = IntegerLaunch { level: IntegerLevel::best(), threads: 1 };
    let mut out = [0f32; 8];
    assert!(weights.multiply(&[0.0; 16], Epilogue::default(), &mut out, launch).is_ok());
    assert!(weights.multiply(&[0.0; 15], Epilogue::default(), &mut out, launch).is_err());
    let narrow_bias = Epilogue { bias: Some(&[0.0; 3]), ..Epilogue::default() };
    assert!(weights.multiply(&[0.0; 16], narrow_bias, &mut out, launch).is_err());
    let short_residual = Epilogue { residual: Some(&[0.0; 7]), ..Epilogue::default() };
    assert!(weights.multiply(&[0.0; 16], short_residual, &mut out, launch).is_err());
    assert!(weights.multiply(&[0.0; 8], Epilogue::default(), &mut out[..7], launch).is_err());
    assert!(weights.multiply::<f32>(&[], Epilogue::default(), &mut [], launch).is_ok());
    let mut room = QuantizedWeights::new(WeightForm::Int8, 4, 8).unwrap();
    let source = |bytes, rows| Source { bytes, source_type: SourceType::F32, rows, is_transposed: false };
    assert!(room.pack(0, source(&[0; 128], 4), 1).is_ok());
    assert!(room.pack(1, source(&[0; 128], 4), 1).is_err());
    assert!(room.pack(0, source(&[0; 127], 4), 1).is_err());
    for (form, outputs, inputs) in [
        (WeightForm::Int8, 0, 8),
        (WeightForm::Int8, 8, 0),
        (WeightForm::Int4 { group: 48 }, 8, 96),
        (WeightForm::Int4 { group: 128 }, 8, 64),
    ] {
        assert!(QuantizedWeights::new(form, outputs, inputs).is_err(), "{form:?} {outputs}x{inputs}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_shape_equals_the_twin(
        inputs in 1usize..400, outputs in 1usize..50, rows in 1usize..30, seed in any::<u64>(), spread in -20i32..20,
    ) {
        let scaled = |values: Vec<f32>| values.into_iter().map(|value| value * 2f32.powi(spread)).collect::<Vec<f32>>();
        let (weights, x) = (numbers(seed, inputs * outputs), scaled(numbers(!seed, rows * inputs)));
        check::<f32>(&Case { weights: &weights, x: &x, inputs, epilogue: Epilogue::default() });
    }
}
