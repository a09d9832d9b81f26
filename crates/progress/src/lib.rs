//! How far long work is: a line that is drawn again on a terminal, or lines now and then elsewhere.
//!
//! What is counted, what the line says and where lines go without a terminal is the caller's.

use std::io::Write;
use std::time::{Duration, Instant};

/// Cells of a bar.
const CELLS: u64 = 10;

/// When and how the line is shown. What is drawn is taken away when this is dropped.
#[derive(Debug)]
pub struct Display {
    redraws: bool,
    pause: Duration,
    shown: Instant,
    is_drawn: bool,
}

impl Display {
    /// `redraws` if standard error is a terminal on which a line can be drawn again: each `redraw`. Otherwise a line is
    /// due each `line`. The first one is due after a pause.
    pub fn new(redraws: bool, redraw: Duration, line: Duration) -> Display {
        let pause = if redraws { redraw } else { line };
        Display { redraws, pause, shown: Instant::now(), is_drawn: false }
    }

    /// Whether the line is drawn again, so that it may have a bar.
    pub fn redraws(&self) -> bool {
        self.redraws
    }

    /// Between two lines.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Whether a line is due. If so, the next one is due after a pause.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.shown.elapsed() >= self.pause;
        if is_due {
            self.shown = Instant::now();
        }
        is_due
    }

    /// Draws the line in place of the last one, or gives it to `tell` where nothing can be drawn again. It must be
    /// shorter than 80 columns: one that wraps cannot be drawn again.
    pub fn show(&mut self, line: &str, tell: impl FnOnce(&str)) {
        if !self.redraws {
            return tell(line);
        }
        self.is_drawn = true;
        draw(line);
    }

    /// Takes away what is drawn, for lines that stay.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            draw("");
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.clear();
    }
}

fn draw(line: &str) {
    // A write fails if the terminal is gone, and nothing depends on the line.
    let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
}

/// `done` of `total` in per cent: 100 at most, and of nothing.
pub fn share(done: u64, total: u64) -> f64 {
    if total == 0 { 100.0 } else { (done as f64 / total as f64 * 100.0).min(100.0) }
}

/// `[####------]`, full from `total` on.
pub fn bar(done: u64, total: u64) -> String {
    let full = (share(done, total) / 100.0 * CELLS as f64) as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(CELLS as usize - full))
}

/// `42 s`, `3 min 5 s`, `2 h 10 min`.
pub fn time(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_full_as_the_work_and_no_fuller() {
        for (done, total, bar_of, share_of) in [
            (0, 10, "[----------]", 0.0),
            (46, 100, "[####------]", 46.0),
            (999, 1000, "[#########-]", 99.9),
            (10, 10, "[##########]", 100.0),
            (11, 10, "[##########]", 100.0),
            (u64::MAX, 1, "[##########]", 100.0),
            (0, 0, "[##########]", 100.0),
        ] {
            assert_eq!(
                (bar(done, total).as_str(), share(done, total)),
                (bar_of, share_of),
                "{done} of {total}"
            );
        }
    }

    #[test]
    fn times_have_their_two_largest_units() {
        for (seconds, expected) in
            [(0, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7_800, "2 h 10 min")]
        {
            assert_eq!(time(seconds), expected);
        }
    }

    #[test]
    fn lines_are_due_after_a_pause_and_go_where_the_caller_says() {
        let mut display = Display::new(false, Duration::ZERO, Duration::from_secs(600));
        assert!(!display.is_due());
        let mut told = Vec::new();
        display.show("half", |line| told.push(line.to_owned()));
        assert_eq!(told, ["half"]);
        assert!(Display::new(false, Duration::from_secs(600), Duration::ZERO).is_due());
    }
}
