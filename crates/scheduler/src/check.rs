//! The invariants of the scheduler's tables.

use crate::sequence::Sequence;
use crate::{Admission, Scheduler};

impl Scheduler {
    /// Checks all invariants. Runs after each commit in debug builds. O(requests + blocks).
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&mut self) {
        let live = || self.sequences.iter().flatten();
        let by_order = self.running.iter().chain(&self.waiting).map(|&key| self.sequence(key));
        if self.policy.admission == Admission::Fifo && !self.mixed {
            let sorted = by_order.clone().is_sorted_by_key(|s| s.ordinal);
            assert!(sorted, "running, then waiting, in order of arrival");
        }
        let mut queue = self.waiting.iter().map(|&key| self.sequence(key)).skip_while(|s| s.preemptions > 0);
        assert!(queue.clone().is_sorted_by_key(|s| s.ordinal), "in order of arrival behind the preempted");
        assert!(queue.all(|s| s.preemptions == 0), "the preempted stand first");
        let over =
            |s: &Sequence| s.generated() + s.prompt_tokens >= s.length_max && !s.lacks_prompt_logprobs();
        assert!(!by_order.clone().any(over), "a complete request has left");
        assert_eq!(by_order.count(), live().count(), "every request runs or waits");
        assert_eq!(self.by_id.len(), live().count(), "every request can be found by its id");
        assert_eq!(self.free_keys.len() + self.by_id.len(), self.sequences.len(), "no key is lost");
        let lanes = self.limits.running_max() as usize;
        assert_eq!(self.free_lanes.len() + self.running.len(), lanes, "no lane is lost");
        for sequence in self.running.iter().map(|&key| self.sequence(key)) {
            let has_work = sequence.pending() > 0 || sequence.lacks_prompt_logprobs();
            assert!(!sequence.is_waiting() && has_work, "a running request has work");
            assert!(sequence.in_flight <= self.outstanding, "at most one sampled token per step");
            let covered = sequence.blocks.len() as u32 * self.limits.block_size;
            assert!(covered >= sequence.computed, "computed tokens lie in blocks");
        }
        assert!(live().all(|s| s.registered as usize <= s.blocks.len()), "registered blocks are held");
        for sequence in self.waiting.iter().map(|&key| self.sequence(key)) {
            assert!(sequence.is_waiting() && sequence.blocks.is_empty(), "a waiting request holds no block");
            assert_eq!((sequence.computed, sequence.in_flight), (0, 0), "a waiting request has no row");
        }
        self.tenants.check(live().map(|s| (s.tenant, s.is_waiting())));
        assert_eq!(
            self.ranked as usize,
            live().filter(|s| s.claim.priority != 0).count(),
            "the count of requests with a priority"
        );
        self.pool.check(self.sequences.iter().flatten().map(|s| s.blocks.as_slice()));
    }
}
