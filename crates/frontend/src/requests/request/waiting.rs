//! How much an answer may keep of its logprobs until it, or its next chunk, is written.

use crate::limits::SCORES_BYTES_MAX;
use pinion_protocol::Fault;
use std::cell::Cell;
use std::rc::Rc;

/// Bytes of scores that wait, as they came: those of all choices, where they leave together.
#[derive(Clone, Debug)]
pub struct WaitingScores {
    bytes: Rc<Cell<usize>>,
    /// The field that asked for the scores of generated tokens.
    asked_by: &'static str,
}

impl Default for WaitingScores {
    fn default() -> WaitingScores {
        WaitingScores::asked_by("logprobs")
    }
}

impl WaitingScores {
    /// None wait yet. The scores of generated tokens are wanted for this field of the request.
    pub fn asked_by(field: &'static str) -> WaitingScores {
        WaitingScores { bytes: Rc::default(), asked_by: field }
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// More scores of generated tokens wait. Error: too many.
    pub(super) fn add_generated(&self, bytes: usize) -> Result<(), Fault> {
        self.add(bytes, self.asked_by)
    }

    /// More wait. Error: too many; `field` is what asked for them.
    pub(super) fn add(&self, bytes: usize, field: &str) -> Result<(), Fault> {
        self.bytes.set(self.bytes.get() + bytes);
        if self.bytes.get() <= SCORES_BYTES_MAX {
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
        self.bytes.set(0);
    }
}
