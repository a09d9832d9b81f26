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
/// A peer that says nothing is asked by TCP after this time, and so often in this distance, whether it is there.
const KEEPALIVE_IDLE_S: u32 = 60;
const KEEPALIVE_INTERVAL_S: u32 = 10;
const KEEPALIVE_COUNT: u32 = 6;

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

/// See the module's documentation.
pub(crate) struct Connection {
    stream: TcpStream,
    /// For the log.
    pub(crate) peer: SocketAddr,
    socket_type: &'static str,
    decoder: Decoder,
    /// The handshake is over.
    is_ready: bool,
    ready_by_ns: u64,
    queue: VecDeque<Message>,
    /// Bytes of the queue.
    queued_bytes: usize,
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
        let mut connection = Connection {
            stream,
            peer,
            socket_type,
            decoder: Decoder::default(),
            is_ready: false,
            ready_by_ns: now_ns + HANDSHAKE_NS,
            queue: VecDeque::new(),
            queued_bytes: 0,
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

    /// Whether the peer has taken enough of its queue to be read.
    pub(crate) fn is_heard(&self) -> bool {
        self.queued_bytes <= READ_WITH_QUEUED_MAX
    }

    pub(crate) fn push(&mut self, message: Message) {
        self.queued_bytes += message.len();
        self.queue.push_back(message);
    }

    /// Drops what waits, but for a message of which a part is written.
    pub(crate) fn drop_queue(&mut self) {
        self.is_stuck = true;
        self.queue.truncate(usize::from(self.written > 0));
        self.queued_bytes = self.queue.iter().map(|message| message.len()).sum();
    }

    /// Reads once, if the peer is to be heard, and gives what it said beyond the handshake.
    pub(crate) fn read(&mut self) -> Result<Vec<Incoming>, Gone> {
        let mut said = Vec::new();
        if !self.is_heard() {
            return Ok(said);
        }
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Err(Gone::Closed(ErrorKind::UnexpectedEof.into())),
            Ok(count) => self.decoder.feed(&bytes[..count]),
            Err(error) if passes(&error) => {}
            Err(error) => return Err(Gone::Closed(error)),
        }
        while let Some(incoming) = self.decoder.incoming().map_err(|refused| Gone::Refused(refused.0))? {
            match incoming {
                Incoming::Greeting => self.push(zmtp::ready(self.socket_type).into()),
                Incoming::Ready => self.is_ready = true,
                Incoming::Ping(answer) => self.push(answer.into()),
                said_now if self.is_ready => said.push(said_now),
                _ => return Err(Gone::Refused("it speaks before its handshake is over")),
            }
        }
        Ok(said)
    }

    /// Writes what the socket takes.
    pub(crate) fn write(&mut self, now_ns: u64) -> Result<(), Gone> {
        while let Some(message) = self.queue.front() {
            match self.stream.write(&message[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if passes(&error) => return self.check_time(now_ns),
                Err(error) => return Err(Gone::Closed(error)),
            }
            (self.took_ns, self.is_stuck) = (now_ns, false);
            if self.written == message.len() {
                self.queued_bytes -= message.len();
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
        Ok(())
    }
}

fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
