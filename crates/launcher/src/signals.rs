//! Termination signals as a descriptor, so that the one loop can wait for them beside everything else.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// SIGTERM, SIGINT and SIGHUP, blocked and queued.
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals for this thread, and so for every thread and process that it starts: whoever sends one to all
    /// of them, as systemd does, is heard here alone.
    pub(crate) fn new() -> io::Result<Signals> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block()?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Signals(fd))
    }

    /// How many signals came since the last call.
    pub(crate) fn taken(&self) -> usize {
        std::iter::from_fn(|| self.0.read_signal().ok().flatten()).count()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
