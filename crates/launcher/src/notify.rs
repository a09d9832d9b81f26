//! What the launcher tells its supervisor, in systemd's protocol (sd_notify(3)): one datagram for each state.
//!
//! It is told that the launcher's loop turns, not that the roles' do: roles that stand still are the launcher's to
//! restart, and open streams survive that. A supervisor that takes nothing is warned of once and never waited for.

use pinion_config::Supervisor;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Signs of life in one watchdog time.
const BEATS: u32 = 3;

/// The link to a supervisor, if there is one.
#[derive(Default)]
pub(crate) struct Notifier {
    link: Option<(UnixDatagram, SocketAddr)>,
    beat_every: Option<Duration>,
    next_beat_ns: u64,
    has_warned: bool,
}

impl Notifier {
    /// For the supervisor of this process.
    pub(crate) fn of_process() -> Notifier {
        let Some(supervisor) = Supervisor::of_process() else { return Notifier::default() };
        Notifier::new(&supervisor).unwrap_or_else(|error| {
            tracing::warn!(%error, socket = ?supervisor.socket, "cannot open NOTIFY_SOCKET; systemd will not hear that the service is ready");
            Notifier::default()
        })
    }

    fn new(supervisor: &Supervisor) -> io::Result<Notifier> {
        let name = supervisor.socket.as_bytes();
        let address = match name.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&supervisor.socket)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let beat_every = supervisor.watchdog.map(|time| time / BEATS);
        Ok(Notifier { link: Some((socket, address)), beat_every, ..Notifier::default() })
    }

    /// The service takes requests.
    pub(crate) fn ready(&mut self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// The service ends within `within`. A stop that waits for open requests takes longer than the supervisor may
    /// expect.
    pub(crate) fn stopping(&mut self, status: &str, within: Duration) {
        let us = within.as_micros();
        self.tell(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={us}\nSTATUS={status}"));
    }

    /// One turn of the loop: a sign of life when it is time for one.
    pub(crate) fn turn(&mut self, now_ns: u64) {
        let Some(every) = self.beat_every.filter(|_| now_ns >= self.next_beat_ns) else { return };
        self.next_beat_ns = now_ns + u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
        self.tell("WATCHDOG=1");
    }

    fn tell(&mut self, state: &str) {
        let Some((socket, address)) = &self.link else { return };
        match socket.send_to_addr(state.as_bytes(), address) {
            Ok(_) => self.has_warned = false,
            Err(error) if !self.has_warned => {
                self.has_warned = true;
                tracing::warn!(%error, state, "a message to NOTIFY_SOCKET was not taken; the supervisor may end the service");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    const SECOND: u64 = 1_000_000_000;

    fn told(socket: &UnixDatagram) -> Vec<String> {
        let mut bytes = [0; 512];
        let next = || {
            let count = socket.recv(&mut bytes).ok()?;
            Some(String::from_utf8_lossy(&bytes[..count]).into_owned())
        };
        std::iter::from_fn(next).collect()
    }

    fn notifier_of(name: &str, watchdog: Option<Duration>) -> Notifier {
        Notifier::new(&Supervisor { socket: OsString::from(format!("@{name}")), watchdog }).unwrap()
    }

    #[test]
    fn states_arrive_and_signs_of_life_are_thrice_in_a_watchdog_time() {
        let name = format!("pinion-notify-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut notifier = notifier_of(&name, Some(Duration::from_secs(3)));
        notifier.ready("serves tiny");
        assert_eq!(told(&socket), ["READY=1\nSTATUS=serves tiny"]);
        (0..=60).for_each(|tick| notifier.turn(tick * SECOND / 10));
        assert_eq!(told(&socket), ["WATCHDOG=1"; 7]);
        notifier.stopping("draining", Duration::from_secs(2));
        assert_eq!(told(&socket), ["STOPPING=1\nEXTEND_TIMEOUT_USEC=2000000\nSTATUS=draining"]);
        Notifier::default().turn(SECOND);
    }

    /// Under a name that no socket ever had: a listener that is dropped lives on, for a moment, in a child that another
    /// test has just started.
    #[test]
    fn without_a_listener_it_warns_and_does_not_end() {
        let mut notifier = notifier_of(&format!("pinion-notify-unheard-{}", std::process::id()), None);
        notifier.ready("");
        assert!(notifier.has_warned);
    }
}
