//! Memory as atomic words: the seam between the algorithms and where their memory lies.
//!
//! A mapped region implements it in production, [`HeapWords`] for tests and for the model checker.

use crate::sync::AtomicU64;
use std::sync::Arc;

/// A fixed run of atomic 64-bit words. Two calls give the same words.
pub trait Words {
    /// All of them.
    fn words(&self) -> &[AtomicU64];

    /// How many.
    fn len(&self) -> usize {
        self.words().len()
    }

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.words().is_empty()
    }

    /// Word `i`. Panics past the end: an index is never taken from shared memory without a mask or a check.
    fn at(&self, i: usize) -> &AtomicU64 {
        &self.words()[i]
    }
}

/// Words on the heap, shared by cloning; all zero at first, like a new region.
#[derive(Clone)]
pub struct HeapWords(Arc<[AtomicU64]>);

impl HeapWords {
    /// `len` zero words.
    pub fn new(len: usize) -> HeapWords {
        HeapWords((0..len).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Words for HeapWords {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}
