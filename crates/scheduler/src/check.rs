//! The invariants between the scheduler's tables, in one place.

use crate::sequence::Sequence;
use crate::{Admission, Scheduler};

impl Scheduler {
    /// Checks every invariant between the tables. Runs after each commit in debug builds. O(requests + blocks).
    ///
    /// # Panics
    /// If one does not hold.
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
            |s: &Sequence| s.generated() + s.prompt_tokens >= s.length_max && !s.owes_prompt_logprobs();
        assert!(!by_order.clone().any(over), "who is at the end has left");
        assert_eq!(by_order.count(), live().count(), "every request runs or waits");
        assert_eq!(self.by_id.len(), live().count(), "every request can be found by its id");
        assert_eq!(self.free_keys.len() + self.by_id.len(), self.sequences.len(), "no key is lost");
        let lanes = self.limits.running_max() as usize;
        assert_eq!(self.free_lanes.len() + self.running.len(), lanes, "no lane is lost");
        for sequence in self.running.iter().map(|&key| self.sequence(key)) {
            let has_work = sequence.pending() > 0 || sequence.owes_prompt_logprobs();
            assert!(sequence.lane.is_some() && has_work, "a running request has work");
            assert!(sequence.drawing <= self.outstanding, "at most one draw in a step");
            let covered = sequence.blocks.len() as u32 * self.limits.block_size;
            assert!(covered >= sequence.computed, "what is computed lies in blocks");
        }
        assert!(live().all(|s| s.registered as usize <= s.blocks.len()), "what is registered is held");
        for sequence in self.waiting.iter().map(|&key| self.sequence(key)) {
            assert!(sequence.lane.is_none() && sequence.blocks.is_empty(), "who waits holds nothing");
            assert_eq!((sequence.computed, sequence.drawing), (0, 0), "who waits has no row");
        }
        self.tenants.check(live().map(|s| (s.tenant, s.lane.is_none())));
        assert_eq!(
            self.ranked as usize,
            live().filter(|s| s.claim.priority != 0).count(),
            "who has a priority"
        );
        self.pool.check(self.sequences.iter().flatten().map(|s| s.blocks.as_slice()));
    }
}
