//! What the log says of peers: a line now and then, however many connect and however wrong they are.

use std::fmt::Display;

/// At most one line in this time; those between are counted.
const INTERVAL_NS: u64 = 10_000_000_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    next_ns: u64,
    unsaid: u64,
}

impl Notices {
    /// Warns of something, or counts it for the next warning.
    pub(crate) fn warn(&mut self, what: impl Display, now_ns: u64) {
        if let Some(unsaid) = self.turn(now_ns) {
            tracing::warn!(unsaid, "KV events: {what}");
        }
    }

    /// Whether a line is said now, and how many were not since the last one.
    fn turn(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns < self.next_ns {
            self.unsaid += 1;
            return None;
        }
        self.next_ns = now_ns + INTERVAL_NS;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_tells_how_many_were_left_out() {
        let (second, mut notices) = (1_000_000_000, Notices::default());
        let said: Vec<(u64, u64)> =
            (0..600).filter_map(|tenth| Some((tenth, notices.turn(tenth * second / 10)?))).collect();
        assert_eq!(said, [(0, 0), (100, 99), (200, 99), (300, 99), (400, 99), (500, 99)]);
        assert_eq!(notices.turn(1000 * second), Some(99));
        assert_eq!(notices.turn(2000 * second), Some(0));
    }
}
