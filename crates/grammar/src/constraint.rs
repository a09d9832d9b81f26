//! What one request of the engine may draw next, between the thread that computes it and the one that draws.

use crate::limits::{MASK_GRACE, MASK_TIME_MAX};
use crate::matcher::{Matcher, Next};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What a row finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// The bits are there.
    Ready,
    /// The text is complete; nothing may be drawn.
    Complete,
    /// Not computed yet; look again in the next step.
    Late,
    /// It can't be computed; the request must end.
    Failed,
}

#[derive(Debug)]
struct State {
    /// Index of the token that `mask` is for, from the first generated one.
    index: u64,
    mask: Mask,
    bits: Vec<u32>,
    /// When it was asked for.
    asked: Instant,
}

/// One request's grammar.
pub struct Constraint {
    state: Mutex<State>,
    changed: Condvar,
    /// Used by one thread only; `None` once the request has ended.
    matcher: Mutex<Option<Matcher>>,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Constraint {
    /// After `resumed` tokens of the text, with its mask.
    ///
    /// # Errors
    /// The reason: a resumed token may not stand there, or the grammar is too complex.
    pub(crate) fn new(mut matcher: Matcher, resumed: &[u32]) -> Result<Constraint, String> {
        resumed.iter().try_for_each(|token| matcher.advance(*token))?;
        let mut bits = Vec::new();
        let mask = mask_of(matcher.next(&mut bits)?);
        let state = State { index: resumed.len() as u64, mask, bits, asked: Instant::now() };
        Ok(Constraint {
            state: Mutex::new(state),
            changed: Condvar::new(),
            matcher: Mutex::new(Some(matcher)),
        })
    }

    /// The clock of the next mask starts.
    pub(crate) fn ask(&self) {
        locked(&self.state).asked = Instant::now();
    }

    /// Takes the next token and computes what may follow. `scratch` is reused. Gives the reason of a failure.
    pub(crate) fn advance(&self, token: u32, scratch: &mut Vec<u32>) -> Result<(), String> {
        let mut held = locked(&self.matcher);
        let Some(matcher) = held.as_mut() else { return Ok(()) };
        let next = matcher.advance(token).and_then(|()| matcher.next(scratch));
        drop(held);
        let mut state = locked(&self.state);
        state.index += 1;
        state.mask = next.as_ref().map_or(Mask::Failed, |next| mask_of(*next));
        std::mem::swap(&mut state.bits, scratch);
        self.changed.notify_all();
        next.map(drop)
    }

    /// Frees everything large, even while handles exist.
    pub(crate) fn retire(&self) {
        locked(&self.matcher).take();
        self.fail();
    }

    /// Nothing will be computed any more.
    pub(crate) fn fail(&self) {
        locked(&self.state).mask = Mask::Failed;
        self.changed.notify_all();
    }

    /// The mask of the token with this index: replaces `bits` if it is ready. Waits for it, but never past the grace
    /// time after it was asked for.
    pub fn read(&self, index: u64, bits: &mut Vec<u32>) -> Mask {
        let mut state = locked(&self.state);
        loop {
            if state.mask == Mask::Failed {
                return Mask::Failed;
            }
            if state.index == index {
                bits.clone_from(&state.bits);
                return state.mask;
            }
            let waited = state.asked.elapsed();
            if waited >= MASK_TIME_MAX {
                return Mask::Failed;
            }
            let Some(left) = MASK_GRACE.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Mask::Late;
            };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn mask_of(next: Next) -> Mask {
    match next {
        Next::Tokens => Mask::Ready,
        Next::Complete => Mask::Complete,
    }
}
