//! The prefix tree: which KV blocks hold which tokens after which prefix.
//!
//! A node is a block. It is found by its parent and its own token ids, which are compared in full, so a hash collision
//! never shares a wrong block. Every node has a serial number that is used once, and a child names its parent by it.
//! Removing a node therefore makes everything below it unreachable without touching it; unreachable nodes age and are
//! evicted like all others.
//!
//! Only whole blocks are shared, and a whole block is never written. A node may also be the first tokens of a block
//! that its holder still writes behind: a *tail*. A tail is never shared, but a request that diverges inside it can
//! copy its beginning, as it can with a whole block. For that each node is also in a list of its siblings.
//!
//! Idle nodes, those without a holder, are in a list in the order of their last use. A holder releases a block after
//! the blocks that follow it, so a node is evicted before its parent, unless that is a block of the same tokens that
//! another sequence registered first.
//!
//! All tables have their final size from the start: one node per block.

use crate::listing::{CacheChange, Listing, Next};
use std::hash::{BuildHasher, RandomState};

/// No block.
const NONE: u32 = u32::MAX;
/// Serial number of the empty prefix, the parent of every first block. It belongs to no node.
pub(crate) const ROOT: u64 = 0;

#[derive(Debug, Clone, Copy)]
struct Node {
    /// Unique over all time; [`ROOT`] if the block is no node.
    serial: u64,
    parent: u64,
    /// The next node of the same bucket.
    bucket_next: u32,
    /// Tokens: the block size, or less for a tail, which is in no bucket.
    len: u32,
    /// Neighbours in the list of nodes whose parents share a bucket.
    sibling_before: u32,
    sibling_next: u32,
    older: u32,
    newer: u32,
}

const VACANT: Node = Node {
    serial: ROOT,
    parent: ROOT,
    bucket_next: NONE,
    len: 0,
    sibling_before: NONE,
    sibling_next: NONE,
    older: NONE,
    newer: NONE,
};

/// Most siblings that [`PrefixTree::find_tail`] compares, the youngest first.
const SIBLINGS_SEEN_MAX: usize = 32;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(crate) struct PrefixTree {
    block_size: usize,
    /// By block.
    nodes: Vec<Node>,
    /// Token ids of the nodes, `[blocks, block_size]`.
    tokens: Vec<u32>,
    /// First node of each bucket; a power of two of them.
    buckets: Vec<u32>,
    /// First node of each list of siblings, by parent; as many.
    families: Vec<u32>,
    /// Randomly keyed, so that a client cannot choose prompts that share a bucket.
    hasher: RandomState,
    serials_used: u64,
    /// Both ends of the list of idle nodes.
    oldest: u32,
    newest: u32,
    idle_count: u32,
    /// What a reader outside is told, if there is one.
    listing: Option<Box<Listing>>,
}

impl PrefixTree {
    pub(crate) fn new(block_count: u32, block_size: u32) -> Self {
        let count = block_count as usize;
        PrefixTree {
            block_size: block_size as usize,
            nodes: vec![VACANT; count],
            tokens: vec![0; count * block_size as usize],
            buckets: vec![NONE; count.next_power_of_two()],
            families: vec![NONE; count.next_power_of_two()],
            hasher: RandomState::new(),
            serials_used: ROOT,
            oldest: NONE,
            newest: NONE,
            idle_count: 0,
            listing: None,
        }
    }

    pub(crate) fn block_size(&self) -> usize {
        self.block_size
    }

    pub(crate) fn idle_count(&self) -> u32 {
        self.idle_count
    }

    /// The block's serial number, if it is a node.
    pub(crate) fn serial(&self, block: u32) -> Option<u64> {
        let serial = self.nodes[block as usize].serial;
        (serial != ROOT).then_some(serial)
    }

    /// The node with `tokens` after `parent`.
    pub(crate) fn find(&self, parent: u64, tokens: &[u32]) -> Option<u32> {
        let mut block = self.buckets[self.bucket(parent, tokens)];
        while block != NONE {
            let node = &self.nodes[block as usize];
            if node.parent == parent && self.tokens_of(block) == tokens {
                return Some(block);
            }
            block = node.bucket_next;
        }
        None
    }

    /// The node after `parent` with the longest common beginning with `tokens`, and its length, at least 1.
    /// O([`SIBLINGS_SEEN_MAX`]).
    pub(crate) fn find_tail(&self, parent: u64, tokens: &[u32]) -> Option<(u32, u32)> {
        let (mut block, mut best) = (self.families[self.family(parent)], None);
        for _ in 0..SIBLINGS_SEEN_MAX {
            if block == NONE {
                break;
            }
            let node = &self.nodes[block as usize];
            if node.parent == parent {
                let pairs = self.tokens_of(block).iter().zip(tokens);
                let common = pairs.take_while(|(theirs, ours)| theirs == ours).count() as u32;
                if common > best.map_or(0, |(_, most)| most) {
                    best = Some((block, common));
                }
            }
            block = node.sibling_next;
        }
        best
    }

