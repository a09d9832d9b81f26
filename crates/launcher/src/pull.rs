//! Pulls a model of the hub before anything else starts: `pinion-pull` beside this program does it, so that neither
//! this process nor a role speaks TLS.
//!
//! A download takes as long as it takes, so this wait has no deadline: `pinion-pull` gives up by itself when nothing
//! comes, it ends with this process, and a signal ends both.

use crate::child::{self, End};
use crate::ending::{Ending, role_exit};
use crate::signals::Signals;
use pinion_config::Exit;
use pinion_os::process::dies_with_parent;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Of the program that pulls.
pub(crate) const BINARY: &str = "pinion-pull";

/// Pulls the model that the command line names; its folder. Errors: what is left to say, and the exit code.
pub(crate) fn folder(binary: &Path, arguments: &[OsString]) -> Result<PathBuf, Ending> {
    let signals = Signals::new().map_err(|error| Ending::system("cannot take signals", error))?;
    let mut command = Command::new(binary);
    // Ctrl-C goes to the whole process group: only this process shall hear it.
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    dies_with_parent(&mut command);
    let cannot =
        |error: io::Error| Ending::new(Exit::System, format!("cannot start {}: {error}", binary.display()));
    let mut child = command.spawn().map_err(cannot)?;
    let end = child::wait(&mut child, &signals, None);
    let End::Exited(status) = end.map_err(|error| Ending::system("cannot wait for the pull", error))? else {
        return Err(Ending::new(Exit::Ok, "stopped before it was ready"));
    };
    match status.code() {
        Some(0) => {}
        // It has said why. What has one slash may have been meant as a path.
        Some(code) => {
            let said = "a folder of that name would be served; there is none in the working directory";
            return Err(Ending::new(role_exit(code), said));
        }
        None => return Err(Ending::new(Exit::Pull, format!("{BINARY} ended unexpectedly ({status})"))),
    }
    let mut line = Vec::new();
    let read = child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_end(&mut line));
    read.map_err(|error| Ending::system("cannot read what the pull says", error))?;
    let path = line.strip_suffix(b"\n").unwrap_or(&line);
    Ok(PathBuf::from(OsString::from_vec(path.to_vec())))
}
