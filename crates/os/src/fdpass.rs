//! Messages with descriptors between the launcher and a role: a SEQPACKET socket pair and `SCM_RIGHTS`. And the way to
//! a socket that a library keeps to itself: [`receiver_of`].
//!
//! One message is one packet, never split and never joined. Nothing here waits for the peer: poll the
//! socket first. This is the control path; token traffic goes through rings.
//!
//! The kernel counts the descriptors that are on their way for each user, over all of its processes, and refuses more
//! than a process may have open (`ETOOMANYREFS`). Other programs' messages are taken in microseconds, so what sends
//! descriptors tries again: [`retry_while_too_many`].

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recv as socket_recv,
    recvmsg, sendmsg, socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Descriptor numbers looked at by [`receiver_of`]: a new descriptor gets the lowest number that is free.
const DESCRIPTORS_MAX: RawFd = 1 << 16;
/// Bytes of a message in which it looks for the mark.
const MARKED_BYTES: usize = 512;

/// How long [`retry_while_too_many`] tries, and how long it sleeps between two tries.
const TOO_MANY_MAX: Duration = Duration::from_secs(2);
const TOO_MANY_PAUSE: Duration = Duration::from_millis(1);
const TOO_MANY: &str = "more descriptors are on their way between this user's processes than the limit on open files \
                        (`ulimit -n`) allows";

/// Descriptors that one message can carry (the kernel's SCM_MAX_FD).
pub const FDS_MAX: usize = 253;

/// Bytes that one message can carry; below the default socket buffer of 208 KiB.
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024;

/// A message that arrived.
#[derive(Debug)]
pub struct Received {
    /// Its bytes, at least one.
    pub bytes: Vec<u8>,
    /// Its descriptors, in the order sent; they close on exec.
    pub fds: Vec<OwnedFd>,
}

/// A connected pair, non-blocking and closed on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?)
}

/// Calls `attempt` again, for at most two seconds, while the kernel refuses more descriptors on their way. Errors:
/// those of the last call; after two seconds one that names the limit.
pub fn retry_while_too_many<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = Instant::now() + TOO_MANY_MAX;
    loop {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(Errno::ETOOMANYREFS as i32) => {
                if Instant::now() > end {
                    return Err(io::Error::new(io::ErrorKind::QuotaExceeded, TOO_MANY));
                }
                std::thread::sleep(TOO_MANY_PAUSE);
            }
            result => return result,
        }
    }
}

/// Sends one message. Waits only as [`retry_while_too_many`] does, and with descriptors alone. Errors: `WouldBlock`
/// when the socket is full, `BrokenPipe` or `ConnectionReset` when the peer is gone, `InvalidInput` for an empty
/// message or one over the limits, `QuotaExceeded` when too many descriptors stay on their way.
pub fn send(sock: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.is_empty() || bytes.len() > MESSAGE_BYTES_MAX || fds.len() > FDS_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "control message is empty or over its limits",
        ));
    }
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let send_once = || Ok(sendmsg::<()>(sock.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None)?);
    let sent = retry_while_too_many(send_once)?;
    if sent != bytes.len() {
        return Err(io::Error::new(io::ErrorKind::WriteZero, "a packet was sent in part"));
    }
    Ok(())
}

/// Takes one message; `None` when there is none yet. Errors: `UnexpectedEof` when the peer is gone and all
/// it had sent was taken, `InvalidData` for a message over the limits.
pub fn recv(sock: BorrowedFd<'_>) -> io::Result<Option<Received>> {
    let Some(len) = next_len(sock)? else { return Ok(None) };
    if len == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed the control socket"));
    }
    let mut bytes = vec![0_u8; len.min(MESSAGE_BYTES_MAX)];
    let mut control = cmsg_space!([RawFd; FDS_MAX]);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let message = match recvmsg::<()>(sock.as_raw_fd(), &mut parts, Some(&mut control), flags) {
        Ok(message) => message,
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let truncated = message.flags.contains(MsgFlags::MSG_TRUNC);
    let taken = message.bytes;
    let mut fds = Vec::new();
    // The buffer holds the kernel's maximum: what is cut off are descriptors for which this process has no room.
    for control in message.cmsgs().map_err(|_| Errno::EMFILE)? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel made these descriptors for this very message; no other owner exists, and
            // each is wrapped once because the message is read once.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    if truncated {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "control message over its limit"));
    }
    bytes.truncate(taken);
    Ok(Some(Received { bytes, fds }))
}

/// A second handle on the socket of this process whose next message holds `mark` in its first bytes. Errors: there is
/// none.
pub fn receiver_of(mark: &[u8]) -> io::Result<OwnedFd> {
    let mut bytes = [0_u8; MARKED_BYTES];
    for number in 0..DESCRIPTORS_MAX {
        let peek = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        // What is no descriptor, no socket or has nothing to read is an error, and others keep what they have to read.
        let len = socket_recv(number, &mut bytes, peek).unwrap_or(0);
        if bytes[..len].windows(mark.len()).any(|part| part == mark) {
            // SAFETY: the mark waits there, so this is the socket that the caller sent it to and keeps open meanwhile;
            // it is borrowed for the duplication only.
            return unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned();
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "no socket of this process holds the message"))
}

/// Length of the next packet without taking it; 0 at the end, `None` when there is none yet.
fn next_len(sock: BorrowedFd<'_>) -> io::Result<Option<usize>> {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT;
    // A peer that died with unread mail leaves one ECONNRESET *in front of* what it had sent, and reporting
    // it clears it. Its last words matter (why it failed), so ask once more.
    for _ in 0..2 {
        match socket_recv(sock.as_raw_fd(), &mut [], flags) {
            Ok(len) => return Ok(Some(len)),
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(Errno::ECONNRESET) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(0))
}
