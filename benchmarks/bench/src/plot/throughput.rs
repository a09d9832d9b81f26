//! Bars of output tokens per second, where the time of a request goes, and the gaps between tokens.

use super::data::{Cell, Data, Series};
use super::lines::{FOOT, HEAD, ROW, TEXT, WIDTH, horizontal, label_width, whisker};
use super::panel::{Place, frame, legend, legend_height};
use super::scale::{Axis, tick_text};
use super::svg::{Anchor, Svg, colour};
use crate::ablate::distinct;
use crate::table::number;

/// A bar per label, and per scale where there are several, with the rounds' range as a whisker.
pub(super) fn bars(series: &[Series], title: &str) -> Option<String> {
    let cells: Vec<(String, usize, &Cell)> = series
        .iter()
        .enumerate()
        .flat_map(|(index, series)| {
            let several = series.cells.len() > 1;
            series.cells.iter().map(move |cell| {
                let scale =
                    if several { format!(", scale {}", tick_text(cell.scale)) } else { String::new() };
                (format!("{}{scale}", series.label), index, cell)
            })
        })
        .collect();
    if cells.is_empty() {
        return None;
    }
    let left = label_width(cells.iter().map(|(label, ..)| label.as_str()));
    let height = HEAD + cells.len() as f64 * ROW + FOOT;
    let mut svg = Svg::new(WIDTH, height);
    let most = cells.iter().map(|(.., cell)| cell.output_range.1).fold(0.0, f64::max);
    let x = Axis::linear(most, left, WIDTH - 70.0);
    horizontal(&mut svg, title, &x, "output tokens per second", height);
    for (row, (label, index, cell)) in cells.iter().enumerate() {
        let top = HEAD + row as f64 * ROW;
        let value = cell.output_tokens_per_s;
        svg.text((left - 8.0, top + 15.0), TEXT, Anchor::End, label);
        svg.bar(
            (left, top + 4.0),
            (x.at(value) - left, ROW - 9.0),
            colour(*index),
            &format!("{label}: {}", number(value)),
        );
        let (low, high) = (x.at(cell.output_range.0), x.at(cell.output_range.1));
        if high - low > 1.0 {
            whisker(&mut svg, (low, high), top + ROW / 2.0 - 0.5);
        }
        svg.text((high.max(x.at(value)) + 8.0, top + 15.0), TEXT, Anchor::Start, &number(value));
    }
    Some(svg.finish())
}

/// Mean time per request in each stage, one stacked bar per label and scale.
pub(super) fn stages(data: &Data) -> Option<String> {
    let bars: Vec<(String, &Cell)> = data
        .online
        .iter()
        .flat_map(|series| {
            series
                .cells
                .iter()
                .map(|cell| (format!("{}, scale {}", series.label, tick_text(cell.scale)), cell))
        })
        .filter(|(_, cell)| !cell.stages_ms.is_empty())
        .collect();
    let names =
        distinct(bars.iter().flat_map(|(_, cell)| cell.stages_ms.iter().map(|(name, _)| name.clone())));
    if names.is_empty() {
        return None;
    }
    let left = label_width(bars.iter().map(|(label, _)| label.as_str()));
    let legend_width = WIDTH - 36.0;
    let legend_rows = legend_height(&names, legend_width);
    let height = HEAD + bars.len() as f64 * ROW + FOOT + legend_rows;
    let mut svg = Svg::new(WIDTH, height);
    let total = |cell: &Cell| cell.stages_ms.iter().map(|(_, ms)| ms).sum::<f64>();
    let x = Axis::linear(bars.iter().map(|(_, cell)| total(cell)).fold(0.0, f64::max), left, WIDTH - 70.0);
    horizontal(&mut svg, "Where a request's time goes: mean ms per stage", &x, "ms", height - legend_rows);
    for (row, (label, cell)) in bars.iter().enumerate() {
        let top = HEAD + row as f64 * ROW;
        svg.text((left - 8.0, top + 15.0), TEXT, Anchor::End, label);
        let mut sum = 0.0;
        for (name, ms) in &cell.stages_ms {
            let index = names.iter().position(|known| known == name).unwrap_or(0);
            let (from, to) = (x.at(sum), x.at(sum + ms));
            svg.bar(
                (from, top + 4.0),
                (to - from, ROW - 9.0),
                colour(index),
                &format!("{name}: {} ms", number(*ms)),
            );
            sum += ms;
        }
        svg.text((x.at(sum) + 8.0, top + 15.0), TEXT, Anchor::Start, &number(sum));
    }
    legend(&mut svg, (18.0, height - legend_rows), legend_width, &names);
    Some(svg.finish())
}

