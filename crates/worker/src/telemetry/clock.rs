//! The time of short lines.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// The time of the day, in UTC as in long lines: `07:05:09Z`.
pub(super) struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, line: &mut Writer<'_>) -> fmt::Result {
        // A clock before 1970 shows midnight.
        write(line, SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }
}

fn write(line: &mut Writer<'_>, unix_seconds: u64) -> fmt::Result {
    let (minutes, seconds) = (unix_seconds / 60, unix_seconds % 60);
    write!(line, "{:02}:{:02}:{seconds:02}Z", minutes / 60 % 24, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_day() {
        for (seconds, expected) in [(0, "00:00:00Z"), (86_399, "23:59:59Z"), (1_795_417_509, "07:05:09Z")] {
            let mut line = String::new();
            write(&mut Writer::new(&mut line), seconds).unwrap();
            assert_eq!(line, expected);
        }
    }
}
