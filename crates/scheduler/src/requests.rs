//! All requests of a scheduler: by key, by id, and in the two orders in which they run and wait.
//!
//! A key is a place in the table. Every request is either in the running set, with a lane, or in the queue. The queue
//! holds the preempted requests first, in the order of their starts, then the others in the order of arrival.

use crate::kv::BlockPool;
use crate::plan::PlanRow;
use crate::policy::Policy;
use crate::request::{Limits, Request};
use crate::sequence::{Arrival, Sequence};
use crate::tenants::Tenants;
use pinion_protocol::RequestId;
use std::collections::{HashMap, VecDeque};

/// See the module's documentation. All tables have their final size from the start.
#[derive(Debug)]
pub(crate) struct Requests {
    /// By key.
    sequences: Vec<Option<Sequence>>,
    free_keys: Vec<u32>,
    by_id: HashMap<RequestId, u32>,
    /// Keys in the order in which they started.
    running: Vec<u32>,
    /// Keys.
    waiting: VecDeque<u32>,
    lane_count: usize,
    free_lanes: Vec<u32>,
    tenants: Tenants,
    /// Requests with a priority other than 0.
    ranked: u32,
    /// Whether requests have ever differed in priority or tenant.
    mixed: bool,
    next_ordinal: u64,
}

impl Requests {
    pub(crate) fn new(limits: &Limits) -> Requests {
        let (requests, running) = (limits.max_requests as usize, limits.running_max());
        Requests {
            sequences: (0..requests).map(|_| None).collect(),
            free_keys: (0..limits.max_requests).rev().collect(),
            by_id: HashMap::with_capacity(requests),
            running: Vec::with_capacity(running as usize),
            waiting: VecDeque::with_capacity(requests),
            lane_count: running as usize,
            free_lanes: (0..running).rev().collect(),
            tenants: Tenants::new(limits.max_requests),
            ranked: 0,
            mixed: false,
            next_ordinal: 0,
        }
    }

    pub(crate) fn contains(&self, id: RequestId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free_keys.is_empty()
    }

    /// Puts a request at the end of the queue. `length_max` is the length at which it ends, and `starts_before` the
    /// starts so far.
    ///
    /// # Panics
    /// If the table is full.
    pub(crate) fn admit(
        &mut self,
        request: Request,
        length_max: u32,
        block_size: u32,
        arrived_ns: u64,
        starts_before: u64,
        policy: &Policy,
    ) -> &Sequence {
        let key = self.free_keys.pop().expect("a request is admitted only to a free place");
        let (id, claim) = (request.id, request.claim);
        let tenant = self.tenants.enter(claim.tenant, claim.weight);
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        self.ranked += u32::from(claim.priority != 0);
        self.mixed |= !self.are_alike();
        self.by_id.insert(id, key);
        self.waiting.push_back(key);
        let arrival = Arrival { id, priority: claim.priority, tenant, ordinal, arrived_ns, starts_before };
        self.sequences[key as usize].insert(Sequence::new(request, arrival, length_max, block_size, policy))
    }

    pub(crate) fn get(&self, key: u32) -> &Sequence {
        self.sequences[key as usize].as_ref().expect("a key names a sequence")
    }

    pub(crate) fn get_mut(&mut self, key: u32) -> &mut Sequence {
        self.sequences[key as usize].as_mut().expect("a key names a sequence")
    }

    /// The request that a row was planned for; `None` if it has ended since.
    pub(crate) fn of_row(&self, row: &PlanRow) -> Option<&Sequence> {
        self.sequences[row.key as usize].as_ref().filter(|sequence| sequence.arrival().ordinal == row.ordinal)
    }

    /// The same, to change it.
    pub(crate) fn of_row_mut(&mut self, row: &PlanRow) -> Option<&mut Sequence> {
        self.sequences[row.key as usize].as_mut().filter(|sequence| sequence.arrival().ordinal == row.ordinal)
    }

    /// Requests in the running set.
    pub(crate) fn running_count(&self) -> usize {
        self.running.len()
    }

    /// The key at an index of the running set.
    pub(crate) fn running_key(&self, index: usize) -> u32 {
        self.running[index]
    }

    /// The running requests in the order of their starts.
    pub(crate) fn running(&self) -> impl ExactSizeIterator<Item = &Sequence> + Clone {
        self.running.iter().map(|&key| self.get(key))
    }

    /// Requests in the queue.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// The key at an index of the queue.
    pub(crate) fn waiting_key(&self, index: usize) -> u32 {
        self.waiting[index]
    }

    /// The queue.
    pub(crate) fn waiting(&self) -> impl ExactSizeIterator<Item = &Sequence> + Clone {
        self.waiting.iter().map(|&key| self.get(key))
    }

