//! `replay`: a recording of the engine run again by `pinion-engine replay`, which stands beside this tool and has the
//! libtorch that this tool has not. As it was, it must come out token by token and batch by batch; with switches
//! changed both sides are run in turns, which is the A/B of one traffic.

use crate::bootstrap::median;
use crate::table;
use clap::Args;
use serde::Deserialize;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Flags that say where and how fast, and change no decision: both sides get them.
const COMMON: [&str; 2] = ["--model", "--fake-step-us"];

#[derive(Args, Clone, Debug)]
pub(crate) struct ReplayArgs {
    /// With flags to change: how often each side runs.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// What `pinion serve --record` wrote.
    file: PathBuf,
    /// Flags of `pinion-engine replay` to change, like --no-prefix-cache or --max-num-seqs 8.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    changes: Vec<String>,
}

/// What one side came to.
#[derive(Clone, Debug, Deserialize)]
struct Report {
    identical: bool,
    steps: [u64; 2],
    rows: [u64; 2],
    tokens: [u64; 2],
    requests: u64,
    requests_that_differ: u64,
    first_difference: Option<String>,
    recorded_s: f64,
    replayed_s: f64,
}

fn engine() -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name("pinion-engine")
}

/// The flags that both sides get, and those that are the change.
fn divide(changes: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut common, mut own) = (Vec::new(), Vec::new());
    let mut words = changes.iter();
    while let Some(word) = words.next() {
        let (name, inline) = word.split_once('=').map_or((word.as_str(), false), |(name, _)| (name, true));
        if COMMON.contains(&name) {
            common.push(word.clone());
            if !inline {
                common.extend(words.next().cloned());
            }
        } else {
            own.push(word.clone());
        }
    }
    (common, own)
}

fn replay(file: &Path, flags: &[&[String]]) -> Result<Report, String> {
    let mut command = Command::new(engine());
    command.arg("replay").arg(file).args(flags.concat()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("cannot start {}: {error}", engine().display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).map_err(|_| format!("pinion-engine replay ended with {}", output.status))
}

pub(crate) fn run(args: &ReplayArgs) -> Result<(), String> {
    let (common, own) = divide(&args.changes);
    if own.is_empty() {
        // Nothing is compared: its words are ours.
        let error = Command::new(engine()).arg("replay").arg(&args.file).args(&common).exec();
        return Err(format!("cannot start {}: {error}", engine().display()));
    }
    if args.rounds == 0 {
        return Err("--rounds is above 0".to_owned());
    }
    let (mut recorded, mut changed) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        recorded.push(replay(&args.file, &[&common])?);
        changed.push(replay(&args.file, &[&common, &own])?);
    }
    print(&recorded, &changed, &own.join(" "));
    match recorded.iter().find(|report| !report.identical) {
        None => Ok(()),
        Some(report) => {
            let first = report.first_difference.as_deref().unwrap_or("a token differs");
            Err(format!("unchanged, the replay is not what was recorded: {first}"))
        }
    }
}

fn print(recorded: &[Report], changed: &[Report], name: &str) {
    let seconds = |reports: &[Report]| median(&reports.iter().map(|r| r.replayed_s).collect::<Vec<_>>());
    let (base_s, changed_s) = (seconds(recorded), seconds(changed));
    let line = |label: &str, report: &Report, replayed_s: f64| {
        vec![
            label.to_owned(),
            report.steps[1].to_string(),
            table::number(report.rows[1] as f64 / report.steps[1].max(1) as f64),
            report.tokens[1].to_string(),
            format!("{} of {}", report.requests_that_differ, report.requests),
            if report.identical { "identical".to_owned() } else { "other".to_owned() },
            table::number(replayed_s),
            format!("×{:.3}", replayed_s / base_s),
        ]
    };
    let header = [
        "replay",
        "steps",
        "rows/step",
        "tokens",
        "requests with other tokens",
        "batches and tokens",
        "seconds",
        "time ratio",
    ];
    let lines = [line("as recorded", &recorded[0], base_s), line(name, &changed[0], changed_s)];
    println!("{}", table::render(&header, &lines));
    println!(
        "medians of {} round(s); seconds are those of the model and the loop alone, the recorded run took {} s",
        recorded.len(),
        table::number(recorded[0].recorded_s)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_compared() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (line, common, own) in [
            ("", "", ""),
            ("--model m --no-overlap", "--model m", "--no-overlap"),
            ("--max-num-seqs 2 --fake-step-us=0", "--fake-step-us=0", "--max-num-seqs 2"),
            ("--fake-step-us=0 --no-overlap", "--fake-step-us=0", "--no-overlap"),
        ] {
            assert_eq!(divide(&words(line)), (words(common), words(own)), "{line}");
        }
    }
}
