//! What a stream has and has not sent yet, where tokens leave several at a time (`--stream-interval`).

use pinion_protocol::limits::DELTA_WAITING_BYTES_MAX;

/// Tokens, their text and their scores, which leave together. The buffers have their size from the stream's opening on,
/// so a token costs no allocation.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Tokens that leave together; 1 is every token at once.
    interval: usize,
    pub(crate) first_sequence: u32,
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
    pub(crate) scores: Vec<u8>,
}

impl Waiting {
    /// Nothing waits.
    pub(crate) fn new(interval: u32) -> Waiting {
        let (interval, bytes) = match interval as usize {
            0 | 1 => (1, 0),
            interval => (interval, DELTA_WAITING_BYTES_MAX),
        };
        Waiting {
            interval,
            first_sequence: 0,
            ids: Vec::with_capacity(if bytes > 0 { interval } else { 0 }),
            text: String::with_capacity(bytes),
            scores: Vec::new(),
        }
    }

    /// Whether every token leaves at once.
    pub(crate) fn is_off(&self) -> bool {
        self.interval == 1
    }

    /// Whether tokens wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.text.is_empty()
    }

    /// Whether one more piece has to leave together with what waits before it can be taken: it would be too much for
    /// one delta.
    pub(crate) fn is_full_for(&self, text: &str, scores: &[u8]) -> bool {
        !self.is_empty()
            && self.text.len() + self.scores.len() + text.len() + scores.len() > DELTA_WAITING_BYTES_MAX
    }

    /// Takes a token with what it gives. True if enough of them wait now.
    pub(crate) fn push(&mut self, sequence: u32, ids: &[u32], text: &str, scores: &[u8]) -> bool {
        if self.is_empty() {
            self.first_sequence = sequence;
        }
        self.ids.extend_from_slice(ids);
        self.text.push_str(text);
        self.scores.extend_from_slice(scores);
        self.ids.len() >= self.interval
    }

    /// They have left.
    pub(crate) fn clear(&mut self) {
        self.ids.clear();
        self.text.clear();
        self.scores.clear();
    }
}
