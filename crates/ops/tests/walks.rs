//! The sampler's walks against their plain twins, at every level this machine has: the same bits. And work that is
//! dealt out over the kernels' threads.

use pinion_ops::KernelLevel;
use pinion_ops::team::deal;
use pinion_ops::walks::{Walks, find_above, twin};
use pinion_random::Random;

/// Around every length of a chunk, and a vocabulary.
fn lengths() -> impl Iterator<Item = usize> {
    (0..70).chain([127, 128, 129, 1000, 2049, 50257])
}

/// Rows of every kind: spread out, near each other, all equal, zeros of both signs, the ends of the range.
fn row(kind: usize, length: usize, random: &mut Random) -> Vec<f32> {
    let scale = [10.0, 1e-3, 0.0, 300.0, 3e38, 1e-42][kind % 6];
    (0..length).map(|_| scale * random.value()).collect()
}

fn levels() -> Vec<Walks> {
    KernelLevel::available().into_iter().map(Walks::at).collect()
}

#[test]
fn every_level_has_the_bits_of_the_twin() {
    let mut random = Random::new(7);
    let (mut have, mut want) = (Vec::new(), Vec::new());
    for length in lengths() {
        for kind in 0..6 {
            let logits = row(kind, length, &mut random);
            let max = twin::finite_max(&logits);
            for walks in levels() {
                let found = walks.finite_max(&logits);
                assert_eq!(found.map(f32::to_bits), max.map(f32::to_bits), "{walks:?} {length} {kind}");
                let max = max.unwrap_or(0.0);
                // The largest and the smallest temperatures, where 1 / t is infinite or 0.
                for inverse in [1.0, 1.0 / 0.7, 0.01, 1e30, f32::INFINITY, 0.0] {
                    let total = walks.weigh(&logits, max, inverse, &mut have);
                    let expected = twin::weigh(&logits, max, inverse, &mut want);
                    assert_eq!(total.to_bits(), expected.to_bits(), "{walks:?} {length} {kind} {inverse}");
                    let bits = |weights: &[f32]| weights.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&have), bits(&want), "{walks:?} {length} {kind} {inverse}");
                }
                let sum = walks.sum(&logits, max);
                assert_eq!(sum.to_bits(), twin::sum(&logits, max).to_bits(), "{walks:?} {length} {kind}");
                assert_eq!(sum.to_bits(), twin::weigh(&logits, max, 1.0, &mut want).to_bits());
            }
        }
    }
}

/// A million places from -100 to 0: roundings of the power up and down, and both ends.
#[test]
fn every_level_has_the_exp_of_the_twin() {
    let mut random = Random::new(11);
    let mut have = Vec::new();
    for round in 0..200u8 {
        let at = |step: u16| f32::from(round) * 0.5 + f32::from(step) / 10_000.0;
        let logit = |step| -at(step) - 1e-3 * random.value().abs();
        let logits: Vec<f32> = (0..5000).map(logit).collect();
        for walks in levels() {
            walks.weigh(&logits, 0.0, 1.0, &mut have);
            for (&logit, weight) in logits.iter().zip(&have) {
                assert_eq!(weight.to_bits(), twin::exp_nonpositive(logit).to_bits(), "{walks:?} {logit}");
                let near = f64::from(logit).exp();
                let apart = (f64::from(*weight) - near).abs();
                assert!(logit <= -87.0 || apart <= 5e-6 * near, "{logit}: {weight}, expected {near}");
            }
        }
    }
}

#[test]
fn one_value_that_is_not_finite_is_found_wherever_it_is() {
    for length in lengths().filter(|&length| length > 0 && length < 2100) {
        for at in (0..length).step_by(1 + length / 70) {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut logits = vec![1.0; length];
                logits[at] = bad;
                for walks in levels() {
                    assert_eq!(walks.finite_max(&logits), None, "{walks:?}: {bad} at {at} of {length}");
                }
                assert_eq!(twin::finite_max(&logits), None, "{bad} at {at} of {length}");
            }
        }
    }
}

#[test]
fn what_is_above_a_floor_is_found_in_order_and_the_floor_may_rise() {
    let mut random = Random::new(3);
    for length in lengths().filter(|&length| length < 2100) {
        let values = row(0, length, &mut random);
        let mut found = Vec::new();
        find_above(&values, 2.0, |at| {
            found.push(at);
            2.0
        });
        let want: Vec<usize> = (0..length).filter(|&at| values[at] >= 2.0).collect();
        assert_eq!(found, want);
        // Records: each value that none before it exceeds.
        let mut records = Vec::new();
        find_above(&values, f32::MIN, |at| {
            records.push(at);
            values[at]
        });
        let is_record = |&at: &usize| values[..at].iter().all(|before| *before <= values[at]);
        assert_eq!(records, (0..length).filter(is_record).collect::<Vec<_>>());
    }
}

#[test]
fn each_item_is_dealt_once_to_a_thread_with_a_state_of_its_own() {
    for threads in [1, 2, 3, 5] {
        for count in [0, 1, 2, 7, 500] {
            let mut items: Vec<(usize, u32)> = (0..count).map(|at| (at, 0)).collect();
            let mut states = vec![(0u64, None); threads];
            deal(&mut states, &mut items, |(done, thread), (_, times)| {
                *done += 1;
                *times += 1;
                let own = std::thread::current().id();
                assert_eq!(*thread.get_or_insert(own), own, "a state is one thread's");
            });
            assert!(items.iter().enumerate().all(|(at, item)| *item == (at, 1)), "{threads} {count}");
            assert_eq!(states.iter().map(|(done, _)| done).sum::<u64>(), count as u64);
        }
    }
}
