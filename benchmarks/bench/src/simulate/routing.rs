//! How a router in front of replicas chooses. It knows what passes through it, requests and tokens, and nothing else of
//! a replica.

use clap::ValueEnum;
use pinion_random::mix;
use std::collections::{HashMap, VecDeque};

/// Share of a prompt that must be known of a replica before its cache counts.
const MATCH_MIN: f64 = 0.3;
/// A replica with this many times the mean of open requests is passed over, ...
const SPILL_RATIO: f64 = 1.5;
/// ... if it is also above the mean by two standard deviations of a count of that mean, and by this at least.
const SPILL_MIN: f64 = 4.0;
/// Most entries of the order for each block that is remembered.
const ORDER_FACTOR: usize = 4;

/// Which replica a request is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Routing {
    /// One after the other.
    RoundRobin,
    /// The fewest open requests.
    LeastRequests,
    /// The fewest tokens of open requests: their prompts, and what they were sent so far.
    LeastTokens,
    /// The replica that was sent the longest beginning of the prompt, unless it has far more open requests than the
    /// others. It follows SMG's `cache_aware`, which decides likewise from a tree of the prompts that it sent.
    CacheAware,
}

/// A router in the middle of its work.
pub(super) struct Router {
    routing: Routing,
    /// By replica.
    requests: Vec<u32>,
    /// By replica.
    tokens: Vec<u64>,
    open: u64,
    next: usize,
    sent: Sent,
}

impl Router {
    /// `blocks` is how many blocks of prompts, of `block_size` tokens, the router remembers of each replica: as many as
    /// its cache has.
    pub(super) fn new(routing: Routing, replicas: usize, blocks: usize, block_size: usize) -> Router {
        Router {
            routing,
            requests: vec![0; replicas],
            tokens: vec![0; replicas],
            open: 0,
            next: 0,
            sent: Sent::new(replicas.saturating_mul(blocks), block_size),
        }
    }

    /// The replica for a request with this prompt, which is open from now on.
    pub(super) fn send(&mut self, prompt: &[u32]) -> usize {
        let replica = match self.routing {
            Routing::RoundRobin => self.next,
            Routing::LeastRequests => self.least(|at| u64::from(self.requests[at])),
            Routing::LeastTokens => self.least(|at| self.tokens[at]),
            Routing::CacheAware => self.by_cache(prompt),
        };
        self.next = (self.next + 1) % self.requests.len();
        self.requests[replica] += 1;
        self.tokens[replica] += prompt.len() as u64;
        self.open += 1;
        replica
    }

    /// A token of one of its requests passed through.
    pub(super) fn token(&mut self, replica: usize) {
        self.tokens[replica] += 1;
    }

    /// A request has ended that had this number of tokens in all.
    pub(super) fn ended(&mut self, replica: usize, tokens: u64) {
        self.requests[replica] -= 1;
        self.tokens[replica] -= tokens;
        self.open -= 1;
    }

    /// Of equal ones the first from a place that moves with each request.
    fn least(&self, of: impl Fn(usize) -> u64) -> usize {
        let count = self.requests.len();
        let from = (0..count).map(|offset| (self.next + offset) % count);
        from.min_by_key(|&at| of(at)).expect("there is a replica")
    }

    fn by_cache(&mut self, prompt: &[u32]) -> usize {
        let (matched, holders) = self.sent.find(prompt);
        let best = holders.iter().map(|holder| holder.0 as usize).min_by_key(|&at| self.requests[at]);
        let known = matched as f64 > MATCH_MIN * prompt.len() as f64;
        let replica = match best {
            Some(replica) if known && !self.is_far_above(replica) => replica,
            Some(_) | None => self.least(|at| u64::from(self.requests[at])),
        };
        self.sent.add(prompt, replica as u32);
        replica
    }

    fn is_far_above(&self, replica: usize) -> bool {
        let mean = self.open as f64 / self.requests.len() as f64;
        let requests = f64::from(self.requests[replica]);
        requests > mean * SPILL_RATIO && requests > mean + SPILL_MIN.max(2.0 * mean.sqrt())
    }
}

/// A replica, and when it was last sent the block.
type Holder = (u32, u64);

/// The beginnings of prompts that each replica was sent, in whole blocks; those that were not sent for the longest time
/// are forgotten first.
struct Sent {
    /// By the hash of all tokens up to the block's end.
    holders: HashMap<u64, Vec<Holder>>,
    /// In the order of their times. Only the last entry of a block and a replica counts.
    order: VecDeque<(u64, Holder)>,
    count: usize,
    most: usize,
    /// Tokens of a prompt that are looked up as one.
    block_size: usize,
    now: u64,
}

impl Sent {
    fn new(most: usize, block_size: usize) -> Sent {
        Sent { holders: HashMap::new(), order: VecDeque::new(), count: 0, most, block_size, now: 0 }
    }

