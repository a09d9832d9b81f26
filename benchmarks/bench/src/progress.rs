//! What an operator sees of a run: how many requests are done, and the time left. A line that is drawn again on a
//! terminal, a line each ten seconds elsewhere, all on stderr.

use pinion_config::Terminal;
use pinion_progress::{self as progress, Display};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two drawings on a terminal. Seldom: this runs beside what is measured.
const DRAW_EVERY: Duration = Duration::from_secs(1);
/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The display of one run; it ends when this is dropped.
pub(crate) struct Progress {
    done: Arc<AtomicUsize>,
    over: Option<Sender<()>>,
    shown: Option<JoinHandle<()>>,
}

impl Progress {
    /// Of `total` requests, the last of which leaves after `schedule`.
    pub(crate) fn begin(total: usize, schedule: Duration) -> Progress {
        let done = Arc::new(AtomicUsize::new(0));
        let (over, ended) = channel();
        let counter = done.clone();
        let shown = std::thread::spawn(move || show(total, schedule, &counter, &ended));
        Progress { done, over: Some(over), shown: Some(shown) }
    }

    /// Where a request that is done is counted.
    pub(crate) fn counter(&self) -> Arc<AtomicUsize> {
        self.done.clone()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(Err(_)) = self.shown.take().map(JoinHandle::join) {
            eprintln!("the display of the progress panicked");
        }
    }
}

fn show(total: usize, schedule: Duration, done: &AtomicUsize, ended: &Receiver<()>) {
    let redraws = std::io::stderr().is_terminal() && Terminal::of_process().redraws;
    let (begun, mut display) = (Instant::now(), Display::new(redraws, DRAW_EVERY, LINE_EVERY));
    while ended.recv_timeout(display.pause()) == Err(RecvTimeoutError::Timeout) {
        let done = done.load(Ordering::Relaxed);
        let text = line(done, total, begun.elapsed(), schedule, display.redraws());
        // There may be no reader.
        display.show(&text, |text| {
            let _ = writeln!(std::io::stderr(), "{text}");
        });
    }
}

fn line(done: usize, total: usize, elapsed: Duration, schedule: Duration, has_bar: bool) -> String {
    let scheduled = schedule.saturating_sub(elapsed).as_secs_f64();
    let at_this_rate = match done {
        0 => 0.0,
        done => elapsed.as_secs_f64() / done as f64 * total.saturating_sub(done) as f64,
    };
    let left = scheduled.max(at_this_rate).ceil() as u64;
    let left = if left == 0 { String::new() } else { format!(", about {} left", progress::time(left)) };
    let bar = if has_bar { progress::bar(done as u64, total as u64) + " " } else { String::new() };
    format!("  {bar}{done} of {total} requests are done{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_the_schedule_or_of_the_rate() {
        let seconds = Duration::from_secs;
        for (done, elapsed, schedule, expected) in [
            (0, 0, 12, "  0 of 40 requests are done, about 12 s left"),
            (10, 5, 100, "  10 of 40 requests are done, about 1 min 35 s left"),
            (10, 20, 21, "  10 of 40 requests are done, about 1 min 0 s left"),
            (40, 30, 21, "  40 of 40 requests are done"),
        ] {
            assert_eq!(line(done, 40, seconds(elapsed), seconds(schedule), false), expected);
        }
        let drawn = line(10, 40, seconds(20), seconds(21), true);
        assert_eq!(drawn, "  [##--------] 10 of 40 requests are done, about 1 min 0 s left");
    }

    #[test]
    fn the_display_ends_with_its_run() {
        let begun = Instant::now();
        let progress = Progress::begin(2, Duration::ZERO);
        progress.counter().fetch_add(1, Ordering::Relaxed);
        drop(progress);
        assert!(begun.elapsed() < LINE_EVERY, "the run does not wait for the next line");
    }
}
