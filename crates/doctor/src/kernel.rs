//! What the service asks of the kernel before anything else: tried, not looked up.

use crate::check::Check;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::ftruncate;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

/// A page.
const BYTES: i64 = 4096;

/// Shared memory without a name that cannot shrink or grow: what rings and status pages are in.
pub(crate) fn shared_memory() -> Check {
    let id = "memory.shared";
    match sealed() {
        Ok(()) => Check::ok(id, "sealed memfd works; /dev/shm is not used"),
        Err(error) => Check::failure(
            id,
            format!("the kernel refuses sealed shared memory: {}", error.desc()),
            "Allow memfd_create and F_ADD_SEALS in the container's seccomp profile.",
        ),
    }
}

fn sealed() -> nix::Result<()> {
    let file = memfd_create(c"pinion-doctor", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    ftruncate(&file, BYTES)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW))?;
    // A seal that does not hold is none.
    match ftruncate(&file, 0) {
        Err(_) => Ok(()),
        Ok(()) => Err(Errno::ENOTSUP),
    }
}

/// How roles are started and watched.
pub(crate) fn start() -> Check {
    let id = "kernel.start";
    let tried = [
        (
            "socketpair",
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).map(drop),
        ),
        ("eventfd", EventFd::new().map(drop)),
        ("pidfd_open (Linux 5.3)", pidfd()),
    ];
    let refused: Vec<String> = tried
        .iter()
        .filter_map(|(what, outcome)| Some(format!("{what}: {}", outcome.as_ref().err()?.desc())))
        .collect();
    if refused.is_empty() {
        return Check::ok(id, "socket pairs, eventfd and pidfd work; no temporary folder is needed");
    }
    let remedy = "Use a kernel from 5.3 on and allow these calls in the container's seccomp profile.";
    Check::failure(id, format!("the kernel refuses {}", refused.join(", ")), remedy)
}

fn pidfd() -> nix::Result<()> {
    let opened = pinion_os::pidfd::open(std::process::id());
    opened.map(drop).map_err(|error| error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw))
}

/// Whether the address can be listened on.
pub(crate) fn port(address: SocketAddr) -> Check {
    let id = "port";
    match TcpListener::bind(address) {
        Ok(_) if address.port() == 0 => Check::ok(id, format!("{}: the kernel chooses a port", address.ip())),
        Ok(_) => Check::ok(id, format!("{address} is free")),
        Err(error) => {
            let remedy = match error.kind() {
                ErrorKind::AddrInUse => "Stop what listens there, or choose another port with --port.",
                ErrorKind::PermissionDenied => {
                    "Choose a port above 1023 with --port, or give CAP_NET_BIND_SERVICE."
                }
                ErrorKind::AddrNotAvailable => "Name an address of this machine with --host.",
                _ => "Choose another address with --host and --port.",
            };
            Check::failure(id, format!("{address} cannot be listened on: {error}"), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use std::time::{Duration, Instant};

    #[test]
    fn what_the_tests_run_on_can_start_the_service() {
        assert_eq!(shared_memory().status, Status::Ok);
        assert_eq!(start().status, Status::Ok);
    }

    #[test]
    fn a_port_is_free_or_taken() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        assert!(port(any).found.contains("the kernel chooses"));
        // Below the ports that the system gives to other programs.
        let address = SocketAddr::new(any.ip(), pinion_os::port::free_port().unwrap());
        let taken = TcpListener::bind(address).unwrap();
        let check = port(address);
        assert!(check.status == Status::Failure && check.remedy.unwrap().contains("--port"));
        drop(taken);
        // A child that another test forks keeps the listener until it calls exec.
        let deadline = Instant::now() + Duration::from_secs(60);
        while port(address).status != Status::Ok {
            assert!(Instant::now() < deadline, "the port stays taken");
        }
        let far = port("192.0.2.1:80".parse().unwrap());
        assert!(far.remedy.unwrap().contains("--host"));
    }
}
