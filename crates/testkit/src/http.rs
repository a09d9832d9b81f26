//! A small blocking HTTP/1.1 client over one socket. It can be used badly on purpose: any bytes can be written,
//! and the connection can be reset or left at any point.

use crate::wait::PATIENCE;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A head longer than this is not ours.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Status line and header fields of a response.
#[derive(Clone, Debug)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// Fields in order, names in lower case.
    pub fields: Vec<(String, String)>,
}

impl Head {
    /// The first field of this name, given in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

/// A whole response.
#[derive(Clone, Debug)]
pub struct Response {
    /// Status and fields.
    pub head: Head,
    /// Decoded body.
    pub body: Vec<u8>,
}

impl Response {
    /// The status code.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("bodies are UTF-8")
    }

    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("not JSON ({error}): {text}"))
    }
}

/// How much of a body is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// This number of bytes.
    Length(usize),
    /// Chunks, then an empty one.
    Chunked,
    /// All until the peer closes.
    UntilClose,
    /// Nothing.
    Complete,
}

impl Framing {
    /// What a response's head says.
    pub fn of(head: &Head) -> Framing {
        if matches!(head.status, 100..=199 | 204 | 304) {
            return Framing::Complete;
        }
        if head.field("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Framing::Chunked;
        }
        match head.field("content-length").map(|value| value.parse().expect("a length is a number")) {
            Some(0) => Framing::Complete,
            Some(length) => Framing::Length(length),
            None => Framing::UntilClose,
        }
    }
}

/// One connection to the service.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    deadline: Instant,
}

impl Connection {
    /// Connects; everything on the connection must end within [`PATIENCE`].
    pub fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Connection { stream, buffer: Vec::new(), deadline: Instant::now() + PATIENCE })
    }

    /// Gives the connection this much time from now on.
    pub fn allow(&mut self, limit: Duration) {
        self.deadline = Instant::now() + limit;
    }

    /// Writes raw bytes.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Writes a request with a `Content-Length` and the given fields.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<()> {
        self.write(&request_bytes(method, path, fields, body))
    }

    /// Reads more bytes; false at the end of the stream.
    fn fill(&mut self) -> io::Result<bool> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "the service did not answer in time"));
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut piece = [0u8; 16 << 10];
        match self.stream.read(&mut piece) {
            Ok(count) => {
                self.buffer.extend_from_slice(&piece[..count]);
                Ok(count > 0)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(io::Error::new(ErrorKind::TimedOut, "the service did not answer in time"))
            }
            Err(error) => Err(error),
        }
    }

    /// Fills until the buffer holds `wanted` bytes.
    fn fill_to(&mut self, wanted: usize) -> io::Result<()> {
        while self.buffer.len() < wanted {
            if !self.fill()? {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection closed in mid-message"));
            }
        }
        Ok(())
    }

    /// Takes a line without its CRLF.
    fn line(&mut self) -> io::Result<String> {
        let mut seen = 0;
        loop {
            if let Some(at) =
                self.buffer[seen..].windows(2).position(|two| two == b"\r\n").map(|at| at + seen)
            {
                let line: Vec<u8> = self.buffer.drain(..at + 2).take(at).collect();
                return String::from_utf8(line).map_err(|_| io::Error::from(ErrorKind::InvalidData));
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(io::Error::new(ErrorKind::InvalidData, "a line has no end"));
            }
            seen = self.buffer.len().saturating_sub(1);
            self.fill_to(self.buffer.len() + 1)?;
        }
    }

    /// Reads the next response's head.
    pub fn head(&mut self) -> io::Result<Head> {
        let malformed =
            |line: &str| io::Error::new(ErrorKind::InvalidData, format!("not a response head: {line:?}"));
        let first = self.line()?;
        let status = first
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3)?.parse().ok())
            .ok_or_else(|| malformed(&first))?;
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(Head { status, fields });
            }
            let (name, value) = line.split_once(':').ok_or_else(|| malformed(&line))?;
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// Appends the next part of a body to `out`; false when the body is complete.
    pub fn body_part(&mut self, framing: &mut Framing, out: &mut Vec<u8>) -> io::Result<bool> {
        match *framing {
            Framing::Complete => return Ok(false),
            Framing::Length(length) => {
                self.fill_to(1)?;
                let count = length.min(self.buffer.len());
                out.extend(self.buffer.drain(..count));
                *framing = if count == length { Framing::Complete } else { Framing::Length(length - count) };
            }
            Framing::UntilClose => {
                if self.buffer.is_empty() && !self.fill()? {
                    *framing = Framing::Complete;
                    return Ok(false);
                }
                out.append(&mut self.buffer);
            }
            Framing::Chunked => {
                let line = self.line()?;
                let length = usize::from_str_radix(&line, 16).map_err(|_| {
                    io::Error::new(ErrorKind::InvalidData, format!("not a chunk length: {line:?}"))
                })?;
                self.fill_to(length + 2)?;
                out.extend(self.buffer.drain(..length));
                if self.line()?.is_empty() {
                    if length == 0 {
                        *framing = Framing::Complete;
                        return Ok(false);
                    }
                } else {
                    return Err(io::Error::new(ErrorKind::InvalidData, "a chunk does not end where it says"));
                }
            }
        }
        Ok(true)
    }

    /// Reads a whole response, past `100 Continue`.
    pub fn response(&mut self) -> io::Result<Response> {
        let mut head = self.head()?;
        while head.status == 100 {
            head = self.head()?;
        }
        let mut framing = Framing::of(&head);
        let mut body = Vec::new();
        while self.body_part(&mut framing, &mut body)? {}
        Ok(Response { head, body })
    }

    /// Whether the service has closed the connection: waits for its end.
    pub fn is_closed_by_peer(&mut self) -> bool {
        loop {
            match self.fill() {
                Ok(true) => self.buffer.clear(),
                Ok(false) => return true,
                Err(error) => return error.kind() == ErrorKind::ConnectionReset,
            }
        }
    }

    /// Sends FIN for our direction and goes on reading.
    pub fn finish_writing(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Leaves with RST: the peer's next write or read fails at once.
    pub fn reset(self) {
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&self.stream, sockopt::Linger, &at_once).expect("an open socket takes SO_LINGER");
    }

    /// Leaves with FIN in both directions.
    pub fn close(self) {
        // A connection that the peer has reset meanwhile is closed as well.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A request's bytes.
pub(crate) fn request_bytes(method: &str, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
    for (name, value) in fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if method != "GET" {
        text.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
