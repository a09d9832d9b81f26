//! What an operator sees of a load: a bar that is drawn again on a terminal, a log line now and then elsewhere.

use pinion_model::LoadEvent;
use pinion_progress::{self as progress, Display};
use pinion_worker::telemetry;
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
    display: Display,
}

impl LoadProgress {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), display: Display::new(telemetry::can_redraw(), REDRAW, LOG) }
    }

    /// Takes one event of the load.
    pub(crate) fn hear(&mut self, event: LoadEvent<'_>) {
        match event {
            LoadEvent::Unused(names) => {
                self.display.clear();
                let shown = names[..names.len().min(UNUSED_SHOWN)].join(", ");
                tracing::warn!(count = names.len(), "tensors of the checkpoint are not used: {shown}");
            }
            LoadEvent::Ignored(reasons) => {
                self.display.clear();
                reasons.iter().for_each(|reason| tracing::warn!("config.json: {reason}"));
            }
            LoadEvent::WithoutKernels(reason) => {
                self.display.clear();
                tracing::info!("attention and sampling are done without the CUDA object's kernels: {reason}");
            }
            LoadEvent::Bytes { done, total } => {
                if self.display.is_due() {
                    let line = line(done, total, self.began.elapsed(), self.display.redraws());
                    self.display.show(&line, |line| tracing::info!("{line}"));
                }
            }
        }
    }
}

/// Bytes, share, rate and time left in one line of less than 80 columns.
fn line(done: u64, total: u64, elapsed: Duration, has_bar: bool) -> String {
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    let rate = gigabytes(done) / elapsed.as_secs_f64().max(1e-3);
    let head = match has_bar {
        true => format!("loading {}", progress::bar(done, total)),
        false => "loading weights:".to_owned(),
    };
    let left = match rate > 0.0 {
        true => {
            let seconds = (gigabytes(total.saturating_sub(done)) / rate).ceil() as u64;
            format!(", {} left", progress::time(seconds))
        }
        false => String::new(),
    };
    let share = progress::share(done, total);
    let (done, total) = (gigabytes(done), gigabytes(total));
    format!("{head} {done:.2} of {total:.2} GB ({share:.0} %), {rate:.2} GB/s{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_bytes_share_rate_and_time() {
        let told = |has_bar| line(1_500_000_000, 6_000_000_000, Duration::from_secs(3), has_bar);
        assert_eq!(told(false), "loading weights: 1.50 of 6.00 GB (25 %), 0.50 GB/s, 9 s left");
        assert_eq!(told(true), "loading [##--------] 1.50 of 6.00 GB (25 %), 0.50 GB/s, 9 s left");
        assert_eq!(line(0, 0, Duration::ZERO, false), "loading weights: 0.00 of 0.00 GB (100 %), 0.00 GB/s");
        let past = line(7_000_000_000, 6_000_000_000, Duration::from_secs(7), true);
        assert_eq!(past, "loading [##########] 7.00 of 6.00 GB (100 %), 1.00 GB/s, 0 s left");
        let widest = line(1_000_000_000, 400_000_000_000, Duration::from_secs(300), true);
        assert!(widest.len() < 80, "{widest}");
    }
}
