//! Sockets within the filters of a process that connects by TCP: this test binary again, confined.

#![allow(unsafe_code, reason = "a socket of any protocol has no safe wrapper")]

use pinion_os::calls::{Calls, restrict};
use std::io::{self, ErrorKind, Write};
use std::process::Command;

const CONFINED: &str = "CALLS_TEST_CONFINED";
/// What each is called, its protocol, and whether it passes.
const PROTOCOLS: [(&str, i32, bool); 5] = [
    ("by its kind", 0, true),
    ("TCP", libc::IPPROTO_TCP, true),
    // They fall back to TCP, and Landlock does not look at their ports.
    ("MPTCP", libc::IPPROTO_MPTCP, false),
    ("SMC", 256, false),
    ("SCTP", libc::IPPROTO_SCTP, false),
];

/// Makes a stream socket of this protocol, and closes it.
fn try_socket(family: i32, protocol: i32) -> io::Result<()> {
    // SAFETY: the call takes three numbers and touches no memory.
    let descriptor = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, protocol) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made above and is used by nothing else.
    unsafe { libc::close(descriptor) };
    Ok(())
}

/// The other side of the test: does nothing unless it is told to.
#[test]
fn confined() {
    if std::env::var_os(CONFINED).is_none() {
        return;
    }
    restrict(Calls { connects: true, ..Calls::default() }).unwrap();
    for (name, protocol, _) in PROTOCOLS {
        for family in [libc::AF_INET, libc::AF_INET6] {
            let word = match try_socket(family, protocol) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => "refused",
                // Not every kernel has every family.
                Ok(()) | Err(_) => "passed on",
            };
            // In one piece and on a line of its own: the test harness writes to the same place.
            std::io::stdout().write_all(format!("\n{name} {family}={word}\n").as_bytes()).unwrap();
        }
    }
}

#[test]
fn a_process_that_connects_has_sockets_of_tcp_alone() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "confined", "--nocapture", "--test-threads", "1"]).env(CONFINED, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{text}", output.status);
    for (name, _, passes) in PROTOCOLS {
        for family in [libc::AF_INET, libc::AF_INET6] {
            let expected = format!("{name} {family}={}", if passes { "passed on" } else { "refused" });
            assert!(text.lines().any(|line| line == expected), "{expected}: {text}");
        }
    }
}
