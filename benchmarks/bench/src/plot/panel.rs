//! A frame with axes, ticks and a title, into which a chart draws; and the legend above it.

use super::scale::{Axis, tick_text};
use super::svg::{Anchor, Svg, colour, text_width};

const TICK_SIZE: f64 = 11.0;
const TITLE_SIZE: f64 = 13.0;
/// Room for the y axis's texts, left of the frame.
pub(super) const LEFT: f64 = 64.0;
pub(super) const RIGHT: f64 = 18.0;
pub(super) const TOP: f64 = 30.0;
pub(super) const BOTTOM: f64 = 46.0;
const LEGEND_ROW: f64 = 20.0;

/// Where a panel lies, with its texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Place {
    pub(super) fn left(&self) -> f64 {
        self.x + LEFT
    }

    pub(super) fn right(&self) -> f64 {
        self.x + self.width - RIGHT
    }

    pub(super) fn top(&self) -> f64 {
        self.y + TOP
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.height - BOTTOM
    }
}

/// Title, grid, axes and their texts. `x_ticks` are (value, text).
pub(super) fn frame(
    svg: &mut Svg,
    place: &Place,
    title: &str,
    (x, x_title, x_ticks): (&Axis, &str, &[(f64, String)]),
    (y, y_title): (&Axis, &str),
) {
    svg.text((place.left(), place.y + 18.0), TITLE_SIZE, Anchor::Start, title);
    for tick in y.ticks() {
        let at = y.at(tick);
        svg.grid((place.left(), at), (place.right(), at));
        svg.text((place.left() - 6.0, at + 4.0), TICK_SIZE, Anchor::End, &tick_text(tick));
    }
    let mut last_end = f64::NEG_INFINITY;
    for (value, text) in x_ticks {
        let at = x.at(*value);
        svg.axis((at, place.bottom()), (at, place.bottom() + 4.0));
        // A text that would run into the one before is left out; its tick stays.
        let half = text_width(text, TICK_SIZE) / 2.0;
        if at - half > last_end + 4.0 {
            svg.text((at, place.bottom() + 17.0), TICK_SIZE, Anchor::Middle, text);
            last_end = at + half;
        }
    }
    svg.axis((place.left(), place.bottom()), (place.right(), place.bottom()));
    svg.axis((place.left(), place.top()), (place.left(), place.bottom()));
    let middle = (place.left() + place.right()) / 2.0;
    svg.text((middle, place.bottom() + 35.0), TICK_SIZE, Anchor::Middle, x_title);
    let y_title = if y.is_logarithmic() { format!("{y_title}, logarithmic") } else { y_title.to_owned() };
    svg.text_upwards((place.x + 14.0, (place.top() + place.bottom()) / 2.0), TICK_SIZE, &y_title);
}

/// Height that a legend needs at this width.
pub(super) fn legend_height(labels: &[String], width: f64) -> f64 {
    rows(labels, width).len() as f64 * LEGEND_ROW
}

/// Colour squares with their labels, in as many rows as they need.
pub(super) fn legend(svg: &mut Svg, (x, y): (f64, f64), width: f64, labels: &[String]) {
    for (row, items) in rows(labels, width).into_iter().enumerate() {
        let top = y + row as f64 * LEGEND_ROW;
        for (index, offset) in items {
            svg.bar((x + offset, top), (11.0, 11.0), colour(index), &labels[index]);
            svg.text((x + offset + 16.0, top + 10.0), TICK_SIZE, Anchor::Start, &labels[index]);
        }
    }
}

/// (index, offset) of the labels in each row.
fn rows(labels: &[String], width: f64) -> Vec<Vec<(usize, f64)>> {
    let mut rows: Vec<Vec<(usize, f64)>> = vec![Vec::new()];
    let mut offset = 0.0;
    for (index, label) in labels.iter().enumerate() {
        let needed = text_width(label, TICK_SIZE) + 34.0;
        if offset > 0.0 && offset + needed > width {
            rows.push(Vec::new());
            offset = 0.0;
        }
        rows.last_mut().expect("there is a row").push((index, offset));
        offset += needed;
    }
    rows
}
