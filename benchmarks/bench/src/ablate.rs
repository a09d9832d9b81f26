//! What a comparison shows: medians of each variant, ratios to the base of the same round with their spread, and the
//! verdict, where [`crate::verdict`] allows one.

use crate::bootstrap::{Ratio, median};
use crate::figures::{Quantile, Spread};
use crate::results::RunRecord;
use crate::table::{self, number};
use crate::verdict::{Band, Noise, Verdict, judge};
use serde::{Deserialize, Serialize};

/// How a figure is taken out of a run.
pub(crate) enum Source {
    Plain(fn(&RunRecord) -> f64),
    /// Of these samples, which the word names.
    Percentile(Quantile, fn(&RunRecord) -> &Spread, &'static str),
}

/// One figure that is compared.
pub(crate) struct Metric {
    pub name: &'static str,
    pub title: &'static str,
    pub more_is_better: bool,
    pub source: Source,
}

const TTFT: (fn(&RunRecord) -> &Spread, &str) = (|run| &run.figures.ttft_ms, "requests");
const TPOT: (fn(&RunRecord) -> &Spread, &str) = (|run| &run.figures.tpot_ms, "requests");
const ITL: (fn(&RunRecord) -> &Spread, &str) = (|run| &run.figures.itl_ms, "gaps between tokens");
const E2E: (fn(&RunRecord) -> &Spread, &str) = (|run| &run.figures.e2e_ms, "requests");

/// All of them; a scenario names those that it wants.
pub(crate) const METRICS: &[Metric] = &[
    rate("output_tok_s", "output tok/s", |run| run.figures.output_tokens_per_s),
    rate("req_s", "req/s", |run| run.figures.requests_per_s),
    rate("goodput", "goodput share", |run| run.figures.goodput.map_or(f64::NAN, |goodput| goodput.share)),
    time("ttft_p50_ms", "TTFT p50", Quantile::P50, TTFT),
    time("ttft_p90_ms", "TTFT p90", Quantile::P90, TTFT),
    time("ttft_p99_ms", "TTFT p99", Quantile::P99, TTFT),
    time("tpot_p50_ms", "TPOT p50", Quantile::P50, TPOT),
    time("tpot_p90_ms", "TPOT p90", Quantile::P90, TPOT),
    time("tpot_p99_ms", "TPOT p99", Quantile::P99, TPOT),
    time("itl_p50_ms", "ITL p50", Quantile::P50, ITL),
    time("itl_p99_ms", "ITL p99", Quantile::P99, ITL),
    Metric {
        name: "itl_max_ms",
        title: "ITL max",
        more_is_better: false,
        source: Source::Plain(longest_gap_ms),
    },
    time("e2e_p50_ms", "E2E p50", Quantile::P50, E2E),
    time("e2e_p90_ms", "E2E p90", Quantile::P90, E2E),
    time("e2e_p99_ms", "E2E p99", Quantile::P99, E2E),
];

const fn rate(name: &'static str, title: &'static str, of: fn(&RunRecord) -> f64) -> Metric {
    Metric { name, title, more_is_better: true, source: Source::Plain(of) }
}

const fn time(
    name: &'static str,
    title: &'static str,
    quantile: Quantile,
    (of, unit): (fn(&RunRecord) -> &Spread, &'static str),
) -> Metric {
    Metric { name, title, more_is_better: false, source: Source::Percentile(quantile, of, unit) }
}

/// One gap of each run. What it is worth, the spread over the rounds tells.
fn longest_gap_ms(run: &RunRecord) -> f64 {
    let gaps = &run.figures.itl_ms;
    if gaps.count > 0 { gaps.max } else { f64::NAN }
}

impl Metric {
    /// As tables and pictures call it.
    pub(crate) fn title_of(name: &str) -> &str {
        METRICS.iter().find(|known| known.name == name).map_or(name, |known| known.title)
    }

    /// NaN where the run did not measure it.
    fn of(&self, run: &RunRecord) -> f64 {
        match self.source {
            Source::Plain(of) => of(run),
            Source::Percentile(quantile, of, _) => {
                let spread = of(run);
                if spread.count > 0 { quantile.of(spread) } else { f64::NAN }
            }
        }
    }

    /// What a percentile of these runs lacks.
    fn too_few<'a>(&self, runs: impl Iterator<Item = &'a RunRecord>) -> Option<String> {
        let Source::Percentile(quantile, of, unit) = self.source else { return None };
        let (needed, least) = (quantile.samples_min(), runs.map(|run| of(run).count).min()?);
        (least < needed).then(|| {
            format!("a {} takes {needed} {unit} in each run; the smallest run has {least}", quantile.name())
        })
    }
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
    /// It cannot act on the workload: what it shows is noise.
    #[serde(default)]
    pub inert: bool,
    /// The noise of this figure.
    #[serde(default)]
    pub band: Option<Band>,
    /// A percentile with too few samples: it is not shown.
    #[serde(default)]
    pub hidden: bool,
    /// `None` for the base, for what is inert, and where [`Compared::reason`] says why.
    pub better: Option<Verdict>,
    #[serde(default)]
    pub reason: Option<String>,
}

impl Compared {
    /// How far the ratio is from 1, the same for a half and for twice.
    pub(crate) fn effect(&self) -> f64 {
        let effect = self.ratio.ln().abs();
        if effect.is_finite() && !self.hidden { effect } else { 0.0 }
    }
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

/// The runs of one comparison, and what is said of its variants.
pub(crate) struct Comparison<'a> {
    pub runs: &'a [RunRecord],
    pub base: &'a str,
    /// Labels of the variants that cannot act on the workload.
    pub inert: &'a [String],
    pub seed: u64,
}

/// Compares every variant with the base, scale by scale, in the figures named (all, if none are).
pub(crate) fn compare(comparison: &Comparison, metrics: &[String]) -> Vec<Compared> {
    let wanted = |metric: &&Metric| metrics.is_empty() || metrics.iter().any(|name| name == metric.name);
    let mut compared = Vec::new();
    for scale in distinct(comparison.runs.iter().map(|run| run.scale)) {
        for metric in METRICS.iter().filter(wanted) {
            compared.extend(compare_one(comparison, metric, scale));
        }
    }
    compared
}

/// All runs of the base and of a variant at one scale, whatever they measured.
struct Sides<'a> {
    metric: &'a Metric,
    /// The base's, and the variant's.
    labels: [String; 2],
    runs: [Vec<&'a RunRecord>; 2],
}

impl Sides<'_> {
    /// Why these runs support no verdict: requests failed or were answered in part, a run is missing or lacks the
    /// figure, or a percentile lacks samples.
    fn unfit(&self) -> Option<String> {
        let all = || self.runs.iter().flatten().copied();
        self.metric.too_few(all()).or_else(|| self.incomplete()).or_else(|| self.missing()).or_else(|| {
            let lacks = |run: &&RunRecord| !self.metric.of(run).is_finite();
            let run = all().find(lacks)?;
            let (label, title) = (&run.label, self.metric.title);
            Some(format!("no verdict: {label} has no {title} in round {}", run.round))
        })
    }

