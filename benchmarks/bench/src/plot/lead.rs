//! What stands before the pictures of a report: what was measured, where, and the main result.

use super::data::{Cell, Data};
use super::report::{escaped, html_table};
use crate::ablate::{Compared, Metric, distinct};
use crate::results::ResultFile;
use crate::table::number;
use crate::verdict::Verdict;
use std::fmt::Write;

/// Differences that are named.
const DIFFERENCES_SHOWN: usize = 8;

/// What a picture shows, by the name of its file.
pub(super) fn caption(name: &str) -> &'static str {
    match name {
        "latency" => {
            "Lower is better. The band is what half to nine tenths of the requests had; marks above it are tails."
        }
        "latency-p99" | "latency-p90" => "Lower is better. The load falls from left to right.",
        "throughput" | "offline" => {
            "Longer is better. The whisker is the range over the rounds: bars within it are equal."
        }
        "stages" => "Where the mean request spends its time, in the order of its life.",
        "gaps" => "Time between a stream's tokens. A second hump is a step that others had to wait for.",
        _ => {
            "The strongest effect is first. Grey and ×1 within the whisker: no difference beyond the spread of the rounds."
        }
    }
}

/// A picture in the list of contents.
pub(super) fn title(name: &str) -> String {
    let plain = match name {
        "latency" => "Latency",
        "latency-p99" => "Latency, 99th percentile",
        "latency-p90" => "Latency, 90th percentile",
        "throughput" => "Throughput",
        "offline" => "Throughput of one batch",
        "stages" => "Where a request's time goes",
        "gaps" => "Gaps between tokens",
        _ => {
            let metric = name.strip_prefix("ratio-").unwrap_or(name);
            return format!("{} against the base", Metric::title_of(metric));
        }
    };
    plain.to_owned()
}

/// Model, machine, commit and time, then the main result.
pub(super) fn write(out: &mut String, files: &[(String, ResultFile)], data: &Data) {
    let of = |fact: &dyn Fn(&ResultFile) -> String| {
        let facts = distinct(files.iter().map(|(_, file)| fact(file)).filter(|fact| !fact.is_empty()));
        escaped(&facts.join("; "))
    };
    let machine = of(&|file| {
        let hardware = &file.origin.hardware;
        format!("{}, {} logical CPUs, {} GiB", hardware.cpu, hardware.logical_cpus, hardware.memory_gib)
    });
    let runs = files.iter().flat_map(|(_, file)| &file.runs);
    let models = distinct(runs.map(|run| run.server.model.as_str()).filter(|model| !model.is_empty()));
    let models = escaped(&models.join(", "));
    let _ = writeln!(out, "<p class=\"lead\">{machine}<br>");
    for (name, fact) in [
        ("model", models),
        ("measured", of(&|file| file.origin.time_utc.clone())),
        ("commit", of(&|file| file.origin.commit.clone())),
    ] {
        if !fact.is_empty() {
            let _ = writeln!(out, "{name} {fact}<br>");
        }
    }
    out.push_str("</p>\n");
    let cells = latencies(data);
    if !cells.is_empty() {
        let _ = writeln!(out, "<h2>Main result</h2>\n{}", html_table(&cells));
    }
    differences(out, data);
}

/// The medians over the rounds, in a table that fits a page.
fn latencies(data: &Data) -> String {
    let row = |label: &str, cell: &Cell| {
        let percentile = |index: usize, which: fn(&super::data::Percentiles) -> f64| {
            cell.metrics[index].as_ref().map_or("–".to_owned(), |found| number(which(found)))
        };
        let scale = if cell.scale > 0.0 { number(cell.scale) } else { "–".to_owned() };
        let latencies = [0, 1].map(|index| {
            format!("{} | {}", percentile(index, |found| found.p50), percentile(index, |found| found.p99))
        });
        format!("| {label} | {scale} | {} | {} |\n", number(cell.output_tokens_per_s), latencies.join(" | "))
    };
    let series = data.online.iter().chain(&data.offline);
    let rows = series.flat_map(|series| series.cells.iter().map(|cell| row(&series.label, cell)));
    let rows = rows.collect::<String>();
    if rows.is_empty() {
        return rows;
    }
    format!("| | scale | output tokens/s | TTFT p50 ms | p99 | TPOT p50 ms | p99 |\n|---|\n{rows}")
}

/// Which variants differ from the base beyond the noise, the strongest first, and why others have no verdict.
fn differences(out: &mut String, data: &Data) {
    let rows: Vec<&Compared> =
        data.compared.iter().filter(|row| row.label != data.base && !row.inert).collect();
    if rows.is_empty() {
        return;
    }
    let differs = |row: &&&Compared| matches!(row.better, Some(Verdict::Base | Verdict::Variant));
    let mut found: Vec<&Compared> = rows.iter().filter(differs).copied().collect();
    found.sort_by(|a, b| b.effect().total_cmp(&a.effect()));
    let _ = writeln!(
        out,
        "<h2>Differences</h2>\n<p>{} of {} comparisons with {} differ beyond the noise.</p>",
        found.len(),
        rows.len(),
        escaped(&data.base)
    );
    for reason in distinct(rows.iter().filter_map(|row| row.reason.as_deref())) {
        let count = rows.iter().filter(|row| row.reason.as_deref() == Some(reason)).count();
        let _ = writeln!(out, "<p>{count} comparisons: {}.</p>", escaped(reason));
    }
    if found.is_empty() {
        return;
    }
    let mut table = "| | figure | scale | variant / base | interval | better |\n|---|\n".to_owned();
    for row in found.into_iter().take(DIFFERENCES_SHOWN) {
        let title = Metric::title_of(&row.metric);
        let better = if row.better == Some(Verdict::Base) { "base" } else { "variant" };
        let _ = writeln!(
            table,
            "| {} | {title} | {} | ×{:.3} | {:.3}–{:.3} | {better} |",
            row.label,
            number(row.scale),
            row.ratio,
            row.low,
            row.high
        );
    }
    out.push_str(&html_table(&table));
}
