//! How far a pull is: a bar that is drawn again on a terminal, a line each ten seconds elsewhere. All on stderr.

use pinion_config::Terminal;
use pinion_progress::{self as progress, Display};
use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Between two drawings on a terminal.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// The rate is taken over this long.
const RATE_OVER: Duration = Duration::from_secs(10);

/// Writes a line for the operator, above the one that is drawn again.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stderr().lock();
    let clear = if redraws() { "\r\x1b[K" } else { "" };
    // There is no reader: ignore.
    let _ = writeln!(out, "{clear}{text}");
}

fn redraws() -> bool {
    std::io::stderr().is_terminal() && Terminal::of_process().redraws
}

/// What is shown.
pub(crate) struct Progress {
    total: u64,
    display: Display,
    /// Bytes at moments of the last ten seconds.
    samples: VecDeque<(Instant, u64)>,
}

impl Progress {
    pub(crate) fn new(total: u64, done: u64) -> Progress {
        let display = Display::new(redraws(), DRAW_EVERY, LINE_EVERY);
        Progress { total, display, samples: [(Instant::now(), done)].into() }
    }

    /// How often to call [`Progress::show`].
    pub(crate) fn tick(&self) -> Duration {
        if self.display.redraws() { DRAW_EVERY } else { LINE_EVERY / 10 }
    }

    pub(crate) fn show(&mut self, done: u64) {
        let now = Instant::now();
        self.samples.push_back((now, done));
        while self.samples.len() > 2 && now - self.samples[0].0 > RATE_OVER {
            self.samples.pop_front();
        }
        if !self.display.is_due() {
            return;
        }
        let (then, before) = self.samples[0];
        let rate = done.saturating_sub(before) as f64 / (now - then).as_secs_f64().max(1e-3);
        self.display.show(&line(done, self.total, rate, self.display.redraws()), say);
    }
}

/// `pulling [####------]  45 %, 1.2 GB of 2.6 GB, 34.1 MB/s, 42 s left`; within 80 columns.
fn line(done: u64, total: u64, rate: f64, has_bar: bool) -> String {
    let bar = if has_bar { progress::bar(done, total) + " " } else { String::new() };
    let share = progress::share(done, total);
    let head = format!("pulling {bar}{share:3.0} %, {} of {}", bytes(done), bytes(total));
    if rate < 1.0 {
        return format!("{head}, nothing comes");
    }
    let left = (total.saturating_sub(done) as f64 / rate).ceil() as u64;
    format!("{head}, {}/s, {} left", bytes(rate as u64), progress::time(left))
}

/// In the units that the hub's pages have: thousands.
pub(crate) fn bytes(count: u64) -> String {
    let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "kB")];
    match units.into_iter().find(|(unit, _)| count >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", count as f64 / unit as f64),
        None => format!("{count} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_share_bytes_rate_and_time() {
        for (done, rate, expected) in [
            (1_200_000_000, 34_100_000.0, "pulling  46 %, 1.2 GB of 2.6 GB, 34.1 MB/s, 42 s left"),
            (0, 1_000_000.0, "pulling   0 %, 0 bytes of 2.6 GB, 1.0 MB/s, 43 min 20 s left"),
            (0, 100_000.0, "pulling   0 %, 0 bytes of 2.6 GB, 100.0 kB/s, 7 h 13 min left"),
            (2_600_000_000, 0.0, "pulling 100 %, 2.6 GB of 2.6 GB, nothing comes"),
        ] {
            assert_eq!(line(done, 2_600_000_000, rate, false), expected);
        }
        let half = "pulling [####------]  46 %, 1.2 GB of 2.6 GB, 34.1 MB/s, 42 s left";
        assert_eq!(line(1_200_000_000, 2_600_000_000, 34_100_000.0, true), half);
        for (done, total) in [(0, 0), (999_900_000_000, 999_900_000_000), (1, 999_900_000_000)] {
            let drawn = line(done, total, 999_900_000.0, true);
            assert!(drawn.len() < 80, "{drawn}");
        }
    }
}
