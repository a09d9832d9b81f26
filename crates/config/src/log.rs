//! The form of log lines, and what a terminal that shows them can do.

use crate::command_line;
use crate::fault::Collector;
use crate::sources::{self, Environment, Settings};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the line begins with that says why a program ends.
const ERROR: &str = "pinion: error: ";

/// Form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogForm {
    /// Short where standard error is a terminal, else `Text`.
    #[default]
    Auto,
    /// Full time, level, message, `key=value`.
    Text,
    /// One JSON object a line.
    Json,
}

impl LogForm {
    pub(crate) fn of(settings: &Settings) -> LogForm {
        match settings.text("log-format") {
            Some("json") => LogForm::Json,
            Some("text") => LogForm::Text,
            _ => LogForm::Auto,
        }
    }

    /// The form that this process was asked for, also where the rest of what it was told is wrong.
    pub fn of_process() -> LogForm {
        let mut unheard = Collector::default();
        let (_, typed) = command_line::split(std::env::args_os().skip(1), &mut unheard);
        let environment = Environment::new(std::env::vars_os());
        LogForm::of(&sources::settle(typed, &environment, &mut unheard))
    }

    /// The line for standard error that says at `now` why the program ends.
    pub fn error_line(self, reason: &str, now: SystemTime) -> String {
        match self {
            LogForm::Auto | LogForm::Text => format!("{ERROR}{reason}"),
            LogForm::Json => {
                let time = iso_8601(now.duration_since(UNIX_EPOCH).unwrap_or_default());
                format!(
                    "{{\"timestamp\":\"{time}\",\"level\":\"ERROR\",\"message\":{}}}",
                    Value::from(reason)
                )
            }
        }
    }
}

/// The reason in a line of [`LogForm::error_line`]; any other line is its own reason.
pub fn reason_in(line: &str) -> String {
    if let Some(reason) = line.strip_prefix(ERROR) {
        return reason.to_owned();
    }
    let object = serde_json::from_str::<Value>(line).ok();
    let message = object.as_ref().and_then(|object| object.get("message")?.as_str());
    message.unwrap_or(line).to_owned()
}

/// In UTC, as in the other lines of a log: `2026-11-23T07:05:09.000123Z`.
pub fn iso_8601(since_1970: Duration) -> String {
    let (seconds, micros) = (since_1970.as_secs(), since_1970.subsec_micros());
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    // Years that begin in March, in eras of 400, so that a leap day is the last of its year.
    let day = seconds / 86_400 + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year_of_era = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// A terminal, for those who write to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Colours are wanted: no `NO_COLOR`, and a `TERM` that has them.
    pub coloured: bool,
    /// A line can be drawn again.
    pub redraws: bool,
}

impl Terminal {
    /// The one that this process was started in.
    pub fn of_process() -> Terminal {
        Terminal::of(&Environment::new(std::env::vars_os()))
    }

    fn of(environment: &Environment) -> Terminal {
        let redraws = environment.text("TERM") != Some("dumb");
        Terminal { coloured: redraws && environment.text("NO_COLOR").is_none(), redraws }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_of_its_log_and_is_read_again() {
        let now = UNIX_EPOCH + Duration::from_micros(1_795_417_509_000_123);
        let reason = "config.json: model_type \"x\"\nis not supported";
        let json = LogForm::Json.error_line(reason, now);
        let text = "{\"timestamp\":\"2026-11-23T07:05:09.000123Z\",\"level\":\"ERROR\",\
                    \"message\":\"config.json: model_type \\\"x\\\"\\nis not supported\"}";
        assert_eq!(json, text);
        let plain = LogForm::Auto.error_line(reason, now);
        assert_eq!(plain, format!("pinion: error: {reason}"));
        assert_eq!((reason_in(&json), reason_in(&plain)), (reason.to_owned(), reason.to_owned()));
        assert_eq!(reason_in("{\"other\": 1}"), "{\"other\": 1}");
    }

    #[test]
    fn days_have_their_dates() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(iso_8601(Duration::from_secs(seconds)), date);
        }
    }

    #[test]
    fn a_dumb_terminal_prints_and_one_without_colours_draws() {
        for (variables, coloured, redraws) in [
            (&[("TERM", "xterm-256color")][..], true, true),
            (&[("NO_COLOR", "")], true, true),
            (&[("NO_COLOR", "1"), ("TERM", "xterm")], false, true),
            (&[("TERM", "dumb")], false, false),
        ] {
            let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
            let terminal = Terminal::of(&Environment::new(variables));
            assert_eq!(terminal, Terminal { coloured, redraws });
        }
    }
}
