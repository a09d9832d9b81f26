//! The choices of one prompt, which are requests of their own: what is counted once for all of them.

use crate::observe::metrics::Metrics;
use std::cell::Cell;
use std::rc::Rc;

/// Held by each of the choices; the last one that ends lets it go.
pub struct Siblings {
    metrics: Rc<Metrics>,
    /// Tokens of the longest of those that are complete.
    longest: Cell<Option<u32>>,
}

impl Siblings {
    /// Of a prompt whose choices begin now.
    pub fn new(metrics: &Rc<Metrics>) -> Rc<Siblings> {
        Rc::new(Siblings { metrics: metrics.clone(), longest: Cell::new(None) })
    }

    /// One of them is complete, with this number of tokens.
    pub(crate) fn completed(&self, tokens: u32) {
        self.longest.set(self.longest.get().max(Some(tokens)));
    }
}

impl Drop for Siblings {
    fn drop(&mut self) {
        if let Some(tokens) = self.longest.get() {
            self.metrics.longest_choices.observe_many(f64::from(tokens), 1);
        }
    }
}