    /// Makes a held block the node of `tokens` after the node `before`; there must be none yet. Fewer tokens than a
    /// block make a tail.
    pub(crate) fn insert(&mut self, block: u32, before: Option<u32>, tokens: &[u32]) {
        debug_assert!(self.serial(block).is_none());
        let parent = before.map_or(ROOT, |before| self.nodes[before as usize].serial);
        self.serials_used += 1;
        let (serial, len) = (self.serials_used, tokens.len() as u32);
        let mut node = Node { serial, parent, len, ..VACANT };
        if tokens.len() == self.block_size {
            debug_assert!(self.find(parent, tokens).is_none());
            let bucket = self.bucket(parent, tokens);
            node.bucket_next = std::mem::replace(&mut self.buckets[bucket], block);
            if let Some(listing) = &mut self.listing
                && before.is_none_or(|before| listing.has(before))
            {
                listing.add(block);
            }
        }
        let family = self.family(parent);
        node.sibling_next = std::mem::replace(&mut self.families[family], block);
        if node.sibling_next != NONE {
            self.nodes[node.sibling_next as usize].sibling_before = block;
        }
        self.nodes[block as usize] = node;
        self.tokens[block as usize * self.block_size..][..tokens.len()].copy_from_slice(tokens);
    }

    /// Removes a node that is not idle. Nodes below it become unreachable.
    pub(crate) fn remove(&mut self, block: u32) {
        self.unlist(block);
        let Node { parent, bucket_next, sibling_before, sibling_next, .. } = self.nodes[block as usize];
        let family = self.family(parent);
        match sibling_before {
            NONE => self.families[family] = sibling_next,
            before => self.nodes[before as usize].sibling_next = sibling_next,
        }
        if sibling_next != NONE {
            self.nodes[sibling_next as usize].sibling_before = sibling_before;
        }
        if self.is_tail(block) {
            self.nodes[block as usize] = VACANT;
            return;
        }
        let bucket = self.bucket(parent, self.tokens_of(block));
        if self.buckets[bucket] == block {
            self.buckets[bucket] = bucket_next;
        } else {
            let mut before = self.buckets[bucket];
            while self.nodes[before as usize].bucket_next != block {
                before = self.nodes[before as usize].bucket_next;
            }
            self.nodes[before as usize].bucket_next = bucket_next;
        }
        self.nodes[block as usize] = VACANT;
    }

    /// Takes a node off the listing, and those below it: they cannot be found without it.
    fn unlist(&mut self, block: u32) {
        let Some(listing) = &mut self.listing else { return };
        let serial = self.nodes[block as usize].serial;
        if !listing.remove(block, serial) {
            return;
        }
        // As a rule there is nothing below it, and nothing is allocated.
        let (mut parent, mut parents) = (serial, Vec::new());
        loop {
            let family = self.hasher.hash_one(parent) as usize & (self.families.len() - 1);
            let mut child = self.families[family];
            while child != NONE {
                let node = &self.nodes[child as usize];
                if node.parent == parent && listing.remove(child, node.serial) {
                    parents.push(node.serial);
                }
                child = node.sibling_next;
            }
            match parents.pop() {
                Some(next) => parent = next,
                None => return,
            }
        }
    }

    /// Lists changes for a reader outside. There must be no node yet.
    pub(crate) fn list(&mut self) {
        debug_assert_eq!(self.serials_used, ROOT);
        self.listing = Some(Box::new(Listing::new(self.nodes.len() as u32)));
    }

    pub(crate) fn listing(&self) -> Option<&Listing> {
        self.listing.as_deref()
    }

    /// From here on the reader outside knows nothing.
    pub(crate) fn repeat(&mut self) {
        self.listing.iter_mut().for_each(|listing| listing.repeat());
    }