/// Share of the gaps between token events in each step of time, at the heaviest scale of each label.
pub(super) fn gap_histogram(data: &Data) -> Option<String> {
    let lines: Vec<(String, Vec<(f64, f64)>)> = data
        .online
        .iter()
        .filter_map(|series| {
            let cell = series.cells.iter().find(|cell| !cell.gaps.is_empty())?;
            let all = cell.gaps.iter().map(|(_, count)| count).sum::<u64>() as f64;
            let shares = cell.gaps.iter().map(|(edge, count)| (*edge, *count as f64 / all)).collect();
            Some((format!("{}, scale {}", series.label, tick_text(cell.scale)), shares))
        })
        .collect();
    let points: Vec<(f64, f64)> = lines.iter().flat_map(|(_, shares)| shares.iter().copied()).collect();
    let least = points.iter().map(|(edge, _)| *edge).fold(f64::INFINITY, f64::min);
    let most = points.iter().map(|(edge, _)| *edge).fold(0.0, f64::max);
    if points.is_empty() {
        return None;
    }
    let labels: Vec<String> = lines.iter().map(|(label, _)| label.clone()).collect();
    let legend_width = WIDTH - 36.0;
    let head = 36.0 + legend_height(&labels, legend_width);
    let place = Place { x: 0.0, y: head, width: WIDTH, height: 330.0 };
    let mut svg = Svg::new(WIDTH, head + place.height);
    svg.text((18.0, 23.0), 15.0, Anchor::Start, "Gaps between tokens, at each server's heaviest scale");
    legend(&mut svg, (18.0, 36.0), legend_width, &labels);
    let x = Axis::logarithmic(least, most * STEP_FACTOR, place.left(), place.right());
    let share = points.iter().map(|(_, share)| *share);
    let y = Axis::logarithmic(
        10f64.powf(share.clone().fold(1.0, f64::min).log10().floor()),
        10f64.powf(share.fold(1e-6, f64::max).log10().ceil()),
        place.bottom(),
        place.top(),
    );
    let ticks: Vec<(f64, String)> = x.ticks().into_iter().map(|tick| (tick, tick_text(tick))).collect();
    frame(
        &mut svg,
        &place,
        "",
        (&x, "gap in ms, logarithmic (0.01: came together)", &ticks),
        (&y, "share of gaps"),
    );
    for (index, (_, shares)) in lines.iter().enumerate() {
        let mut path: Vec<(f64, f64)> = Vec::new();
        let mut end = f64::NEG_INFINITY;
        for (edge, share) in shares {
            let (from, to) = (x.at(*edge), x.at(edge * STEP_FACTOR));
            if !path.is_empty() && from > end + 0.5 {
                // Steps without a gap lie on the floor.
                path.extend([(end, place.bottom()), (from, place.bottom())]);
            } else if path.is_empty() {
                path.push((from, place.bottom()));
            }
            path.extend([(from, y.at(*share)), (to, y.at(*share))]);
            end = to;
        }
        path.push((end, place.bottom()));
        svg.area(&path, colour(index));
        svg.polyline(&path, colour(index));
    }
    Some(svg.finish())
}

/// From one edge of the histogram to the next: 20 steps in a factor of ten.
const STEP_FACTOR: f64 = 1.122_018_454_301_963_3;
