//! A subscriber of KV events and one that asks for batches again: ZMTP 3.0 and msgpack from outside, with nothing of
//! the service's own code.

use crate::wait::{PATIENCE, wait_until};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long a read may wait before the deadline is looked at.
const READ_WAIT: Duration = Duration::from_millis(20);

/// What one event says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// Nothing is cached.
    Cleared,
    /// These blocks are not.
    Removed(Vec<u64>),
    /// These are: names one after another in a text, the name before them, their token ids, tokens of a block.
    Stored(Vec<u64>, Option<u64>, Vec<u32>, usize),
}

/// One batch.
#[derive(Debug, Clone, PartialEq)]
pub struct KvBatch {
    /// First frame.
    pub topic: Vec<u8>,
    /// Second frame.
    pub number: u64,
    /// Seconds since 1970.
    pub unix_s: f64,
    /// What it says.
    pub events: Vec<KvEvent>,
    /// Index of the engine.
    pub rank: Option<u16>,
}

impl KvBatch {
    fn of(frames: Vec<Vec<u8>>) -> KvBatch {
        let [topic, number, payload] = <[Vec<u8>; 3]>::try_from(frames).expect("a batch has three frames");
        let number = u64::from_be_bytes(number.try_into().expect("a number has 8 bytes"));
        let (unix_s, events, rank): (f64, Vec<Value>, Option<u16>) =
            rmp_serde::from_slice(&payload).expect("a payload is a batch");
        KvBatch { topic, number, unix_s, events: events.iter().map(event).collect(), rank }
    }
}

