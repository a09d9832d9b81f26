//! Fair sharing: a weighted count of the tokens served to each tenant. The tenant served least goes next.
//!
//! This is the virtual token counter of Sheng et al. (Fairness in Serving Large Language Models, OSDI 2024). A tenant
//! is charged for the prompt tokens that its requests compute at their first start, and for each sampled token. When a
//! tenant gets its first waiting request, its counter is raised to the minimum of the waiting tenants, so it
//! accumulates no credit while it is idle or only decodes.
//!
//! The counters of two waiting tenants therefore differ by at most D, the largest (prompt + running requests · output)
//! / weight of any: the tenant that is ahead was the least served when it last started, and since then only its running
//! requests have sampled. A start costs a tenant at least one token, so while one tenant's request waits, another
//! tenant starts at most 1 + weight · (D + what the waiting tenant's running requests sample) requests, however many it
//! sends.
//!
//! With one tenant none of this has an effect.

use std::collections::HashMap;

/// Tenants without requests whose counters are kept, so that a tenant that pauses does not come back as a new one.
const IDLE_TENANTS_MAX: usize = 1024;
/// What a token costs a tenant of weight 1.
const TOKEN_UNITS: u64 = 1 << 16;

#[derive(Debug, Clone)]
struct Tenant {
    name: u64,
    weight: u32,
    /// Weighted, in [`TOKEN_UNITS`].
    served: u64,
    starts: u64,
    /// Requests, running and waiting.
    requests: u32,
    /// Waiting requests.
    waiting: u32,
}

/// A bounded table of the tenants with requests, and of some that had requests lately.
#[derive(Debug, Clone)]
pub(crate) struct Tenants {
    table: Vec<Tenant>,
    by_name: HashMap<u64, u32>,
    capacity: usize,
    /// Tenants with requests.
    live: u32,
    /// The tenant whose request started last.
    last: Option<u32>,
    /// That tenant's counter, if it has been dropped from the table.
    floor: u64,
}

impl Tenants {
    /// A table for `requests_max` concurrent requests. Nothing is allocated later.
    pub(crate) fn new(requests_max: u32) -> Self {
        let capacity = requests_max as usize + IDLE_TENANTS_MAX;
        Tenants {
            table: Vec::with_capacity(capacity),
            by_name: HashMap::with_capacity(capacity),
            capacity,
            live: 0,
            last: None,
            floor: 0,
        }
    }

    /// Adds a request of a tenant and returns the tenant's index, which is stable while it has requests. O(1), or
    /// O(tenants) for a tenant's first request.
    pub(crate) fn enter(&mut self, name: u64, weight: u32) -> u32 {
        let index = match self.by_name.get(&name) {
            Some(&index) => index,
            None => self.insert(name),
        };
        self.wait(index);
        let tenant = &mut self.table[index as usize];
        tenant.weight = weight.max(1);
        tenant.requests += 1;
        self.live += u32::from(tenant.requests == 1);
        index
    }

    /// Counts a waiting request: a new or a preempted one.
    fn wait(&mut self, index: u32) {
        if self.table[index as usize].waiting == 0 {
            let queue = self.table.iter().filter(|tenant| tenant.waiting > 0).map(|tenant| tenant.served);
            let last = self.last.map_or(self.floor, |last| self.table[last as usize].served);
            let least = queue.min().unwrap_or(last);
            let tenant = &mut self.table[index as usize];
            tenant.served = tenant.served.max(least);
        }
        self.table[index as usize].waiting += 1;
    }

    /// Adds a tenant; in a full table it replaces the idle tenant that was served least, which loses the least.
    fn insert(&mut self, name: u64) -> u32 {
        let tenant = Tenant { name, weight: 1, served: 0, starts: 0, requests: 0, waiting: 0 };
        let index = if self.table.len() < self.capacity {
            self.table.push(tenant);
            self.table.len() - 1
        } else {
            let idle = self.table.iter().enumerate().filter(|(_, tenant)| tenant.requests == 0);
            let (index, _) =
                idle.min_by_key(|(_, tenant)| tenant.served).expect("there are more places than requests");
            let old = std::mem::replace(&mut self.table[index], tenant);
            self.by_name.remove(&old.name);
            if self.last == Some(index as u32) {
                (self.last, self.floor) = (None, old.served);
            }
            index
        };
        self.by_name.insert(name, index as u32);
        index as u32
    }

    /// Removes a request. `waited`: it was in the queue.
    pub(crate) fn leave(&mut self, index: u32, waited: bool) {
        let tenant = &mut self.table[index as usize];
        tenant.requests -= 1;
        tenant.waiting -= u32::from(waited);
        self.live -= u32::from(tenant.requests == 0);
    }

    /// Counts a start.
    pub(crate) fn started(&mut self, index: u32) {
        let tenant = &mut self.table[index as usize];
        tenant.starts += 1;
        tenant.waiting -= 1;
        self.last = Some(index);
    }

