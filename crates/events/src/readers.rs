//! Everyone connected: subscribers, and those that ask for batches again.

#[cfg(test)]
mod tests;

use crate::asker::Asker;
use crate::connection::{Connection, Gone};
use crate::notices::Notices;
use crate::publisher::{Message, Publisher};
use crate::subscriber::Subscriber;
use std::io::{self, ErrorKind};
use std::net::TcpListener;

/// Connections of one socket. Past it, the one that has been idle longest goes.
const CONNECTIONS_MAX: usize = 64;
/// No connection is taken for this long after one could not be: the system may be out of descriptors, and the listener
/// stays readable.
const ACCEPT_BACKOFF_NS: u64 = 50_000_000;
/// Connections taken in one turn.
const ACCEPTS_PER_TURN: usize = 16;

/// Counts for the status page.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) snapshots: u64,
    pub(crate) overflows: u64,
    /// Connections that were closed here, not by the peer.
    pub(crate) closed: u64,
}

/// See the module's documentation.
pub(crate) struct Readers {
    listener: TcpListener,
    replay_listener: Option<TcpListener>,
    pub(crate) subscribers: Vec<Subscriber>,
    pub(crate) askers: Vec<Asker>,
    pub(crate) counts: Counts,
    notices: Notices,
    /// No connection is taken before.
    accepts_from_ns: u64,
}

impl Readers {
    pub(crate) fn new(listener: TcpListener, replay_listener: Option<TcpListener>) -> io::Result<Readers> {
        listener.set_nonblocking(true)?;
        replay_listener.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        let (subscribers, askers) = (Vec::new(), Vec::new());
        let (counts, notices) = (Counts::default(), Notices::default());
        Ok(Readers { listener, replay_listener, subscribers, askers, counts, notices, accepts_from_ns: 0 })
    }

    /// Those to wait for at this time.
    pub(crate) fn listeners(&self, now_ns: u64) -> impl Iterator<Item = &TcpListener> {
        let accepts = now_ns >= self.accepts_from_ns;
        std::iter::once(&self.listener).chain(&self.replay_listener).filter(move |_| accepts)
    }

    /// Connected subscribers that want the messages.
    pub(crate) fn subscribed(&self, publisher: &Publisher) -> usize {
        self.subscribers.iter().filter(|subscriber| subscriber.wants(publisher)).count()
    }

