//! The line that tells of dropped ones, in the format of the others.

use super::clock::Clock;
use std::fmt::Write;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
    /// For a terminal, on which something else may be drawn.
    Short {
        redraws: bool,
    },
}

impl Format {
    /// What stands before a line: the way back to the beginning of the row, and what clears it.
    pub(super) fn prefix(self) -> &'static [u8] {
        match self {
            Format::Short { redraws: true } => b"\r\x1b[K",
            Format::Text | Format::Json | Format::Short { redraws: false } => b"",
        }
    }
}

const MESSAGE: &str = "log lines were dropped: standard error could not be written, or was not read in time";

pub(super) struct Notice {
    pub(super) format: Format,
    pub(super) process: String,
}

impl Notice {
    pub(super) fn new() -> Notice {
        Notice { format: Format::Text, process: "pinion".to_owned() }
    }

    pub(super) fn write(&self, count: u64, line: &mut String) {
        let Notice { format, process } = self;
        line.clear();
        // Writing to a string cannot fail.
        let _ = match format {
            Format::Text => SystemTime.format_time(&mut Writer::new(line)).and_then(|()| {
                writeln!(line, "  WARN {MESSAGE} process={process} lines={count}")
            }),
            Format::Short { .. } => Clock.format_time(&mut Writer::new(line)).and_then(|()| {
                writeln!(line, "  WARN {MESSAGE} process={process} lines={count}")
            }),
            Format::Json => write!(line, "{{\"timestamp\":\"")
                .and_then(|()| SystemTime.format_time(&mut Writer::new(line)))
                .and_then(|()| {
                    writeln!(
                        line,
                        "\",\"level\":\"WARN\",\"message\":\"{MESSAGE}\",\"process\":\"{process}\",\"lines\":{count}}}"
                    )
                }),
        };
    }
}
