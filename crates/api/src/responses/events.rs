//! The events of a stream as bytes, each with its number. What comes for every token is written by hand, without an
//! allocation.

use crate::escape::{escape, put_number};
use bytes::{BufMut, BytesMut};
use serde_json::Value;

/// Where a piece of an answer belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) item_id: &'a str,
    pub(super) output_index: usize,
}

/// Numbers the events of one stream.
#[derive(Debug, Default)]
pub(super) struct Numbered {
    next: u64,
}

impl Numbered {
    /// Appends an event of the type `kind` with the members of `body`.
    pub(super) fn put(&mut self, kind: &str, mut body: Value, out: &mut BytesMut) {
        body["type"] = kind.into();
        body["sequence_number"] = self.next.into();
        self.next += 1;
        out.put_slice(b"event: ");
        out.put_slice(kind.as_bytes());
        out.put_slice(b"\ndata: ");
        out.put_slice(body.to_string().as_bytes());
        out.put_slice(b"\n\n");
    }

    /// Appends an event with a whole response, which is written once: it repeats its request, which may be large.
    pub(super) fn put_response(&mut self, kind: &str, response: &str, out: &mut BytesMut) {
        out.put_slice(b"event: ");
        out.put_slice(kind.as_bytes());
        out.put_slice(b"\ndata: {\"response\":");
        out.put_slice(response.as_bytes());
        out.put_slice(b",\"type\":\"");
        out.put_slice(kind.as_bytes());
        out.put_slice(b"\",\"sequence_number\":");
        put_number(self.next, out);
        self.next += 1;
        out.put_slice(b"}\n\n");
    }

    /// Appends more of a text or of arguments. `content` is what stands between item and text.
    pub(super) fn put_delta(
        &mut self,
        kind: &str,
        content: &[u8],
        place: Place<'_>,
        text: &str,
        out: &mut BytesMut,
    ) {
        out.put_slice(b"event: ");
        out.put_slice(kind.as_bytes());
        out.put_slice(b"\ndata: {\"type\":\"");
        out.put_slice(kind.as_bytes());
        out.put_slice(b"\",\"sequence_number\":");
        put_number(self.next, out);
        self.next += 1;
        out.put_slice(b",\"item_id\":\"");
        out.put_slice(place.item_id.as_bytes());
        out.put_slice(b"\",\"output_index\":");
        put_number(place.output_index as u64, out);
        out.put_slice(content);
        out.put_slice(b",\"delta\":\"");
        escape(text, out);
        out.put_slice(b"\"}\n\n");
    }
}
