//! Ids of traces and spans: random to everyone outside of this process, and never 0, which means none.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A keyed hash of a count.
#[derive(Default)]
pub(super) struct Ids {
    secret: RandomState,
    count: Cell<u64>,
}

impl Ids {
    pub(super) fn span_id(&self) -> u64 {
        self.count.set(self.count.get() + 1);
        let mut hasher = self.secret.build_hasher();
        hasher.write_u64(self.count.get());
        hasher.finish().max(1)
    }

    pub(super) fn trace_id(&self) -> u128 {
        u128::from(self.span_id()) << 64 | u128::from(self.span_id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_differ_also_between_two_sources() {
        let sources = [Ids::default(), Ids::default()];
        let spans: BTreeSet<u64> = sources.iter().flat_map(|ids| (0..1000).map(|_| ids.span_id())).collect();
        let traces: BTreeSet<u128> =
            sources.iter().flat_map(|ids| (0..1000).map(|_| ids.trace_id())).collect();
        assert_eq!((spans.len(), traces.len()), (2000, 2000));
        assert!(!spans.contains(&0) && traces.iter().all(|id| id >> 64 != 0));
    }
}
