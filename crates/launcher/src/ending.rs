//! How the service ends: one line for the operator and an exit code.

use nix::libc::SIGKILL;
use pinion_config::{Config, Exit, LogForm};
use pinion_os::process::limit_behind;
use pinion_protocol::status::{EXIT_MEMORY_LIMIT, Reading};
use pinion_protocol::{Peer, Role};
use pinion_worker::telemetry;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::SystemTime;

/// Why the service ends, and with which exit code.
#[derive(Debug)]
pub struct Ending {
    /// One line for the operator; empty after a clean stop.
    pub reason: String,
    /// The launcher's exit code.
    pub code: Exit,
}

impl Ending {
    pub(crate) fn new(code: Exit, reason: impl Into<String>) -> Ending {
        Ending { reason: reason.into(), code }
    }

    pub(crate) fn system(what: &str, error: impl Into<io::Error>) -> Ending {
        let error = error.into();
        Ending::new(Exit::System, format!("{what}: {error}{}", limit_behind(&error)))
    }
}

/// The exit code for a role's own reason not to start.
pub(crate) fn role_exit(exit_code: i32) -> Exit {
    Exit::ALL.into_iter().find(|exit| i32::from(exit.code()) == exit_code).unwrap_or(Exit::Start)
}

/// What else is known of an end by SIGKILL, which the kernel sends to a process that takes too much memory.
pub(crate) fn memory_hint(status: ExitStatus) -> &'static str {
    match status.signal() {
        Some(SIGKILL) => {
            "; the kernel kills a process that takes too much memory: `pinion doctor MODEL` compares what the model \
             needs with what is there"
        }
        _ => "",
    }
}

/// A process that ended before it could say why. One that was refused something by the system says so by its code;
/// one that reached its memory limit does so too, and `reading` is what of the model's folder it was taking in.
pub(crate) fn start_failure(peer: Peer, status: ExitStatus, reading: Reading, config: &Config) -> Ending {
    if status.code() == Some(EXIT_MEMORY_LIMIT) {
        return out_of_memory(peer, reading, config);
    }
    let unready = || {
        format!(
            "{peer} ended before it was ready ({status}); its last lines are above{}",
            memory_hint(status)
        )
    };
    let (code, reason) = match (peer.role, status.code()) {
        (Role::Engine, Some(127)) => (
            Exit::Start,
            format!(
                "{peer} could not be loaded: libtorch is missing, is not the expected one, or has no room under a memory limit \
                 (ulimit -v); the line above says which. `deploy/launch.sh --setup-only` puts it in place"
            ),
        ),
        (_, Some(code)) if code == i32::from(Exit::System.code()) => {
            (Exit::System, format!("{peer} could not start; the line above says why"))
        }
        // By a signal: the driver of a GPU may take the process along.
        (Role::Engine, None) if config.cuda.is_some() => (Exit::Device, unready()),
        _ => (Exit::Start, unready()),
    };
    Ending::new(code, reason)
}

fn out_of_memory(peer: Peer, reading: Reading, config: &Config) -> Ending {
    let (folder, mib) = (config.model_dir.display(), config.text_memory_bytes_max >> 20);
    let what = match reading {
        Reading::Tokenizer => format!("{folder}/tokenizer.json: the tokenizer"),
        Reading::ChatTemplate => match &config.chat_template {
            Some(given) => format!("{}: the chat template", given.name),
            None => format!("{folder} (chat_template.jinja, or in tokenizer_config.json): the chat template"),
        },
        Reading::Nothing => format!("{folder}: {peer}"),
    };
    Ending::new(Exit::Model, format!("{what} needs more than the {mib} MiB of memory that {peer} may use"))
}

/// A process that could not be made, or that could not be given what it needs. What a program that is missing or may
/// not be run says of the installation, everything else says of the system.
pub(crate) fn not_started(peer: Peer, error: &io::Error) -> Ending {
    let code = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Exit::Start,
        _ => Exit::System,
    };
    let hint = limit_behind(error);
    Ending::new(code, format!("cannot start {peer}: {error}{hint}"))
}

/// Prints an ending the way the command line shows it, on standard error.
pub fn report(ending: &Ending, form: LogForm) {
    match (ending.reason.is_empty(), ending.code) {
        (true, _) => {}
        (false, Exit::Ok) => telemetry::say(&format!("pinion: {}", ending.reason)),
        (false, _) => say_error(&ending.reason, form),
    }
}

/// Says why the program ends.
pub(crate) fn say_error(reason: &str, form: LogForm) {
    telemetry::say(&form.error_line(reason, SystemTime::now()));
}
