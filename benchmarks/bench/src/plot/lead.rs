//! What stands before the pictures of a report: what was measured, where, and the main result.

use super::data::{Cell, Data};
use super::report::{escaped, html_table};
use crate::ablate::{Compared, Metric, distinct};
use crate::figures::TOO_FEW_NOTE;
use crate::results::ResultFile;
use crate::table::number;
use crate::verdict::Verdict;
use std::fmt::Write;

/// Differences that are named.
const DIFFERENCES_SHOWN: usize = 8;

/// A picture in the list of contents.
pub(super) fn title(name: &str) -> String {
    let plain = match name {
        "latency" => "Latency",
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
        notes(out, &cells, files);
    }
    differences(out, data);
}

/// Why cells are empty, and what forbids a comparison of the rows.
fn notes(out: &mut String, cells: &str, files: &[(String, ResultFile)]) {
    if cells.contains("| - |") {
        let _ = writeln!(out, "<p class=\"lead\">{}</p>", escaped(TOO_FEW_NOTE));
    }
    // Of all files together: each may hold one side.
    let runs = files.iter().flat_map(|(_, file)| file.runs.clone()).collect();
    for fact in (ResultFile { runs, ..ResultFile::default() }).lacks() {
        let _ = writeln!(out, "<p class=\"lead\">{}.</p>", escaped(&fact));
    }
}

/// The medians over the rounds, in a table that fits a page.
fn latencies(data: &Data) -> String {
    let row = |label: &str, cell: &Cell| {
        let known = |text: &str| if text.is_empty() { "not known".to_owned() } else { text.to_owned() };
        let scale = if cell.scale > 0.0 { number(cell.scale) } else { "–".to_owned() };
        let latencies = [0, 1, 3].map(|index| match &cell.metrics[index] {
            None => "– | –".to_owned(),
            Some(found) => {
                format!("{} | {}", number(found.p50), found.p99.map_or("-".to_owned(), number))
            }
        });
        format!(
            "| {label} | {} | {} | {scale} | {} | {} |\n",
            known(&cell.version),
            known(&cell.prompt_form),
            number(cell.output_tokens_per_s),
            latencies.join(" | ")
        )
    };
    let series = data.online.iter().chain(&data.offline);
    let rows = series.flat_map(|series| series.cells.iter().map(|cell| row(&series.label, cell)));
    let rows = rows.collect::<String>();
    if rows.is_empty() {
        return rows;
    }
    format!(
        "| | version | prompts | scale | output tokens/s | TTFT p50 ms | p99 | TPOT p50 ms | p99 | E2E p50 ms | p99 |\n|---|\n{rows}"
    )
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
    let (all, base) = (rows.len(), escaped(&data.base));
    let judged = rows.iter().filter(|row| row.better.is_some()).count();
    let _ = writeln!(out, "<h2>Differences</h2>");
    let _ = match judged {
        0 => writeln!(out, "<p>None of {all} comparisons with {base} has a verdict.</p>"),
        _ => writeln!(
            out,
            "<p>{} of {judged} comparisons with {base} that have a verdict differ beyond the noise.</p>",
            found.len()
        ),
    };
    for reason in distinct(rows.iter().filter_map(|row| row.reason.as_deref())) {
        let count = rows.iter().filter(|row| row.reason.as_deref() == Some(reason)).count();
        let _ = writeln!(out, "<p>{count} comparisons: {}.</p>", escaped(reason));
    }
    if found.is_empty() {
        return;
    }
    let mut table =
        "| | figure | scale | variant / base | interval | noise | variant is |\n|---|\n".to_owned();
    for row in found.into_iter().take(DIFFERENCES_SHOWN) {
        let title = Metric::title_of(&row.metric);
        let better = if row.better == Some(Verdict::Base) { "worse" } else { "better" };
        let _ = writeln!(
            table,
            "| {} | {title} | {} | ×{:.3} | {:.3}–{:.3} | {} | {better} |",
            row.label,
            number(row.scale),
            row.ratio,
            row.low,
            row.high,
            row.band.map_or("–".to_owned(), |band| format!("{:.3}–{:.3}", band.low, band.high))
        );
    }
    out.push_str(&html_table(&table));
}
