//! Medians, and how far to trust a ratio of medians: the percentile bootstrap over paired rounds.

use crate::random::Random;

/// Resamples; the interval's ends then stand to about a tenth of the interval's width.
const RESAMPLES: usize = 4000;
const CONFIDENCE: f64 = 0.95;

/// NaN for no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[half],
        _ => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

/// Least and greatest; NaN for no values.
pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    (values.iter().copied().fold(f64::NAN, f64::min), values.iter().copied().fold(f64::NAN, f64::max))
}

/// The median of paired ratios with its 95 % interval. With fewer than five pairs a bootstrap says nothing: then the
/// interval is from the least to the greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub pairs: usize,
}

impl Ratio {
    pub(crate) fn of(ratios: &[f64], seed: u64) -> Ratio {
        let (low, high) = if ratios.len() < 5 { range(ratios) } else { interval(ratios, seed) };
        Ratio { median: median(ratios), low, high, pairs: ratios.len() }
    }
}

fn interval(values: &[f64], seed: u64) -> (f64, f64) {
    let mut random = Random::stream(seed, 0xb007);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let resample: Vec<f64> = values.iter().map(|_| values[random.below(values.len())]).collect();
            median(&resample)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let tail = ((1.0 - CONFIDENCE) / 2.0 * RESAMPLES as f64) as usize;
    (medians[tail], medians[RESAMPLES - 1 - tail])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(range(&[2.0, 1.0, 3.0]), (1.0, 3.0));
    }

    #[test]
    fn the_interval_holds_the_truth_about_as_often_as_it_says() {
        let mut random = Random::new(5);
        let mut held = 0;
        for seed in 0..200 {
            let ratios: Vec<f64> = (0..15).map(|_| 1.1 + 0.05 * (random.unit() - 0.5)).collect();
            let ratio = Ratio::of(&ratios, seed);
            assert!(ratio.low <= ratio.median && ratio.median <= ratio.high);
            held += usize::from(ratio.low <= 1.1 && 1.1 <= ratio.high);
        }
        assert!((175..=200).contains(&held), "{held} of 200");
        let few = Ratio::of(&[1.2, 1.0, 1.1], 0);
        assert_eq!((few.low, few.median, few.high, few.pairs), (1.0, 1.1, 1.2, 3));
    }
}
