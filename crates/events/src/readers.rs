//! Everyone connected: subscribers, and those that ask for batches again.

use crate::asker::Asker;
use crate::connection::{Connection, Gone};
use crate::publisher::{Message, Publisher};
use crate::zmtp::Incoming;
use std::io::{self, ErrorKind};
use std::net::TcpListener;

/// Connections of one socket.
const CONNECTIONS_MAX: usize = 64;
/// Bytes of batches that may wait for one subscriber; past it they are dropped, and it is told the whole cache when it
/// reads again.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Prefixes that one subscriber may name.
const PREFIXES_MAX: usize = 16;
/// Connections taken in one turn.
const ACCEPTS_PER_TURN: usize = 16;

/// One that hears every batch.
pub(crate) struct Subscriber {
    pub(crate) connection: Connection,
    /// What it wants; a prefix may stand here more than once.
    prefixes: Vec<Vec<u8>>,
    /// It has been told the whole cache, or the first batch will tell it.
    is_current: bool,
    /// Bytes of the whole cache in its queue, which do not count towards the bound.
    snapshot_bytes: usize,
}

/// Counts for the status page.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) snapshots: u64,
    pub(crate) overflows: u64,
}

/// See the module's documentation.
pub(crate) struct Readers {
    listener: TcpListener,
    replay_listener: Option<TcpListener>,
    pub(crate) subscribers: Vec<Subscriber>,
    pub(crate) askers: Vec<Asker>,
    pub(crate) counts: Counts,
}

impl Readers {
    pub(crate) fn new(listener: TcpListener, replay_listener: Option<TcpListener>) -> io::Result<Readers> {
        listener.set_nonblocking(true)?;
        replay_listener.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        let (subscribers, askers) = (Vec::new(), Vec::new());
        Ok(Readers { listener, replay_listener, subscribers, askers, counts: Counts::default() })
    }

    pub(crate) fn listeners(&self) -> impl Iterator<Item = &TcpListener> {
        std::iter::once(&self.listener).chain(&self.replay_listener)
    }

    /// Connected subscribers that want the messages.
    pub(crate) fn subscribed(&self, publisher: &Publisher) -> usize {
        self.subscribers.iter().filter(|subscriber| subscriber.wants(publisher)).count()
    }

    /// Takes connections that wait.
    pub(crate) fn accept(&mut self, now_ns: u64) {
        let subscribed =
            accepted(&self.listener, CONNECTIONS_MAX.saturating_sub(self.subscribers.len()), "PUB", now_ns);
        let subscriber = |connection| Subscriber {
            connection,
            prefixes: Vec::new(),
            is_current: false,
            snapshot_bytes: 0,
        };
        self.subscribers.extend(subscribed.into_iter().map(subscriber));
        if let Some(listener) = &self.replay_listener {
            let room = CONNECTIONS_MAX.saturating_sub(self.askers.len());
            self.askers.extend(accepted(listener, room, "ROUTER", now_ns).into_iter().map(Asker::new));
        }
    }

    /// Sends a batch to all that want it.
    pub(crate) fn publish(&mut self, message: &Message, publisher: &Publisher) {
        for subscriber in self.subscribers.iter_mut().filter(|subscriber| subscriber.wants(publisher)) {
            self.counts.overflows += u64::from(subscriber.send(message));
        }
    }

    /// Reads what subscribers say, tells those that need it the whole cache, and writes what waits.
    pub(crate) fn serve_subscribers(&mut self, publisher: &mut Publisher, now_ns: u64, unix_s: f64) {
        let counts = &mut self.counts;
        self.subscribers.retain_mut(|subscriber| {
            let served = subscriber.serve(publisher, (now_ns, unix_s), counts);
            stays(&subscriber.connection, served)
        });
    }

    /// Answers those that ask for batches again.
    pub(crate) fn serve_askers(&mut self, publisher: &mut Publisher, now_ns: u64, unix_s: f64) {
        self.askers.retain_mut(|asker| {
            let served = asker.serve(publisher, now_ns, unix_s);
            stays(&asker.connection, served)
        });
    }
}

fn stays(connection: &Connection, served: Result<(), Gone>) -> bool {
    match served {
        Ok(()) => true,
        Err(Gone::Closed(_)) => false,
        Err(reason @ Gone::Refused(_)) => {
            tracing::warn!(peer = %connection.peer, "KV events: {reason}; connection closed");
            false
        }
    }
}