    /// A server that fails requests, or ends answers early, has less to do for the others.
    fn incomplete(&self) -> Option<String> {
        self.runs.iter().flatten().find_map(|run| {
            let figures = &run.figures;
            let failed = figures.requests.saturating_sub(figures.completed + figures.left);
            let short = if run.exact_lengths { figures.shorter_than_asked } else { 0 };
            let (label, round, of) = (&run.label, run.round, figures.requests);
            let reason = match (failed, short) {
                (0, 0) => return None,
                (0, _) => {
                    format!("{short} of {of} answers of {label} are shorter than asked in round {round}")
                }
                _ => format!("{failed} of {of} requests of {label} failed in round {round}"),
            };
            Some(format!("no verdict: {reason}"))
        })
    }

    /// Rounds count in pairs: one that a side lacks may be the one that it lost.
    fn missing(&self) -> Option<String> {
        let lacking = |own: usize, other: usize| {
            let has = |round: u32| self.runs[own].iter().any(|run| run.round == round);
            let round = self.runs[other].iter().map(|run| run.round).find(|round| !has(*round))?;
            Some(format!("no verdict: {} has no run of round {round}", self.labels[own]))
        };
        let zero = |run: &&&RunRecord| self.metric.of(run) <= 0.0;
        lacking(0, 1).or_else(|| lacking(1, 0)).or_else(|| {
            let run = self.runs[0].iter().find(zero)?;
            let title = self.metric.title;
            Some(format!("no verdict: the base's {title} is 0 in round {}, so there is no ratio", run.round))
        })
    }
}

