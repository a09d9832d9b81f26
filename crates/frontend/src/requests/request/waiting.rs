//! How much an answer may keep of its logprobs until it, or its next chunk, is written.

use crate::limits::SCORES_BYTES_MAX;
use pinion_protocol::Fault;
use std::cell::Cell;
use std::rc::Rc;

/// Bytes of scores that wait, as they came: those of all choices, where they leave together.
#[derive(Clone, Debug, Default)]
pub struct WaitingScores(Rc<Cell<usize>>);

impl WaitingScores {
    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.0.get()
    }

    /// More wait. Error: too many; `field` is what asked for them.
    pub(super) fn add(&self, bytes: usize, field: &str) -> Result<(), Fault> {
        self.0.set(self.0.get() + bytes);
        if self.0.get() <= SCORES_BYTES_MAX {
            return Ok(());
        }
        let message = format!(
            "{field}: the logprobs of this answer have more than {SCORES_BYTES_MAX} bytes inside the service; ask for \
             fewer tokens, choices or alternatives, or for a stream"
        );
        Err(Fault::field(field, message))
    }

    /// They were said.
    pub(super) fn clear(&self) {
        self.0.set(0);
    }
}
