//! The listening socket: bound before anything is loaded, listening when every role is ready.

use crate::ending::Ending;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, setsockopt, socket, sockopt,
};
use pinion_config::{Config, Exit};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};

/// Binds, so that a taken port is known before anything is loaded, but does not listen: until every role is
/// ready a client is refused, not kept waiting.
pub(crate) fn bind_port(config: &Config) -> Result<(OwnedFd, SocketAddr), Ending> {
    let wanted = SocketAddr::new(config.host, config.port);
    let fail = |error: nix::Error| {
        let hint = if error == nix::Error::EADDRINUSE { " (--port chooses another)" } else { "" };
        Ending::new(Exit::Port, format!("cannot bind {wanted}: {}{hint}", error.desc()))
    };
    let family = if wanted.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(family, SockType::Stream, flags, None).map_err(fail)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true).map_err(fail)?;
    match wanted {
        SocketAddr::V4(v4) => bind(fd.as_raw_fd(), &SockaddrIn::from(v4)),
        SocketAddr::V6(v6) => bind(fd.as_raw_fd(), &SockaddrIn6::from(v6)),
    }
    .map_err(fail)?;
    let bound = TcpListener::from(fd);
    let address = bound.local_addr().map_err(|e| Ending::system("cannot read the bound address", e))?;
    Ok((bound.into(), address))
}
