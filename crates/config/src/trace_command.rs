//! The words after `pinion trace`. It is no service and has few options, so they are not in the option table.

use crate::fault::{Collector, Origin};
use std::path::PathBuf;

/// Longest trace in seconds, as the service has it.
const SECONDS_MAX: u64 = 60;

/// What `pinion trace` is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceCommand {
    /// Where the trace goes.
    pub out: PathBuf,
    /// How long to record; 0 is what is still known.
    pub seconds: u64,
    /// `HOST:PORT` of the service.
    pub address: String,
    /// Its key, if it has one.
    pub key: Option<String>,
}

/// For `pinion help trace`.
pub(crate) const HELP: &str = "\
Writes what every process of a running service does, as a trace for https://ui.perfetto.dev or chrome://tracing.

Usage:
  pinion trace [--out FILE] [--seconds N] [--url http://HOST:PORT]

  --out FILE       where the trace goes [trace.json]
  --seconds N      record for this long, at most 60; 0 takes what the rings still hold [0]
  --url URL        the service [http://127.0.0.1:8000]

A service with keys wants one of them in PINION_API_KEY.
";

/// Reads the words after `trace`.
pub(crate) fn read(words: &[String], key: Option<String>, faults: &mut Collector) -> TraceCommand {
    let mut command = TraceCommand {
        out: PathBuf::from("trace.json"),
        seconds: 0,
        address: "127.0.0.1:8000".to_owned(),
        key: key.and_then(|keys| keys.split(',').next().map(|key| key.trim().to_owned())),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (flag, inline) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word.as_str(), None),
        };
        let origin = Origin::Flag(flag.to_owned());
        if !["--out", "--seconds", "--url"].contains(&flag) {
            faults.add(&origin, "`pinion trace` has --out, --seconds and --url");
            continue;
        }
        let Some(value) = inline.or_else(|| words.next().map(String::as_str)) else {
            faults.add(&origin, "needs a value");
            continue;
        };
        match flag {
            "--out" => command.out = PathBuf::from(value),
            "--seconds" => match value.parse().ok().filter(|seconds| *seconds <= SECONDS_MAX) {
                Some(seconds) => command.seconds = seconds,
                None => faults.add(&origin, format!("wants a number from 0 to {SECONDS_MAX}")),
            },
            _ => match value.strip_prefix("http://").map(|rest| rest.trim_end_matches('/')) {
                Some(address) if !address.is_empty() && !address.contains('/') => {
                    command.address =
                        if address.contains(':') { address.to_owned() } else { format!("{address}:80") };
                }
                _ => faults.add(&origin, "wants http://HOST:PORT"),
            },
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[&str]) -> Result<TraceCommand, usize> {
        let mut faults = Collector::default();
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let command = read(&words, Some("first, second".to_owned()), &mut faults);
        if faults.0.is_empty() { Ok(command) } else { Err(faults.0.len()) }
    }

    #[test]
    fn words_become_a_command_or_faults() {
        let preset = check(&[]).unwrap();
        assert_eq!((preset.seconds, preset.address.as_str()), (0, "127.0.0.1:8000"));
        assert_eq!(preset.key.as_deref(), Some("first"));
        let told = check(&["--out", "x", "--seconds=5", "--url", "http://host:9/"]).unwrap();
        assert_eq!((told.out, told.seconds, told.address.as_str()), (PathBuf::from("x"), 5, "host:9"));
        assert_eq!(check(&["--seconds", "61", "--url", "https://host", "--other", "--out"]), Err(4));
    }
}
