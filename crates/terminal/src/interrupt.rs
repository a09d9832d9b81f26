//! Ctrl-C: it stops the answer that is under way; without one it ends the program, as it would any other.
//!
//! SIGINT is blocked in every thread, and one thread waits for it. While a line is edited the terminal sends no signal.

use crate::answer::Event;
use nix::sys::signal::{SigSet, Signal};
use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

/// What a shell gives for a program that SIGINT ended.
const ENDED_BY_SIGINT: i32 = 130;

type Listener = Arc<Mutex<Option<Sender<Event>>>>;

/// Where the next one goes.
pub(crate) struct Interrupts(Listener);

/// While it lives, an interrupt is an event.
pub(crate) struct Heard(Listener);

impl Interrupts {
    /// Call it before any other thread is started: they inherit what is blocked.
    pub(crate) fn new() -> io::Result<Interrupts> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.thread_block()?;
        let interrupts = Interrupts(Arc::default());
        let current = interrupts.0.clone();
        let wait = move || {
            while set.wait().is_ok() {
                match &*current.lock().unwrap_or_else(PoisonError::into_inner) {
                    // A receiver that is gone has stopped already.
                    Some(listener) => drop(listener.send(Event::Interrupt)),
                    None => std::process::exit(ENDED_BY_SIGINT),
                }
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
        Ok(interrupts)
    }

    /// Interrupts go to `listener`.
    pub(crate) fn to(&self, listener: Sender<Event>) -> Heard {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
        Heard(self.0.clone())
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
