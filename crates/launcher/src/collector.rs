//! The address of the collector of spans. A role may ask no name server, so a name is looked up here, once.

use pinion_config::Config;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

/// A start waits this long for the answer.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Completes the collector's addresses in the config. A name without one does not keep the service from starting: every
/// span is dropped and counted then.
pub(crate) fn look_up(config: &mut Config) {
    let Some(otlp) = config.observe.otlp.as_mut().filter(|otlp| otlp.addresses.is_empty()) else { return };
    match addresses(&otlp.host, otlp.port) {
        Ok(found) => otlp.addresses = found,
        Err(reason) => tracing::warn!(
            collector = otlp.url(),
            reason,
            "the collector's name has no address: all spans are dropped until the service is started again"
        ),
    }
}

/// A thread asks, because nothing bounds the time that the system takes.
fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let (say, heard) = mpsc::sync_channel(1);
    let name = (host.to_owned(), port);
    let ask = move || {
        let found = name.to_socket_addrs().map(|found| found.take(ADDRESSES_MAX).collect::<Vec<_>>());
        // The one that asked may not wait any more.
        let _ = say.send(found);
    };
    let thread = std::thread::Builder::new().name("lookup".to_owned());
    thread.spawn(ask).map_err(|error: io::Error| error.to_string())?;
    match heard.recv_timeout(LOOKUP_TIMEOUT) {
        Ok(Ok(found)) if found.is_empty() => Err("there is none".to_owned()),
        Ok(found) => found.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_this_machine_has_an_address_and_another_one_may_not() {
        let found = addresses("localhost", 4318).unwrap();
        assert!(
            found.iter().all(|address| address.ip().is_loopback() && address.port() == 4318),
            "{found:?}"
        );
        assert!(!found.is_empty());
        assert!(addresses("no such name", 1).is_err());
    }
}
