//! How the service ends: one line for the operator and an exit code.

use pinion_config::Exit;
use pinion_protocol::{Peer, Role};
use std::io;

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

    pub(crate) fn system(what: &str, error: impl std::fmt::Display) -> Ending {
        Ending::new(Exit::System, format!("{what}: {error}"))
    }
}

/// The exit code for a role's own reason not to start.
pub(crate) fn role_exit(exit_code: i32) -> Exit {
    Exit::ALL.into_iter().find(|exit| i32::from(exit.code()) == exit_code).unwrap_or(Exit::Start)
}

/// A process that ended before it could say why.
pub(crate) fn start_failure(peer: Peer, status: std::process::ExitStatus) -> String {
    match (peer.role, status.code()) {
        (Role::Engine, Some(127)) => format!(
            "{peer} could not be loaded: libtorch is missing or not the expected one; \
             `deploy/launch.sh --setup-only` puts it in place"
        ),
        _ => format!("{peer} ended before it was ready ({status}); its last lines are above"),
    }
}

/// Prints an ending the way the command line shows it, on standard error.
pub fn report(ending: &Ending) -> io::Result<()> {
    use std::io::Write;
    if ending.reason.is_empty() {
        return Ok(());
    }
    let word = if ending.code == Exit::Ok { "pinion" } else { "pinion: error" };
    writeln!(io::stderr().lock(), "{word}: {}", ending.reason)
}
