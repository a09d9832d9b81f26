//! One connection of a subscriber, or of one that asks for batches again. Nothing here waits.

use crate::publisher::Message;
use crate::zmtp::{self, Decoder, Incoming};
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Bytes read at once.
const READ_BYTES: usize = 4096;
/// With more bytes than this in its queue a peer is not read: answers to its pings are queued, too.
const READ_WITH_QUEUED_MAX: usize = 64 << 10;
/// A handshake that takes longer is given up.
const HANDSHAKE_NS: u64 = 10_000_000_000;
/// A peer that takes nothing of its queue for so long loses its connection, and with it the queue.
const STALL_NS: u64 = 60_000_000_000;
/// A peer that has not taken the whole cache in this time loses its connection if others wait for the room.
const WHOLE_NS: u64 = 60_000_000_000;
/// A peer that says nothing is asked by TCP after this time, and so often in this distance, whether it is there.
const KEEPALIVE_IDLE_S: u32 = 60;
const KEEPALIVE_INTERVAL_S: u32 = 10;
const KEEPALIVE_COUNT: u32 = 6;
/// What is sent meanwhile must be acknowledged within the same time: TCP by itself tries for a quarter of an hour.
const UNACKNOWLEDGED_MS: u32 = 1000 * (KEEPALIVE_IDLE_S + KEEPALIVE_COUNT * KEEPALIVE_INTERVAL_S);
/// A peer that can be pinged and says nothing for this time is, and must answer within the next.
const PING_AFTER_NS: u64 = 30_000_000_000;
const PONG_NS: u64 = 60_000_000_000;

/// Why a connection is closed.
#[derive(Debug)]
pub(crate) enum Gone {
    /// The peer has closed it, or the network has failed.
    Closed(io::Error),
    /// The peer does not speak the protocol, or takes too long.
    Refused(&'static str),
}

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Gone::Closed(error) => write!(f, "{error}"),
            Gone::Refused(reason) => f.write_str(reason),
        }
    }
}

/// A message that waits.
struct Queued {
    message: Message,
    /// It is the whole cache.
    is_whole: bool,
}

/// See the module's documentation.
pub(crate) struct Connection {
    stream: TcpStream,
    /// For the log.
    pub(crate) peer: SocketAddr,
    socket_type: &'static str,
    decoder: Decoder,
    /// The handshake is over.
    is_ready: bool,
    /// It answers pings.
    has_pings: bool,
    /// When it last said something, or was not read.
    heard_ns: u64,
    /// When it was pinged, if it has said nothing since.
    pinged_ns: Option<u64>,
    /// When it last asked for something.
    active_ns: u64,
    ready_by_ns: u64,
    queue: VecDeque<Queued>,
    /// Bytes of the queue.
    queued_bytes: usize,
    /// Those of them that are the whole cache, and since when.
    whole_bytes: usize,
    whole_ns: u64,
    /// Bytes of its first message that are written.
    written: usize,
    /// When the peer last took something, or had nothing to take.
    took_ns: u64,
    /// It has taken nothing since its queue was dropped.
    is_stuck: bool,
}

