//! What the pictures show, taken from result files: per label and scale the median over the rounds of each figure.

use super::svg::SERIES_MAX;
use crate::ablate::{Compared, distinct};
use crate::bootstrap::{median, range};
use crate::figures::{Quantile, Spread};
use crate::results::{ResultFile, RunRecord};
use pinion_protocol::names::Part;

/// Takes one distribution out of a run.
type SpreadOf = fn(&RunRecord) -> &Spread;

/// The four latencies, as the pictures call them.
pub(super) const METRICS: [(&str, SpreadOf); 4] = [
    ("TTFT", |run| &run.figures.ttft_ms),
    ("TPOT", |run| &run.figures.tpot_ms),
    ("ITL", |run| &run.figures.itl_ms),
    ("E2E", |run| &run.figures.e2e_ms),
];

/// Percentiles of one metric in ms: medians over the rounds. `None` where a round has too few samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Percentiles {
    pub p50: f64,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
}

impl Percentiles {
    /// All that there are.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> + use<> {
        [Some(self.p50), self.p90, self.p99].into_iter().flatten()
    }
}

/// One label at one scale.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub scale: f64,
    pub offered_per_s: f64,
    /// In the order of [`METRICS`]; `None` where nothing was measured.
    pub metrics: [Option<Percentiles>; 4],
    pub output_tokens_per_s: f64,
    /// Over the rounds.
    pub output_range: (f64, f64),
    /// Of the server, where it is known.
    pub version: String,
    pub prompt_form: String,
    pub stages_ms: Vec<(String, f64)>,
    pub gaps: Vec<(f64, u64)>,
}

/// All cells of one label, by scale.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub label: String,
    pub cells: Vec<Cell>,
}

/// Everything that is drawn.
pub(super) struct Data {
    /// No more than there are colours; the base and the first others.
    pub online: Vec<Series>,
    pub offline: Vec<Series>,
    pub compared: Vec<Compared>,
    pub base: String,
}

impl Data {
    pub(super) fn of(files: &[ResultFile]) -> Data {
        let runs = || files.iter().flat_map(|file| &file.runs);
        // An ablation has dozens of variants at one scale, which its ratios show better than latencies over scales.
        let alone = files.iter().all(|file| file.kind == "ablate");
        let over_scales = files.iter().filter(|file| alone || file.kind != "ablate");
        let streamed: Vec<&RunRecord> = over_scales
            .flat_map(|file| &file.runs)
            .filter(|run| run.figures.ttft_ms.count > 0 && run.streams == 0)
            .collect();
        let whole: Vec<&RunRecord> = runs().filter(|run| run.figures.ttft_ms.count == 0).collect();
        // Closed loops stand in the report's tables: they have no scale to be drawn over.
        let base = files.iter().find(|file| !file.base.is_empty()).map_or(String::new(), |f| f.base.clone());
        let mut online = series(&streamed, &base);
        online.truncate(SERIES_MAX);
        Data {
            online,
            offline: series(&whole, &base),
            compared: files.iter().flat_map(|file| file.compared.clone()).collect(),
            base,
        }
    }

    /// All scales of the online series, ascending, with their offered rates where all series have the same.
    pub(super) fn scales(&self) -> Vec<(f64, Option<f64>)> {
        let cells = || self.online.iter().flat_map(|series| &series.cells);
        let mut scales = distinct(cells().map(|cell| cell.scale));
        scales.sort_by(f64::total_cmp);
        let rate = |scale: f64| {
            let rates = cells().filter(|cell| cell.scale == scale).map(|cell| cell.offered_per_s);
            let (least, most) = range(&rates.collect::<Vec<_>>());
            (most <= least * 1.001).then_some(least)
        };
        scales.into_iter().map(|scale| (scale, rate(scale))).collect()
    }
}

/// The base's first, then the others as they come.
fn series(runs: &[&RunRecord], base: &str) -> Vec<Series> {
    let mut labels = distinct(runs.iter().map(|run| run.label.as_str()));
    labels.sort_by_key(|label| *label != base);
    let one = |label: &str| {
        let own: Vec<&RunRecord> = runs.iter().copied().filter(|run| run.label == label).collect();
        let mut scales = distinct(own.iter().map(|run| run.scale));
        scales.sort_by(f64::total_cmp);
        let at = |scale: f64| own.iter().copied().filter(|run| run.scale == scale).collect::<Vec<_>>();
        let cells = scales.into_iter().map(|scale| cell(scale, &at(scale))).collect();
        Series { label: label.to_owned(), cells }
    };
    labels.into_iter().map(one).collect()
}

fn cell(scale: f64, runs: &[&RunRecord]) -> Cell {
    let over = |figure: &dyn Fn(&RunRecord) -> f64| runs.iter().map(|run| figure(run)).collect::<Vec<f64>>();
    let metrics = METRICS.map(|(_, of)| {
        let measured = runs.iter().any(|run| of(run).count > 0);
        let percentile = |quantile: Quantile| {
            let shown = runs.iter().map(|run| quantile.shown(of(run))).collect::<Option<Vec<f64>>>();
            shown.map(|values| median(&values))
        };
        measured.then(|| Percentiles {
            p50: median(&over(&|run| of(run).p50)),
            p90: percentile(Quantile::P90),
            p99: percentile(Quantile::P99),
        })
    });
    let output = over(&|run| run.figures.output_tokens_per_s);
    let mut names = distinct(runs.iter().flat_map(|run| run.stages_ms.iter().map(|(name, _)| name.as_str())));
    // In the order of a request's life.
    names.sort_by_key(|name| Part::ALL.iter().position(|part| part.name() == *name).unwrap_or(usize::MAX));
    let stage = |name: &str| {
        let values = runs.iter().filter_map(|run| run.stages_ms.iter().find(|(found, _)| found == name));
        median(&values.map(|(_, ms)| *ms).collect::<Vec<_>>())
    };
    let mut gaps: Vec<(f64, u64)> = Vec::new();
    for (edge, count) in runs.iter().flat_map(|run| run.gap_histogram_ms.iter()) {
        match gaps.iter_mut().find(|(found, _)| (found / edge - 1.0).abs() < 1e-6) {
            Some((_, sum)) => *sum += count,
            None => gaps.push((*edge, *count)),
        }
    }
    gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
    Cell {
        scale,
        offered_per_s: runs.first().map_or(0.0, |run| run.offered_per_s),
        metrics,
        output_tokens_per_s: median(&output),
        output_range: range(&output),
        version: joined(runs.iter().map(|run| version(run))),
        prompt_form: joined(runs.iter().map(|run| run.prompt_form.clone())),
        stages_ms: names.into_iter().map(|name| (name.to_owned(), stage(name))).collect(),
        gaps,
    }
}

fn joined(facts: impl Iterator<Item = String>) -> String {
    distinct(facts.filter(|fact| !fact.is_empty())).join(", ")
}

/// As short as the server's answer lets it be.
fn version(run: &RunRecord) -> String {
    let Some(version) = &run.server.version else { return String::new() };
    let text = version["version"].as_str().or(version.as_str());
    text.map_or_else(|| version.to_string(), str::to_owned)
}
