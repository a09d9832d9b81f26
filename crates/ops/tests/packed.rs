//! Products with packed floating-point weights against their twin, bit by bit, at every level that this machine has.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use half::{bf16, f16};
use pinion_ops::attention::Launch;
use pinion_ops::packed::{PackedWeights, twin};
use pinion_ops::quantized::{Source, SourceType};
use pinion_ops::{Activation, Dtype, Element, Epilogue, KernelLevel};
use pinion_random::Random;
use proptest::prelude::*;

const TYPES: [SourceType; 3] = [SourceType::F32, SourceType::Bf16, SourceType::F16];

/// Numbers from -1 to 1 that depend on the seed and nothing else.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
    (0..count).map(|_| random.value()).collect()
}

/// A tensor of a file, rounded to the type.
fn bytes_of(weights: &[f32], source_type: SourceType) -> Vec<u8> {
    let bytes = |&value: &f32| match source_type {
        SourceType::F32 => value.to_le_bytes().to_vec(),
        SourceType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        SourceType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
    };
    weights.iter().flat_map(bytes).collect()
}

fn packed(weight_type: SourceType, weights: &[f32], inputs: usize, threads: u32) -> PackedWeights {
    let rows = weights.len() / inputs;
    let mut packed = PackedWeights::new(weight_type, rows, inputs).unwrap();
    let bytes = bytes_of(weights, weight_type);
    packed
        .pack(0, Source { bytes: &bytes, source_type: weight_type, rows, is_transposed: false }, threads)
        .unwrap();
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

/// Every type of weights, level and number of threads gives what the twin gives, in one dtype.
fn check<T: Element>(case: &Case<'_>) {
    let (inputs, outputs) = (case.inputs, case.weights.len() / case.inputs);
    let rows = case.x.len() / inputs;
    let typed = |values: &[f32]| values.iter().map(|&value| T::from_f32(value)).collect::<Vec<T>>();
    let widened = |values: &[T]| values.iter().map(|value| value.to_f32()).collect::<Vec<f32>>();
    let (x, residual) = (typed(case.x), case.epilogue.residual.map(typed));
    let (x_widened, residual_widened) = (widened(&x), residual.as_deref().map(widened));
    let x_type = if T::DTYPE == Dtype::Bf16 { SourceType::Bf16 } else { SourceType::F32 };
    for weight_type in TYPES {
        let twin = twin::Weights::new(weight_type, case.weights, inputs);
        let kernel = packed(weight_type, case.weights, inputs, 1);
        assert!(kernel.packed() == twin.packed(), "{weight_type:?} {outputs}x{inputs}: the layout differs");
        let want: Vec<f32> = (0..rows)
            .flat_map(|row| {
                let residual = residual_widened.as_ref().map(|all| &all[row * outputs..][..outputs]);
                twin.multiply(
                    x_type,
                    &x_widened[row * inputs..][..inputs],
                    Epilogue { residual, ..case.epilogue },
                )
            })
            .map(|value| T::from_f32(value).to_f32())
            .collect();
        for (level, threads) in
            KernelLevel::available().into_iter().flat_map(|level| [(level, 1), (level, 3)])
        {
            let mut out = vec![T::from_f32(9.0); rows * outputs];
            let Epilogue { bias, activation, .. } = case.epilogue;
            let epilogue = Epilogue { bias, activation, residual: residual.as_deref() };
            kernel.multiply(&x, epilogue, &mut out, Launch { level, threads }).unwrap();
            for (at, (have, &want)) in out.iter().zip(&want).enumerate() {
                let (row, output, have) = (at / outputs, at % outputs, have.to_f32());
                assert!(
                    same(have, want),
                    "{weight_type:?} {level:?} {threads} threads, {rows}x{inputs}x{outputs}: row {row} output {output} is {have:e}, not {want:e}"
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
    for (inputs, outputs) in
        [(1, 1), (2, 16), (3, 17), (31, 15), (40, 120), (64, 33), (255, 48), (258, 31), (601, 150)]
    {
        for rows in [1, 2, 3, 4, 5, 7, 8, 9, 13, 17, 48, 50] {
            let weights = numbers(1, inputs * outputs);
            let x = numbers(2, rows * inputs);
            let (bias, residual) = (numbers(3, outputs), numbers(4, rows * outputs));
            let (bias, residual) = (Some(&bias[..]), Some(&residual[..]));
            let all = Epilogue { bias, activation: Activation::None, residual };
            let some = [
                Epilogue::default(),
                Epilogue { residual: None, ..all },
                Epilogue { bias: None, ..all },
                Epilogue { residual: None, activation: Activation::GeluTanh, ..all },
                Epilogue { bias: None, activation: Activation::GeluErf, ..all },
            ];
            let some = if rows < 9 { &some[..] } else { &[] };
            for &epilogue in some.iter().chain([&all]) {
                check_both(&Case { weights: &weights, x: &x, inputs, epilogue });
            }
        }
    }
}

/// Overflow, denormal numbers, signed zeros and cancellation.
#[test]
fn extreme_values_equal_the_twin() {
    let inputs = 67;
    let scaled = |seed, count, factor: f32| {
        numbers(seed, count).into_iter().map(|value| value * factor).collect::<Vec<f32>>()
    };
    let factors = [
        (3e38, 3e38),
        (30.0, 10.0),
        (1e13, 1.0),
        (6e4, 1e-45),
        (1e-7, 1e-38),
        (1e-40, 1.0),
        (1.0, 1e-40),
        (-0.0, 1.0),
        (1.0, -0.0),
    ];
    // One row over two tiles and one, a few rows, and many.
    for (outputs, rows) in [(40, 1), (16, 3), (16, 4)] {
        for (weight_factor, x_factor) in factors {
            let weights = scaled(5, inputs * outputs, weight_factor);
            let x = scaled(6, rows * inputs, x_factor);
            for activation in [Activation::None, Activation::GeluTanh, Activation::GeluErf] {
                let epilogue = Epilogue { activation, ..Epilogue::default() };
                check_both(&Case { weights: &weights, x: &x, inputs, epilogue });
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let (inputs, outputs) = (97, 20);
    let weights = numbers(7, inputs * outputs);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in [5, 96] {
            let mut x = numbers(8, 3 * inputs);
            x[inputs + place] = bad;
            check_both(&Case { weights: &weights, x: &x, inputs, epilogue: Epilogue::default() });
            let mut out = vec![0f32; 3 * outputs];
            let launch = Launch { level: KernelLevel::best(), threads: 1 };
            packed(SourceType::Bf16, &weights, inputs, 1)
                .multiply(&x, Epilogue::default(), &mut out, launch)
                .unwrap();
            for (row, values) in out.chunks(outputs).enumerate() {
                assert!(values.iter().all(|value| value.is_finite() == (row != 1)), "row {row}: {values:?}");
            }
        }
    }
}

/// Texts would depend on what is served beside them.
#[test]
fn the_rows_beside_a_row_do_not_change_a_bit() {
    let (inputs, outputs, rows) = (515, 72, 300);
    let (weights, x) = (numbers(9, inputs * outputs), numbers(10, rows * inputs));
    for weight_type in TYPES {
        let kernel = packed(weight_type, &weights, inputs, 2);
        for level in KernelLevel::available() {
            let mut whole = vec![0f32; rows * outputs];
            kernel.multiply(&x, Epilogue::default(), &mut whole, Launch { level, threads: 1 }).unwrap();
            for (first, count) in (0..20)
                .map(|first| (first * 13, 1))
                .chain((2..52).map(|count| (count * 3, count)))
                .chain([(1, 257), (250, 50)])
            {
                let mut some = vec![0f32; count * outputs];
                let launch = Launch { level, threads: 1 + (count % 3) as u32 };
                kernel
                    .multiply(&x[first * inputs..][..count * inputs], Epilogue::default(), &mut some, launch)
                    .unwrap();
                assert!(
                    some == whole[first * outputs..][..count * outputs],
                    "{weight_type:?} {launch:?} {count} rows from {first}"
                );
            }
        }
    }
}

/// Parts that begin and end within tiles, either layout, every type, any address, any number of threads: the same
/// bytes.
#[test]
fn packing_does_not_depend_on_how_the_tensor_stands() {
    let (inputs, outputs) = (73, 61);
    // Numbers that all types hold.
    let weights: Vec<f32> =
        numbers(11, inputs * outputs).into_iter().map(|value| (value * 60.0).round() / 64.0).collect();
    let transposed: Vec<f32> = (0..inputs)
        .flat_map(|k| (0..outputs).map(move |row| row * inputs + k))
        .map(|at| weights[at])
        .collect();
    // One byte more, so that the numbers begin at an odd address.
    let file = |values: &[f32], source_type| [&[0][..], &bytes_of(values, source_type)].concat();
    for (weight_type, source_type) in TYPES.into_iter().flat_map(|to| TYPES.map(|from| (to, from))) {
        if weight_type == SourceType::F16 && source_type != SourceType::F16 {
            continue;
        }
        let want = twin::Weights::new(weight_type, &weights, inputs).packed();
        for threads in [1, 2, 5] {
            for (values, is_transposed) in [(&weights, false), (&transposed, true)] {
                let bytes = file(values, source_type);
                let mut whole = PackedWeights::new(weight_type, outputs, inputs).unwrap();
                let source = Source { bytes: &bytes[1..], source_type, rows: outputs, is_transposed };
                whole.pack(0, source, threads).unwrap();
                assert!(
                    whole.packed() == want,
                    "{weight_type:?} from {source_type:?}, {threads} threads, transposed {is_transposed}"
                );
            }
            let mut parts = PackedWeights::new(weight_type, outputs, inputs).unwrap();
            for (first, rows) in [(0, 23), (23, 1), (24, 30), (54, 7)] {
                let bytes = file(&weights[first * inputs..][..rows * inputs], source_type);
                let source = Source { bytes: &bytes[1..], source_type, rows, is_transposed: false };
                parts.pack(first, source, threads).unwrap();
            }
            assert!(
                parts.packed() == want,
                "{weight_type:?} from {source_type:?}, {threads} threads, in parts"
            );
        }
    }
}

/// A half of each kind, multiplied with one: subnormals, the largest, zeros, what is not finite.
#[test]
fn every_half_is_widened_exactly() {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let bytes: Vec<u8> = halves.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let mut weights = PackedWeights::new(SourceType::F16, halves.len(), 1).unwrap();
    let source =
        Source { bytes: &bytes, source_type: SourceType::F16, rows: halves.len(), is_transposed: false };
    weights.pack(0, source, 1).unwrap();
    for level in KernelLevel::available() {
        let mut out = vec![0f32; halves.len()];
        weights.multiply(&[1.0], Epilogue::default(), &mut out, Launch { level, threads: 1 }).unwrap();
        for (&bits, &have) in halves.iter().zip(&out) {
            // A sum that begins with zero has no negative zero.
            let want = f16::from_bits(bits).to_f32() + 0.0;
            assert!(same(have, want), "{level:?} {bits:04x}: {have:e}, not {want:e}");
        }
    }
}

#[test]
fn products_are_near_the_exact_ones() {
    let (inputs, outputs) = (4096, 32);
    let (weights, x) = (numbers(12, inputs * outputs), numbers(13, inputs));
    for weight_type in TYPES {
        let exact: Vec<f64> = weights
            .chunks(inputs)
            .map(|row| {
                let each = row
                    .iter()
                    .zip(&x)
                    .map(|(&w, &x)| f64::from(twin::rounded(weight_type, w)) * f64::from(x));
                each.sum()
            })
            .collect();
        let mut out = vec![0f32; outputs];
        let launch = Launch { level: KernelLevel::best(), threads: 1 };
        packed(weight_type, &weights, inputs, 1).multiply(&x, Epilogue::default(), &mut out, launch).unwrap();
        let largest = exact.iter().fold(0f64, |most, value| most.max(value.abs()));
        let error =
            out.iter().zip(&exact).fold(0f64, |most, (&have, want)| most.max((f64::from(have) - want).abs()));
        assert!(error / largest < 1e-5, "{weight_type:?}: {}", error / largest);
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let weights = packed(SourceType::Bf16, &numbers(1, 8 * 4), 8, 1);
    let launch = Launch { level: KernelLevel::best(), threads: 1 };
    let mut out = [0f32; 8];
    assert!(weights.multiply(&[0.0; 16], Epilogue::default(), &mut out, launch).is_ok());
    assert!(weights.multiply(&[0.0; 15], Epilogue::default(), &mut out, launch).is_err());
    let narrow_bias = Epilogue { bias: Some(&[0.0; 3]), ..Epilogue::default() };
    assert!(weights.multiply(&[0.0; 16], narrow_bias, &mut out, launch).is_err());
    let short_residual = Epilogue { residual: Some(&[0.0; 7]), ..Epilogue::default() };
    assert!(weights.multiply(&[0.0; 16], short_residual, &mut out, launch).is_err());
    assert!(weights.multiply(&[0.0; 8], Epilogue::default(), &mut out[..7], launch).is_err());
    assert!(weights.multiply::<f32>(&[], Epilogue::default(), &mut [], launch).is_ok());
    assert!(weights.multiply::<bf16>(&[], Epilogue::default(), &mut [], launch).is_ok());
    let source = |bytes, source_type, rows| Source { bytes, source_type, rows, is_transposed: false };
    let mut room = PackedWeights::new(SourceType::F16, 4, 8).unwrap();
    assert!(room.pack(0, source(&[0; 64], SourceType::F16, 4), 1).is_ok());
    assert!(room.pack(1, source(&[0; 64], SourceType::F16, 4), 1).is_err());
    assert!(room.pack(0, source(&[0; 63], SourceType::F16, 4), 1).is_err());
    assert!(room.pack(0, source(&[0; 64], SourceType::Bf16, 4), 1).is_err());
    for (outputs, inputs) in [(0, 8), (8, 0), (8, (1 << 24) + 1), (usize::MAX, 8)] {
        assert!(PackedWeights::new(SourceType::Bf16, outputs, inputs).is_err(), "{outputs}x{inputs}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_shape_equals_the_twin(
        inputs in 1usize..400, outputs in 1usize..50, rows in 1usize..12, seed in any::<u64>(), spread in -20i32..20,
    ) {
        let scaled = |values: Vec<f32>| values.into_iter().map(|value| value * 2f32.powi(spread)).collect::<Vec<f32>>();
        let (weights, x) = (numbers(seed, inputs * outputs), scaled(numbers(!seed, rows * inputs)));
        check_both(&Case { weights: &weights, x: &x, inputs, epilogue: Epilogue::default() });
    }
}