impl Connection {
    pub(crate) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        socket_type: &'static str,
        now_ns: u64,
    ) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        setsockopt(&stream, sockopt::KeepAlive, &true)?;
        setsockopt(&stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S)?;
        setsockopt(&stream, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_S)?;
        setsockopt(&stream, sockopt::TcpKeepCount, &KEEPALIVE_COUNT)?;
        setsockopt(&stream, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MS)?;
        let mut connection = Connection {
            stream,
            peer,
            socket_type,
            decoder: Decoder::default(),
            is_ready: false,
            has_pings: false,
            heard_ns: now_ns,
            pinged_ns: None,
            active_ns: now_ns,
            ready_by_ns: now_ns + HANDSHAKE_NS,
            queue: VecDeque::new(),
            queued_bytes: 0,
            whole_bytes: 0,
            whole_ns: now_ns,
            written: 0,
            took_ns: now_ns,
            is_stuck: false,
        };
        connection.push(zmtp::greeting().as_slice().into());
        Ok(connection)
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Bytes of the queue without those of the whole cache.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.queued_bytes - self.whole_bytes
    }

    /// When the peer last asked for something, or came.
    pub(crate) fn active_ns(&self) -> u64 {
        self.active_ns
    }

    /// Whether the peer has taken enough of its queue to be read.
    pub(crate) fn is_heard(&self) -> bool {
        self.queued_bytes <= READ_WITH_QUEUED_MAX
    }

    pub(crate) fn push(&mut self, message: Message) {
        self.queued_bytes += message.len();
        self.queue.push_back(Queued { message, is_whole: false });
    }

    /// Queues the whole cache.
    pub(crate) fn push_whole(&mut self, message: Message, now_ns: u64) {
        self.whole_ns = now_ns;
        self.whole_bytes += message.len();
        self.queued_bytes += message.len();
        self.queue.push_back(Queued { message, is_whole: true });
    }

    /// Closes a peer that takes the whole cache too slowly, where others wait for the room.
    pub(crate) fn check_whole(&self, now_ns: u64) -> Result<(), Gone> {
        if self.whole_bytes > 0 && now_ns.saturating_sub(self.whole_ns) > WHOLE_NS {
            return Err(Gone::Refused(
                "it has not taken the whole cache within a minute, and others wait for it",
            ));
        }
        Ok(())
    }

    /// Drops what waits, but for a message of which a part is written.
    pub(crate) fn drop_queue(&mut self) {
        self.is_stuck = true;
        self.queue.truncate(usize::from(self.written > 0));
        let whole = |queued: &&Queued| queued.is_whole;
        self.queued_bytes = self.queue.iter().map(|queued| queued.message.len()).sum();
        self.whole_bytes = self.queue.iter().filter(whole).map(|queued| queued.message.len()).sum();
    }

    /// The peer is not to be blamed for its silence up to now: it was not read, or has spoken.
    pub(crate) fn pass_over(&mut self, now_ns: u64) {
        (self.heard_ns, self.pinged_ns) = (now_ns, None);
    }

    /// Reads once, if the peer is to be heard, and gives what it said beyond the handshake.
    pub(crate) fn read(&mut self, now_ns: u64) -> Result<Vec<Incoming>, Gone> {
        let mut said = Vec::new();
        if !self.is_heard() {
            self.pass_over(now_ns);
            return Ok(said);
        }
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Err(Gone::Closed(ErrorKind::UnexpectedEof.into())),
            Ok(count) => {
                self.pass_over(now_ns);
                self.decoder.feed(&bytes[..count]);
            }
            Err(error) if passes(&error) => {}
            Err(error) => return Err(Gone::Closed(error)),
        }
        while let Some(incoming) = self.decoder.incoming().map_err(|refused| Gone::Refused(refused.0))? {
            match incoming {
                Incoming::Greeting { minor } => {
                    self.has_pings = minor > 0;
                    self.push(zmtp::ready(self.socket_type).into());
                }
                Incoming::Ready => self.is_ready = true,
                Incoming::Ping(answer) => self.push(answer.into()),
                said_now if self.is_ready => said.push(said_now),
                _ => return Err(Gone::Refused("it speaks before its handshake is over")),
            }
        }
        if !said.is_empty() {
            self.active_ns = now_ns;
        }
        Ok(said)
    }

    /// Pings a peer that has nothing to read and says nothing; one with something to read has to take it.
    fn ping(&mut self, now_ns: u64) {
        let is_silent = now_ns.saturating_sub(self.heard_ns) > PING_AFTER_NS;
        if is_silent && self.has_pings && self.is_ready && self.pinged_ns.is_none() && self.queue.is_empty() {
            self.pinged_ns = Some(now_ns);
            self.push(zmtp::ping().into());
        }
    }

    /// Writes what the socket takes.
    pub(crate) fn write(&mut self, now_ns: u64) -> Result<(), Gone> {
        self.ping(now_ns);
        while let Some(Queued { message, is_whole }) = self.queue.front() {
            match self.stream.write(&message[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if passes(&error) => return self.check_time(now_ns),
                Err(error) => return Err(Gone::Closed(error)),
            }
            (self.took_ns, self.is_stuck) = (now_ns, false);
            if self.written == message.len() {
                self.queued_bytes -= message.len();
                self.whole_bytes -= if *is_whole { message.len() } else { 0 };
                self.written = 0;
                self.queue.pop_front();
            }
        }
        if !self.is_stuck {
            self.took_ns = now_ns;
        }
        self.check_time(now_ns)
    }

    fn check_time(&self, now_ns: u64) -> Result<(), Gone> {
        if !self.is_ready && now_ns > self.ready_by_ns {
            return Err(Gone::Refused("its handshake takes too long"));
        }
        if now_ns.saturating_sub(self.took_ns) > STALL_NS {
            return Err(Gone::Refused("it has read nothing for a minute"));
        }
        let is_mute = self.pinged_ns.is_some_and(|pinged_ns| now_ns.saturating_sub(pinged_ns) > PONG_NS);
        if is_mute && self.queue.is_empty() {
            return Err(Gone::Refused("it has not answered for a minute"));
        }
        Ok(())
    }
}

fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
