//! A process as a descriptor: readable once it has died, immune to reuse of its number.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Opens process `pid`. The descriptor closes on exec. Errors: `ESRCH` when there is no such process; a
/// child that died but was not reaped yet can still be opened.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).expect("the kernel's descriptors are ints");
    // SAFETY: the call above succeeded, so this is a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
