//! Memory that requests of this process share: for vectors and the answers written of them, for other large answers,
//! and for large bodies.

use crate::limits::INLINE_BODY_BYTES_MAX;
use bytes::Bytes;
use pinion_protocol::{Fault, FaultCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What all requests together may take.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    taken: AtomicUsize,
}

/// What one request took; given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    /// A budget of which nothing is taken.
    pub fn new(bytes_max: usize) -> Arc<Budget> {
        Arc::new(Budget { bytes_max, taken: AtomicUsize::new(0) })
    }

    /// Bytes that are taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// A share of nothing, to grow.
    pub(crate) fn nothing(self: &Arc<Budget>) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }

    /// Takes `bytes` more. False, and nothing changes: the others leave too little.
    fn add(&self, bytes: usize) -> bool {
        let fits = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        // Nothing else is published with the count.
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// An answer that takes its bytes, if they are many, until it has been written to the client. Error: not now.
    pub(crate) fn hold(self: &Arc<Budget>, answer: Vec<u8>) -> Result<Bytes, Fault> {
        if answer.len() <= INLINE_BODY_BYTES_MAX {
            return Ok(answer.into());
        }
        let mut share = self.nothing();
        if !share.grow_to(answer.len()) {
            let message = "answers that their clients have not read yet leave too little memory for this one; try again \
                           later, or ask for a stream";
            return Err(Fault::new(FaultCode::TooManyRequests, message));
        }
        Ok(share.hold(answer))
    }

    /// Takes `bytes`, for texts of the field `param`. Errors: never, or not now.
    pub(crate) fn take(self: &Arc<Budget>, bytes: usize, param: &str) -> Result<Share, Fault> {
        let most = self.bytes_max;
        if bytes > most {
            let message = format!(
                "the vectors of these texts take {bytes} bytes, and {most} are allowed; send fewer texts at once"
            );
            return Err(Fault::field(param, message));
        }
        if !self.add(bytes) {
            let message = format!(
                "the vectors of other requests leave too little of {most} bytes for these texts; try again later"
            );
            return Err(Fault::new(FaultCode::TooManyRequests, message));
        }
        Ok(Share { budget: self.clone(), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Share {
    /// Grows to `bytes` in all. False, and nothing changes: the others leave too little.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let fits = self.budget.add(more);
        self.bytes += if fits { more } else { 0 };
        fits
    }

    /// An answer that keeps its share until it has been written to the client.
    pub(crate) fn hold(self, answer: Vec<u8>) -> Bytes {
        Bytes::from_owner(Held { answer, _share: self })
    }
}

struct Held {
    answer: Vec<u8>,
    _share: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_comes_back_when_its_answer_is_gone() {
        let budget = Budget::new(10);
        let code = |bytes| budget.take(bytes, "input").map(drop).map_err(|fault| fault.code);
        assert_eq!(code(11), Err(FaultCode::InvalidValue));
        let share = budget.take(6, "input").unwrap();
        assert_eq!((code(4), code(5)), (Ok(()), Err(FaultCode::TooManyRequests)));
        let answer = share.hold(b"[]".to_vec());
        let rest = answer.slice(1..);
        drop(answer);
        assert_eq!((code(5), rest.as_ref()), (Err(FaultCode::TooManyRequests), b"]".as_slice()));
        drop(rest);
        assert_eq!(code(10), Ok(()));
    }

    #[test]
    fn a_share_grows_while_the_others_leave_room() {
        let budget = Budget::new(10);
        let (mut one, mut another) = (budget.nothing(), budget.nothing());
        assert!(one.grow_to(4) && another.grow_to(5) && one.grow_to(5) && one.grow_to(2));
        assert_eq!((one.grow_to(6), budget.taken()), (false, 10));
        drop(another);
        assert_eq!((one.grow_to(6), budget.taken()), (true, 6));
    }
}
