//! Server-sent events, one at a time, each with the time at which it was there.

use crate::http::Connection;
use pinion_client::{Body, Head};
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
    events: pinion_client::Events<Body<pinion_client::Connection>>,
    head: Head,
}

impl Events {
    /// Takes the body of a response whose head has been read.
    pub fn new(connection: Connection, head: Head) -> Events {
        Events { events: pinion_client::Events::new(connection.into_body(&head)), head }
    }

    /// The response's head.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The next event; `None` when the body has ended as its framing says. An end in mid-body is an error, and so is a
    /// line that the service does not write.
    pub fn next_event(&mut self) -> io::Result<Option<Event>> {
        let Some(event) = self.events.next_event()? else { return Ok(None) };
        let at = Instant::now();
        let broken = |what: String| io::Error::new(ErrorKind::InvalidData, what);
        if let Some(line) = event.others.first() {
            return Err(broken(format!("not an event line: {line:?}")));
        }
        let data = String::from_utf8(event.data)
            .map_err(|_| broken("an event is not UTF-8: a character was cut".to_owned()))?;
        Ok(Some(Event { name: event.name, data, at }))
    }

    /// Gives the connection back, wherever the stream is.
    pub fn into_connection(self) -> Connection {
        Connection::of_body(self.events.into_inner())
    }
}
