//! Wake-ups: an eventfd per reader, and the one bounded wait of the system.
//!
//! A ring of the bell is a hint and never a count: a reader that wakes drains the bell, then reads its rings. The
//! protocol that makes it safe to sleep is in [`crate::ring`].

use crate::ring::Wake;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Descriptors that one [`wait`] can watch.
pub const WAIT_FDS_MAX: usize = 64;

/// A longer wait than this comes back early, as a timeout.
pub const WAIT_MAX: Duration = Duration::from_secs(3600);

/// An eventfd, non-blocking and closed on exec.
pub struct Doorbell {
    fd: OwnedFd,
}

impl Doorbell {
    /// A new bell.
    pub fn create() -> io::Result<Doorbell> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Doorbell { fd: event.into() })
    }

    /// A bell received from the process that created it.
    pub fn from_fd(fd: OwnedFd) -> Doorbell {
        Doorbell { fd }
    }

    /// A second handle on the same bell.
    pub fn try_clone(&self) -> io::Result<Doorbell> {
        Ok(Doorbell { fd: self.fd.try_clone()? })
    }

    /// Makes the bell readable.
    pub fn ring(&self) {
        // The only expected error is EAGAIN, when the counter is full: then the bell is ringing already.
        // Anything else means a broken descriptor, and the reader's deadline covers a lost wake-up.
        let _ = nix::unistd::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Makes the bell silent. Call it before looking at the rings, not after.
    pub fn drain(&self) {
        let mut count = [0_u8; 8];
        // EAGAIN says that it was silent.
        let _ = nix::unistd::read(&self.fd, &mut count);
    }

    /// For [`wait`], for an async runtime, or for sending it to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Wake for Doorbell {
    fn wake(&self) {
        self.ring();
    }
}

/// What [`wait`] saw: one bit per descriptor, in the order given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Something can be read: a bell rang, a message or a death (pidfd) is there.
    pub readable: u64,
    /// The other end is gone, or the descriptor is broken. A socket can be readable and hung up at once:
    /// read first.
    pub hung_up: u64,
}

impl Ready {
    /// Whether the time passed without any event.
    pub fn timed_out(self) -> bool {
        self.readable | self.hung_up == 0
    }
}

/// Sleeps until one of `fds` is readable or hung up, or `timeout` has passed; signals do not cut it short.
/// Errors: more than [`WAIT_FDS_MAX`] descriptors, or the kernel's.
pub fn wait(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Ready> {
    if fds.len() > WAIT_FDS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "more descriptors than one wait can watch"));
    }
    let timeout = timeout.min(WAIT_MAX);
    let begin = Instant::now();
    let Some(&first) = fds.first() else {
        std::thread::sleep(timeout);
        return Ok(Ready::default());
    };
    // An array, so that waiting never allocates; the unused rest repeats the first and is not polled.
    let mut polled: [PollFd<'_>; WAIT_FDS_MAX] =
        std::array::from_fn(|i| PollFd::new(fds.get(i).copied().unwrap_or(first), PollFlags::POLLIN));
    let polled = &mut polled[..fds.len()];
    loop {
        let left = timeout.saturating_sub(begin.elapsed());
        match ppoll(polled, Some(TimeSpec::from_duration(left)), None) {
            Ok(_) => break,
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
    }
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    let mut ready = Ready::default();
    for (i, fd) in polled.iter().enumerate() {
        let events = fd.revents().unwrap_or(PollFlags::POLLERR);
        ready.readable |= u64::from(events.contains(PollFlags::POLLIN)) << i;
        ready.hung_up |= u64::from(events.intersects(gone)) << i;
    }
    Ok(ready)
}
