//! Server-sent events, one at a time, each with the time at which it was there.

use crate::http::{Connection, Framing, Head};
use std::io::{self, ErrorKind};
use std::time::Instant;

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its `event:` line, if it has one.
    pub name: Option<String>,
    /// Its data.
    pub data: String,
    /// When it was complete here.
    pub at: Instant,
}

/// A response that is a stream of events.
pub struct Events {
    connection: Connection,
    framing: Framing,
    head: Head,
    text: Vec<u8>,
}

impl Events {
    /// Takes the body of a response whose head has been read.
    pub fn new(connection: Connection, head: Head) -> Events {
        let framing = Framing::of(&head);
        Events { connection, framing, head, text: Vec::new() }
    }

    /// The response's head.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The next event; `None` when the body has ended as its framing says. An end in mid-body is an error.
    pub fn next_event(&mut self) -> io::Result<Option<Event>> {
        loop {
            if let Some(end) = self.text.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<u8> = self.text.drain(..end + 2).collect();
                if let Some(event) = parse(&block)? {
                    return Ok(Some(event));
                }
                continue;
            }
            if !self.connection.body_part(&mut self.framing, &mut self.text)? {
                if self.text.is_empty() {
                    return Ok(None);
                }
                return Err(io::Error::new(ErrorKind::InvalidData, "the stream ends within an event"));
            }
        }
    }

    /// Gives the connection back, wherever the stream is.
    pub fn into_connection(self) -> Connection {
        self.connection
    }
}

/// An event, or `None` for a block of comments.
fn parse(block: &[u8]) -> io::Result<Option<Event>> {
    let text = std::str::from_utf8(block)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "an event is not UTF-8: a character was cut"))?;
    let (mut name, mut data) = (None, Vec::new());
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with(':')) {
        match line.split_once(':').map(|(field, value)| (field, value.strip_prefix(' ').unwrap_or(value))) {
            Some(("data", value)) => data.push(value),
            Some(("event", value)) => name = Some(value.to_owned()),
            _ => return Err(io::Error::new(ErrorKind::InvalidData, format!("not an event line: {line:?}"))),
        }
    }
    if name.is_none() && data.is_empty() {
        return Ok(None);
    }
    Ok(Some(Event { name, data: data.join("\n"), at: Instant::now() }))
}