    fn hashes(prompt: &[u32], block_size: usize) -> impl Iterator<Item = u64> + '_ {
        let extend = |hash: &mut u64, block: &[u32]| {
            *hash = block.iter().fold(*hash, |hash, token| mix(hash ^ mix(u64::from(*token))));
            Some(*hash)
        };
        prompt.chunks_exact(block_size).scan(1, extend)
    }

    /// The tokens of the longest beginning that any replica was sent, and the replicas that were sent it.
    fn find(&self, prompt: &[u32]) -> (usize, &[Holder]) {
        let hashes = Sent::hashes(prompt, self.block_size);
        let known = hashes.map_while(|hash| self.holders.get(&hash)).enumerate().last();
        known.map_or((0, [].as_slice()), |(index, holders)| {
            ((index + 1) * self.block_size, holders.as_slice())
        })
    }

    fn add(&mut self, prompt: &[u32], replica: u32) {
        self.now += 1;
        for hash in Sent::hashes(prompt, self.block_size) {
            let holders = self.holders.entry(hash).or_default();
            match holders.iter_mut().find(|holder| holder.0 == replica) {
                Some(holder) => holder.1 = self.now,
                None => {
                    holders.push((replica, self.now));
                    self.count += 1;
                }
            }
            self.order.push_back((hash, (replica, self.now)));
        }
        self.forget();
    }

    fn forget(&mut self) {
        if self.order.len() > ORDER_FACTOR * self.most {
            let Sent { order, holders, .. } = self;
            order.retain(|(hash, holder)| holders.get(hash).is_some_and(|of| of.contains(holder)));
        }
        while self.count > self.most {
            let Some((hash, oldest)) = self.order.pop_front() else { return };
            let Some(holders) = self.holders.get_mut(&hash) else { continue };
            let before = holders.len();
            holders.retain(|holder| *holder != oldest);
            self.count -= before - holders.len();
            if holders.is_empty() {
                self.holders.remove(&hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 16;

    fn made(routing: Routing, replicas: usize, blocks: usize) -> Router {
        Router::new(routing, replicas, blocks, BLOCK)
    }

    /// A prompt of this number of blocks, which no other text has.
    fn prompt(text: u32, blocks: u32) -> Vec<u32> {
        (0..blocks * BLOCK as u32).map(|at| text * 10_000 + at).collect()
    }

    #[test]
    fn each_routing_sends_by_what_it_knows() {
        let mut router = made(Routing::RoundRobin, 3, 100);
        assert_eq!((0..4).map(|_| router.send(&[1])).collect::<Vec<_>>(), [0, 1, 2, 0]);

        let mut router = made(Routing::LeastRequests, 2, 100);
        assert_eq!((router.send(&[1; 50]), router.send(&[1])), (0, 1));
        router.ended(1, 1);
        assert_eq!(router.send(&[1]), 1, "it has no open request");

        let mut router = made(Routing::LeastTokens, 2, 100);
        assert_eq!((router.send(&[1; 50]), router.send(&[1]), router.send(&[1])), (0, 1, 1));
        (0..60).for_each(|_| router.token(1));
        assert_eq!(router.send(&[1]), 0, "its answers are shorter");
    }

    #[test]
    fn a_prompt_follows_its_beginning_until_that_replica_has_far_more_to_do() {
        let mut router = made(Routing::CacheAware, 2, 1000);
        let first = router.send(&prompt(1, 10));
        let second = router.send(&prompt(2, 10));
        assert_ne!(first, second);
        // Three of ten blocks are not above the least share, four are.
        let share = |blocks: u32| [prompt(1, blocks), prompt(3, 10 - blocks)].concat();
        router.send(&prompt(4, 10));
        let other = router.send(&share(3));
        assert_ne!(other, first, "the replica with fewer requests: {:?}", router.requests);
        assert_eq!(router.send(&share(4)), first);
        while router.requests[first] < 13 {
            assert_eq!(router.send(&prompt(1, 10)), first, "{:?}", router.requests);
        }
        assert_eq!(router.send(&prompt(1, 10)), second, "{:?}", router.requests);
    }

    #[test]
    fn what_was_not_sent_for_the_longest_time_is_forgotten() {
        let mut sent = Sent::new(8, BLOCK);
        sent.add(&prompt(1, 4), 0);
        sent.add(&prompt(2, 4), 1);
        sent.add(&prompt(1, 4), 0);
        sent.add(&prompt(3, 4), 1);
        assert_eq!(sent.count, 8);
        assert_eq!((sent.find(&prompt(1, 4)).0, sent.find(&prompt(2, 4)).0), (64, 0));
        assert_eq!(sent.find(&prompt(3, 4)).1.iter().map(|holder| holder.0).collect::<Vec<_>>(), [1]);
        (0..100).for_each(|_| sent.add(&prompt(3, 4), 1));
        assert!(sent.order.len() <= ORDER_FACTOR * 8, "{}", sent.order.len());
        assert_eq!((sent.holders.len(), sent.find(&prompt(1, 4)).0), (8, 64));
    }

    /// A router remembers what the caches can hold: of larger blocks fewer, and as many tokens.
    #[test]
    fn memory_is_counted_in_the_blocks_of_the_cache() {
        for block_size in [16, 64] {
            let text = |number: u32| (0..256).map(|at| number * 1000 + at).collect::<Vec<u32>>();
            let mut sent = Sent::new(512 / block_size, block_size);
            (0..3).for_each(|number| sent.add(&text(number), 0));
            let found = [0, 1, 2].map(|number| sent.find(&text(number)).0);
            assert_eq!((found, sent.count * block_size), ([0, 256, 256], 512), "blocks of {block_size}");
            // Half of a block is not known.
            assert_eq!(sent.find(&text(2)[..block_size * 3 / 2]).0, block_size);
        }
    }
}