    /// Takes connections that wait. Where all places are taken, one that nothing is sent to makes room: a subscriber
    /// without a topic, one that asks for nothing, one that has not finished its handshake. A live subscriber never
    /// does.
    pub(crate) fn accept(&mut self, publisher: &Publisher, now_ns: u64) {
        if now_ns < self.accepts_from_ns {
            return;
        }
        for _ in 0..ACCEPTS_PER_TURN {
            let waiting = accepted(&self.listener, "PUB", now_ns, &mut self.notices);
            let Some(connection) = waiting.unwrap_or_else(|Refused| self.back_off(now_ns)) else { break };
            let idle = |peer: &Subscriber| (!peer.wants(publisher)).then_some(peer.connection.active_ns());
            if let Some(closed) = place(&mut self.subscribers, Subscriber::new(connection), idle) {
                self.note_closed(&closed.connection, now_ns);
            }
        }
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = &self.replay_listener else { break };
            let waiting = accepted(listener, "ROUTER", now_ns, &mut self.notices);
            let Some(connection) = waiting.unwrap_or_else(|Refused| self.back_off(now_ns)) else { break };
            let idle = |peer: &Asker| (!peer.waits()).then_some(peer.connection.active_ns());
            if let Some(closed) = place(&mut self.askers, Asker::new(connection), idle) {
                self.note_closed(&closed.connection, now_ns);
            }
        }
    }

    fn back_off(&mut self, now_ns: u64) -> Option<Connection> {
        self.accepts_from_ns = now_ns + ACCEPT_BACKOFF_NS;
        None
    }

    fn note_closed(&mut self, connection: &Connection, now_ns: u64) {
        self.counts.closed += 1;
        let peer = connection.peer;
        self.notices.warn(
            format_args!("all {CONNECTIONS_MAX} places are taken; connection of {peer} closed"),
            now_ns,
        );
    }

    /// Sends a batch to all that want it.
    pub(crate) fn publish(&mut self, message: &Message, publisher: &Publisher) {
        for subscriber in self.subscribers.iter_mut().filter(|subscriber| subscriber.wants(publisher)) {
            self.counts.overflows += u64::from(subscriber.send(message));
        }
    }

    /// Reads what subscribers say, tells those that need it the whole cache, and writes what waits.
    pub(crate) fn serve_subscribers(&mut self, publisher: &mut Publisher, now_ns: u64, unix_s: f64) {
        let Readers { subscribers, counts, notices, .. } = self;
        subscribers.retain_mut(|subscriber| {
            let served = subscriber.serve(publisher, (now_ns, unix_s), counts);
            stays(&subscriber.connection, served, (&mut *counts, &mut *notices), now_ns)
        });
    }

    /// Answers those that ask for batches again.
    pub(crate) fn serve_askers(&mut self, publisher: &mut Publisher, now_ns: u64, unix_s: f64) {
        let Readers { askers, counts, notices, .. } = self;
        askers.retain_mut(|asker| {
            let served = asker.serve(publisher, now_ns, unix_s);
            stays(&asker.connection, served, (&mut *counts, &mut *notices), now_ns)
        });
    }

    /// Closes those that take the whole cache slowly, if others wait until there is room for one more.
    pub(crate) fn end_slow(&mut self, publisher: &mut Publisher, now_ns: u64) {
        if !publisher.snapshots.look() {
            return;
        }
        let Readers { subscribers, askers, counts, notices, .. } = self;
        let mut keeps = |connection: &Connection| {
            stays(connection, connection.check_whole(now_ns), (&mut *counts, &mut *notices), now_ns)
        };
        subscribers.retain(|subscriber| keeps(&subscriber.connection));
        askers.retain(|asker| keeps(&asker.connection));
    }
}

/// Gives a peer a place: a free one, or that of the one that has been idle longest, and gives back the one that is left
/// without. `idle_since_ns` gives nothing for a peer that is in use.
fn place<T>(peers: &mut Vec<T>, new: T, idle_since_ns: impl Fn(&T) -> Option<u64>) -> Option<T> {
    if peers.len() < CONNECTIONS_MAX {
        peers.push(new);
        return None;
    }
    let idle = peers.iter().enumerate().filter_map(|(index, peer)| Some((idle_since_ns(peer)?, index)));
    let Some((_, index)) = idle.min() else { return Some(new) };
    let closed = peers.remove(index);
    peers.push(new);
    Some(closed)
}

fn stays(
    connection: &Connection,
    served: Result<(), Gone>,
    (counts, notices): (&mut Counts, &mut Notices),
    now_ns: u64,
) -> bool {
    match served {
        Ok(()) => true,
        Err(Gone::Closed(_)) => false,
        Err(reason @ Gone::Refused(_)) => {
            counts.closed += 1;
            notices.warn(format_args!("the connection of {} is closed: {reason}", connection.peer), now_ns);
            false
        }
    }
}

/// The system gives no connection, whether or not one waits.
struct Refused;

/// A connection that waits, if one does.
fn accepted(
    listener: &TcpListener,
    socket_type: &'static str,
    now_ns: u64,
    notices: &mut Notices,
) -> Result<Option<Connection>, Refused> {
    match listener.accept() {
        Ok((stream, peer)) => Ok(Connection::new(stream, peer, socket_type, now_ns).ok()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => {
            notices.warn(format_args!("cannot take a connection: {error}"), now_ns);
            Err(Refused)
        }
    }
}
