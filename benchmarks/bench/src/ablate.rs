//! What a comparison says: medians of each variant, and ratios to the base of the same round with their spread.

use crate::bootstrap::{Ratio, median};
use crate::results::RunRecord;
use crate::table::{self, number};
use serde::{Deserialize, Serialize};

/// One figure that is compared.
pub(crate) struct Metric {
    pub name: &'static str,
    pub title: &'static str,
    pub more_is_better: bool,
    pub of: fn(&RunRecord) -> f64,
}

/// All of them; a scenario names those that it wants.
#[rustfmt::skip]
pub(crate) const METRICS: &[Metric] = &[
    Metric { name: "output_tok_s", title: "output tok/s", more_is_better: true, of: |run| run.figures.output_tokens_per_s },
    Metric { name: "req_s", title: "req/s", more_is_better: true, of: |run| run.figures.requests_per_s },
    Metric { name: "goodput", title: "goodput share", more_is_better: true,
        of: |run| run.figures.goodput.map_or(f64::NAN, |goodput| goodput.share) },
    Metric { name: "ttft_p50_ms", title: "TTFT p50", more_is_better: false, of: |run| run.figures.ttft_ms.p50 },
    Metric { name: "ttft_p99_ms", title: "TTFT p99", more_is_better: false, of: |run| run.figures.ttft_ms.p99 },
    Metric { name: "tpot_p50_ms", title: "TPOT p50", more_is_better: false, of: |run| run.figures.tpot_ms.p50 },
    Metric { name: "tpot_p99_ms", title: "TPOT p99", more_is_better: false, of: |run| run.figures.tpot_ms.p99 },
    Metric { name: "itl_p99_ms", title: "ITL p99", more_is_better: false, of: |run| run.figures.itl_ms.p99 },
    Metric { name: "e2e_p50_ms", title: "E2E p50", more_is_better: false, of: |run| run.figures.e2e_ms.p50 },
    Metric { name: "e2e_p99_ms", title: "E2E p99", more_is_better: false, of: |run| run.figures.e2e_ms.p99 },
];

/// Pairs below which nothing is called a win: one odd round would decide.
pub(crate) const PAIRS_MIN: usize = 3;

/// Which side is better beyond the spread of the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Base,
    Variant,
    Same,
}

/// One variant against the base in one figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Compared {
    pub label: String,
    pub scale: f64,
    pub metric: String,
    pub median: f64,
    pub base_median: f64,
    /// Median over the rounds of variant / base, and its interval.
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
    pub pairs: usize,
    pub better: Verdict,
}

impl Compared {
    /// How far the ratio is from 1, the same for a half and for twice.
    pub(crate) fn effect(&self) -> f64 {
        let effect = self.ratio.ln().abs();
        if effect.is_finite() { effect } else { 0.0 }
    }
}

fn verdict(ratio: &Ratio, more_is_better: bool) -> Verdict {
    if ratio.pairs < PAIRS_MIN || (ratio.low..=ratio.high).contains(&1.0) || ratio.median.is_nan() {
        return Verdict::Same;
    }
    if (ratio.median > 1.0) == more_is_better { Verdict::Variant } else { Verdict::Base }
}

/// In the order of the runs, without repetition.
pub(crate) fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// Compares every variant with `base`, scale by scale, in the figures named (all, if none are).
pub(crate) fn compare(runs: &[RunRecord], base: &str, metrics: &[String], seed: u64) -> Vec<Compared> {
    let wanted = |metric: &&Metric| metrics.is_empty() || metrics.iter().any(|name| name == metric.name);
    let mut compared = Vec::new();
    for scale in distinct(runs.iter().map(|run| run.scale)) {
        let at_scale: Vec<&RunRecord> = runs.iter().filter(|run| run.scale == scale).collect();
        let mut labels = distinct(at_scale.iter().map(|run| run.label.as_str()));
        labels.sort_by_key(|label| *label != base);
        for label in labels {
            for metric in METRICS.iter().filter(wanted) {
                let values = |label: &str| -> Vec<(u32, f64)> {
                    let own = at_scale.iter().filter(|run| run.label == label);
                    own.map(|run| (run.round, (metric.of)(run)))
                        .filter(|(_, value)| value.is_finite())
                        .collect()
                };
                let (own, bases) = (values(label), values(base));
                let ratios: Vec<f64> = own
                    .iter()
                    .filter_map(|(round, value)| {
                        let (_, other) = bases.iter().find(|(of_base, _)| of_base == round)?;
                        (*other > 0.0).then_some(value / other)
                    })
                    .collect();
                if ratios.is_empty() {
                    continue;
                }
                let ratio = Ratio::of(&ratios, seed);
                let plain =
                    |values: &[(u32, f64)]| median(&values.iter().map(|(_, v)| *v).collect::<Vec<_>>());
                compared.push(Compared {
                    label: label.to_owned(),
                    scale,
                    metric: metric.name.to_owned(),
                    median: plain(&own),
                    base_median: plain(&bases),
                    ratio: ratio.median,
                    low: ratio.low,
                    high: ratio.high,
                    pairs: ratio.pairs,
                    better: if label == base {
                        Verdict::Same
                    } else {
                        verdict(&ratio, metric.more_is_better)
                    },
                });
            }
        }
    }
    compared
}

