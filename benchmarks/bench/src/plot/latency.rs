//! Latencies, in one picture of four panels. Over several scales each server has at each scale a thick bar from p50 to
//! p90 and a thin line on to p99. At one scale there is nothing to go along, and the same lies from left to right.

use super::data::{Cell, Data, METRICS, Percentiles};
use super::lines::label_width;
use super::panel::{self, Place, frame, legend, legend_height};
use super::scale::{Axis, tick_text};
use super::svg::{Anchor, Svg, colour};
use crate::table::number;

const WIDTH: f64 = 920.0;
const PANEL_HEIGHT: f64 = 270.0;
const HEAD: f64 = 36.0;
const TEXT: f64 = 11.0;
/// Width of a bar over a scale, and of the ones of all servers there together.
const BAR: f64 = 9.0;
const GROUP_SHARE: f64 = 0.7;
/// Height of a row at one scale.
const ROW: f64 = 24.0;
/// Room for a number behind a bar.
const NUMBER: f64 = 52.0;
/// Half the length of the end of a thin line.
const CAP: f64 = 4.0;

/// The picture; `None` if nothing was streamed.
pub(super) fn picture(data: &Data) -> Option<String> {
    let scales = data.scales();
    match scales.len() {
        0 => None,
        1 => Some(at_one_scale(data)),
        _ => Some(over_scales(data, &scales)),
    }
}

fn words(label: &str, percentiles: &Percentiles) -> String {
    let text = |value: Option<f64>| value.map_or("-".to_owned(), number);
    let (p90, p99) = (text(percentiles.p90), text(percentiles.p99));
    format!("{label}: p50 {} ms, p90 {p90} ms, p99 {p99} ms", number(percentiles.p50))
}

fn over_scales(data: &Data, scales: &[(f64, Option<f64>)]) -> String {
    let labels: Vec<String> = data.online.iter().map(|series| series.label.clone()).collect();
    let legend_width = WIDTH - 2.0 * panel::RIGHT;
    let head = HEAD + legend_height(&labels, legend_width) + 4.0;
    let mut svg = Svg::new(WIDTH, head + 2.0 * PANEL_HEIGHT);
    let title = "Latency by load: mark p50, thick bar to p90, thin line to p99";
    svg.text((panel::RIGHT, 23.0), 15.0, Anchor::Start, title);
    legend(&mut svg, (panel::RIGHT, HEAD), legend_width, &labels);
    for (index, (name, _)) in METRICS.iter().enumerate() {
        let place = Place {
            x: (index % 2) as f64 * WIDTH / 2.0,
            y: head + (index / 2) as f64 * PANEL_HEIGHT,
            width: WIDTH / 2.0,
            height: PANEL_HEIGHT,
        };
        panel(&mut svg, &place, name, index, data, scales);
    }
    svg.finish()
}

fn panel(
    svg: &mut Svg,
    place: &Place,
    name: &str,
    metric: usize,
    data: &Data,
    scales: &[(f64, Option<f64>)],
) {
    let cells = data.online.iter().flat_map(|series| &series.cells);
    let values: Vec<f64> =
        cells.filter_map(|cell| cell.metrics[metric].as_ref()).flat_map(Percentiles::values).collect();
    let y = Axis::of(&values, place.bottom(), place.top());
    // Scales stand at even distances: what is between them was not measured.
    let x = Axis::between(-0.5, scales.len() as f64 - 0.5, place.left(), place.right());
    let rated = scales.iter().all(|(_, rate)| rate.is_some());
    let text = |(scale, rate): &(f64, Option<f64>)| {
        let rate = rate.filter(|_| rated).map_or(String::new(), |rate| format!(" ({}/s)", number(rate)));
        tick_text(*scale) + &rate
    };
    let x_title = if rated { "time scale (arrivals per second)" } else { "time scale" };
    let ticks: Vec<(f64, String)> = scales.iter().enumerate().map(|(i, s)| (i as f64, text(s))).collect();
    frame(svg, place, name, (&x, x_title, &ticks), (&y, "ms"));
    let middle = (data.online.len() as f64 - 1.0) / 2.0;
    // Side by side, as far as they fit between two scales.
    let room = (x.at(1.0) - x.at(0.0)) * GROUP_SHARE / data.online.len() as f64;
    let (step, bar) = (room.min(BAR * 2.0), BAR.min(room * 0.8));
    for (index, series) in data.online.iter().enumerate() {
        let shift = (index as f64 - middle) * step;
        let at = |cell: &Cell| {
            let position = scales.iter().position(|(known, _)| (known - cell.scale).abs() < 1e-9)?;
            Some((x.at(position as f64) + shift, cell.scale, cell.metrics[metric]?))
        };
        let points: Vec<(f64, f64, Percentiles)> = series.cells.iter().filter_map(at).collect();
        draw_series(svg, &points, &y, index, &series.label, bar);
    }
}