fn event(value: &Value) -> KvEvent {
    let names = |at: usize| value[at].as_array().expect("names").iter().map(number).collect::<Vec<u64>>();
    match value[0].as_str().expect("an event has a name") {
        "AllBlocksCleared" => KvEvent::Cleared,
        "BlockRemoved" => {
            assert_eq!(value[2], "GPU");
            KvEvent::Removed(names(1))
        }
        "BlockStored" => {
            assert_eq!((&value[5], &value[6], &value[7]), (&Value::Null, &Value::from("GPU"), &Value::Null));
            let parent = (!value[2].is_null()).then(|| number(&value[2]));
            let tokens =
                value[3].as_array().expect("token ids").iter().map(number).map(|id| id as u32).collect();
            KvEvent::Stored(names(1), parent, tokens, number(&value[4]) as usize)
        }
        other => panic!("an event called {other}"),
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// SHA-256 of `[digest before, [token ids], null]` in CBOR; the last eight bytes are the block's name. Before the first
/// block stands that of the text "0".
fn digest(before: Option<[u8; 32]>, tokens: &[u32]) -> [u8; 32] {
    let head = |major: u8, value: u32| match (value, value.to_be_bytes()) {
        (0..24, [.., last]) => vec![major | last],
        (24..0x100, [.., last]) => vec![major | 24, last],
        (0x100..0x1_0000, [.., high, low]) => vec![major | 25, high, low],
        (_, [a, b, c, d]) => vec![major | 26, a, b, c, d],
    };
    let mut item = vec![0x83, 0x58, 32];
    item.extend_from_slice(&before.unwrap_or_else(|| Sha256::digest(b"\x610").into()));
    item.extend(head(0x80, tokens.len() as u32));
    tokens.iter().for_each(|token| item.extend(head(0, *token)));
    item.push(0xf6);
    Sha256::digest(item).into()
}

/// A block that is cached.
struct Block {
    parent: Option<u64>,
    tokens: Vec<u32>,
    digest: [u8; 32],
}

/// A socket after the handshake.
struct Peer {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Peer {
    fn connect(address: SocketAddr, socket_type: &str) -> io::Result<Peer> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(READ_WAIT))?;
        let mut hello = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
        hello.extend_from_slice(b"NULL");
        hello.resize(64, 0);
        let mut ready = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
        ready.push(socket_type.len() as u8);
        ready.extend_from_slice(socket_type.as_bytes());
        hello.extend_from_slice(&[4, ready.len() as u8]);
        hello.extend_from_slice(&ready);
        stream.write_all(&hello)?;
        let mut peer = Peer { stream, bytes: Vec::new() };
        let begin = Instant::now();
        while peer.bytes.len() < 64 {
            peer.read(begin)?;
        }
        peer.bytes.drain(..64);
        Ok(peer)
    }

    fn read(&mut self, since: Instant) -> io::Result<()> {
        let mut bytes = [0; 65536];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.bytes.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && since.elapsed() < PATIENCE => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The next frame, if it is there: flags and body.
    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let flags = *self.bytes.first()?;
        let (head, len) = match flags & 2 {
            0 => (2, usize::from(*self.bytes.get(1)?)),
            _ => (9, u64::from_be_bytes(self.bytes.get(1..9)?.try_into().expect("8 bytes")) as usize),
        };
        let body = self.bytes.get(head..head + len)?.to_vec();
        self.bytes.drain(..head + len);
        Some((flags, body))
    }

    /// The next message, if one comes within `wait`. Commands are passed over.
    fn message(&mut self, wait: Duration) -> io::Result<Option<Vec<Vec<u8>>>> {
        let (begin, mut frames) = (Instant::now(), Vec::new());
        loop {
            while let Some((flags, body)) = self.frame() {
                if flags & 4 != 0 {
                    continue;
                }
                frames.push(body);
                if flags & 1 == 0 {
                    return Ok(Some(frames));
                }
            }
            if frames.is_empty() && begin.elapsed() > wait {
                return Ok(None);
            }
            self.read(begin)?;
        }
    }
}

/// A subscriber that knows the cache from what it hears.
pub struct KvSubscriber {
    address: SocketAddr,
    prefix: String,
    peer: Option<Peer>,
    /// By name.
    blocks: BTreeMap<u64, Block>,
    /// Number of the last batch.
    pub last: Option<u64>,
    /// Batches heard.
    pub batches: usize,
    /// Connections made.
    pub connections: usize,
}

impl KvSubscriber {
    /// Subscribes to topics that begin with `prefix`.
    pub fn new(port: u16, prefix: &str) -> KvSubscriber {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let (prefix, blocks) = (prefix.to_owned(), BTreeMap::new());
        KvSubscriber { address, prefix, peer: None, blocks, last: None, batches: 0, connections: 0 }
    }

    /// Hears what comes until nothing has come for `quiet`; connects again where the connection was lost.
    pub fn listen(&mut self, quiet: Duration) {
        loop {
            let peer = match &mut self.peer {
                Some(peer) => peer,
                None => {
                    let peer =
                        wait_until("the publisher takes connections", PATIENCE, || self.connected().ok());
                    self.connections += 1;
                    self.peer.insert(peer)
                }
            };
            match peer.message(quiet) {
                Ok(Some(frames)) => self.apply(&KvBatch::of(frames)),
                Ok(None) => return,
                Err(_) => self.peer = None,
            }
        }
    }

    /// Hears what comes until `holds`.
    ///
    /// # Panics
    /// If it does not in time.
    pub fn listen_until(&mut self, what: &str, holds: impl Fn(&KvSubscriber) -> bool) {
        wait_until(what, PATIENCE, || {
            self.listen(READ_WAIT);
            holds(self).then_some(())
        });
    }

    fn connected(&self) -> io::Result<Peer> {
        let mut peer = Peer::connect(self.address, "SUB")?;
        let mut frame = vec![0, self.prefix.len() as u8 + 1, 1];
        frame.extend_from_slice(self.prefix.as_bytes());
        peer.stream.write_all(&frame)?;
        Ok(peer)
    }

    /// Applies a batch.
    ///
    /// # Panics
    /// If it does not fit what was said before.
    pub fn apply(&mut self, batch: &KvBatch) {
        assert!(batch.topic.starts_with(self.prefix.as_bytes()) && batch.rank == Some(0), "{batch:?}");
        assert!(batch.unix_s > 1.7e9, "{batch:?}");
        let clears = batch.events.first() == Some(&KvEvent::Cleared);
        let follows = self.last.is_none_or(|last| batch.number == last + 1);
        assert!(follows || clears, "{} after {:?}, and it does not begin anew", batch.number, self.last);
        (self.last, self.batches) = (Some(batch.number), self.batches + 1);
        for event in &batch.events {
            match event {
                KvEvent::Cleared => self.blocks.clear(),
                KvEvent::Removed(names) => {
                    names
                        .iter()
                        .for_each(|name| assert!(self.blocks.remove(name).is_some(), "{name} is unknown"));
                }
                KvEvent::Stored(names, parent, tokens, block_size) => {
                    assert_eq!(names.len() * block_size, tokens.len());
                    let mut parent = *parent;
                    for (name, tokens) in names.iter().zip(tokens.chunks(*block_size)) {
                        self.store(*name, parent, tokens);
                        parent = Some(*name);
                    }
                }
            }
        }
    }

    fn store(&mut self, name: u64, parent: Option<u64>, tokens: &[u32]) {
        let before = parent.map(|parent| self.blocks.get(&parent).expect("its parent was told").digest);
        let digest = digest(before, tokens);
        assert!(digest.ends_with(&name.to_be_bytes()), "{name} is no name of {tokens:?} after {before:?}");
        let known = self.blocks.insert(name, Block { parent, tokens: tokens.to_vec(), digest });
        assert!(known.is_none(), "{name} is stored twice");
    }

    /// The names of all cached blocks, in their order as numbers.
    pub fn names(&self) -> Vec<u64> {
        self.blocks.keys().copied().collect()
    }

    /// The cached texts: for each block the ids from the beginning to its end.
    pub fn texts(&self) -> Vec<Vec<u32>> {
        let text = |name: &u64| {
            let (mut parts, mut next) = (Vec::new(), Some(*name));
            while let Some(Block { parent, tokens, .. }) = next.map(|name| &self.blocks[&name]) {
                parts.push(&tokens[..]);
                next = *parent;
            }
            parts.reverse();
            parts.concat()
        };
        let mut texts: Vec<Vec<u32>> = self.blocks.keys().map(text).collect();
        texts.sort();
        let count = texts.len();
        texts.dedup();
        assert_eq!(texts.len(), count, "a text is stored once");
        texts
    }

    /// How many of these ids a prompt would find: whole blocks, and not its last id.
    pub fn cached_tokens(&self, ids: &[u32]) -> usize {
        let texts = self.texts();
        let found = texts.iter().filter(|text| text.len() < ids.len() && ids.starts_with(text));
        found.map(Vec::len).max().unwrap_or(0)
    }
}

/// Asks for the batches from number `start` on: those of the answer, up to its end mark.
///
/// # Panics
/// If there is no answer.
pub fn kv_replay(port: u16, start: u64) -> Vec<KvBatch> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut peer = wait_until("replays are answered", PATIENCE, || Peer::connect(address, "DEALER").ok());
    let request = [&[1, 0, 0, 8][..], &start.to_be_bytes()].concat();
    peer.stream.write_all(&request).expect("the publisher reads");
    let mut batches = Vec::new();
    loop {
        let message = peer.message(PATIENCE).expect("the publisher stays");
        let mut frames = message.expect("an answer comes");
        assert!(frames.remove(0).is_empty(), "a reply begins with an empty frame");
        if frames == [Vec::new(), u64::MAX.to_be_bytes().to_vec(), Vec::new()] {
            return batches;
        }
        batches.push(KvBatch::of(frames));
    }
}
