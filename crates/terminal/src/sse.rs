//! Server-sent events: the data of each, one by one.

use std::io::{self, BufRead, Read};

/// Bytes of one line.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Reads the data of the next event; `None` at the end of the stream.
pub(crate) fn next_data(stream: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if stream.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&line);
        // Names of events, comments that keep the connection alive and empty lines say nothing here.
        if let Some(data) = text.trim_end().strip_prefix("data:") {
            return Ok(Some(data.strip_prefix(' ').unwrap_or(data).to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_names_are_passed_over() {
        let mut stream = &b": keep-alive\n\nevent: x\ndata: {\"a\":1}\r\n\r\ndata:[DONE]\n\n"[..];
        let mut next = || next_data(&mut stream).unwrap();
        assert_eq!(next().as_deref(), Some("{\"a\":1}"));
        assert_eq!(next().as_deref(), Some("[DONE]"));
        assert_eq!(next(), None);
    }
}