    /// What the reader outside must hear next.
    pub(crate) fn next_change(&mut self) -> Option<CacheChange<'_>> {
        let nodes = &self.nodes;
        let next = self.listing.as_mut()?.next(|block| nodes[block as usize].serial)?;
        Some(match next {
            Next::Cleared => CacheChange::Cleared,
            Next::Removed(serial) => CacheChange::Removed { serial },
            Next::Stored(block) => self.stored(block),
        })
    }

    fn stored(&self, block: u32) -> CacheChange<'_> {
        let Node { serial, parent, .. } = self.nodes[block as usize];
        let parent = (parent != ROOT).then_some(parent);
        CacheChange::Stored { serial, parent, tokens: self.tokens_of(block) }
    }

    /// Every whole node that can be found from the root, in no order, without the help of the listing. O(blocks); for
    /// tests and debug builds.
    pub(crate) fn reachable(&self) -> Vec<CacheChange<'_>> {
        let (mut found, mut parents) = (Vec::new(), vec![ROOT]);
        while let Some(parent) = parents.pop() {
            let mut child = self.families[self.family(parent)];
            while child != NONE {
                let node = &self.nodes[child as usize];
                if node.parent == parent && !self.is_tail(child) {
                    found.push(self.stored(child));
                    parents.push(node.serial);
                }
                child = node.sibling_next;
            }
        }
        found
    }

    /// Makes a node idle, as the most recently used one.
    pub(crate) fn rest(&mut self, block: u32) {
        let older = std::mem::replace(&mut self.newest, block);
        match older {
            NONE => self.oldest = block,
            older => self.nodes[older as usize].newer = block,
        }
        let node = &mut self.nodes[block as usize];
        (node.older, node.newer) = (older, NONE);
        self.idle_count += 1;
    }

    /// Takes a node off the idle list.
    pub(crate) fn wake(&mut self, block: u32) {
        let node = &mut self.nodes[block as usize];
        let (older, newer) = (node.older, node.newer);
        (node.older, node.newer) = (NONE, NONE);
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        self.idle_count -= 1;
    }

    /// Removes the least recently used idle node and returns its block.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let block = self.oldest;
        if block == NONE {
            return None;
        }
        self.wake(block);
        self.remove(block);
        Some(block)
    }

    /// Whether the node is less than a whole block.
    pub(crate) fn is_tail(&self, block: u32) -> bool {
        (self.nodes[block as usize].len as usize) < self.block_size
    }

    fn tokens_of(&self, block: u32) -> &[u32] {
        &self.tokens[block as usize * self.block_size..][..self.nodes[block as usize].len as usize]
    }

    fn family(&self, parent: u64) -> usize {
        self.hasher.hash_one(parent) as usize & (self.families.len() - 1)
    }

    fn bucket(&self, parent: u64, tokens: &[u32]) -> usize {
        self.hasher.hash_one((parent, tokens)) as usize & (self.buckets.len() - 1)
    }

    fn check_listing(&self, listing: &Listing) {
        let mut serials = Vec::new();
        listing.check(|block| serials.push(self.nodes[block as usize].serial));
        assert!(serials.is_sorted(), "a parent is listed before its children");
        let mut reachable: Vec<u64> = self
            .reachable()
            .iter()
            .map(|node| match node {
                CacheChange::Stored { serial, .. } => *serial,
                CacheChange::Cleared | CacheChange::Removed { .. } => ROOT,
            })
            .collect();
        reachable.sort_unstable();
        assert_eq!(serials, reachable, "what can be found is listed, and nothing else");
    }

    /// Calls `see` for every idle node, the least recently used first, and checks that each node is in a bucket once.
    pub(crate) fn check(&self, mut see: impl FnMut(u32)) {
        self.listing.iter().for_each(|listing| self.check_listing(listing));
        let mut in_buckets = 0;
        for &first in &self.buckets {
            let mut block = first;
            while block != NONE {
                assert!(self.serial(block).is_some(), "block {block} is in a bucket and no node");
                in_buckets += 1;
                assert!(in_buckets <= self.nodes.len(), "a bucket goes in a circle");
                block = self.nodes[block as usize].bucket_next;
            }
        }
        let mut in_families = 0;
        for &first in &self.families {
            let (mut block, mut before) = (first, NONE);
            while block != NONE {
                let node = &self.nodes[block as usize];
                assert!(
                    node.serial != ROOT && node.sibling_before == before,
                    "block {block}: the family is no list"
                );
                in_families += 1;
                assert!(in_families <= self.nodes.len(), "a family goes in a circle");
                (before, block) = (block, node.sibling_next);
            }
        }
        let nodes = self.nodes.iter().filter(|node| node.serial != ROOT);
        let whole = nodes.clone().filter(|node| node.len as usize == self.block_size).count();
        assert_eq!((whole, nodes.count()), (in_buckets, in_families), "every node can be found");
        let (mut block, mut count, mut older) = (self.oldest, 0, NONE);
        while block != NONE {
            assert_eq!(self.nodes[block as usize].older, older, "block {block}: the list is no list");
            see(block);
            count += 1;
            assert!(count <= self.idle_count, "the list of idle nodes goes in a circle");
            older = block;
            block = self.nodes[block as usize].newer;
        }
        assert_eq!((count, self.newest), (self.idle_count, older), "the list of idle nodes is whole");
    }
}
