//! The delta records of one step for one frontend, in buffers that are used again for the next.

use pinion_protocol::RequestId;
use pinion_protocol::frontend_inbox::put_scored_delta;

/// One delta.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) id: RequestId,
    pub(crate) sequence: u32,
    pub(crate) ids: &'a [u32],
    pub(crate) text: &'a str,
    pub(crate) flags: u32,
    /// Scores of `ids`, or nothing.
    pub(crate) scores: &'a [u8],
}

/// Deltas that wait to be sent, cut into records that fit the ring.
#[derive(Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    /// Where each finished record ends in `bytes`; the open one goes from the last of these to the end.
    ends: Vec<usize>,
}

impl Outgoing {
    /// Appends one delta. A record that would become larger than `record_bytes_max` ends before it.
    pub(crate) fn put(&mut self, piece: Piece<'_>, record_bytes_max: usize) {
        let record_begin = self.ends.last().copied().unwrap_or(0);
        let delta_begin = self.bytes.len();
        let Piece { id, sequence, ids, text, flags, scores } = piece;
        put_scored_delta(&mut self.bytes, id, sequence, ids, text, flags, scores);
        if self.bytes.len() - record_begin > record_bytes_max && delta_begin > record_begin {
            self.ends.push(delta_begin);
        }
    }

    /// Closes the open record.
    pub(crate) fn close(&mut self) {
        if self.bytes.len() > self.ends.last().copied().unwrap_or(0) {
            self.ends.push(self.bytes.len());
        }
    }

    /// The payloads of the closed records, in order.
    pub(crate) fn records(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, &end)| &self.bytes[begin..end])
    }

    /// Forgets everything and keeps the buffers.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}
