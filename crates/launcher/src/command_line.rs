//! The command line of `pinion`, for the two binaries that have it: `pinion`, whose roles are processes, and
//! `pinion-in-process`, whose roles are threads. The first becomes the second when it is asked to.

use crate::ending::{self, say_error};
use crate::gpu::{self, Choice};
use crate::host::{Host, RoleMain};
use crate::profile::Profile;
use crate::{descriptors, pull, serve};
use nix::sys::signal::Signal;
use pinion_config::{Command, Config, Exit, Faults, LogForm, Machine, Process, SECRET_VARIABLES, Topology};
use pinion_os::process::{limit_behind, restore_default, survive_file_limit};
use pinion_protocol::Role;
use pinion_worker::telemetry;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::SystemTime;

/// Of the binary that runs every role in one process; it stands beside `pinion`.
const IN_PROCESS_BINARY: &str = "pinion-in-process";
/// Of the benchmark tool; it stands there, too, where it was built.
const BENCH_BINARY: &str = "pinion-bench";
/// Of the client in a terminal.
const TERMINAL_BINARY: &str = "pinion-terminal";
/// Of the program that checks the machine.
const DOCTOR_BINARY: &str = "pinion-doctor";

/// Parses, then runs the command. `threads` are the roles that are linked into this binary, if they are.
pub fn run(threads: Option<RoleMain>) -> ExitCode {
    // Where a parent has left it ignored, the kernel forgets how a child ended.
    if let Err(error) = restore_default(Signal::SIGCHLD) {
        say_error(&format!("cannot stop ignoring SIGCHLD: {error}"), LogForm::of_process());
        telemetry::flush();
        return Exit::System.into();
    }
    let machine = Machine::detect();
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let parsed = |machine: &Machine, folder: Option<&Path>| {
        pinion_config::parse_pulled(arguments.clone(), std::env::vars_os(), machine, folder)
    };
    let mut pulled = None;
    let command = match parsed(&machine, None) {
        Ok(Command::PullFirst(_)) => match pull::folder(&beside_this(pull::BINARY), &arguments) {
            Ok(folder) => {
                let command = parsed(&machine, Some(&folder));
                pulled = Some(folder);
                command
            }
            Err(end) => {
                ending::report(&end, LogForm::of_process());
                telemetry::flush();
                return end.code.into();
            }
        },
        other => other,
    };
    let command = match command {
        Ok(command) => command,
        Err(faults) => {
            telemetry::say(&faults.told(LogForm::of_process(), SystemTime::now()));
            telemetry::flush();
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
        Command::Doctor => return become_program(DOCTOR_BINARY, DOCTOR_BINARY, &arguments),
        Command::Terminal => return become_program(TERMINAL_BINARY, TERMINAL_BINARY, &arguments),
        Command::Trace(command) => return crate::trace::run(&command).into(),
        Command::Serve(config) => {
            let without_gpu = Machine { has_nvidia_gpu: false, ..machine };
            let on_cpu = || parsed(&without_gpu, pulled.as_deref());
            return run_service(Plan::of(*config, on_cpu), threads);
        }
    }
    Exit::Ok.into()
}

/// What is to be served.
enum Plan {
    /// Where the command line says.
    One(Box<Config>),
    /// On the GPU if it can.
    GpuFirst(Box<Choice>),
}

impl Plan {
    /// `on_cpu` reads the command line as on a machine without a GPU. Where the CPU cannot serve either, the GPU's
    /// reason is the one to be told.
    fn of(config: Config, on_cpu: impl FnOnce() -> Result<Command, Faults>) -> Plan {
        let may_fall_back = config.cuda.as_ref().is_some_and(|cuda| cuda.may_fall_back);
        match may_fall_back.then(on_cpu) {
            Some(Ok(Command::Serve(on_cpu))) => {
                Plan::GpuFirst(Box::new(Choice { on_gpu: config, on_cpu: *on_cpu }))
            }
            _ => Plan::One(Box::new(config)),
        }
    }

    /// What both forms agree in: everything but the device and what follows from it.
    fn config(&self) -> &Config {
        match self {
            Plan::One(config) => config,
            Plan::GpuFirst(choice) => &choice.on_gpu,
        }
    }
}

/// A closed pipe, as `head` leaves it, is no fault.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
}

fn run_service(plan: Plan, threads: Option<RoleMain>) -> ExitCode {
    let code = service(plan, threads);
    telemetry::flush();
    code
}

fn service(plan: Plan, threads: Option<RoleMain>) -> ExitCode {
    let config = plan.config();
    let form = config.lifecycle.log_form;
    if let Err(error) = survive_file_limit() {
        say_error(&format!("cannot ignore SIGXFSZ: {error}"), form);
        return Exit::System.into();
    }
    descriptors::raise_limit();
    let own = std::env::current_exe().ok();
    let Some(folder) = own.and_then(|exe| exe.parent().map(PathBuf::from)) else {
        say_error("cannot find the role binaries: own path unknown", form);
        return Exit::System.into();
    };
    let host = match threads {
        None if config.in_process => return become_one_process(config, folder.join(IN_PROCESS_BINARY)),
        None => {
            let profile = Profile::of(config).map(Rc::new);
            Host::Processes { folder: folder.clone(), profile, confined: config.sandbox }
        }
        Some(main) => Host::Threads(main),
    };
    for variable in SECRET_VARIABLES {
        // Without /proc the command line cannot be read there either.
        let _ = pinion_os::process::wipe_variable(variable);
    }
    telemetry::install(&config.lifecycle.log_filter, form);
    if let Err(error) = telemetry::start() {
        say_error(&format!("cannot start the log: {error}{}", limit_behind(error)), form);
        return Exit::System.into();
    }
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if !config.sandbox {
        tracing::info!(
            "roles keep all privileges (--no-sandbox, or what implies it: --in-process, --profile, --nvtx)"
        );
    }
    let end = match plan {
        Plan::One(config) => serve::serve(*config, host),
        Plan::GpuFirst(choice) => gpu::serve(*choice, &folder, host),
    };
    ending::report(&end, form);
    end.code.into()
}

/// Replaces this process by a program that stands beside it.
fn become_program(name: &str, package: &str, arguments: &[impl AsRef<OsStr>]) -> ExitCode {
    let binary = beside_this(name);
    let error = std::process::Command::new(&binary).args(arguments).exec();
    cannot_become(&binary, &error, package)
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
        .envs(engine.map(Process::thread_variables).unwrap_or_default())
        .exec();
    cannot_become(&binary, &error, IN_PROCESS_BINARY)
}

fn cannot_become(binary: &Path, error: &io::Error, package: &str) -> ExitCode {
    let place = if package == BENCH_BINARY { "no package holds it: in the source tree " } else { "" };
    let made_by = format!("{place}`cargo build --release --package {package}` makes it");
    let reason = format!("cannot start {}: {error}; {made_by}", binary.display());
    say_error(&reason, LogForm::of_process());
    telemetry::flush();
    Exit::System.into()
}