    /// Counts a preempted request as waiting.
    pub(crate) fn preempted(&mut self, index: u32) {
        self.wait(index);
    }

    /// Starts since the tenant entered the table.
    pub(crate) fn starts(&self, index: u32) -> u64 {
        self.table[index as usize].starts
    }

    /// Charges a tenant for `tokens`.
    pub(crate) fn charge(&mut self, index: u32, tokens: u32) {
        let tenant = &mut self.table[index as usize];
        let units = u64::from(tokens) * TOKEN_UNITS / u64::from(tenant.weight);
        tenant.served = tenant.served.saturating_add(units);
    }

    /// The tenant's weighted counter.
    pub(crate) fn served(&self, index: u32) -> u64 {
        self.table[index as usize].served
    }

    /// Tenants with requests.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Checks the counts against all requests' (tenant, waits).
    pub(crate) fn check(&self, tenants_of_requests: impl Iterator<Item = (u32, bool)>) {
        let requests: u32 = self.table.iter().map(|tenant| tenant.requests).sum();
        let waiting: u32 = self.table.iter().map(|tenant| tenant.waiting).sum();
        let (mut count, mut queue) = (0, 0);
        for (index, waits) in tenants_of_requests {
            assert!(self.table[index as usize].requests > 0, "a request's tenant is in the table");
            assert!(!waits || self.table[index as usize].waiting > 0, "a waiting request's tenant waits");
            (count, queue) = (count + 1, queue + u32::from(waits));
        }
        assert_eq!((requests, waiting), (count, queue), "every request has one tenant");
        assert_eq!(self.live as usize, self.table.iter().filter(|tenant| tenant.requests > 0).count());
        assert_eq!(self.by_name.len(), self.table.len(), "every tenant can be found");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: u64 = TOKEN_UNITS;

    #[test]
    fn a_tenant_that_joins_the_queue_starts_at_the_least_of_the_waiting_ones() {
        let mut tenants = Tenants::new(8);
        let [a, b] = [1, 2].map(|name| tenants.enter(name, 1));
        tenants.charge(a, 100);
        tenants.charge(b, 40);
        let c = tenants.enter(3, 1);
        assert_eq!(tenants.served(c), 40 * TOKEN, "a new one");
        tenants.leave(b, true);
        tenants.charge(c, 50);
        assert_eq!(tenants.enter(2, 1), b);
        assert_eq!(tenants.served(b), 90 * TOKEN, "a pause gives no credit");
        tenants.leave(a, true);
        assert_eq!(tenants.enter(1, 1), a);
        assert_eq!(tenants.served(a), 100 * TOKEN, "and cancels no debt");
        tenants.started(b);
        tenants.leave(b, false);
        [a, c].into_iter().for_each(|tenant| tenants.leave(tenant, true));
        let d = tenants.enter(4, 1);
        assert_eq!(
            (tenants.served(d), tenants.live()),
            (90 * TOKEN, 1),
            "an empty queue: as the tenant that started last"
        );
        tenants.check([(d, true)].into_iter());
    }

    #[test]
    fn a_tenant_that_only_decodes_accumulates_no_credit() {
        let mut tenants = Tenants::new(8);
        let [writes, sends] = [1, 2].map(|name| tenants.enter(name, 1));
        [writes, sends].into_iter().for_each(|tenant| tenants.started(tenant));
        tenants.enter(2, 1);
        tenants.charge(writes, 10);
        tenants.charge(sends, 500);
        tenants.enter(1, 1);
        assert_eq!(tenants.served(writes), 500 * TOKEN, "a new request of a tenant that has one running");
        tenants.started(writes);
        tenants.charge(sends, 70);
        tenants.preempted(writes);
        assert_eq!(tenants.served(writes), 570 * TOKEN, "and a preempted one");
        tenants.check([(writes, true), (writes, false), (sends, true), (sends, false)].into_iter());
    }

    #[test]
    fn a_weight_divides_the_cost() {
        let mut tenants = Tenants::new(8);
        let [one, four] = [(1, 1), (2, 4)].map(|(name, weight)| tenants.enter(name, weight));
        tenants.charge(one, 10);
        tenants.charge(four, 40);
        assert_eq!(tenants.served(one), tenants.served(four));
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_idle_one_that_was_served_least() {
        let mut tenants = Tenants::new(2);
        let stays = tenants.enter(u64::MAX, 1);
        for name in 0..10 * IDLE_TENANTS_MAX as u64 {
            let index = tenants.enter(name, 1);
            tenants.charge(index, if name == 7 { 1 << 20 } else { 1 });
            tenants.started(index);
            tenants.leave(index, false);
        }
        assert_eq!(tenants.table.len(), 2 + IDLE_TENANTS_MAX);
        assert!(tenants.by_name.contains_key(&7), "the tenant served most is kept longest");
        assert!(tenants.by_name.contains_key(&u64::MAX), "a tenant with a request is kept");
        tenants.check([(stays, true)].into_iter());
    }
}
