//! The wait for a process that does one thing before the service starts: a pull, a look at the GPU. It ends with this
//! process, and a signal ends both.

use crate::signals::Signals;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pinion_os::{clock, pidfd};
use pinion_shm::doorbell;
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// The longest sleep between two looks.
const TICK: Duration = Duration::from_millis(500);
/// How long the process has to leave after a signal, before it is killed.
const STOP_TIMEOUT_NS: u64 = 2_000_000_000;

/// How the wait ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The process ended.
    Exited(ExitStatus),
    /// A signal came, and the process ended.
    Signalled,
    /// The process was killed when its time was over. It may still be there, in the kernel.
    Late,
}

/// Waits for the end of `child`, for `limit` at most if there is one.
pub(crate) fn wait(child: &mut Child, signals: &Signals, limit: Option<Duration>) -> io::Result<End> {
    let ended = pidfd::open(child.id())?;
    let late_ns = limit.map(|limit| clock::now_ns() + limit.as_nanos() as u64);
    let mut stop_by_ns = None;
    loop {
        doorbell::wait(&[signals.fd(), ended.as_fd()], TICK)?;
        if signals.ending() && stop_by_ns.is_none() {
            kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM)?;
            stop_by_ns = Some(clock::now_ns() + STOP_TIMEOUT_NS);
        }
        if let Some(status) = child.try_wait()? {
            return Ok(if stop_by_ns.is_none() { End::Exited(status) } else { End::Signalled });
        }
        let now_ns = clock::now_ns();
        if late_ns.is_some_and(|by| now_ns > by) {
            child.kill()?;
            return Ok(if stop_by_ns.is_none() { End::Late } else { End::Signalled });
        }
        if stop_by_ns.is_some_and(|by| now_ns > by) {
            child.kill()?;
        }
    }
}
