//! What an operator sees of a load: a bar that is drawn again on a terminal, a log line now and then elsewhere.

use pinion_model::LoadEvent;
use pinion_worker::telemetry;
use std::io::Write;
use std::time::{Duration, Instant};

/// Between two rewritings of the line.
const REDRAW: Duration = Duration::from_millis(200);
/// Between two log lines.
const LOG: Duration = Duration::from_secs(5);
/// Names of unused tensors that are shown.
const UNUSED_SHOWN: usize = 5;

/// The progress of one load.
#[derive(Debug)]
pub(crate) struct LoadProgress {
    began: Instant,
    told: Instant,
    is_terminal: bool,
    is_drawn: bool,
}

impl LoadProgress {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { began: now, told: now, is_terminal: telemetry::can_redraw(), is_drawn: false }
    }

    /// Takes one event of the load.
    pub(crate) fn hear(&mut self, event: LoadEvent<'_>) {
        match event {
            LoadEvent::Unused(names) => {
                self.finish();
                let shown = names[..names.len().min(UNUSED_SHOWN)].join(", ");
                tracing::warn!(count = names.len(), "tensors of the checkpoint are not used: {shown}");
            }
            LoadEvent::Ignored(reasons) => {
                self.finish();
                reasons.iter().for_each(|reason| tracing::warn!("config.json: {reason}"));
            }
            LoadEvent::Bytes { done, total } => {
                let pause = if self.is_terminal { REDRAW } else { LOG };
                if self.told.elapsed() < pause {
                    return;
                }
                self.told = Instant::now();
                let line = line(done, total, self.began.elapsed(), self.is_terminal);
                if self.is_terminal {
                    self.is_drawn = true;
                    // The line is for the eye; a terminal that is gone misses nothing.
                    let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
                } else {
                    tracing::info!("{line}");
                }
            }
        }
    }

    /// Leaves the line that was rewritten.
    pub(crate) fn finish(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Bytes, share, rate and time left in one line of less than 80 columns: one that wraps cannot be drawn again.
fn line(done: u64, total: u64, elapsed: Duration, has_bar: bool) -> String {
    const CELLS: usize = 10;
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    let share = if total == 0 { 100.0 } else { done as f64 / total as f64 * 100.0 };
    let rate = gigabytes(done) / elapsed.as_secs_f64().max(1e-3);
    let full = (share / 100.0 * CELLS as f64) as usize;
    let bar = match has_bar {
        true => format!("[{}{}] ", "#".repeat(full), "-".repeat(CELLS.saturating_sub(full))),
        false => String::new(),
    };
    let left = match rate > 0.0 {
        true => format!(", {:.0} s left", (gigabytes(total.saturating_sub(done)) / rate).ceil()),
        false => String::new(),
    };
    let (done, total) = (gigabytes(done), gigabytes(total));
    format!("loading weights: {bar}{done:.2} of {total:.2} GB ({share:.0} %), {rate:.2} GB/s{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_bytes_share_rate_and_time() {
        let told = |has_bar| line(1_500_000_000, 6_000_000_000, Duration::from_secs(3), has_bar);
        assert_eq!(told(false), "loading weights: 1.50 of 6.00 GB (25 %), 0.50 GB/s, 9 s left");
        assert_eq!(told(true), "loading weights: [##--------] 1.50 of 6.00 GB (25 %), 0.50 GB/s, 9 s left");
        assert_eq!(line(0, 0, Duration::ZERO, false), "loading weights: 0.00 of 0.00 GB (100 %), 0.00 GB/s");
        let widest = line(1_000_000_000, 400_000_000_000, Duration::from_secs(300), true);
        assert!(widest.len() < 80, "{widest}");
    }
}
