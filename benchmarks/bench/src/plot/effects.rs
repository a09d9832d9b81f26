//! The ratios of a comparison, one picture for each figure: the strongest effect first, what cannot act last, the noise
//! band behind them. The scale is that of most rows; what lies beyond it is an arrow at the edge with its number.

use super::data::Data;
use super::lines::{FOOT, HEAD, TEXT, WIDTH, horizontal, label_width, whisker};
use super::scale::{Axis, tick_text};
use super::svg::{Anchor, MUTED, Svg, colour};
use crate::ablate::{Compared, METRICS, distinct};
use crate::bootstrap::median;
use crate::verdict::{Band, Verdict};

const ROW: f64 = 20.0;
/// Room for the numbers, right of the axis.
const NUMBERS: f64 = 190.0;
/// The axis shows at least this effect (a logarithm) to both sides,
const EFFECT_MIN: f64 = 0.05;
/// this multiple of the median effect,
const MEDIANS: f64 = 4.0;
/// and this multiple of the noise.
const BANDS: f64 = 2.0;
/// What is no further than this beyond it widens the axis; what is further is clipped.
const STRETCH: f64 = 2.5;
/// Between the axis's end and the largest effect that is drawn in full.
const MARGIN: f64 = 1.08;
const INERT_NOTE: &str = " (cannot act)";

/// The rows of one figure in their order.
pub(super) fn rows<'a>(data: &'a Data, metric: &str) -> Vec<&'a Compared> {
    let mut rows: Vec<&Compared> = data
        .compared
        .iter()
        .filter(|row| row.metric == metric && row.label != data.base && !row.hidden && row.ratio > 0.0)
        .collect();
    rows.sort_by(|a, b| a.inert.cmp(&b.inert).then(b.effect().total_cmp(&a.effect())));
    rows
}

/// The widest of theirs: rows of several files, or scales, may stand in one picture.
pub(super) fn band(rows: &[&Compared]) -> Option<Band> {
    let bands = rows.iter().map(|row| row.band).collect::<Option<Vec<Band>>>()?;
    bands.into_iter().max_by(|a, b| a.high.total_cmp(&b.high))
}

/// The largest effect that the axis shows, to both sides of 1.
fn limit(rows: &[&Compared], band: Option<Band>) -> f64 {
    let ends = rows.iter().flat_map(|row| [row.low, row.ratio, row.high]);
    let most = ends.map(|ratio| ratio.ln().abs()).filter(|effect| effect.is_finite()).fold(0.0, f64::max);
    let usual = MEDIANS * median(&rows.iter().map(|row| row.effect()).collect::<Vec<_>>());
    let usual = usual.max(EFFECT_MIN).max(band.map_or(0.0, |band| BANDS * band.high.ln()));
    MARGIN * if most <= STRETCH * usual { most.max(EFFECT_MIN) } else { usual }
}

/// Variant / base with its interval, one row per variant. A mark is filled where a side wins.
pub(super) fn picture(data: &Data, metric: &str) -> Option<String> {
    let rows = rows(data, metric);
    let known = METRICS.iter().find(|known| known.name == metric)?;
    if rows.is_empty() {
        return None;
    }
    let several = distinct(rows.iter().map(|row| row.scale)).len() > 1;
    let text = |row: &&Compared| {
        let scale = if several { format!(", scale {}", tick_text(row.scale)) } else { String::new() };
        format!("{}{scale}{}", row.label, if row.inert { INERT_NOTE } else { "" })
    };
    let labels: Vec<String> = rows.iter().map(text).collect();
    let left = label_width(labels.iter().map(String::as_str));
    let height = HEAD + rows.len() as f64 * ROW + FOOT;
    let mut svg = Svg::new(WIDTH, height);
    let band = band(&rows);
    let limit = limit(&rows, band);
    let x = Axis::logarithmic((-limit).exp(), limit.exp(), left, WIDTH - NUMBERS);
    let better = if known.more_is_better { "more is better" } else { "less is better" };
    let title = format!("{} of variant over {}, {better}", known.title, data.base);
    let (top, bottom) = (HEAD, height - FOOT + 2.0);
    if let Some(band) = band {
        let (from, to) = (x.at(band.low), x.at(band.high));
        svg.strip((from, top), (to - from, bottom - top), &format!("noise: {}", band.text()));
    }
    let strip = if band.is_some() { "; grey strip: the noise" } else { "" };
    horizontal(&mut svg, &title, &x, &format!("variant / base, logarithmic{strip}"), height);
    svg.axis((x.at(1.0), top), (x.at(1.0), bottom));
    for (index, (row, label)) in rows.iter().zip(&labels).enumerate() {
        draw(&mut svg, &x, limit, HEAD + (index as f64 + 0.5) * ROW, row, label);
    }
    Some(svg.finish())
}

fn draw(svg: &mut Svg, x: &Axis, limit: f64, y: f64, row: &Compared, label: &str) {
    let (left, right) = x.ends();
    let (colour, words) = match row.better {
        None | Some(Verdict::Same) => (MUTED, ""),
        Some(Verdict::Base) => (colour(1), " worse"),
        Some(Verdict::Variant) => (colour(2), " better"),
    };
    svg.text((left - 8.0, y + 4.0), TEXT, Anchor::End, label);
    let beyond = |ratio: f64| ratio.ln().abs() > limit;
    let title = format!("{label}: {:.3} ({:.3}–{:.3}), {} pairs", row.ratio, row.low, row.high, row.pairs);
    if beyond(row.ratio) {
        let is_right = row.ratio > 1.0;
        svg.arrow((if is_right { right } else { left }, y), is_right, colour, &title);
    } else {
        whisker(svg, (x.at(row.low), x.at(row.high)), y);
        for (end, is_right) in [(row.low, false), (row.high, true)] {
            if beyond(end) {
                svg.arrow((if is_right { right } else { left }, y), is_right, MUTED, &title);
            }
        }
        svg.mark((x.at(row.ratio), y), colour, words.is_empty(), &title);
    }
    let clipped = if beyond(row.ratio) { ", off the scale" } else { "" };
    svg.text((right + 10.0, y + 4.0), TEXT, Anchor::Start, &format!("×{:.3}{words}{clipped}", row.ratio));
}
