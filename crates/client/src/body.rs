//! A body without its framing.

use crate::head::{Chunk, Framing};
use crate::{line, malformed};
use std::io::{self, BufRead, ErrorKind, Read};

/// Bytes of the line with a chunk's length, or of a line after the last chunk.
const CHUNK_LINE_BYTES_MAX: u64 = 8 << 10;
/// Lines after the last chunk.
const TRAILERS_MAX: usize = 64;
/// What a body says that is shorter than its framing.
const CUT: &str = "the answer breaks off";

/// Reads a body: to its end, which its framing says, and no further. A body that is cut is an error.
#[derive(Debug)]
pub struct Body<R> {
    reader: R,
    framing: Framing,
}

impl<R: BufRead> Body<R> {
    pub(crate) fn new(reader: R, framing: Framing) -> Body<R> {
        Body { reader, framing }
    }

    /// What is still to come.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Gives the connection back, wherever the body is.
    pub fn into_inner(self) -> R {
        self.reader
    }

    /// Appends the next part to `out`, which is a whole chunk where there are chunks. False: the body is complete.
    pub fn part(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        let before = out.len();
        self.reach_data()?;
        if let Framing::Chunked(Chunk::Data(left)) = self.framing {
            let read = (&mut self.reader).take(left).read_to_end(out);
            let is_whole = out.len() - before == usize::try_from(left).unwrap_or(usize::MAX);
            if read.is_err() || !is_whole {
                out.truncate(before);
            }
            read?;
            self.framing = Framing::Chunked(Chunk::End);
            return if is_whole { Ok(true) } else { Err(cut()) };
        }
        let piece = self.fill_buf()?;
        let count = piece.len();
        out.extend_from_slice(piece);
        self.consume(count);
        Ok(count > 0)
    }

    /// All of it as text, up to a bound: what is longer is cut there. Bytes that are not UTF-8 are replaced.
    pub fn text(self, bytes_max: u64) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads what stands between two chunks, so that the next byte is one of the body, or the body is complete.
    fn reach_data(&mut self) -> io::Result<()> {
        if self.framing == Framing::Chunked(Chunk::End) {
            if !line(&mut self.reader, CHUNK_LINE_BYTES_MAX, CUT)?.is_empty() {
                return Err(malformed("a chunk does not end where its length says"));
            }
            self.framing = Framing::Chunked(Chunk::Length);
        }
        if self.framing == Framing::Chunked(Chunk::Length) {
            let line = line(&mut self.reader, CHUNK_LINE_BYTES_MAX, CUT)?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let length = u64::from_str_radix(digits, 16);
            let length = length.map_err(|_| malformed(format!("not a chunk's length: {line:?}")))?;
            self.framing = Framing::Chunked(Chunk::Data(length));
            if length == 0 {
                self.trailers()?;
                self.framing = Framing::Complete;
            }
        }
        if self.framing == Framing::Length(0) {
            self.framing = Framing::Complete;
        }
        Ok(())
    }

    fn trailers(&mut self) -> io::Result<()> {
        for _ in 0..TRAILERS_MAX {
            if line(&mut self.reader, CHUNK_LINE_BYTES_MAX, CUT)?.is_empty() {
                return Ok(());
            }
        }
        Err(malformed("the lines after the last chunk have no end"))
    }
}

impl<R: BufRead> BufRead for Body<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reach_data()?;
        let left = match self.framing {
            Framing::Complete => return Ok(&[]),
            Framing::UntilClose => return self.reader.fill_buf(),
            Framing::Length(left) | Framing::Chunked(Chunk::Data(left)) => left,
            Framing::Chunked(Chunk::Length | Chunk::End) => unreachable!("reach_data has passed them"),
        };
        let piece = self.reader.fill_buf()?;
        if piece.is_empty() {
            return Err(cut());
        }
        Ok(&piece[..piece.len().min(usize::try_from(left).unwrap_or(usize::MAX))])
    }

    fn consume(&mut self, count: usize) {
        self.reader.consume(count);
        self.framing = match self.framing {
            Framing::Length(left) => Framing::Length(left - count as u64),
            Framing::Chunked(Chunk::Data(left)) if left == count as u64 => Framing::Chunked(Chunk::End),
            Framing::Chunked(Chunk::Data(left)) => Framing::Chunked(Chunk::Data(left - count as u64)),
            other => other,
        };
    }
}

