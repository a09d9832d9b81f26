//! The head of an answer, and what it says of the body's end.

use crate::{line, malformed};
use std::io::{self, BufRead, Read};

/// A longer head is an error.
const HEAD_BYTES_MAX: u64 = 64 << 10;

/// Status line and fields of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    /// Its first line, such as `HTTP/1.1 200 OK`.
    pub status_line: String,
    /// The status in it.
    pub status: u16,
    /// Fields in order, names in lower case.
    pub fields: Vec<(String, String)>,
    framing: Framing,
}

/// How much of a body is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Nothing.
    Complete,
    /// This number of bytes.
    Length(u64),
    /// All until the server closes.
    UntilClose,
    /// Chunks, then an empty one.
    Chunked(Chunk),
}

/// Where in a chunked body a reader stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Before the line with the next chunk's length.
    Length,
    /// Before this number of bytes of a chunk.
    Data(u64),
    /// After a chunk's bytes, before the end of their line.
    End,
}

impl Head {
    /// The first field of this name, given in lower case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// How the body ends, if the request was no HEAD.
    #[must_use]
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Reads a head, also one of an interim answer (100 to 199).
    pub(crate) fn read(reader: &mut impl BufRead) -> io::Result<Head> {
        let mut head = reader.take(HEAD_BYTES_MAX);
        let mut next = || line(&mut head, HEAD_BYTES_MAX, "the head ends early");
        let status_line = next()?;
        let status = status_line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
        let status = status.and_then(|word| word.parse().ok()).filter(|status| (100..1000).contains(status));
        let status = status.ok_or_else(|| malformed(format!("this is no HTTP server: {status_line:?}")))?;
        let mut fields = Vec::new();
        loop {
            let line = next()?;
            if line.is_empty() {
                let framing = framing(status, &fields)?;
                return Ok(Head { status_line, status, fields, framing });
            }
            let (name, value) =
                line.split_once(':').ok_or_else(|| malformed(format!("not a field of a head: {line:?}")))?;
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
}

/// Chunks count more than a length (RFC 9112, section 6.3).
fn framing(status: u16, fields: &[(String, String)]) -> io::Result<Framing> {
    let last = |name: &str| fields.iter().rev().find(|(field, _)| field == name).map(|(_, value)| value);
    if matches!(status, 100..=199 | 204 | 304) {
        return Ok(Framing::Complete);
    }
    let coding = last("transfer-encoding").and_then(|codings| codings.rsplit(',').next());
    if coding.is_some_and(|coding| coding.trim().eq_ignore_ascii_case("chunked")) {
        return Ok(Framing::Chunked(Chunk::Length));
    }
    match last("content-length") {
        Some(length) => {
            let length = length.parse().map_err(|_| malformed(format!("not a length: {length:?}")))?;
            Ok(Framing::Length(length))
        }
        None => Ok(Framing::UntilClose),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    fn read(text: &str) -> io::Result<Head> {
        Head::read(&mut text.as_bytes())
    }

    #[test]
    fn a_head_says_how_its_body_ends() {
        for (head, framing) in [
            ("200 OK\r\nContent-Length: 3\r\n", Framing::Length(3)),
            ("200 OK\r\n", Framing::UntilClose),
            ("204 No Content\r\nContent-Length: 3\r\n", Framing::Complete),
            ("200\r\nTransfer-Encoding: gzip, Chunked\r\n", Framing::Chunked(Chunk::Length)),
            (
                "200 OK\r\nTransfer-Encoding: chunked\r\ncontent-length: 3\r\n",
                Framing::Chunked(Chunk::Length),
            ),
        ] {
            assert_eq!(read(&format!("HTTP/1.1 {head}\r\n")).unwrap().framing(), framing, "{head}");
        }
        let head = read("HTTP/1.0 503 Service Unavailable\nRetry-After:  1 \n\n").unwrap();
        assert_eq!((head.status, head.field("retry-after"), head.field("x")), (503, Some("1"), None));
        assert_eq!(head.status_line, "HTTP/1.0 503 Service Unavailable");
    }

    #[test]
    fn what_is_no_head_is_named() {
        for (text, says, kind) in [
            ("SSH-2.0\r\n", "this is no HTTP server: \"SSH-2.0\"", ErrorKind::InvalidData),
            ("HTTP/1.1 OK\r\n\r\n", "this is no HTTP server: \"HTTP/1.1 OK\"", ErrorKind::InvalidData),
            ("HTTP/1.1 200 OK\r\nx\r\n\r\n", "not a field of a head: \"x\"", ErrorKind::InvalidData),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "not a length: \"-1\"", ErrorKind::InvalidData),
            ("HTTP/1.1 200 OK\r\n", "the head ends early", ErrorKind::UnexpectedEof),
            ("", "the head ends early", ErrorKind::UnexpectedEof),
        ] {
            let error = read(text).expect_err(text);
            assert_eq!((error.to_string().as_str(), error.kind()), (says, kind), "{text}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(HEAD_BYTES_MAX as usize));
        assert!(read(&long).is_err(), "a head without bound");
    }
}
