//! A small HTTP/1.1 client: one request, one answer, over a connection of its own. Every wait has a deadline.

use pinion_config::ServerUrl;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// A connection is made, and a request written, in this time.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer's head.
const HEAD_BYTES_MAX: u64 = 64 << 10;
/// Bytes of a chunk's line.
const CHUNK_LINE_MAX: u64 = 1 << 10;
/// Bytes of a body that is taken whole.
const BODY_BYTES_MAX: u64 = 16 << 20;

/// What is asked.
pub(crate) struct Request<'a> {
    pub(crate) url: &'a ServerUrl,
    pub(crate) path: &'a str,
    pub(crate) key: Option<&'a str>,
    /// With one it is a POST of JSON.
    pub(crate) body: Option<&'a str>,
    /// How long the server may be silent.
    pub(crate) patience: Duration,
}

/// The beginning of an answer; the rest is read from `body`.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Body<BufReader<TcpStream>>,
}

impl Answer {
    /// The rest as text, up to a bound.
    pub(crate) fn text(self) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.body.take(BODY_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// A connection to the server. Errors: the last address' reason.
pub(crate) fn connect(url: &ServerUrl) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the address leads nowhere");
    for address in url.authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Sends the request over a fresh connection and reads the head of the answer.
pub(crate) fn ask(mut stream: TcpStream, request: &Request<'_>) -> io::Result<Answer> {
    stream.set_write_timeout(Some(CONNECT_PATIENCE))?;
    stream.set_read_timeout(Some(request.patience))?;
    // A server may answer and close before it has read all: what it says counts more than the write's error.
    let wrote = stream.write_all(head_and_body(request).as_bytes());
    let mut reader = BufReader::new(stream);
    match (read_head(&mut reader), wrote) {
        (Ok((status, framing)), _) => Ok(Answer { status, body: Body { reader, framing } }),
        (Err(_), Err(error)) | (Err(error), Ok(())) => Err(error),
    }
}

fn head_and_body(request: &Request<'_>) -> String {
    let key = request.key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let (method, body) = match request.body {
        Some(body) => ("POST", body),
        None => ("GET", ""),
    };
    let content = match request.body {
        Some(body) => format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()),
        None => String::new(),
    };
    let (url, path) = (request.url, request.path);
    format!(
        "{method} {}{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAccept: */*\r\n{key}{content}\r\n{body}",
        url.base, url.authority
    )
}

/// How much of a body is left.
#[derive(Debug, PartialEq, Eq)]
enum Framing {
    /// Bytes left of this chunk; `None` before the first.
    Chunked(Option<u64>),
    Length(u64),
    UntilClose,
    Over,
}

/// A body without its framing.
#[derive(Debug)]
pub(crate) struct Body<R> {
    reader: R,
    framing: Framing,
}

fn read_head(reader: &mut impl BufRead) -> io::Result<(u16, Framing)> {
    let mut head = reader.take(HEAD_BYTES_MAX);
    let (mut first, mut framing, mut line) = (String::new(), Framing::UntilClose, String::new());
    head.read_line(&mut first)?;
    let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status =
        status.filter(|_| first.starts_with("HTTP/1.")).ok_or_else(|| broken("this is no HTTP server"))?;
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(broken("the head ends early"));
        }
        if line.trim_end().is_empty() {
            return Ok((status, framing));
        }
        let line = line.to_ascii_lowercase();
        let Some((name, value)) = line.split_once(':') else { continue };
        match (name, value.trim().parse()) {
            ("transfer-encoding", _) if value.contains("chunked") => framing = Framing::Chunked(None),
            ("content-length", Ok(length)) if framing == Framing::UntilClose => {
                framing = Framing::Length(length)
            }
            _ => {}
        }
    }
}

impl<R: BufRead> Body<R> {
    /// Reads the line with the next chunk's length.
    fn next_chunk(&mut self, is_first: bool) -> io::Result<u64> {
        let mut line = String::new();
        if !is_first {
            (&mut self.reader).take(2).read_line(&mut line)?;
            line.clear();
        }
        (&mut self.reader).take(CHUNK_LINE_MAX).read_line(&mut line)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        u64::from_str_radix(digits, 16).map_err(|_| broken("the answer breaks off"))
    }

    /// Up to `left` bytes, at least one.
    fn some(&mut self, buffer: &mut [u8], left: u64) -> io::Result<u64> {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match self.reader.read(&mut buffer[..most])? {
            0 if most > 0 => Err(broken("the answer breaks off")),
            count => Ok(count as u64),
        }
    }
}

impl<R: BufRead> Read for Body<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match self.framing {
            Framing::Over | Framing::Length(0) => 0,
            Framing::UntilClose => return self.reader.read(buffer),
            Framing::Length(left) => {
                let count = self.some(buffer, left)?;
                self.framing = Framing::Length(left - count);
                count
            }
            Framing::Chunked(left) => {
                let left = match left {
                    None | Some(0) => self.next_chunk(left.is_none())?,
                    Some(left) => left,
                };
                if left == 0 {
                    self.framing = Framing::Over;
                    return Ok(0);
                }
                let count = self.some(buffer, left)?;
                self.framing = Framing::Chunked(Some(left - count));
                count
            }
        };
        Ok(usize::try_from(count).expect("no more than the buffer"))
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: &str) -> Result<(u16, String), String> {
        let mut reader = BufReader::with_capacity(3, answer.as_bytes());
        let (status, framing) = read_head(&mut reader).map_err(|error| error.to_string())?;
        let mut text = String::new();
        let mut body = Body { reader, framing };
        body.read_to_string(&mut text).map_err(|error| error.to_string())?;
        Ok((status, text))
    }

    #[test]
    fn bodies_are_read_in_each_framing_and_a_cut_one_is_an_error() {
        let ok = |text: &str| Ok((200, text.to_owned()));
        let head = "HTTP/1.1 200 OK\r\n";
        let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
        assert_eq!(read(&format!("{head}Content-Length: 3\r\n\r\nabcd")), ok("abc"));
        assert_eq!(read(&format!("{head}\r\nabcd")), ok("abcd"));
        assert_eq!(read(&format!("{chunked}4\r\nabcd\r\n2;x=y\r\nef\r\n0\r\n\r\n")), ok("abcdef"));
        for cut in [
            format!("{chunked}4\r\nab"),
            format!("{chunked}4\r\nabcd\r\n"),
            format!("{head}Content-Length: 3\r\n\r\nab"),
        ] {
            assert_eq!(read(&cut), Err("the answer breaks off".to_owned()), "{cut}");
        }
        assert_eq!(read(head), Err("the head ends early".to_owned()));
        assert_eq!(read("SSH-2.0\r\n"), Err("this is no HTTP server".to_owned()));
    }

    #[test]
    fn a_request_has_its_key_and_its_body() {
        let url = ServerUrl::parse("http://h:1/base/v1").unwrap();
        let asked = |key, body| {
            let patience = Duration::ZERO;
            head_and_body(&Request { url: &url, path: "/v1/x", key, body, patience })
        };
        assert!(asked(None, None).starts_with("GET /base/v1/x HTTP/1.1\r\nHost: h:1\r\n"));
        let post = asked(Some("k"), Some("{}"));
        assert!(post.starts_with("POST /base/v1/x ") && post.contains("\r\nAuthorization: Bearer k\r\n"));
        assert!(post.ends_with("Content-Length: 2\r\n\r\n{}"), "{post}");
    }
}
