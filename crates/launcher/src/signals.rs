//! Signals as a descriptor, so that the one loop can wait for them beside everything else.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Each of these ends the service: the first drains, the second stops at once.
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
        ENDING.into_iter().chain(PASSED_OVER).for_each(|signal| set.add(signal));
        set.thread_block()?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Signals(fd))
    }

    /// How many signals that end the service came since the last call.
    pub(crate) fn ending(&self) -> usize {
        let signals = std::iter::from_fn(|| self.0.read_signal().ok().flatten());
        signals.filter(|info| ENDING.iter().any(|signal| *signal as u32 == info.ssi_signo)).count()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
