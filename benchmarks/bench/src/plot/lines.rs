//! What the pictures share whose rows are bars or marks from left to right.

use super::scale::{Axis, tick_text};
use super::svg::{Anchor, INK, Svg, text_width};

pub(super) const WIDTH: f64 = 920.0;
pub(super) const ROW: f64 = 26.0;
pub(super) const HEAD: f64 = 40.0;
pub(super) const FOOT: f64 = 48.0;
pub(super) const TEXT: f64 = 11.0;

/// A line with ends.
pub(super) fn whisker(svg: &mut Svg, (low, high): (f64, f64), y: f64) {
    svg.line((low, y), (high, y), INK, 1.2);
    for x in [low, high] {
        svg.line((x, y - 4.0), (x, y + 4.0), INK, 1.2);
    }
}

/// Room for the labels, left of the axis.
pub(super) fn label_width<'a>(labels: impl Iterator<Item = &'a str>) -> f64 {
    labels.map(|label| text_width(label, TEXT)).fold(40.0, f64::max).min(300.0) + 24.0
}

/// Title, vertical grid and the x axis of a picture of this height.
pub(super) fn horizontal(svg: &mut Svg, title: &str, x: &Axis, x_title: &str, height: f64) {
    svg.text((18.0, 23.0), 15.0, Anchor::Start, title);
    let bottom = height - FOOT + 2.0;
    for tick in x.ticks() {
        svg.grid((x.at(tick), HEAD), (x.at(tick), bottom));
        svg.text((x.at(tick), bottom + 16.0), TEXT, Anchor::Middle, &tick_text(tick));
    }
    let (from, to) = x.ends();
    svg.axis((from, bottom), (to, bottom));
    svg.text(((from + to) / 2.0, bottom + 34.0), TEXT, Anchor::Middle, x_title);
}
