//! What a comparison may say. It names a winner only with [`ROUNDS_MIN`] paired rounds, none of them missing and every
//! request answered in full, with a noise band of [`INERT_MIN`] variants that cannot act on the workload, and with the
//! samples that a percentile takes. A side wins when the whole interval of its ratio lies outside the band. Otherwise
//! the ratio stands alone, with the reason.

use crate::bootstrap::Ratio;
use serde::{Deserialize, Serialize};

/// Paired rounds that a verdict takes; also the rounds of a scenario that names none.
pub(crate) const ROUNDS_MIN: usize = 5;
/// Variants that cannot act, without which there is no band. With fewer, chance alone often keeps all of them near 1.
pub(crate) const INERT_MIN: usize = 3;

/// The noise of one figure: the largest effect, to either side, of a variant that cannot act.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Band {
    pub low: f64,
    pub high: f64,
    /// How many variants it stands on.
    pub variants: usize,
}

impl Band {
    /// `inert` has the ratios of the variants that cannot act.
    fn of(inert: &[Ratio]) -> Option<Band> {
        let whole = inert.iter().filter(|ratio| ratio.pairs >= ROUNDS_MIN);
        let effects: Vec<f64> = whole.map(|ratio| ratio.median.ln().abs()).collect();
        let width = effects.iter().copied().fold(0.0, f64::max);
        let enough = effects.len() >= INERT_MIN && effects.iter().all(|effect| effect.is_finite());
        enough.then(|| Band { low: (-width).exp(), high: width.exp(), variants: effects.len() })
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        format!("×{:.3}–{:.3}, from {} variants that cannot act", self.low, self.high, self.variants)
    }
}

/// The noise of one figure as far as the rounds gave it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noise {
    pub band: Option<Band>,
    /// Variants that cannot act, whatever they measured.
    named: usize,
}

impl Noise {
    /// `inert` has the ratios of those of the `named` variants that cannot act whose runs are fit for a verdict.
    pub(crate) fn of(inert: &[Ratio], named: usize) -> Noise {
        Noise { band: Band::of(inert), named }
    }
}

/// Which side is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Base,
    Variant,
    /// No difference beyond the noise.
    Same,
}

/// The verdict, or why there is none. `unfit` says what the runs themselves lack.
pub(crate) fn judge(
    ratio: &Ratio,
    noise: Noise,
    more_is_better: bool,
    unfit: Option<String>,
) -> Result<Verdict, String> {
    if let Some(reason) = unfit {
        return Err(reason);
    }
    if ratio.pairs < ROUNDS_MIN {
        return Err(format!("no verdict: {} of the {ROUNDS_MIN} paired rounds that it takes", ratio.pairs));
    }
    let Some(band) = noise.band else {
        let reason = match noise.named {
            0 => "the scenario has no variant that cannot act on this workload".to_owned(),
            found if found < INERT_MIN => {
                format!("{found} of the {INERT_MIN} variants that cannot act, which a noise band takes")
            }
            _ => format!(
                "fewer than {INERT_MIN} variants that cannot act have {ROUNDS_MIN} whole rounds and the samples"
            ),
        };
        return Err(format!("no verdict: {reason}"));
    };
    let beyond = ratio.low > band.high || ratio.high < band.low;
    Ok(match (beyond, (ratio.median > 1.0) == more_is_better) {
        (false, _) => Verdict::Same,
        (true, true) => Verdict::Variant,
        (true, false) => Verdict::Base,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(median: f64, low: f64, high: f64, pairs: usize) -> Ratio {
        Ratio { median, low, high, pairs }
    }

    fn inert(medians: &[f64]) -> Noise {
        let ratios: Vec<Ratio> = medians.iter().map(|median| ratio(*median, 0.5, 2.0, ROUNDS_MIN)).collect();
        Noise::of(&ratios, ratios.len())
    }

    #[test]
    fn the_band_is_the_largest_effect_of_what_cannot_act() {
        let band = inert(&[0.98, 1.01, 1.06]).band.expect("three");
        assert!((band.high - 1.06).abs() < 1e-9 && (band.low - 1.0 / 1.06).abs() < 1e-9, "{band:?}");
        let below = inert(&[0.9, 1.0, 1.0]).band.expect("three");
        assert!((below.high - 1.0 / 0.9).abs() < 1e-9, "it counts to both sides: {below:?}");
        assert_eq!(inert(&[0.98, 1.01]).band, None);
        assert_eq!(inert(&[0.98, 1.01, f64::NAN]).band, None);
        assert_eq!(inert(&[0.98, 1.01, 0.0]).band, None);
        let few = [ratio(1.0, 1.0, 1.0, 5), ratio(1.0, 1.0, 1.0, 5), ratio(1.0, 1.0, 1.0, 4)];
        assert_eq!(Noise::of(&few, 3).band, None, "one lacks a round");
    }

    #[test]
    fn a_winner_takes_rounds_a_band_and_an_interval_outside_of_it() {
        let noise = inert(&[1.0, 0.99, 1.03]);
        let judged = |found: Ratio, noise| judge(&found, noise, true, None);
        let far = |pairs| ratio(1.2, 1.1, 1.3, pairs);
        assert_eq!(judged(far(5), noise), Ok(Verdict::Variant));
        assert_eq!(judge(&far(5), noise, false, None), Ok(Verdict::Base));
        assert_eq!(judged(ratio(0.9, 0.85, 0.95, 5), noise), Ok(Verdict::Base));
        assert_eq!(judged(ratio(1.2, 1.02, 1.3, 5), noise), Ok(Verdict::Same), "the interval meets the band");
        assert_eq!(judged(ratio(1.02, 1.01, 1.025, 9), noise), Ok(Verdict::Same), "all of it is noise");
        let reason = |outcome: Result<Verdict, String>| outcome.expect_err("no verdict");
        assert!(reason(judged(far(3), noise)).contains("3 of the 5 paired rounds"));
        assert!(reason(judged(far(9), inert(&[]))).contains("no variant that cannot act"));
        assert!(reason(judged(far(9), inert(&[1.0]))).contains("1 of the 3 variants"));
        let few = judge(&far(9), noise, true, Some("a p99 takes more".to_owned()));
        assert_eq!(reason(few), "a p99 takes more");
    }
}
