//! Integers of a checkpoint, packed as they are: the twin's layout, and the twin's products at every level.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use pinion_ops::quantized::{IntegerLaunch, Integers, QuantizedWeights, WeightForm, twin};
use pinion_ops::{Epilogue, IntegerLevel};
use pinion_random::nth;

struct Case {
    form: WeightForm,
    inputs: usize,
    values: Vec<i8>,
    scales: Vec<f32>,
}

impl Case {
    fn new(form: WeightForm, outputs: usize, inputs: usize, values: impl Fn(u64) -> i8) -> Self {
        let groups = match form {
            WeightForm::Int8 => 1,
            WeightForm::Int4 { group } => inputs.div_ceil(group as usize),
        };
        let values = (0..(outputs * inputs) as u64).map(values).collect();
        let scale = |step: u64| (nth(7, step + 1) >> 40) as f32 / (1u64 << 24) as f32 + 0.01;
        Self { form, inputs, values, scales: (0..(outputs * groups) as u64).map(scale).collect() }
    }

    fn check(&self, threads: u32) {
        let (form, inputs, outputs) = (self.form, self.inputs, self.values.len() / self.inputs);
        let groups = self.scales.len() / outputs;
        let twin = twin::Weights::of_integers(form, self.values.clone(), self.scales.clone(), inputs);
        let mut packed = QuantizedWeights::new(form, outputs, inputs).unwrap();
        // In parts that begin and end within tiles.
        for (first, end) in [(0, outputs / 3), (outputs / 3, outputs)] {
            let integers = Integers {
                values: &self.values[first * inputs..end * inputs],
                scales: &self.scales[first * groups..end * groups],
            };
            packed.pack_integers(first, integers, threads).unwrap();
        }
        assert_eq!(packed.packed(), twin.packed(), "{form:?} {outputs}x{inputs}");
        for x in
            [1.0, -1.0, 0.37].map(|sign| (0..inputs).map(move |k| if k % 5 == 4 { sign / 3.0 } else { sign }))
        {
            let x: Vec<f32> = x.collect();
            let want = twin.multiply(&x, Epilogue::default());
            for level in IntegerLevel::available() {
                let mut out = vec![0f32; outputs];
                packed
                    .multiply(&x, Epilogue::default(), &mut out, IntegerLaunch { level, threads: 1 })
                    .unwrap();
                assert_eq!(out, want, "{form:?} {outputs}x{inputs} {level:?}");
            }
        }
    }
}

#[test]
fn integers_are_packed_as_the_twin_has_them() {
    for (outputs, inputs) in [(3, 32), (16, 64), (37, 96), (50, 160), (48, 256)] {
        for threads in [1, 3] {
            Case::new(WeightForm::Int8, outputs, inputs, |step| nth(1, step + 1) as i8).check(threads);
            for group in [32, 64, 128].into_iter().filter(|&group| inputs.is_multiple_of(group as usize)) {
                let form = WeightForm::Int4 { group };
                Case::new(form, outputs, inputs, |step| (nth(2, step + 1) % 16) as i8 - 8).check(threads);
            }
        }
    }
}

/// All weights at the ends of their range, -128 among them, which no rounding of ours gives: a sum that saturates would
/// show.
#[test]
fn extreme_integers_equal_the_twin() {
    for value in [-128, -127, 127] {
        Case::new(WeightForm::Int8, 16, 4096, |_| value).check(1);
        Case::new(
            WeightForm::Int8,
            16,
            256,
            |step| if step % 3 == 0 { -value.saturating_abs() } else { value },
        )
        .check(1);
    }
    for value in [-8, 7] {
        Case::new(WeightForm::Int4 { group: 128 }, 16, 4096, |_| value).check(1);
    }
    // The longest product stays within 32 bits.
    Case::new(WeightForm::Int8, 3, 131_072, |_| -128).check(1);
}

#[test]
fn integers_that_do_not_fit_are_refused() {
    let mut eight = QuantizedWeights::new(WeightForm::Int8, 4, 8).unwrap();
    let mut four = QuantizedWeights::new(WeightForm::Int4 { group: 32 }, 4, 64).unwrap();
    let integers = |values: &'static [i8], scales: &'static [f32]| Integers { values, scales };
    assert!(eight.pack_integers(0, integers(&[1; 32], &[1.0; 4]), 1).is_ok());
    assert!(eight.pack_integers(1, integers(&[1; 32], &[1.0; 4]), 1).is_err());
    assert!(eight.pack_integers(usize::MAX, integers(&[1; 32], &[1.0; 4]), 1).is_err());
    assert!(eight.pack_integers(0, integers(&[1; 31], &[1.0; 4]), 1).is_err());
    assert!(eight.pack_integers(0, integers(&[1; 32], &[1.0; 3]), 1).is_err());
    assert!(eight.pack_integers(4, integers(&[], &[]), 1).is_ok());
    assert!(four.pack_integers(0, integers(&[-8; 256], &[1.0; 8]), 2).is_ok());
    assert!(four.pack_integers(0, integers(&[8; 256], &[1.0; 8]), 2).is_err());
    assert!(four.pack_integers(0, integers(&[-9; 256], &[1.0; 8]), 2).is_err());
}
