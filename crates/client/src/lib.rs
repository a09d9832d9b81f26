//! A blocking HTTP/1.1 client over one socket: requests, heads, bodies in every framing, server-sent events.
//!
//! It knows no JSON, no TLS, no redirects and no pool, and starts no thread. Every wait has a [`Limit`]. An error's
//! kind says what went wrong: `TimedOut` a limit, `UnexpectedEof` a connection that ended too early, `InvalidData` a
//! server that breaks the protocol. Start at [`Connection`].
//!
//! Three users of HTTP have their own: `pinion-bench` stamps the frames of thousands of open answers on one thread,
//! which takes an async client; the frontend's tests run in the thread of the server's runtime and look at the raw
//! bytes; `pinion-pull` speaks TLS.
//!
//! ```
//! use pinion_client::{Connection, Events, Request};
//! use std::io::{Read, Write};
//! use std::time::Duration;
//!
//! # let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! # let authority = listener.local_addr()?.to_string();
//! # let server = std::thread::spawn(move || -> std::io::Result<()> {
//! #     let (mut stream, _) = listener.accept()?;
//! #     while stream.read(&mut [0; 256])? == 256 {}
//! #     stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
//! #     stream.write_all(b"9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n0\r\n\r\n")
//! # });
//! let mut connection = Connection::open(&authority, Duration::from_secs(10))?;
//! connection.send(&Request::new("POST", &authority, "/v1/completions").last().json(r#"{"stream":true}"#));
//! let answer = connection.answer()?;
//! assert_eq!(answer.head.status, 200);
//! let mut events = Events::new(answer.body);
//! let mut text = Vec::new();
//! while let Some(event) = events.next_event()? {
//!     text.extend(event.data);
//! }
//! assert_eq!(text, b"ab");
//! # server.join().expect("the server ends")?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod body;
mod connection;
mod events;
mod head;
mod request;

pub use body::Body;
pub use connection::{Answer, Connection, Limit, read_answer};
pub use events::{Event, Events, data_of};
pub use head::{Chunk, Framing, Head};
pub use request::Request;

use std::io::{self, BufRead, ErrorKind, Read};

/// The server breaks the protocol.
fn malformed(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

/// Takes a line of up to `bytes_max` bytes, without its end. Errors: `cut` if the stream ends before the line does.
fn line(reader: &mut impl BufRead, bytes_max: u64, cut: &str) -> io::Result<String> {
    let mut line = Vec::new();
    let count = reader.take(bytes_max).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        let is_long = u64::try_from(count).is_ok_and(|count| count == bytes_max);
        return Err(match is_long {
            true => malformed("a line of the answer has no end"),
            false => io::Error::new(ErrorKind::UnexpectedEof, cut.to_owned()),
        });
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| malformed("a line of the answer is not UTF-8"))
}
