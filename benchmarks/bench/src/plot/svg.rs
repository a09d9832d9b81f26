//! The few shapes that the pictures are made of, written as SVG text. Fonts and colours stand here and nowhere else.

use std::fmt::Write;

/// Colours that stay apart for most eyes (Okabe and Ito's first), in the order in which series take them.
const COLOURS: [&str; 12] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#8c510a", "#6a3d9a",
    "#b2df8a", "#b30000", "#a6a6a6",
];
pub(super) const INK: &str = "#222222";
const GRID: &str = "#e3e3e3";
/// What makes no claim.
pub(super) const MUTED: &str = "#777777";
/// Of the noise, behind everything.
const STRIP: &str = "#e9e9e9";
/// Of a report's page that is dark.
pub(super) const DARK_PAGE: &str = "#16181c";
/// What stands for a colour there, where it would not show.
const DARK: [(&str, &str); 11] = [
    (INK, "#dcdcdc"),
    (GRID, "#3a3e45"),
    (STRIP, "#2b2f36"),
    ("white", DARK_PAGE),
    ("#0072b2", "#2f93d6"),
    ("#555555", "#8a8a8a"),
    (MUTED, "#999999"),
    ("#8c510a", "#c98a4b"),
    ("#6a3d9a", "#a883d6"),
    ("#b30000", "#f06a6a"),
    ("#a6a6a6", "#d0d0d0"),
];
/// Grid lines end before a text.
const HALO: &str = "paint-order=\"stroke\" stroke=\"white\" stroke-width=\"3\" stroke-linejoin=\"round\"";
const FONT: &str = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif";
/// Mean width of a character, as a share of the font's size.
const CHARACTER_WIDTH: f64 = 0.6;

/// Series that have a colour of their own.
pub(super) const SERIES_MAX: usize = COLOURS.len();

/// Style rules for pictures in a dark page. A program that draws a picture alone sees the colours that it names.
pub(super) fn dark_style() -> String {
    let rule = |(light, dark): (&str, &str)| {
        format!("svg [fill=\"{light}\"]{{fill:{dark}}}svg [stroke=\"{light}\"]{{stroke:{dark}}}")
    };
    DARK.map(rule).concat()
}

/// Colour of the series at this place.
pub(super) fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// Width that a text takes, roughly and rather too much.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * CHARACTER_WIDTH
}

/// Where a text stands relative to its point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture in the making. Coordinates are pixels from the upper left.
pub(super) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    fn put(&mut self, arguments: std::fmt::Arguments<'_>) {
        let _ = self.body.write_fmt(arguments);
        self.body.push('\n');
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.put(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        ));
    }

    pub(super) fn grid(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.line(from, to, GRID, 1.0);
    }

    pub(super) fn axis(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.line(from, to, INK, 1.0);
    }

    pub(super) fn polyline(&mut self, points: &[(f64, f64)], colour: &str) {
        let points = joined(points);
        self.put(format_args!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>"
        ));
    }

    pub(super) fn area(&mut self, points: &[(f64, f64)], colour: &str) {
        let points = joined(points);
        self.put(format_args!("<polygon points=\"{points}\" fill=\"{colour}\" fill-opacity=\"0.18\"/>"));
    }

    pub(super) fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str, title: &str) {
        let title = escaped(title);
        self.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"><title>{title}</title></rect>",
            width.max(0.0),
            height.max(0.0)
        ));
    }

    /// A broad stretch behind what is drawn after it.
    pub(super) fn strip(&mut self, place: (f64, f64), size: (f64, f64), title: &str) {
        self.bar(place, size, STRIP, title);
    }

    /// A bar through which what is behind it shows.
    pub(super) fn pale_bar(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        colour: &str,
        title: &str,
    ) {
        let title = escaped(title);
        self.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\" fill-opacity=\"0.4\"><title>{title}</title></rect>",
            width.max(0.0),
            height.max(0.0)
        ));
    }

    /// At the edge of a scale: what it points to lies beyond.
    pub(super) fn arrow(&mut self, (x, y): (f64, f64), to_right: bool, colour: &str, title: &str) {
        let (back, title) = (if to_right { x - 9.0 } else { x + 9.0 }, escaped(title));
        let (above, below) = (y - 5.0, y + 5.0);
        self.put(format_args!(
            "<polygon points=\"{x:.1},{y:.1} {back:.1},{above:.1} {back:.1},{below:.1}\" fill=\"{colour}\"><title>{title}</title></polygon>"
        ));
    }

    /// A filled or a hollow mark.
    pub(super) fn mark(&mut self, (x, y): (f64, f64), colour: &str, hollow: bool, title: &str) {
        let (fill, title) = (if hollow { "white" } else { colour }, escaped(title));
        self.put(format_args!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.8\"><title>{title}</title></circle>"
        ));
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), size: f64, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{INK}\" {HALO}>{text}</text>"
        ));
    }

    /// Reads from below to above.
    pub(super) fn text_upwards(&mut self, (x, y): (f64, f64), size: f64, text: &str) {
        let text = escaped(text);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"middle\" fill=\"{INK}\" \
             transform=\"rotate(-90 {x:.1} {y:.1})\">{text}</text>"
        ));
    }

    pub(super) fn finish(self) -> String {
        let (width, height) = (self.width, self.height);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"{FONT}\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n{}</svg>\n",
            self.body
        )
    }
}

fn joined(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

/// Draws an SVG as PNG at twice its size. Text is drawn in the first font of the list that this machine has.
pub(super) fn png(svg: &str) -> Result<Vec<u8>, String> {
    const SCALE: f32 = 2.0;
    let mut options = resvg::usvg::Options::default();
    options.fontdb_mut().load_system_fonts();
    if options.fontdb.is_empty() {
        return Err("this machine has no fonts: PNG pictures would have no text (install fonts-dejavu-core)"
            .to_owned());
    }
    let tree = resvg::usvg::Tree::from_str(svg, &options).map_err(|error| error.to_string())?;
    let (width, height) = (tree.size().width() * SCALE, tree.size().height() * SCALE);
    let pixmap = resvg::tiny_skia::Pixmap::new(width.ceil() as u32, height.ceil() as u32);
    let mut pixmap = pixmap.ok_or("the picture has no size")?;
    resvg::render(&tree, resvg::tiny_skia::Transform::from_scale(SCALE, SCALE), &mut pixmap.as_mut());
    pixmap.encode_png().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance by WCAG 2.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).expect("hexadecimal")) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    #[test]
    fn every_series_shows_on_a_dark_page_in_a_colour_of_its_own() {
        let dark =
            |light: &'static str| DARK.iter().find(|(from, _)| *from == light).map_or(light, |(_, to)| *to);
        let contrast = |colour: &str| (luminance(colour) + 0.05) / (luminance(DARK_PAGE) + 0.05);
        let mut seen = Vec::new();
        for colour in COLOURS.map(dark) {
            assert!(contrast(colour) >= 3.0, "{colour}: {:.2}", contrast(colour));
            assert!(!seen.contains(&colour), "{colour} stands for two");
            seen.push(colour);
        }
        assert!(contrast(dark(INK)) >= 7.0);
        assert!(dark_style().contains("svg [fill=\"#222222\"]{fill:#dcdcdc}"));
    }
}
