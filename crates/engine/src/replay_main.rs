//! `pinion-engine replay FILE`: the engine without its processes, over a recording. Prints a report as JSON.

use crate::options::build;
use crate::tape;
use pinion_config::{Exit, ReplayCommand};
use pinion_worker::Recorder;
use std::process::ExitCode;

/// Replays and reports. Fails if something that had to come out again did not.
pub fn replay(command: Result<ReplayCommand, String>) -> ExitCode {
    match command.and_then(|command| run(&command)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => Exit::Start.into(),
        Err(reason) => {
            eprintln!("pinion-engine: error: {reason}");
            Exit::Usage.into()
        }
    }
}

fn run(command: &ReplayCommand) -> Result<bool, String> {
    let recording = tape::read(&command.file)?;
    let mut config = recording.config.clone();
    command.apply(&mut config)?;
    let (engine, summary) = build(&config, Recorder::default()).map_err(|(reason, _)| reason)?;
    eprintln!("{summary}");
    let report = tape::replay(&recording, engine).map_err(|broken| broken.reason)?;
    println!("{}", serde_json::to_string_pretty(&report).expect("numbers and text always serialise"));
    eprintln!("{}", report.in_words());
    Ok(report.identical || !command.is_exact())
}