    pub(crate) fn has_free_lane(&self) -> bool {
        !self.free_lanes.is_empty()
    }

    pub(crate) fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// Charges a tenant for `tokens`.
    pub(crate) fn charge(&mut self, tenant: u32, tokens: u32) {
        self.tenants.charge(tenant, tokens);
    }

    /// Whether all requests have the same tenant, and none a priority.
    pub(crate) fn are_alike(&self) -> bool {
        self.ranked == 0 && self.tenants.live() <= 1
    }

    /// Whether a running request has a higher priority than this.
    fn runs_higher_than(&self, priority: i32) -> bool {
        self.ranked > 0 && self.running().any(|sequence| sequence.arrival().priority < priority)
    }

    /// Moves the waiting request at `index` into the running set and returns its key.
    ///
    /// # Panics
    /// If there is no such request, or no free lane.
    pub(crate) fn start(&mut self, index: usize) -> u32 {
        let key = self.waiting.remove(index).expect("the request was picked from the queue");
        let lane = self.free_lanes.pop().expect("a request starts only with a free lane");
        let sequence = self.get_mut(key);
        sequence.enter(lane);
        let tenant = sequence.arrival().tenant;
        self.tenants.started(tenant);
        self.running.push(key);
        key
    }

    /// Moves the running request at `index` to the front of the queue; its blocks go back to the pool.
    pub(crate) fn preempt(&mut self, index: usize, pool: &mut BlockPool) {
        let key = self.running.remove(index);
        let for_priority = self.runs_higher_than(self.get(key).arrival().priority);
        let sequence = self.get_mut(key);
        let lane = sequence.preempt(for_priority, pool);
        let tenant = sequence.arrival().tenant;
        self.free_lanes.extend(lane);
        self.tenants.preempted(tenant);
        self.waiting.push_front(key);
    }

    /// Takes a request out of the running set or the queue and returns its key, for [`Requests::remove`].
    pub(crate) fn unlink(&mut self, id: RequestId) -> Option<u32> {
        let key = *self.by_id.get(&id)?;
        if let Some(index) = self.running.iter().position(|&running| running == key) {
            self.running.remove(index);
        } else if let Some(index) = self.waiting.iter().position(|&waiting| waiting == key) {
            self.waiting.remove(index);
        }
        Some(key)
    }

    /// Removes a request from the table; its blocks go back to the pool. It is unlinked, or [`Requests::drop_removed`]
    /// follows.
    pub(crate) fn remove(&mut self, key: u32, pool: &mut BlockPool) -> Sequence {
        let mut sequence = self.sequences[key as usize].take().expect("a key names a sequence");
        let Arrival { id, priority, tenant, .. } = *sequence.arrival();
        let waited = sequence.is_waiting();
        self.free_lanes.extend(sequence.release(pool));
        self.by_id.remove(&id);
        self.tenants.leave(tenant, waited);
        self.ranked -= u32::from(priority != 0);
        self.free_keys.push(key);
        sequence
    }

    /// Takes the requests that have been removed out of the running set.
    pub(crate) fn drop_removed(&mut self) {
        let sequences = &self.sequences;
        self.running.retain(|&key| sequences[key as usize].is_some());
    }

    /// Every request, in the order of the keys.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.iter().flatten()
    }

    /// Checks the tables. `fifo`: requests start in the order of arrival while they are alike. `outstanding`: plans
    /// without a commit.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub(crate) fn check(&self, fifo: bool, outstanding: u32) {
        let by_order = self.running().chain(self.waiting());
        if fifo && !self.mixed {
            let sorted = by_order.clone().is_sorted_by_key(|s| s.arrival().ordinal);
            assert!(sorted, "running, then waiting, in order of arrival");
        }
        let mut queue = self.waiting().skip_while(|s| s.preemptions() > 0);
        let sorted = queue.clone().is_sorted_by_key(|s| s.arrival().ordinal);
        assert!(sorted, "in order of arrival behind the preempted");
        assert!(queue.all(|s| s.preemptions() == 0), "the preempted stand first");
        assert_eq!(by_order.count(), self.live().count(), "every request runs or waits");
        assert_eq!(self.by_id.len(), self.live().count(), "every request can be found by its id");
        assert_eq!(self.free_keys.len() + self.by_id.len(), self.sequences.len(), "no key is lost");
        self.running().for_each(|sequence| sequence.check_running(outstanding));
        self.waiting().for_each(Sequence::check_waiting);
        self.tenants.check(self.live().map(|s| (s.arrival().tenant, s.is_waiting())));
        let ranked = self.live().filter(|s| s.arrival().priority != 0).count();
        assert_eq!(self.ranked as usize, ranked, "the count of requests with a priority");
        assert_eq!(self.free_lanes.len() + self.running.len(), self.lane_count, "no lane is lost");
    }
}