impl<R: BufRead> Read for Body<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let piece = self.fill_buf()?;
        let count = piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&piece[..count]);
        self.consume(count);
        Ok(count)
    }
}

fn cut() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, CUT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    const CHUNKED: Framing = Framing::Chunked(Chunk::Length);

    /// The same however the bytes arrive.
    fn read(text: &str, framing: Framing) -> Result<String, ErrorKind> {
        let of = |capacity| {
            let mut body = Body::new(BufReader::with_capacity(capacity, text.as_bytes()), framing);
            let mut read = String::new();
            body.read_to_string(&mut read).map(|_| read).map_err(|error| error.kind())
        };
        let whole = of(1 << 10);
        (1..text.len() + 2).for_each(|capacity| assert_eq!(of(capacity), whole, "{text:?} by {capacity}"));
        whole
    }

    #[test]
    fn bodies_are_read_to_their_end_in_each_framing() {
        for (text, framing, body) in [
            ("abcd", Framing::Length(3), "abc"),
            ("abcd", Framing::UntilClose, "abcd"),
            ("abcd", Framing::Complete, ""),
            ("4\r\nabcd\r\n2;x=y\r\nef\r\n0\r\n\r\nmore", CHUNKED, "abcdef"),
            ("A\r\n0123456789\r\n0\r\nx: y\r\n\r\n", CHUNKED, "0123456789"),
        ] {
            assert_eq!(read(text, framing).as_deref(), Ok(body), "{text}");
        }
    }

    #[test]
    fn a_cut_body_and_a_malformed_one_are_different_errors() {
        for text in ["4\r\nab", "4\r\nabcd\r\n", "4\r\nabcd", "4", "", "0\r\n", "0\r\nx: y\r\n"] {
            assert_eq!(read(text, CHUNKED), Err(ErrorKind::UnexpectedEof), "{text}");
        }
        assert_eq!(read("ab", Framing::Length(3)), Err(ErrorKind::UnexpectedEof));
        for text in ["x\r\n", "-1\r\n", "\r\n", "2\r\nabcd\r\n", "11111111111111111\r\n"] {
            assert_eq!(read(text, CHUNKED), Err(ErrorKind::InvalidData), "{text}");
        }
        let trailers = format!("0\r\n{}\r\n", "x: y\r\n".repeat(TRAILERS_MAX));
        assert_eq!(read(&trailers, CHUNKED), Err(ErrorKind::InvalidData));
    }

    #[test]
    fn a_part_is_a_whole_chunk_or_nothing() {
        let text = "2\r\nab\r\n3\r\ncde\r\n4\r\nfg";
        let mut body = Body::new(BufReader::with_capacity(1, text.as_bytes()), CHUNKED);
        let mut out = Vec::new();
        assert!(body.part(&mut out).unwrap());
        assert_eq!((out.as_slice(), body.framing()), (&b"ab"[..], Framing::Chunked(Chunk::End)));
        assert!(body.part(&mut out).unwrap());
        assert_eq!(body.part(&mut out).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(out, b"abcde");
        let mut rest = Body::new(&b"abc"[..], Framing::Length(2));
        let mut out = Vec::new();
        assert!(rest.part(&mut out).unwrap() && !rest.part(&mut out).unwrap());
        assert_eq!((out.as_slice(), rest.into_inner()), (&b"ab"[..], &b"c"[..]));
    }

    #[test]
    fn a_text_has_a_bound() {
        let body = Body::new(&b"abcdef"[..], Framing::UntilClose);
        assert_eq!(body.text(4).unwrap(), "abcd");
    }
}
