//! One connection, on which every wait ends.

use crate::body::Body;
use crate::head::{Framing, Head};
use crate::malformed;
use crate::request::Request;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Interim answers before an answer: more are an error.
const INTERIM_MAX: usize = 16;

/// When a read gives up.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// After this time without a byte.
    Silence(Duration),
    /// At this time.
    Deadline(Instant),
}

/// A socket whose reads end as its limit says.
#[derive(Debug)]
struct Socket {
    stream: TcpStream,
    limit: Limit,
}

impl Socket {
    fn late(&self) -> io::Error {
        let what = match self.limit {
            Limit::Silence(time) => format!("the server sent nothing for {time:?}"),
            Limit::Deadline(_) => "the server did not answer in time".to_owned(),
        };
        io::Error::new(ErrorKind::TimedOut, what)
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = match self.limit {
            Limit::Silence(time) => time,
            Limit::Deadline(at) => at.saturating_duration_since(Instant::now()),
        };
        if left.is_zero() {
            return Err(self.late());
        }
        self.stream.set_read_timeout(Some(left))?;
        match self.stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(self.late()),
            other => other,
        }
    }
}

/// A connection to a server, for one request after another. It is read as a stream of raw bytes, too.
#[derive(Debug)]
pub struct Connection {
    reader: BufReader<Socket>,
    /// Why the last request is not written whole.
    unsent: Option<io::Error>,
}

impl Connection {
    /// Connects to the first address that accepts. To connect, to write and each silence of the server may take
    /// `patience`. Errors: the reason of the last address.
    pub fn open(address: impl ToSocketAddrs, patience: Duration) -> io::Result<Connection> {
        let mut last = io::Error::new(ErrorKind::NotFound, "the address leads nowhere");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, patience) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_write_timeout(Some(patience))?;
                    let socket = Socket { stream, limit: Limit::Silence(patience) };
                    return Ok(Connection { reader: BufReader::new(socket), unsent: None });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Says when reads give up from now on.
    pub fn set_limit(&mut self, limit: Limit) {
        self.reader.get_mut().limit = limit;
    }

    /// The socket, to shut it down or to set its options.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.reader.get_ref().stream
    }

    /// Writes bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().stream.write_all(bytes)
    }

    /// Writes a request; whether all of it is written. If not, [`answer`](Connection::answer) tells why: a server may
    /// answer and close before it has read all, and then its answer says more than the failed write.
    pub fn send(&mut self, request: &Request) -> bool {
        self.unsent = self.write(&request.bytes()).err();
        self.unsent.is_none()
    }

    /// Reads the next head, also one of an interim answer.
    pub fn head(&mut self) -> io::Result<Head> {
        Head::read(&mut self.reader)
    }

    /// The body after a head, or the rest of one.
    pub fn body(&mut self, framing: Framing) -> Body<&mut Connection> {
        Body::new(self, framing)
    }

    /// The same, with the connection in it.
    pub fn into_body(self, framing: Framing) -> Body<Connection> {
        Body::new(self, framing)
    }

    /// Reads the head of the answer to a request, past interim ones.
    pub fn answer(mut self) -> io::Result<Answer<Connection>> {
        let unsent = self.unsent.take();
        read_answer(self, unsent)
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

impl BufRead for Connection {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.reader.consume(count);
    }
}

/// An answer whose body is still to be read.
#[derive(Debug)]
pub struct Answer<R> {
    /// Status and fields.
    pub head: Head,
    /// The rest.
    pub body: Body<R>,
}

/// Reads the head of an answer, past interim ones, to a request of which `unsent` says why it is not written whole.
/// Errors: that reason, or else why there is no head.
pub fn read_answer<R: BufRead>(mut reader: R, unsent: Option<io::Error>) -> io::Result<Answer<R>> {
    for _ in 0..INTERIM_MAX {
        match Head::read(&mut reader) {
            Ok(head) if (100..200).contains(&head.status) => {}
            Ok(head) => {
                let framing = head.framing();
                return Ok(Answer { head, body: Body::new(reader, framing) });
            }
            Err(error) => return Err(unsent.unwrap_or(error)),
        }
    }
    Err(malformed("interim answers without an end"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn an_answer_that_is_there_counts_more_than_a_request_that_was_not_read() {
        let unsent = || Some(io::Error::from(ErrorKind::BrokenPipe));
        let refused =
            read_answer(&b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"[..], unsent()).unwrap();
        assert_eq!((refused.head.status, refused.body.text(9).unwrap().as_str()), (403, "no"));
        for cut in ["", "HTTP/1.1 200 OK\r\n"] {
            assert_eq!(read_answer(cut.as_bytes(), unsent()).unwrap_err().kind(), ErrorKind::BrokenPipe);
            assert_eq!(read_answer(cut.as_bytes(), None).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn interim_answers_are_passed_over() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
        let answer = read_answer(text.as_bytes(), None).unwrap();
        assert_eq!((answer.head.status, answer.body.text(9).unwrap().as_str()), (200, "x"));
        let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(INTERIM_MAX);
        assert_eq!(read_answer(endless.as_bytes(), None).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    /// A server that accepts and says nothing.
    fn silent() -> (TcpListener, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = Connection::open(listener.local_addr().unwrap(), Duration::from_secs(60)).unwrap();
        (listener, connection)
    }

    #[test]
    fn a_silent_server_is_a_timeout() {
        let moment = Duration::from_millis(20);
        for (limit, says) in [
            (Limit::Silence(moment), "the server sent nothing for 20ms"),
            (Limit::Silence(Duration::ZERO), "the server sent nothing for 0ns"),
            (Limit::Deadline(Instant::now() + moment), "the server did not answer in time"),
            (Limit::Deadline(Instant::now()), "the server did not answer in time"),
        ] {
            let (_listener, mut connection) = silent();
            connection.set_limit(limit);
            assert!(connection.send(&Request::new("GET", "h", "/")));
            let error = connection.answer().unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::TimedOut, says));
        }
    }

    #[test]
    fn one_connection_serves_several_requests() {
        let (listener, mut connection) = silent();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1").unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n2\r\n0\r\n\r\n")
                .unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n3").unwrap();
        });
        for expected in ["1", "2", "3"] {
            let framing = connection.head().unwrap().framing();
            assert_eq!(connection.body(framing).text(9).unwrap(), expected);
        }
        server.join().unwrap();
    }

    #[test]
    fn an_address_that_leads_nowhere_is_an_error() {
        let error = Connection::open(&[][..], Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.to_string(), "the address leads nowhere");
    }
}
