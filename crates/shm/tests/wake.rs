//! Doorbells, the bounded wait, descriptor passing and death notices.
#![cfg(not(loom))]
// A failed step of a test is a failed test, in its helpers too.
#![allow(clippy::unwrap_used)]

use pinion_os::{clock, fdpass};
use pinion_shm::doorbell::{Doorbell, Ready, WAIT_FDS_MAX, wait};
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_bell_rings_until_it_is_drained() {
    let bell = Doorbell::create().unwrap();
    let peer = Doorbell::from_fd(bell.fd().try_clone_to_owned().unwrap());
    assert!(wait(&[bell.fd()], Duration::ZERO).unwrap().timed_out());
    for _ in 0..3 {
        peer.ring();
    }
    for _ in 0..2 {
        assert_eq!(wait(&[bell.fd()], SOON).unwrap(), Ready { readable: 1, hung_up: 0 });
    }
    bell.drain();
    bell.drain();
    assert!(wait(&[bell.fd()], Duration::ZERO).unwrap().timed_out(), "one drain takes all rings");
}

#[test]
fn a_full_bell_does_not_block() {
    let bell = Doorbell::create().unwrap();
    nix::unistd::write(bell.fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
    bell.ring();
    assert!(wait(&[bell.fd()], SOON).unwrap().readable == 1);
    bell.drain();
    bell.ring();
    assert!(bell.try_clone().is_ok_and(|clone| wait(&[clone.fd()], SOON).unwrap().readable == 1));
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let bell = Doorbell::create().unwrap();
    for fds in [&[][..], &[bell.fd()]] {
        let begin = Instant::now();
        assert!(wait(fds, Duration::from_millis(60)).unwrap().timed_out());
        let waited = begin.elapsed();
        assert!(waited >= Duration::from_millis(60) && waited < SOON, "{waited:?}");
    }
    let too_many: Vec<BorrowedFd<'_>> = (0..=WAIT_FDS_MAX).map(|_| bell.fd()).collect();
    assert_eq!(wait(&too_many, SOON).unwrap_err().kind(), ErrorKind::InvalidInput);
    bell.ring();
    let ready = wait(&too_many[1..], Duration::MAX).unwrap();
    assert_eq!(ready.readable, u64::MAX, "as many as one wait can watch");
}

#[test]
fn data_and_hang_up_are_told_apart() {
    let (ours, theirs) = fdpass::pair().unwrap();
    let bell = Doorbell::create().unwrap();
    let fds = [bell.fd(), ours.as_fd()];
    assert!(wait(&fds, Duration::ZERO).unwrap().timed_out());
    fdpass::send(theirs.as_fd(), b"x", &[]).unwrap();
    let ready = wait(&fds, SOON).unwrap();
    assert_eq!((ready.readable, ready.hung_up), (0b10, 0));
    drop(theirs);
    let ready = wait(&fds, SOON).unwrap();
    assert_eq!((ready.readable, ready.hung_up), (0b10, 0b10));
}

#[test]
fn messages_arrive_whole_with_their_descriptors() {
    let (ours, theirs) = fdpass::pair().unwrap();
    assert!(fdpass::recv(theirs.as_fd()).unwrap().is_none(), "nothing yet, and no blocking");
    let blob = pinion_shm::region::sealed_blob("pinion-test", b"config").unwrap();
    let bell = Doorbell::create().unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    fdpass::send(ours.as_fd(), b"first", &[blob.as_fd(), bell.fd(), reader.as_fd()]).unwrap();
    let large: Vec<u8> = (0..fdpass::MESSAGE_BYTES_MAX).map(|i| i as u8).collect();
    fdpass::send(ours.as_fd(), &large, &[]).unwrap();
    drop((blob, ours, reader));

    let mut first = fdpass::recv(theirs.as_fd()).unwrap().unwrap();
    assert_eq!((&first.bytes[..], first.fds.len()), (&b"first"[..], 3), "packets are not joined");
    for fd in &first.fds {
        let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags & nix::libc::FD_CLOEXEC, nix::libc::FD_CLOEXEC, "closed on exec");
    }
    writer.write_all(b"through the pipe").unwrap();
    let mut buffer = [0; 16];
    nix::unistd::read(first.fds.pop().unwrap(), &mut buffer).unwrap();
    assert_eq!(&buffer, b"through the pipe");
    Doorbell::from_fd(first.fds.pop().unwrap()).ring();
    assert!(wait(&[bell.fd()], SOON).unwrap().readable == 1);
    assert_eq!(pinion_shm::region::read_blob(first.fds.pop().unwrap()).unwrap(), b"config");

    let second = fdpass::recv(theirs.as_fd()).unwrap().unwrap();
    assert!(second.bytes == large && second.fds.is_empty());
    for _ in 0..2 {
        assert_eq!(
            fdpass::recv(theirs.as_fd()).unwrap_err().kind(),
            ErrorKind::UnexpectedEof,
            "then the end"
        );
    }
    let gone = fdpass::send(theirs.as_fd(), b"x", &[]).unwrap_err().kind();
    assert!(matches!(gone, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{gone:?}");
}

#[test]
fn the_last_words_of_a_peer_that_did_not_listen_arrive() {
    // The peer dies with unread mail, so the kernel reports a reset in front of what it had said.
    let (ours, theirs) = fdpass::pair().unwrap();
    fdpass::send(ours.as_fd(), b"unread", &[]).unwrap();
    fdpass::send(theirs.as_fd(), b"last words", &[]).unwrap();
    drop(theirs);
    assert_eq!(fdpass::recv(ours.as_fd()).unwrap().unwrap().bytes, b"last words");
    assert_eq!(fdpass::recv(ours.as_fd()).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn messages_have_limits() {
    let (ours, theirs) = fdpass::pair().unwrap();
    let fd = ours.as_fd();
    let over = vec![0; fdpass::MESSAGE_BYTES_MAX + 1];
    let fds: Vec<BorrowedFd<'_>> = (0..=fdpass::FDS_MAX).map(|_| fd).collect();
    for (bytes, fds) in [(&b""[..], &fds[..0]), (&over[..], &fds[..0]), (b"x", &fds[..])] {
        assert_eq!(fdpass::send(fd, bytes, fds).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    fdpass::send(fd, b"x", &fds[..fdpass::FDS_MAX]).unwrap();
    assert_eq!(fdpass::recv(theirs.as_fd()).unwrap().unwrap().fds.len(), fdpass::FDS_MAX);
    // A peer that ignores our limits.
    let sent = nix::sys::socket::send(
        std::os::fd::AsRawFd::as_raw_fd(&ours),
        &over,
        nix::sys::socket::MsgFlags::MSG_DONTWAIT,
    );
    assert_eq!(sent, Ok(over.len()));
    assert_eq!(fdpass::recv(theirs.as_fd()).unwrap_err().kind(), ErrorKind::InvalidData);
    let full = std::iter::repeat_with(|| fdpass::send(fd, &over[1..], &[])).take(100).find_map(Result::err);
    assert_eq!(full.expect("the socket has a bound").kind(), ErrorKind::WouldBlock);
}

#[test]
fn the_clock_runs_forward() {
    let first = clock::now_ns();
    std::thread::sleep(Duration::from_millis(2));
    assert!(clock::now_ns() >= first + 2_000_000);
}
