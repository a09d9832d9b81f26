//! `pinion-engine replay FILE`: the engine without its processes, over a recording. Prints a report as JSON.

use crate::options::build;
use crate::tape;
use pinion_config::{Exit, ReplayCommand};
use pinion_worker::{Recorder, telemetry};
use std::io::Write;
use std::process::ExitCode;

/// Replays and reports. Fails if something that had to come out again did not.
pub fn replay(command: Result<ReplayCommand, String>) -> ExitCode {
    let code = match command.and_then(|command| run(&command)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => Exit::Start.into(),
        Err(reason) => {
            telemetry::say(&format!("pinion-engine: error: {reason}"));
            Exit::Usage.into()
        }
    };
    telemetry::flush();
    code
}

fn run(command: &ReplayCommand) -> Result<bool, String> {
    let recording = tape::read(&command.file)?;
    let mut config = recording.config.clone();
    command.apply(&mut config)?;
    let (engine, summary) = build(&config, Recorder::default()).map_err(|(reason, _)| reason)?;
    telemetry::say(&summary);
    let report = tape::replay(&recording, engine).map_err(|broken| broken.reason)?;
    let text = serde_json::to_string_pretty(&report).expect("numbers and text always serialise");
    writeln!(std::io::stdout(), "{text}").map_err(|error| format!("cannot write the report: {error}"))?;
    telemetry::say(&report.in_words());
    Ok(report.identical || !command.is_exact())
}