/// One table for each figure of each scale, narrow enough for a terminal: medians, ratios with their interval, and
/// which side wins. The base is first, then the strongest effect.
pub(crate) fn tables(compared: &[Compared], base: &str) -> String {
    let mut out = String::new();
    let scales = distinct(compared.iter().map(|row| row.scale));
    for scale in &scales {
        if *scale > 0.0 && scales.len() > 1 {
            out.push_str(&format!("scale {}\n\n", number(*scale)));
        }
        let rows: Vec<&Compared> = compared.iter().filter(|row| row.scale == *scale).collect();
        for metric in distinct(rows.iter().map(|row| row.metric.as_str())) {
            let mut rows: Vec<&Compared> = rows.iter().copied().filter(|row| row.metric == metric).collect();
            rows.sort_by(|a, b| {
                (b.label == base).cmp(&(a.label == base)).then(b.effect().total_cmp(&a.effect()))
            });
            let title = METRICS.iter().find(|known| known.name == metric).map_or(metric, |known| known.title);
            let header = [title, "pairs", "median", "of base (interval)", "better"];
            out.push_str(&table::render(
                &header,
                &rows.into_iter().map(|row| line(row, base)).collect::<Vec<_>>(),
            ));
            out.push('\n');
        }
    }
    out
}

fn line(row: &Compared, base: &str) -> Vec<String> {
    let is_base = row.label == base;
    let ratio = format!("×{:.3} ({:.3}–{:.3})", row.ratio, row.low, row.high);
    let better = match row.better {
        Verdict::Same => "same",
        Verdict::Base => "base",
        Verdict::Variant => "VARIANT",
    };
    vec![
        row.label.clone(),
        row.pairs.to_string(),
        number(row.median),
        if is_base { "–".to_owned() } else { ratio },
        if is_base { "–" } else { better }.to_owned(),
    ]
}

/// How the seed project writes a switch: `-x` for a default that is turned off, `+y` for something turned on.
pub(crate) fn label_of(flags: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in flags.split_whitespace() {
        let named = word.strip_prefix("--").map(|name| match name.strip_prefix("no-") {
            Some(off) => format!("-{off}"),
            None => format!("+{}", name.replace('=', " ")),
        });
        words.push(named.unwrap_or_else(|| word.to_owned()));
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(label: &str, round: u32, tokens_per_s: f64, p99: f64) -> RunRecord {
        let mut record = RunRecord { label: label.to_owned(), round, ..RunRecord::default() };
        record.figures.output_tokens_per_s = tokens_per_s;
        record.figures.e2e_ms.p99 = p99;
        record
    }

    #[test]
    fn ratios_are_paired_by_round_and_judged_by_direction() {
        let mut runs = Vec::new();
        for round in 0..6 {
            // The machine slows down over the rounds; both slow down alike.
            let pace = 1.0 - 0.1 * f64::from(round);
            runs.push(run("base", round, 100.0 * pace, 50.0 / pace));
            runs.push(run("-x", round, (90.0 + f64::from(round % 2)) * pace, 50.0 / pace));
            runs.push(run("+y", round, 100.0 * pace, 40.0 / pace));
        }
        runs.push(run("+y", 9, 1.0, 1.0)); // a round without its base counts for nothing
        let metrics = ["output_tok_s", "e2e_p99_ms"].map(str::to_owned);
        let compared = compare(&runs, "base", &metrics, 1);
        let of = |label: &str, metric: &str| {
            let found = compared.iter().find(|row| row.label == label && row.metric == metric);
            let row = found.expect("compared");
            ((row.ratio * 1000.0).round() / 1000.0, row.pairs, row.better)
        };
        assert_eq!(of("-x", "output_tok_s"), (0.905, 6, Verdict::Base));
        assert_eq!(of("-x", "e2e_p99_ms"), (1.0, 6, Verdict::Same));
        assert_eq!(of("+y", "e2e_p99_ms"), (0.8, 6, Verdict::Variant));
        let text = tables(&compared, "base");
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let row = |title: &str, label: &str| {
            let table =
                words.iter().skip_while(|words| !words.join(" ").starts_with(&format!("| {title} |")));
            let row = table.skip(2).find(|words| words.get(1) == Some(&label)).expect("a row");
            row[row.len() - 2].to_owned()
        };
        assert_eq!(
            (row("output tok/s", "-x"), row("output tok/s", "+y")),
            ("base".into(), "same".into()),
            "{text}"
        );
        assert_eq!((row("E2E p99", "-x"), row("E2E p99", "+y")), ("same".into(), "VARIANT".into()), "{text}");
    }

    #[test]
    fn tables_are_narrow_and_have_the_strongest_effect_first() {
        let mut runs = Vec::new();
        for round in 0..3 {
            for (label, factor) in
                [("+a", 1.1), ("+max-num-batched-tokens 8192", 0.5), ("base", 1.0), ("+c", 1.6), ("+d", 1.0)]
            {
                runs.push(run(label, round, 123_456.0 * factor, 1234.5 * factor));
            }
        }
        let text = tables(&compare(&runs, "base", &[], 1), "base");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let first: Vec<&str> = text.lines().filter_map(|line| line.split(" | ").next()).take(7).collect();
        let names: Vec<&str> = first[2..].iter().map(|cell| cell.trim_matches(['|', ' '])).collect();
        assert_eq!(names, ["base", "+max-num-batched-tokens 8192", "+c", "+a", "+d"], "{text}");
    }

    #[test]
    fn switches_are_named_as_the_seed_names_them() {
        let cases = [
            ("--no-prefix-cache", "-prefix-cache"),
            ("--linear plain", "+linear plain"),
            ("--admission=pack --no-pin", "+admission pack -pin"),
        ];
        for (flags, label) in cases {
            assert_eq!(label_of(flags), label);
        }
    }
}
