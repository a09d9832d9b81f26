//! A connection that can be used badly on purpose: any bytes can be written, and it can be reset or left at any point.
//! `pinion_client` reads the answers; what it lets pass of a sloppy server is a failure here.

use crate::wait::PATIENCE;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use pinion_client::{Body, Framing, Head, Limit, Request};
use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

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

/// One connection to the service.
pub struct Connection {
    inner: pinion_client::Connection,
}

impl Connection {
    /// Connects; everything on the connection must end within [`PATIENCE`].
    pub fn open(address: SocketAddr) -> io::Result<Connection> {
        let mut connection = Connection { inner: pinion_client::Connection::open(address, PATIENCE)? };
        connection.allow(PATIENCE);
        Ok(connection)
    }

    /// Gives the connection this much time from now on.
    pub fn allow(&mut self, limit: Duration) {
        self.inner.set_limit(Limit::Deadline(Instant::now() + limit));
    }

    /// Writes raw bytes.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.inner.write(bytes)
    }

    /// Writes a request with a `Content-Length` and the given fields.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<()> {
        let request = Request::new(method, "localhost", path);
        let request = fields.iter().fold(request, |request, (name, value)| request.field(name, value));
        self.write(&if method == "GET" { request } else { request.json(body) }.bytes())
    }

    /// Reads the next response's head.
    pub fn head(&mut self) -> io::Result<Head> {
        let head = self.inner.head()?;
        if !head.status_line.starts_with("HTTP/1.1 ") {
            let what = format!("not a response head: {:?}", head.status_line);
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        Ok(head)
    }

    /// Appends the next part of a body to `out`; false when the body is complete.
    pub fn body_part(&mut self, framing: &mut Framing, out: &mut Vec<u8>) -> io::Result<bool> {
        let mut body = self.inner.body(*framing);
        let part = body.part(out);
        *framing = body.framing();
        part
    }

    /// The body after a head.
    pub(crate) fn into_body(self, head: &Head) -> Body<pinion_client::Connection> {
        self.inner.into_body(head.framing())
    }

    /// The connection of a body, wherever that is.
    pub(crate) fn of_body(body: Body<pinion_client::Connection>) -> Connection {
        Connection { inner: body.into_inner() }
    }

    /// Reads a whole response, past `100 Continue`.
    pub fn response(&mut self) -> io::Result<Response> {
        let mut head = self.head()?;
        while head.status == 100 {
            head = self.head()?;
        }
        let mut framing = head.framing();
        let mut body = Vec::new();
        while self.body_part(&mut framing, &mut body)? {}
        Ok(Response { head, body })
    }

    /// Whether the service has closed the connection: waits for its end.
    pub fn is_closed_by_peer(&mut self) -> bool {
        let mut piece = [0u8; 16 << 10];
        loop {
            match self.inner.read(&mut piece) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::ConnectionReset,
            }
        }
    }

    /// Sends FIN for our direction and goes on reading.
    pub fn finish_writing(&mut self) -> io::Result<()> {
        self.inner.stream().shutdown(Shutdown::Write)
    }

    /// Leaves with RST: the peer's next write or read fails at once.
    pub fn reset(self) {
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(self.inner.stream(), sockopt::Linger, &at_once).expect("an open socket takes SO_LINGER");
    }

    /// Leaves with FIN in both directions.
    pub fn close(self) {
        // A connection that the peer has reset meanwhile is closed as well.
        let _ = self.inner.stream().shutdown(Shutdown::Both);
    }
}
