//! `pinion-engine bench`: reads a work as JSON from its standard input, runs it, and prints a report as JSON. Started
//! by `pinion bench engine`, with the environment that the launcher would give an engine.

use crate::alone::run_alone;
use crate::options::build;
use pinion_config::{AloneWork, Exit, Topology};
use pinion_protocol::Role;
use pinion_worker::{Recorder, lock_memory, pin_to, telemetry};
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Instant;

/// Runs what the standard input asks for.
pub fn alone() -> ExitCode {
    let code = match run() {
        Ok(()) => Exit::Ok,
        Err((reason, exit)) => {
            telemetry::say(&format!("pinion-engine: error: {reason}"));
            exit
        }
    };
    telemetry::flush();
    code.into()
}

fn run() -> Result<(), (String, Exit)> {
    let usage = |reason: String| (reason, Exit::Usage);
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| usage(format!("cannot read the work from standard input: {error}")))?;
    let work: AloneWork = serde_json::from_str(&text).map_err(|error| {
        usage(format!("the work on standard input: {error}; `pinion bench engine` writes it"))
    })?;
    drop(text);
    // As a role does, and before the model's threads begin.
    let topology = Topology::new(&work.config);
    let engine = topology.processes.iter().find(|process| process.peer.role == Role::Engine);
    if let Some(process) = engine.filter(|_| work.config.pin)
        && let Err(reason) = pin_to(&process.cpus)
    {
        telemetry::say(&format!("pinion-engine: warning: not pinned: {reason}"));
    }
    let began = Instant::now();
    let (mut engine, mut summary) = build(&work.config, Recorder::default())?;
    if work.config.jitter_control {
        summary = format!("{summary}, {}", lock_memory());
    }
    let load_s = began.elapsed().as_secs_f64();
    telemetry::say(&summary);
    let mut report = run_alone(&work, &mut engine).map_err(|reason| (reason, Exit::Start))?;
    (report.version, report.summary, report.load_s) = (env!("CARGO_PKG_VERSION").to_owned(), summary, load_s);
    let text = serde_json::to_string(&report).expect("numbers and text always serialise");
    writeln!(std::io::stdout(), "{text}")
        .map_err(|error| (format!("cannot write the report: {error}"), Exit::System))
}
