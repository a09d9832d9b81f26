//! Signals as a descriptor, so that the one loop can wait for them beside everything else.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pinion_os::process::ignores;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Each of these ends the service: the first drains, the second stops at once. But for the first of them, one that the
/// process was started to ignore is left ignored: nohup(1) does that for SIGHUP, a script's shell for the SIGINT and
/// SIGQUIT of what it runs in the background.
const ENDING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];
/// These would end a process that does not expect them. They are passed over: other programs use them to have logs
/// opened anew and the like.
const PASSED_OVER: [Signal; 3] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGALRM];

/// The signals of both kinds, blocked and queued.
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals for this thread, and so for every thread and process that it starts: a signal sent to all
    /// of them, as systemd does, is heard here alone.
    pub(crate) fn new() -> io::Result<Signals> {
        let mut set = SigSet::empty();
        // One that is blocked is queued even if it is ignored.
        let is_heard = |signal: &Signal| *signal == Signal::SIGTERM || !ignores(*signal);
        ENDING.into_iter().filter(is_heard).chain(PASSED_OVER).for_each(|signal| set.add(signal));
        set.thread_block()?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Signals(fd))
    }

    /// Whether a signal that ends the service came since the last call.
    pub(crate) fn ending(&self) -> bool {
        let signals = std::iter::from_fn(|| self.0.read_signal().ok().flatten());
        signals.filter(|info| ENDING.iter().any(|signal| *signal as u32 == info.ssi_signo)).count() > 0
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
