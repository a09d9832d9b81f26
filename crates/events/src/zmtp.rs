//! ZMTP 3.0 with the NULL mechanism (rfc.zeromq.org/spec/23), the server's side of PUB and ROUTER, as bytes: no socket,
//! no clock. Subscriptions are taken as messages and, from peers of ZMTP 3.1, as commands.

/// Bytes of a greeting.
const GREETING_BYTES: usize = 64;
/// Bytes of one frame from a peer: topics, commands and numbers are far smaller.
const FRAME_BYTES_MAX: u64 = 1024;
/// Frames of one message from a peer.
const FRAMES_MAX: usize = 8;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What this side says first.
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// The command that ends the handshake.
pub fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in [("Socket-Type", socket_type), ("Identity", "")] {
        body.push(name.len() as u8);
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value.as_bytes());
    }
    command("READY", &body)
}

/// Asks a peer of ZMTP 3.1 for an answer: no time to live, no context.
pub fn ping() -> Vec<u8> {
    command("PING", &[0, 0])
}

/// A command.
fn command(name: &str, body: &[u8]) -> Vec<u8> {
    let whole = [&[name.len() as u8], name.as_bytes(), body].concat();
    let mut out = Vec::new();
    put_frame(&mut out, COMMAND, &whole);
    out
}

fn put_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(len) => out.extend_from_slice(&[flags, len]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

/// A message of these frames.
pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
    for (index, frame) in frames.iter().enumerate() {
        put_frame(&mut out, if index + 1 < frames.len() { MORE } else { 0 }, frame);
    }
    out
}

/// A frame that others of the same message follow.
pub fn first_frame(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, MORE, body);
    out
}

/// What a peer says after the greetings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// Its greeting is complete.
    Greeting {
        /// Its version is 3 and this; from 1 on it answers pings.
        minor: u8,
    },
    /// The handshake is over.
    Ready,
    /// It wants messages whose first frame begins so.
    Subscribe(Vec<u8>),
    /// It no longer does.
    Cancel(Vec<u8>),
    /// It wants this answer, to see that the connection lives.
    Ping(Vec<u8>),
    /// A message.
    Message(Vec<Vec<u8>>),
}

/// The peer does not speak the protocol, or says too much at once: its connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused(pub &'static str);

/// Takes bytes, gives what they say.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    greeted: bool,
    frames: Vec<Vec<u8>>,
}

impl Decoder {
    /// Takes what was read.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next thing said, if it is complete.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn incoming(&mut self) -> Result<Option<Incoming>, Refused> {
        if !self.greeted {
            return self.take_greeting();
        }
        loop {
            let Some((flags, body)) = self.take_frame()? else { return Ok(None) };
            if flags & COMMAND != 0 {
                match of_command(&body)? {
                    Some(incoming) => return Ok(Some(incoming)),
                    None => continue,
                }
            }
            if self.frames.len() == FRAMES_MAX {
                return Err(Refused("a message has too many frames"));
            }
            self.frames.push(body);
            if flags & MORE == 0 {
                return Ok(Some(Incoming::Message(std::mem::take(&mut self.frames))));
            }
        }
    }

    fn take_greeting(&mut self) -> Result<Option<Incoming>, Refused> {
        let Some(bytes) = self.bytes.get(..GREETING_BYTES) else { return Ok(None) };
        if bytes[0] != 0xff || bytes[9] & 1 == 0 || bytes[10] < 3 {
            return Err(Refused("it does not speak ZMTP 3"));
        }
        if &bytes[12..17] != b"NULL\0" {
            return Err(Refused("it wants another security mechanism than NULL"));
        }
        // A later version than 3 speaks as 3.1 to one of 3.
        let minor = if bytes[10] > 3 { 1 } else { bytes[11] };
        self.bytes.drain(..GREETING_BYTES);
        self.greeted = true;
        Ok(Some(Incoming::Greeting { minor }))
    }

    fn take_frame(&mut self) -> Result<Option<(u8, Vec<u8>)>, Refused> {
        let Some(&flags) = self.bytes.first() else { return Ok(None) };
        if flags > MORE | LONG | COMMAND || (flags & COMMAND != 0 && flags & MORE != 0) {
            return Err(Refused("a frame has unknown flags"));
        }
        let (head, len) = if flags & LONG != 0 {
            let Some(len) = self.bytes.get(1..9) else { return Ok(None) };
            (9, len.iter().fold(0, |len, &byte| len << 8 | u64::from(byte)))
        } else {
            let Some(&len) = self.bytes.get(1) else { return Ok(None) };
            (2, u64::from(len))
        };
        if len > FRAME_BYTES_MAX {
            return Err(Refused("a frame is too long"));
        }
        let end = head + len as usize;
        let Some(body) = self.bytes.get(head..end) else { return Ok(None) };
        let body = body.to_vec();
        self.bytes.drain(..end);
        Ok(Some((flags, body)))
    }
}

/// What a command says; `None` if nothing follows from it.
fn of_command(body: &[u8]) -> Result<Option<Incoming>, Refused> {
    let broken = Refused("a command is cut short");
    let (&name_len, rest) = body.split_first().ok_or(broken)?;
    let (name, rest) = rest.split_at_checked(usize::from(name_len)).ok_or(broken)?;
    Ok(match name {
        b"READY" => Some(Incoming::Ready),
        b"SUBSCRIBE" => Some(Incoming::Subscribe(rest.to_vec())),
        b"CANCEL" => Some(Incoming::Cancel(rest.to_vec())),
        // A time to live, then what the answer must repeat.
        b"PING" => Some(Incoming::Ping(command("PONG", rest.get(2..).ok_or(broken)?))),
        b"ERROR" => return Err(Refused("it has refused the handshake")),
        _ => None,
    })
}