/// One figure at one scale.
fn compare_one(comparison: &Comparison, metric: &Metric, scale: f64) -> Vec<Compared> {
    let at_scale: Vec<&RunRecord> = comparison.runs.iter().filter(|run| run.scale == scale).collect();
    let mut labels = distinct(at_scale.iter().map(|run| run.label.as_str()));
    labels.sort_by_key(|label| *label != comparison.base);
    let runs_of = |label: &str| -> Vec<&RunRecord> {
        let own = at_scale.iter().copied().filter(|run| run.label == label);
        own.filter(|run| metric.of(run).is_finite()).collect()
    };
    let plain = |runs: &[&RunRecord]| median(&runs.iter().map(|run| metric.of(run)).collect::<Vec<_>>());
    let bases = runs_of(comparison.base);
    let ratio_of = |label: &str| -> Option<Ratio> {
        let pair = |run: &&RunRecord| {
            let other = bases.iter().find(|other| other.round == run.round)?;
            let other = metric.of(other);
            (other > 0.0).then_some(metric.of(run) / other)
        };
        let ratios: Vec<f64> = runs_of(label).iter().filter_map(pair).collect();
        (!ratios.is_empty()).then(|| Ratio::of(&ratios, comparison.seed))
    };
    let is_inert = |label: &str| label != comparison.base && comparison.inert.iter().any(|own| own == label);
    let sides = |label: &str| {
        let of = |label: &str| at_scale.iter().copied().filter(|run| run.label == label).collect::<Vec<_>>();
        Sides {
            metric,
            labels: [comparison.base, label].map(str::to_owned),
            runs: [of(comparison.base), of(label)],
        }
    };
    let inert: Vec<&str> = labels.iter().copied().filter(|label| is_inert(label)).collect();
    // What supports no verdict gives no noise either.
    let fit = inert.iter().filter(|label| sides(label).unfit().is_none()).filter_map(|label| ratio_of(label));
    let noise = Noise::of(&fit.collect::<Vec<_>>(), inert.len());
    let row = |label: &&str| {
        let (own, ratio) = (runs_of(label), ratio_of(label)?);
        let too_few = metric.too_few(own.iter().chain(&bases).copied());
        let judged = judge(&ratio, noise, metric.more_is_better, sides(label).unfit());
        let compared = *label != comparison.base && !is_inert(label);
        Some(Compared {
            label: (*label).to_owned(),
            scale,
            metric: metric.name.to_owned(),
            median: plain(&own),
            base_median: plain(&bases),
            ratio: ratio.median,
            low: ratio.low,
            high: ratio.high,
            pairs: ratio.pairs,
            inert: is_inert(label),
            band: noise.band,
            hidden: too_few.is_some(),
            better: if compared { judged.as_ref().ok().copied() } else { None },
            reason: if compared { judged.err() } else { too_few },
        })
    };
    labels.iter().filter_map(row).collect()
}

/// One table for each figure of each scale, narrow enough for a terminal: medians, ratios with their interval, and
/// which side wins, or a number that stands for the reason below the table why that is not said. The base is first,
/// then the strongest effect.
pub(crate) fn tables(compared: &[Compared], base: &str) -> String {
    let mut out = String::new();
    let scales = distinct(compared.iter().map(|row| row.scale));
    for scale in &scales {
        if *scale > 0.0 && scales.len() > 1 {
            out.push_str(&format!("{SCALE_HEADING}{}\n\n", number(*scale)));
        }
        let rows: Vec<&Compared> = compared.iter().filter(|row| row.scale == *scale).collect();
        for metric in distinct(rows.iter().map(|row| row.metric.as_str())) {
            let mut rows: Vec<&Compared> = rows.iter().copied().filter(|row| row.metric == metric).collect();
            rows.sort_by(|a, b| {
                (b.label == base).cmp(&(a.label == base)).then(b.effect().total_cmp(&a.effect()))
            });
            let reasons = distinct(rows.iter().filter_map(|row| row.reason.as_deref()));
            let header = [Metric::title_of(metric), "pairs", "median", "of base (interval)", "better"];
            let lines: Vec<Vec<String>> = rows.iter().map(|row| line(row, base, &reasons)).collect();
            out.push_str(&table::render(&header, &lines));
            out.push('\n');
            let shown = rows.iter().find(|row| !row.hidden);
            if let Some(band) = shown.and_then(|row| row.band) {
                out.push_str(&format!("noise: {}\n", band.text()));
            }
            for (index, reason) in reasons.iter().enumerate() {
                out.push_str(&format!("({}) {reason}\n", index + 1));
            }
            if !out.ends_with("\n\n") {
                out.push('\n');
            }
        }
    }
    out
}

/// Begins the line above the tables of a scale.
pub(crate) const SCALE_HEADING: &str = "scale ";

fn line(row: &Compared, base: &str, reasons: &[&str]) -> Vec<String> {
    let is_base = row.label == base;
    let mark = row.reason.as_ref().and_then(|reason| reasons.iter().position(|known| known == reason));
    let mark = mark.map_or(String::new(), |index| format!(" ({})", index + 1));
    let shown = |text: String| if row.hidden { "-".to_owned() } else { text };
    let better = match row.better {
        _ if is_base => format!("–{mark}"),
        _ if row.inert => format!("inert{mark}"),
        None => format!("-{mark}"),
        Some(Verdict::Same) => "same".to_owned(),
        Some(Verdict::Base) => "base".to_owned(),
        Some(Verdict::Variant) => "VARIANT".to_owned(),
    };
    let ratio = format!("×{:.3} ({:.3}–{:.3})", row.ratio, row.low, row.high);
    vec![
        row.label.clone(),
        row.pairs.to_string(),
        shown(number(row.median)),
        if is_base { "–".to_owned() } else { shown(ratio) },
        better,
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
mod tests;