fn accepted(listener: &TcpListener, room: usize, socket_type: &'static str, now_ns: u64) -> Vec<Connection> {
    let mut taken = Vec::new();
    for _ in 0..ACCEPTS_PER_TURN {
        match listener.accept() {
            Ok((_, peer)) if taken.len() == room => {
                tracing::warn!(%peer, "KV events: {CONNECTIONS_MAX} connections are open; this one is closed");
            }
            Ok((stream, peer)) => taken.extend(Connection::new(stream, peer, socket_type, now_ns).ok()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => {
                tracing::warn!(%error, "KV events: cannot take a connection");
                break;
            }
        }
    }
    taken
}

impl Subscriber {
    fn wants(&self, publisher: &Publisher) -> bool {
        self.prefixes.iter().any(|prefix| publisher.is_meant_by(prefix))
    }

    /// Queues a batch. True if that was one too many.
    fn send(&mut self, message: &Message) -> bool {
        if !self.is_current {
            return false;
        }
        let waiting = self.connection.queued_bytes().saturating_sub(self.snapshot_bytes);
        if waiting + message.len() > QUEUE_BYTES_MAX {
            self.connection.drop_queue();
            (self.is_current, self.snapshot_bytes) = (false, 0);
            return true;
        }
        self.connection.push(message.clone());
        false
    }

    fn serve(
        &mut self,
        publisher: &mut Publisher,
        (now_ns, unix_s): (u64, f64),
        counts: &mut Counts,
    ) -> Result<(), Gone> {
        for incoming in self.connection.read()? {
            self.hear(incoming)?;
        }
        // What is published meanwhile is not for it, so it must be told everything if it subscribes again.
        self.is_current &= self.wants(publisher);
        self.connection.write(now_ns)?;
        if self.connection.queued_bytes() > 0 {
            return Ok(());
        }
        self.snapshot_bytes = 0;
        if self.is_current || !self.wants(publisher) {
            return Ok(());
        }
        self.is_current = true;
        // Without one, the next batch says everything.
        if let Some(snapshot) = publisher.snapshot(unix_s) {
            counts.snapshots += 1;
            self.snapshot_bytes = snapshot.len();
            self.connection.push(snapshot);
        }
        self.connection.write(now_ns)
    }

    fn hear(&mut self, incoming: Incoming) -> Result<(), Gone> {
        match incoming {
            Incoming::Subscribe(prefix) => self.subscribe(prefix)?,
            Incoming::Cancel(prefix) => self.cancel(&prefix),
            Incoming::Message(frames) => match frames.first().map(Vec::as_slice) {
                Some([1, prefix @ ..]) => self.subscribe(prefix.to_vec())?,
                Some([0, prefix @ ..]) => self.cancel(prefix),
                _ => return Err(Gone::Refused("a subscriber sends a message that is no subscription")),
            },
            Incoming::Greeting | Incoming::Ready | Incoming::Ping(_) => {}
        }
        Ok(())
    }

    fn subscribe(&mut self, prefix: Vec<u8>) -> Result<(), Gone> {
        if self.prefixes.len() == PREFIXES_MAX {
            return Err(Gone::Refused("a subscriber names too many prefixes"));
        }
        self.prefixes.push(prefix);
        Ok(())
    }

    fn cancel(&mut self, prefix: &[u8]) {
        if let Some(at) = self.prefixes.iter().position(|known| known == prefix) {
            self.prefixes.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publisher::Facts;
    use crate::zmtp;
    use pinion_protocol::events_inbox::{kind, put_cleared};
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    /// What a SUB socket says first.
    fn hello() -> Vec<u8> {
        [&zmtp::greeting()[..], &zmtp::ready("SUB"), &[0, 1, 1]].concat()
    }

    fn rig() -> (Readers, Publisher, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let facts = Facts { topic: "t".to_owned(), block_size: 1, block_count: 1, rank: 0 };
        let mut publisher = Publisher::new(facts, 0);
        let mut record = Vec::new();
        put_cleared(&mut record);
        publisher.take(kind::CACHE_CHANGES, &record, 0.0).unwrap().expect("a batch");
        let readers = Readers::new(listener, None).unwrap();
        (readers, publisher, client)
    }

    fn turn(readers: &mut Readers, publisher: &mut Publisher, now_ns: u64) {
        readers.accept(now_ns);
        readers.serve_subscribers(publisher, now_ns, 0.0);
    }

    #[test]
    fn a_subscriber_that_does_not_read_loses_its_queue_and_is_told_everything_later() {
        let (mut readers, mut publisher, mut client) = rig();
        client.write_all(&hello()).unwrap();
        while readers.counts.snapshots == 0 {
            turn(&mut readers, &mut publisher, 0);
        }
        let batch: Message = vec![7; 1 << 20].into();
        while readers.counts.overflows == 0 {
            readers.publish(&batch, &publisher);
            turn(&mut readers, &mut publisher, 0);
            assert!(readers.subscribers[0].connection.queued_bytes() <= QUEUE_BYTES_MAX);
        }
        for _ in 0..100 {
            readers.publish(&batch, &publisher);
        }
        assert!(readers.subscribers[0].connection.queued_bytes() <= batch.len(), "only what is half written");

        let (mut got, mut bytes) = (Vec::new(), vec![0; 1 << 20]);
        let whole = publisher.snapshot(0.0).unwrap();
        while readers.counts.snapshots == 1 || !got.ends_with(&whole) {
            turn(&mut readers, &mut publisher, 0);
            if let Ok(count) = client.read(&mut bytes) {
                got.extend_from_slice(&bytes[..count]);
            }
        }
        assert_eq!((readers.counts.overflows, readers.counts.snapshots), (1, 2));
        let before = 64 + zmtp::ready("PUB").len() + whole.len();
        assert_eq!(
            (got.len() - before - whole.len()) % batch.len(),
            0,
            "every batch that was begun is whole"
        );
    }

    #[test]
    fn a_subscriber_that_comes_back_to_a_topic_is_told_everything_anew() {
        let (mut readers, mut publisher, mut client) = rig();
        client.write_all(&hello()).unwrap();
        while readers.counts.snapshots == 0 {
            turn(&mut readers, &mut publisher, 0);
        }
        client.write_all(&[0, 1, 0]).unwrap();
        while readers.subscribed(&publisher) > 0 {
            turn(&mut readers, &mut publisher, 0);
        }
        let missed = publisher.lose_engine(0.0);
        readers.publish(&missed, &publisher);
        client.write_all(&[0, 1, 1]).unwrap();
        while readers.counts.snapshots == 1 {
            turn(&mut readers, &mut publisher, 0);
        }
        let (mut got, mut bytes) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = client.read(&mut bytes) {
            got.extend_from_slice(&bytes[..count]);
        }
        assert!(got.ends_with(&publisher.snapshot(0.0).unwrap()));
    }

    #[test]
    fn a_peer_that_reads_nothing_is_not_heard_and_then_closed() {
        let (mut readers, mut publisher, mut client) = rig();
        client.set_nonblocking(true).unwrap();
        client.write_all(&hello()).unwrap();
        let pings = b"\x04\x09\x04PING\x00\x64xy".repeat(400);
        // Both sockets are full in the end: it does not write, and is not read.
        let (mut refused, mut at) = (0, 0);
        while refused < 100 {
            match client.write(&pings[at..]) {
                Ok(count) => at = (at + count) % 11,
                Err(_) => refused += 1,
            }
            turn(&mut readers, &mut publisher, 0);
            let queued = readers.subscribers[0].connection.queued_bytes();
            assert!(queued < 128 << 10, "{queued} bytes of answers wait");
        }
        assert!(!readers.subscribers[0].connection.is_heard());
        turn(&mut readers, &mut publisher, 60_000_000_000);
        assert_eq!(readers.subscribers.len(), 1, "it still has time");
        let batch: Message = vec![7; 1 << 24].into();
        for _ in 0..3 {
            readers.publish(&batch, &publisher);
            turn(&mut readers, &mut publisher, 60_000_000_000);
        }
        turn(&mut readers, &mut publisher, 60_000_000_001);
        assert_eq!(readers.subscribers.len(), 0, "a queue that is dropped is no sign of life");
    }

    #[test]
    fn one_that_asks_again_and_again_without_reading_is_closed() {
        let (mut readers, mut publisher, mut client) = rig();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        other.set_nonblocking(true).unwrap();
        readers.replay_listener = Some(std::mem::replace(&mut readers.listener, other));
        let request = [&[1, 0, 0, 8][..], &[0; 8]].concat();
        let hello = [&zmtp::greeting()[..], &zmtp::ready("DEALER")].concat();
        client.write_all(&[hello, request.repeat(16)].concat()).unwrap();
        let (mut got, mut bytes) = (Vec::new(), [0; 4096]);
        let end = zmtp::message(&[b"", b"", &[255; 8], b""]);
        let one = [zmtp::first_frame(b""), publisher.snapshot(0.0).unwrap().to_vec(), end].concat();
        while !got.ends_with(&one.repeat(16)) {
            readers.accept(0);
            readers.serve_askers(&mut publisher, 0, 0.0);
            if let Ok(count) = client.read(&mut bytes) {
                got.extend_from_slice(&bytes[..count]);
            }
        }
        assert!(!readers.askers[0].waits());
        client.write_all(&request.repeat(17)).unwrap();
        while !readers.askers.is_empty() {
            readers.serve_askers(&mut publisher, 0, 0.0);
        }
    }

    #[test]
    fn a_peer_that_breaks_the_rules_loses_its_connection() {
        for (name, bytes) in [
            ("no ZMTP", vec![b'x'; 64]),
            ("a message that is no subscription", [&hello()[..], &[0, 1, 9]].concat()),
            ("too many prefixes", [&hello()[..], &[0, 1, 1].repeat(PREFIXES_MAX)].concat()),
            ("a subscription within the handshake", [&zmtp::greeting()[..], &[0, 1, 1]].concat()),
        ] {
            let (mut readers, mut publisher, mut client) = rig();
            client.write_all(&bytes).unwrap();
            readers.accept(0);
            assert_eq!(readers.subscribers.len(), 1);
            while !readers.subscribers.is_empty() {
                readers.serve_subscribers(&mut publisher, 0, 0.0);
            }
            println!("{name}: closed");
        }
        let (mut readers, mut publisher, _silent) = rig();
        turn(&mut readers, &mut publisher, 0);
        turn(&mut readers, &mut publisher, 9_000_000_000);
        assert_eq!(readers.subscribers.len(), 1, "it still has time");
        turn(&mut readers, &mut publisher, 11_000_000_000);
        assert_eq!(readers.subscribers.len(), 0, "its handshake took too long");
    }
}
