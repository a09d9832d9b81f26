//! What an operator sees of a load: one line that rewrites itself on a terminal, a log line now and then elsewhere.

use pinion_model::LoadEvent;
use std::io::{IsTerminal, Write};
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
        Self { began: now, told: now, is_terminal: std::io::stderr().is_terminal(), is_drawn: false }
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
                let line = line(done, total, self.began.elapsed());
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

/// Bytes, share and rate in one line.
fn line(done: u64, total: u64, elapsed: Duration) -> String {
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    let share = if total == 0 { 100.0 } else { done as f64 / total as f64 * 100.0 };
    let rate = gigabytes(done) / elapsed.as_secs_f64().max(1e-3);
    format!(
        "loading weights: {:.2} of {:.2} GB ({share:.0} %), {rate:.2} GB/s",
        gigabytes(done),
        gigabytes(total)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_bytes_share_and_rate() {
        let told = line(1_500_000_000, 6_000_000_000, Duration::from_secs(3));
        assert_eq!(told, "loading weights: 1.50 of 6.00 GB (25 %), 0.50 GB/s");
        assert_eq!(line(0, 0, Duration::ZERO), "loading weights: 0.00 of 0.00 GB (100 %), 0.00 GB/s");
    }
}
