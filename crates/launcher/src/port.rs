//! The listening socket: bound before anything is loaded, listening when every role is ready.

use crate::ending::Ending;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, listen, setsockopt, socket,
    sockopt,
};
use pinion_config::{Config, Exit};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Connections the kernel queues for the frontends.
const LISTEN_BACKLOG: i32 = 1024;

/// How long a port that is taken is asked for again: the processes of a service that was killed leave some milliseconds
/// after their launcher.
const RETRY_TIME: Duration = Duration::from_millis(500);
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Binds, so that a taken port is known before anything is loaded, but does not listen: until every role is
/// ready a client is refused, not kept waiting.
///
/// With SO_REUSEADDR two services that both still load could have the port. So it is left out, unless only closed
/// connections of an earlier service, in TIME_WAIT, are in the way.
///
/// `option` is what chooses the address.
pub(crate) fn bind_port(wanted: SocketAddr, option: &str) -> Result<(OwnedFd, SocketAddr), Ending> {
    let begin = Instant::now();
    let bound = loop {
        let bound = match bind_socket(wanted, false) {
            Err(Errno::EADDRINUSE) => bind_socket(wanted, true),
            first => first,
        };
        if bound.as_ref().err() != Some(&Errno::EADDRINUSE) || begin.elapsed() > RETRY_TIME {
            break bound;
        }
        std::thread::sleep(RETRY_PAUSE);
    };
    let bound = bound.map_err(|error| refused("bind", wanted, option, error))?;
    let address = bound.local_addr().map_err(|e| Ending::system("cannot read the bound address", e))?;
    Ok((bound.into(), address))
}

fn bind_socket(wanted: SocketAddr, reuse: bool) -> nix::Result<TcpListener> {
    let family = if wanted.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(family, SockType::Stream, flags, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &reuse)?;
    match wanted {
        SocketAddr::V4(v4) => bind(fd.as_raw_fd(), &SockaddrIn::from(v4)),
        SocketAddr::V6(v6) => bind(fd.as_raw_fd(), &SockaddrIn6::from(v6)),
    }?;
    Ok(TcpListener::from(fd))
}

/// Lets clients connect. Connections inherit SO_REUSEADDR, so that a next service can have the port while they are in
/// TIME_WAIT. `option` is what chose the address: of two sockets that could both be bound one learns here that the
/// other listens.
pub(crate) fn open_port(bound: BorrowedFd<'_>, address: SocketAddr, option: &str) -> Result<(), Ending> {
    setsockopt(&bound, sockopt::ReuseAddr, &true)
        .and_then(|()| listen(&bound, Backlog::new(LISTEN_BACKLOG).unwrap_or(Backlog::MAXCONN)))
        .map_err(|error| refused("listen on", address, option, error))
}

/// The sockets at which KV events are published and asked for again. They listen at once: a subscriber waits for the
/// service, as it waits for one that is not there yet.
pub(crate) fn event_sockets(config: &Config) -> Result<Vec<OwnedFd>, Ending> {
    let Some(events) = &config.kv_events else { return Ok(Vec::new()) };
    let wanted = [(Some(events.publish), "--kv-events"), (events.replay, "--kv-events-replay")];
    let mut sockets = Vec::new();
    for (wanted, option) in wanted {
        let Some(wanted) = wanted else { continue };
        let (bound, address) = bind_port(wanted, option)?;
        open_port(bound.as_fd(), address, option)?;
        tracing::info!("{option}: listening on tcp://{address}");
        sockets.push(bound);
    }
    Ok(sockets)
}

fn refused(what: &str, address: SocketAddr, option: &str, error: Errno) -> Ending {
    if matches!(error, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS) {
        return Ending::system(&format!("cannot {what} {address}"), error);
    }
    let hint =
        if error == Errno::EADDRINUSE { format!(" ({option} chooses another)") } else { String::new() };
    Ending::new(Exit::Port, format!("cannot {what} {address}: {}{hint}", error.desc()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    /// The sockets of a launcher that was killed close with its last process.
    #[test]
    fn a_port_that_becomes_free_a_moment_later_is_taken() {
        let (first, address) = bind_port(ANY_PORT, "--port").unwrap();
        open_port(first.as_fd(), address, "--port").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(RETRY_TIME / 5);
                drop(first);
            });
            bind_port(address, "--port").expect("it is free soon");
        });
    }

    /// Two services started at once: the second has to know before it loads its model.
    #[test]
    fn a_port_that_another_still_starting_service_has_bound_is_taken() {
        let (_first, address) = bind_port(ANY_PORT, "--port").unwrap();
        let end = bind_port(address, "--port").expect_err("the port is taken");
        assert_eq!(end.code, Exit::Port);
        assert!(end.reason.contains("--port"), "{}", end.reason);
    }

    /// Both have bound it with SO_REUSEADDR, as each does where connections in TIME_WAIT are in the way.
    #[test]
    fn a_port_that_another_listens_on_first_is_said_of_the_option_that_chose_it() {
        for option in ["--port", "--kv-events", "--kv-events-replay"] {
            let first = bind_socket(ANY_PORT, true).unwrap();
            let address = first.local_addr().unwrap();
            let second = bind_socket(address, true).unwrap();
            open_port(first.as_fd(), address, "--port").unwrap();
            let end = open_port(second.as_fd(), address, option).expect_err("the first listens");
            assert_eq!(end.code, Exit::Port);
            assert!(end.reason.contains(&format!("({option} chooses another)")), "{}", end.reason);
        }
    }

    #[test]
    fn a_port_is_free_again_while_old_connections_are_in_time_wait() {
        let (first, address) = bind_port(ANY_PORT, "--port").unwrap();
        open_port(first.as_fd(), address, "--port").unwrap();
        assert!(bind_port(address, "--port").is_err(), "the port is taken");
        let mut client = TcpStream::connect(address).unwrap();
        let listener = TcpListener::from(first);
        listener.set_nonblocking(false).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        served.write_all(b"x").unwrap();
        // the side that closes first has the connection in TIME_WAIT
        drop(served);
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        drop((client, listener));
        let (second, address) = bind_port(address, "--port").unwrap();
        open_port(second.as_fd(), address, "--port").unwrap();
        TcpStream::connect(address).unwrap();
    }
}
