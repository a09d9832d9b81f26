//! Server-sent events, one at a time.

use crate::malformed;
use std::io::{self, BufRead, Read};

/// Bytes of one event: a larger one is an error. The last event of a Responses stream repeats the whole answer.
const EVENT_BYTES_MAX: usize = 64 << 20;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Its `event` line, if it has one.
    pub name: Option<String>,
    /// Its `data` lines, with a line feed between two. Of a server that keeps to the standard it is UTF-8.
    pub data: Vec<u8>,
    /// Lines that are neither of these nor comments, as they stand.
    pub others: Vec<String>,
}

/// A stream of events, such as a [`Body`](crate::Body).
#[derive(Debug)]
pub struct Events<R> {
    stream: R,
}

impl<R: BufRead> Events<R> {
    /// Over a stream that stands at the beginning of an event.
    pub fn new(stream: R) -> Events<R> {
        Events { stream }
    }

    /// Gives the stream back, wherever it is.
    pub fn into_inner(self) -> R {
        self.stream
    }

    /// Waits for the next event; `None` at the end of the stream. Comments, which keep a connection alive, are no
    /// events. An end within an event is an error.
    pub fn next_event(&mut self) -> io::Result<Option<Event>> {
        let (mut event, mut has_data, mut bytes, mut line) = (Event::default(), false, 0, Vec::new());
        loop {
            line.clear();
            let left = EVENT_BYTES_MAX - bytes;
            let count = (&mut self.stream).take(left as u64).read_until(b'\n', &mut line)?;
            bytes += count;
            if line.pop() != Some(b'\n') {
                return match (bytes, count == left) {
                    (0, _) => Ok(None),
                    (_, true) => Err(malformed(format!("an event is larger than {EVENT_BYTES_MAX} bytes"))),
                    (_, false) => Err(malformed("the stream ends within an event")),
                };
            }
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            if line.is_empty() {
                if event != Event::default() || has_data {
                    return Ok(Some(event));
                }
                bytes = 0;
            } else if let Some(data) = data_of(&line) {
                if has_data {
                    event.data.push(b'\n');
                }
                event.data.extend_from_slice(data);
                has_data = true;
            } else if let Some(name) = value_of(&line, b"event:") {
                event.name = Some(String::from_utf8_lossy(name).into_owned());
            } else if line.first() != Some(&b':') {
                event.others.push(String::from_utf8_lossy(&line).into_owned());
            }
        }
    }
}

/// The value of a line of data, without the line's end; `None` if the line is of another field.
///
/// ```
/// assert_eq!(pinion_client::data_of(b"data: {}"), Some(&b"{}"[..]));
/// assert_eq!(pinion_client::data_of(b": comment"), None);
/// ```
pub fn data_of(line: &[u8]) -> Option<&[u8]> {
    value_of(line, b"data:")
}

/// One space after the colon is no part of the value.
fn value_of<'a>(line: &'a [u8], field: &[u8]) -> Option<&'a [u8]> {
    let value = line.strip_prefix(field)?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    /// All events, then what ended them; the same however the bytes arrive.
    fn read(text: &str) -> (Vec<Event>, Result<(), String>) {
        let of = |capacity| {
            let mut events = Events::new(BufReader::with_capacity(capacity, text.as_bytes()));
            let mut read = Vec::new();
            loop {
                match events.next_event() {
                    Ok(Some(event)) => read.push(event),
                    Ok(None) => return (read, Ok(())),
                    Err(error) => return (read, Err(error.to_string())),
                }
            }
        };
        let whole = of(1 << 10);
        (1..text.len() + 2).for_each(|capacity| assert_eq!(of(capacity), whole, "{text:?} by {capacity}"));
        whole
    }

    fn event(name: Option<&str>, data: &str) -> Event {
        Event { name: name.map(str::to_owned), data: data.into(), others: Vec::new() }
    }

    #[test]
    fn events_are_read_and_comments_passed_over() {
        let text = ": keep-alive\n\nevent: x\ndata: {\"a\":1}\r\n\r\ndata:one\ndata:  two\n\ndata:\n\ndata:[DONE]\n\n";
        let all = vec![
            event(Some("x"), "{\"a\":1}"),
            event(None, "one\n two"),
            event(None, ""),
            event(None, "[DONE]"),
        ];
        assert_eq!(read(text), (all, Ok(())));
        assert_eq!(read(": only this\n\n"), (Vec::new(), Ok(())));
        let others = Event { others: vec!["id: 7".to_owned(), "dat: x".to_owned()], ..event(None, "a") };
        assert_eq!(read("id: 7\ndat: x\ndata: a\n\n").0, [others]);
    }

    #[test]
    fn an_end_within_an_event_is_an_error() {
        for text in ["data: a\n\ndata: b\n", "data: a\n\ndata: b", "data: a\n\ndata: b\n: x"] {
            let (events, end) = read(text);
            assert_eq!((events.len(), end), (1, Err("the stream ends within an event".to_owned())), "{text}");
        }
    }

    #[test]
    fn an_event_has_a_bound() {
        let endless = BufReader::new(io::repeat(b'x'));
        let error = Events::new(endless).next_event().expect_err("without bound");
        assert!(error.to_string().contains("larger than"), "{error}");
    }
}
