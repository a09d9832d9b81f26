//! The bounded queue between the threads that log and the one thread that writes: a line is copied into a buffer
//! under a lock that is never held during a write, or dropped and counted when the buffer is full.

use super::notice::{Format, Notice};
use pinion_protocol::limits::LOG_BUFFER_BYTES;
use pinion_shm::page::Page;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where a process shows what became of its log.
pub struct LogPage {
    /// Its status page, or the launcher's.
    pub page: Page,
    /// Word that counts dropped lines.
    pub dropped_word: usize,
    /// Word that is 1 while lines are being lost.
    pub losing_word: usize,
}

/// Dropped lines of which the log has not told.
#[derive(Clone, Copy, Default)]
pub(super) struct Missing {
    /// They came before the lines that the writer has or takes next.
    pub(super) before: u64,
    /// They came after those.
    pub(super) after: u64,
}

/// What the threads of a process and its writer share.
pub(super) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    emptied: Condvar,
}

struct State {
    /// Whole lines that wait to be written. Its capacity is all that it ever takes.
    lines: Vec<u8>,
    /// The writer has taken lines that are not yet written.
    is_writing: bool,
    missing: Missing,
    /// Lines dropped by this process.
    dropped: u64,
    /// Lines were dropped, and none has been written since.
    is_losing: bool,
    page: Option<LogPage>,
    notice: Notice,
}

impl Queue {
    pub(super) fn new() -> Queue {
        let state = State {
            lines: Vec::with_capacity(LOG_BUFFER_BYTES),
            is_writing: false,
            missing: Missing::default(),
            dropped: 0,
            is_losing: false,
            page: None,
            notice: Notice::new(),
        };
        Queue { state: Mutex::new(state), filled: Condvar::new(), emptied: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes lines, all or none of them; never waits for the writer.
    pub(super) fn push(&self, lines: &[u8]) {
        let mut state = self.state();
        let prefix = state.notice.format.prefix();
        if state.lines.len() + prefix.len() + lines.len() <= LOG_BUFFER_BYTES {
            state.lines.extend_from_slice(prefix);
            state.lines.extend_from_slice(lines);
            drop(state);
            self.filled.notify_one();
        } else {
            let count = state.count(lines);
            // Lines before these wait, if any do.
            if state.lines.is_empty() {
                state.missing.before += count;
            } else {
                state.missing.after += count;
            }
        }
    }

    /// For the writer: waits for lines and swaps them with the empty `batch`. Says what is missing before and after
    /// them.
    pub(super) fn take(&self, batch: &mut Vec<u8>) -> Missing {
        let state = self.state();
        let waited = self.filled.wait_while(state, |state| state.lines.is_empty());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut state.lines, batch);
        state.is_writing = true;
        std::mem::take(&mut state.missing)
    }

    /// From the writer: what became of its batch. `lost` is the part that could not be written, `untold` what it was
    /// given and has not told.
    pub(super) fn written(&self, lost: &[u8], untold: u64) {
        let mut state = self.state();
        state.is_writing = false;
        let count = if lost.is_empty() { 0 } else { state.count(lost) };
        // Lines that were dropped meanwhile came behind those that wait now, or there are none.
        state.missing.before += untold + count;
        if count == 0 {
            let still = state.missing.after > 0;
            state.set_losing(still);
        }
        let is_empty = state.lines.is_empty();
        drop(state);
        if is_empty {
            self.emptied.notify_all();
        }
    }

    /// Whether no line waits.
    pub(super) fn is_empty(&self) -> bool {
        self.state().lines.is_empty()
    }

    /// Waits until everything is written or lost, at most for `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let unwritten = |state: &mut State| state.is_writing || !state.lines.is_empty();
        drop(self.emptied.wait_timeout_while(self.state(), timeout, unwritten));
    }

    /// Writes the line that tells of `count` missing ones.
    pub(super) fn notice(&self, count: u64, line: &mut String) {
        self.state().notice.write(count, line);
    }

    /// How and under which name the log tells of dropped lines.
    pub(super) fn set_format(&self, format: Format) {
        self.state().notice.format = format;
    }

    /// Shows from now on, under `name`, what becomes of the log. The first page of a process is kept.
    pub(super) fn show_on(&self, name: String, page: LogPage) {
        let mut state = self.state();
        if state.page.is_some() {
            return;
        }
        state.notice.process = name;
        page.page.add(page.dropped_word, state.dropped);
        page.page.set(page.losing_word, u64::from(state.is_losing));
        state.page = Some(page);
    }
}

impl State {
    /// Counts dropped lines; how many these are.
    fn count(&mut self, lines: &[u8]) -> u64 {
        let is_whole = lines.ends_with(b"\n");
        let count = lines.iter().filter(|byte| **byte == b'\n').count() as u64 + u64::from(!is_whole);
        self.dropped += count;
        if let Some(LogPage { page, dropped_word, .. }) = &self.page {
            page.add(*dropped_word, count);
        }
        self.set_losing(true);
        count
    }

    fn set_losing(&mut self, is_losing: bool) {
        self.is_losing = is_losing;
        if let Some(LogPage { page, losing_word, .. }) = &self.page {
            page.set(*losing_word, u64::from(is_losing));
        }
    }
}
