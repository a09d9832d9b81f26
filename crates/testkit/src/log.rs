//! What a process writes, collected beside the test.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// What a stream of the process has written so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<(String, bool)>>);

impl Log {
    /// Of a process whose output goes elsewhere.
    pub(crate) fn none() -> Log {
        Log(Arc::new(Mutex::new((String::new(), true))))
    }

    /// Collects in a thread until the last writer has closed.
    pub(crate) fn of(stream: impl Read + Send + 'static) -> Log {
        let log = Log::default();
        let writer = log.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n') {
                let Ok(line) = line else { break };
                let mut inner = writer.0.lock().unwrap_or_else(PoisonError::into_inner);
                inner.0.push_str(&String::from_utf8_lossy(&line));
                inner.0.push('\n');
            }
            writer.0.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        });
        log
    }

    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}
