//! Latencies over scales: the overview with bands, and one percentile alone. Four panels each.

use super::data::{Data, METRICS, Percentiles};
use super::panel::{self, Place, frame, legend, legend_height};
use super::scale::{Axis, tick_text};
use super::svg::{Anchor, Svg, colour};
use crate::table::number;

const WIDTH: f64 = 920.0;
const PANEL_HEIGHT: f64 = 270.0;
const HEAD: f64 = 36.0;
/// Between the marks of two series at one scale.
const SHIFT: f64 = 7.0;
/// Half the width of a band over a single scale.
const STUB: f64 = 9.0;

/// What is drawn of the percentiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// p50 to p90 as a band, p90 as a line, p99 as hollow marks.
    Band,
    P90,
    P99,
}

impl Shown {
    fn title(self) -> &'static str {
        match self {
            Shown::Band => "Latency over scales: band p50–p90, line p90, hollow marks p99",
            Shown::P90 => "Latency over scales: p90",
            Shown::P99 => "Latency over scales: p99",
        }
    }

    fn line(self, percentiles: &Percentiles) -> f64 {
        if self == Shown::P99 { percentiles.p99 } else { percentiles.p90 }
    }

    fn values(self, percentiles: &Percentiles) -> Vec<f64> {
        match self {
            Shown::Band => vec![percentiles.p50, percentiles.p90, percentiles.p99],
            Shown::P90 | Shown::P99 => vec![self.line(percentiles)],
        }
    }
}

/// The picture; `None` if nothing was streamed.
pub(super) fn picture(data: &Data, shown: Shown) -> Option<String> {
    let scales = data.scales();
    if scales.is_empty() {
        return None;
    }
    let labels: Vec<String> = data.online.iter().map(|series| series.label.clone()).collect();
    let legend_width = WIDTH - 2.0 * panel::RIGHT;
    let head = HEAD + legend_height(&labels, legend_width) + 4.0;
    let mut svg = Svg::new(WIDTH, head + 2.0 * PANEL_HEIGHT);
    svg.text((panel::RIGHT, 23.0), 15.0, Anchor::Start, shown.title());
    legend(&mut svg, (panel::RIGHT, HEAD), legend_width, &labels);
    for (index, (name, _)) in METRICS.iter().enumerate() {
        let place = Place {
            x: (index % 2) as f64 * WIDTH / 2.0,
            y: head + (index / 2) as f64 * PANEL_HEIGHT,
            width: WIDTH / 2.0,
            height: PANEL_HEIGHT,
        };
        panel(&mut svg, &place, name, index, data, &scales, shown);
    }
    Some(svg.finish())
}

fn panel(
    svg: &mut Svg,
    place: &Place,
    name: &str,
    metric: usize,
    data: &Data,
    scales: &[(f64, Option<f64>)],
    shown: Shown,
) {
    let cells = data.online.iter().flat_map(|series| &series.cells);
    let values: Vec<f64> =
        cells.filter_map(|cell| cell.metrics[metric].as_ref()).flat_map(|p| shown.values(p)).collect();
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
    for (index, series) in data.online.iter().enumerate() {
        let shift = (index as f64 - middle) * SHIFT;
        let place_of = |scale: f64| scales.iter().position(|(known, _)| (known - scale).abs() < 1e-9);
        let points: Vec<(f64, f64, Percentiles)> = series
            .cells
            .iter()
            .filter_map(|cell| {
                Some((x.at(place_of(cell.scale)? as f64) + shift, cell.scale, cell.metrics[metric]?))
            })
            .collect();
        draw_series(svg, &points, &y, index, &series.label, shown);
    }
}

fn draw_series(
    svg: &mut Svg,
    points: &[(f64, f64, Percentiles)],
    y: &Axis,
    index: usize,
    label: &str,
    shown: Shown,
) {
    let colour = colour(index);
    if shown == Shown::Band {
        let edge = |of: fn(&Percentiles) -> f64| -> Vec<(f64, f64)> {
            points.iter().map(|(x, _, percentiles)| (*x, y.at(of(percentiles)))).collect()
        };
        let (mut upper, mut lower) = (edge(|p| p.p90), edge(|p| p.p50));
        if points.len() == 1 {
            for side in [&mut upper, &mut lower] {
                let (x, y) = side[0];
                *side = vec![(x - STUB, y), (x + STUB, y)];
            }
        }
        lower.reverse();
        upper.extend(lower);
        svg.area(&upper, colour);
    }
    let line: Vec<(f64, f64)> = points.iter().map(|(x, _, p)| (*x, y.at(shown.line(p)))).collect();
    svg.polyline(&line, colour);
    for ((x, at), (_, scale, percentiles)) in line.into_iter().zip(points) {
        let title = |name: &str, value: f64| format!("{label}, scale {scale}: {name} {} ms", number(value));
        let name = if shown == Shown::P99 { "p99" } else { "p90" };
        svg.mark((x, at), colour, false, &title(name, shown.line(percentiles)));
        if shown == Shown::Band {
            svg.ring((x, y.at(percentiles.p99)), colour, &title("p99", percentiles.p99));
        }
    }
}
