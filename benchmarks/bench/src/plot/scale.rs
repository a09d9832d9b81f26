//! Axes: from values to pixels, and where the ticks stand.

/// Above this factor between the largest and the smallest value an axis is logarithmic.
const LOGARITHMIC_FROM: f64 = 20.0;

/// One axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Pixels of `low` and `high`.
    from: f64,
    to: f64,
}

impl Axis {
    /// From 0, or logarithmic where the values are far apart.
    pub(super) fn of(values: &[f64], from: f64, to: f64) -> Axis {
        let positive = values.iter().copied().filter(|value| value.is_finite() && *value > 0.0);
        let (least, most) =
            positive.fold((f64::INFINITY, 0.0f64), |(l, m), value| (l.min(value), m.max(value)));
        if most == 0.0 {
            return Axis { low: 0.0, high: 1.0, logarithmic: false, from, to };
        }
        if most / least > LOGARITHMIC_FROM {
            let (low, high) = (10f64.powf((least.log10() * 2.0).floor() / 2.0), most * 1.15);
            return Axis { low, high, logarithmic: true, from, to };
        }
        Axis::linear(most, from, to)
    }

    /// From 0 to a little more than `most`.
    pub(super) fn linear(most: f64, from: f64, to: f64) -> Axis {
        let most = if most > 0.0 { most } else { 1.0 };
        Axis { low: 0.0, high: most * 1.08, logarithmic: false, from, to }
    }

    /// Between two values that are both shown.
    pub(super) fn between(low: f64, high: f64, from: f64, to: f64) -> Axis {
        Axis { low, high, logarithmic: false, from, to }
    }

    /// Logarithmic between two values.
    pub(super) fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Axis {
        Axis { low, high: high.max(low * 1.01), logarithmic: true, from, to }
    }

    /// Pixels of its two ends.
    pub(super) fn ends(&self) -> (f64, f64) {
        (self.from, self.to)
    }

    pub(super) fn is_logarithmic(&self) -> bool {
        self.logarithmic
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Values of the ticks, four to nine of them.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let even = || -> Vec<f64> {
            let step = step_of(self.high - self.low);
            let first = (self.low / step).ceil() as i64;
            (first..).map(|i| i as f64 * step).take_while(|tick| *tick <= self.high * 1.0001).collect()
        };
        if !self.logarithmic {
            return even();
        }
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let all = |steps: &[f64]| -> Vec<f64> {
            let each = decades.clone().flat_map(|d| steps.iter().map(move |step| step * 10f64.powi(d)));
            each.filter(|tick| (self.low * 0.999..=self.high).contains(tick)).collect()
        };
        let few = all(&[1.0]);
        let more = if few.len() >= 4 { few } else { all(&[1.0, 2.0, 5.0]) };
        // A narrow one has hardly any of these.
        if more.len() >= 3 { more } else { even() }
    }
}

/// 1, 2 or 5 times a power of ten: at least an eighth of the range.
fn step_of(range: f64) -> f64 {
    let raw = range / 8.0;
    let power = 10f64.powf(raw.log10().floor());
    let factor =
        [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| raw <= factor * power * 1.0001).unwrap_or(10.0);
    factor * power
}

/// A tick's text: no more digits than it needs.
pub(super) fn tick_text(value: f64) -> String {
    let size = value.abs();
    if size > 0.0 && size < 9.5e-5 {
        return format!("{value:.0e}");
    }
    let text = if size > 0.0 && size < 0.01 { format!("{value:.4}") } else { format!("{value:.2}") };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_all_values_and_have_a_few_round_ticks() {
        let cases: [&[f64]; 6] =
            [&[3.0, 17.0], &[0.4, 0.8, 1.6], &[1.0, 5000.0], &[0.02, 0.03], &[850.0], &[1e-3, 1e3]];
        for values in cases {
            let axis = Axis::of(values, 100.0, 0.0);
            let ticks = axis.ticks();
            assert!((3..=14).contains(&ticks.len()), "{values:?}: {ticks:?}");
            for value in values {
                assert!((0.0..=100.0).contains(&axis.at(*value)), "{value}");
            }
            assert!(ticks.windows(2).all(|pair| axis.at(pair[0]) > axis.at(pair[1])), "{ticks:?}");
        }
        let narrow = Axis::logarithmic(0.95, 1.05, 0.0, 100.0).ticks();
        assert!(narrow.len() >= 3 && narrow.iter().any(|tick| (tick - 1.0).abs() < 1e-9), "{narrow:?}");
        assert!(!Axis::of(&[], 0.0, 1.0).ticks().is_empty());
        let texts = [
            (0.0, "0"),
            (0.5, "0.5"),
            (1000.0, "1000"),
            (0.005, "0.005"),
            (20.0, "20"),
            (1e-4, "0.0001"),
            (1e-5, "1e-5"),
        ];
        for (value, text) in texts {
            assert_eq!(tick_text(value), text);
        }
    }
}
