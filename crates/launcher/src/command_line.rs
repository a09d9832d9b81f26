//! The command line of `pinion`, for the two binaries that have it: `pinion`, whose roles are processes, and
//! `pinion-in-process`, whose roles are threads. The first becomes the second when it is asked to.

use crate::host::{Host, RoleMain, thread_variables};
use crate::profile::Profile;
use crate::{ending, pull, serve};
use pinion_config::{Command, Config, Exit, Machine, Topology};
use pinion_protocol::Role;
use pinion_worker::telemetry;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

/// Of the binary that runs every role in one process; it stands beside `pinion`.
const IN_PROCESS_BINARY: &str = "pinion-in-process";
/// Of the benchmark tool; it stands there, too, where it was built.
const BENCH_BINARY: &str = "pinion-bench";

/// Parses once, then runs the command. `threads` are the roles that are linked into this binary, if they are.
pub fn run(threads: Option<RoleMain>) -> ExitCode {
    let machine = Machine::detect();
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let parsed = |folder: Option<&Path>| {
        pinion_config::parse_pulled(arguments.clone(), std::env::vars_os(), &machine, folder)
    };
    let command = match parsed(None) {
        Ok(Command::PullFirst(_)) => match pull::folder(&beside_this(pull::BINARY), &arguments) {
            Ok(folder) => parsed(Some(&folder)),
            Err(end) => {
                return ending::report(&end).map_or(Exit::System, |()| end.code).into();
            }
        },
        other => other,
    };
    let command = match command {
        Ok(command) => command,
        Err(faults) => {
            eprintln!("{faults}");
            return faults.exit().into();
        }
    };
    match command {
        Command::Version => print(concat!("pinion ", env!("CARGO_PKG_VERSION"))),
        Command::Help(text) | Command::ShowConfig(text) => print(&text),
        Command::Bench(arguments) => return become_program(BENCH_BINARY, BENCH_BINARY, &arguments),
        // The process reads the same words.
        Command::Pull(_) | Command::PullFirst(_) => {
            return become_program(pull::BINARY, "pinion-hub", &arguments);
        }
        Command::Trace(command) => return crate::trace::run(&command).into(),
        Command::Serve(config) => return run_service(*config, threads),
    }
    Exit::Ok.into()
}

/// A reader who has seen enough, like `head`, is no fault.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
}

fn run_service(config: Config, threads: Option<RoleMain>) -> ExitCode {
    let own = std::env::current_exe().ok();
    let Some(folder) = own.and_then(|exe| exe.parent().map(PathBuf::from)) else {
        eprintln!("pinion: error: cannot find the role binaries: own path unknown");
        return Exit::System.into();
    };
    let host = match threads {
        None if config.in_process => return become_one_process(&config, folder.join(IN_PROCESS_BINARY)),
        None => {
            let profile = Profile::of(&config).map(Rc::new);
            Host::Processes { folder, profile, confined: config.sandbox }
        }
        Some(main) => Host::Threads(main),
    };
    telemetry::install(&config.lifecycle.log_filter, config.lifecycle.log_json);
    if !config.sandbox {
        tracing::info!(
            "roles keep all privileges (--no-sandbox, or what implies it: --in-process, --profile, --nvtx)"
        );
    }
    let end = serve::serve(config, host);
    let code = end.code;
    match ending::report(&end) {
        Ok(()) => code.into(),
        Err(_) => Exit::System.into(),
    }
}

/// Replaces this process by a program that stands beside it.
fn become_program(name: &str, package: &str, arguments: &[impl AsRef<OsStr>]) -> ExitCode {
    let binary = beside_this(name);
    let error = std::process::Command::new(&binary).args(arguments).exec();
    eprintln!(
        "pinion: error: cannot start {}: {error}; `cargo build --release --package {package}` makes it",
        binary.display()
    );
    Exit::System.into()
}

/// The path of a program in this one's folder.
fn beside_this(name: &str) -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name(name)
}

/// Replaces this process. Thread pools read their variables once, when they are loaded, so those of the engine
/// are set here.
fn become_one_process(config: &Config, binary: PathBuf) -> ExitCode {
    let topology = Topology::new(config);
    let engine = topology.processes.iter().find(|process| process.peer.role == Role::Engine);
    let error = std::process::Command::new(&binary)
        .args(std::env::args_os().skip(1))
        .envs(engine.map(thread_variables).unwrap_or_default())
        .exec();
    eprintln!(
        "pinion: error: cannot start {}: {error}; `cargo build --release --package {IN_PROCESS_BINARY}` makes it",
        binary.display()
    );
    Exit::System.into()
}