fn draw_series(
    svg: &mut Svg,
    points: &[(f64, f64, Percentiles)],
    y: &Axis,
    index: usize,
    label: &str,
    bar: f64,
) {
    let colour = colour(index);
    for (x, scale, percentiles) in points {
        let title = words(&format!("{label}, scale {scale}"), percentiles);
        let (p50, p90) = (y.at(percentiles.p50), y.at(percentiles.p90.unwrap_or(percentiles.p50)));
        if let Some(p99) = percentiles.p99 {
            let top = y.at(p99);
            svg.line((*x, p90), (*x, top), colour, 1.4);
            svg.line((x - CAP, top), (x + CAP, top), colour, 1.4);
        }
        svg.pale_bar((x - bar / 2.0, p90), (bar, p50 - p90), colour, &title);
        svg.mark((*x, p50), colour, false, &title);
    }
}

fn at_one_scale(data: &Data) -> String {
    let rows: Vec<(&str, &Cell)> = data
        .online
        .iter()
        .flat_map(|series| series.cells.iter().map(|cell| (series.label.as_str(), cell)))
        .collect();
    let height = panel::TOP + rows.len() as f64 * ROW + panel::BOTTOM;
    let mut svg = Svg::new(WIDTH, HEAD + 2.0 * height);
    let title = "Latency: bar to p50, pale to p90, thin line to p99";
    svg.text((panel::RIGHT, 23.0), 15.0, Anchor::Start, title);
    for (metric, (name, _)) in METRICS.iter().enumerate() {
        let place = Place {
            x: (metric % 2) as f64 * WIDTH / 2.0,
            y: HEAD + (metric / 2) as f64 * height,
            width: WIDTH / 2.0,
            height,
        };
        bars(&mut svg, &place, name, metric, &rows);
    }
    svg.finish()
}

/// One metric at one scale.
fn bars(svg: &mut Svg, place: &Place, name: &str, metric: usize, rows: &[(&str, &Cell)]) {
    let left = place.x + label_width(rows.iter().map(|(label, _)| *label)).min(place.width * 0.45);
    let measured = || rows.iter().filter_map(|(_, cell)| cell.metrics[metric]);
    let most = measured().flat_map(|percentiles| percentiles.values()).fold(0.0, f64::max);
    let x = Axis::linear(most, left, place.right() - NUMBER);
    svg.text((left, place.y + 18.0), 13.0, Anchor::Start, &format!("{name}, ms"));
    for tick in x.ticks() {
        svg.grid((x.at(tick), place.top()), (x.at(tick), place.bottom()));
        svg.text((x.at(tick), place.bottom() + 17.0), TEXT, Anchor::Middle, &tick_text(tick));
    }
    svg.axis((left, place.bottom()), (x.ends().1, place.bottom()));
    for (index, (label, cell)) in rows.iter().enumerate() {
        let (top, middle) =
            (place.top() + index as f64 * ROW + 4.0, place.top() + (index as f64 + 0.5) * ROW);
        svg.text((left - 8.0, middle + 4.0), TEXT, Anchor::End, label);
        let Some(percentiles) = cell.metrics[metric] else { continue };
        let (title, colour) = (words(label, &percentiles), colour(index));
        let p50 = x.at(percentiles.p50);
        let p90 = x.at(percentiles.p90.unwrap_or(percentiles.p50));
        let end = x.at(percentiles.p99.unwrap_or(0.0)).max(p90);
        svg.bar((left, top), (p50 - left, ROW - 8.0), colour, &title);
        svg.pale_bar((p50, top), (p90 - p50, ROW - 8.0), colour, &title);
        if end > p90 {
            svg.line((p90, middle), (end, middle), colour, 1.6);
            svg.line((end, middle - CAP), (end, middle + CAP), colour, 1.6);
        }
        svg.text((end + 6.0, middle + 4.0), TEXT, Anchor::Start, &number(percentiles.p50));
    }
}
