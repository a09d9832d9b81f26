//! Children that do not outlive their parent, also those whose program knows nothing of us.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The kernel ends the command's process when the thread that starts it ends. It outlives an exec, not a fork.
pub fn dies_with_parent(command: &mut Command) {
    let set =
        || nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).map_err(std::io::Error::from);
    // SAFETY: between fork and exec only one system call is made, which allocates nothing and takes no lock.
    unsafe { command.pre_exec(set) };
}
