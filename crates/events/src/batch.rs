//! KV events as msgpack: vLLM's `KVEventBatch`, whose structs are arrays. docs/design/0018-kv-events.md names the
//! version.

use pinion_protocol::events_inbox::CacheEntry;
use serde::Serialize;

/// Where blocks lie. The same on a CPU: readers weigh other words as tiers that are slower than the model's own memory.
const MEDIUM: &str = "GPU";

/// One event, in the order of vLLM's fields after the class's name.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
enum Event {
    /// Name.
    Cleared((&'static str,)),
    /// Name, hashes, medium.
    Removed((&'static str, Vec<u64>, &'static str)),
    /// Name, hashes, parent's hash, token ids, tokens of a block, LoRA's id, medium, LoRA's name.
    Stored(StoredFields),
}

type StoredFields =
    (&'static str, Vec<u64>, Option<u64>, Vec<u32>, usize, Option<u64>, &'static str, Option<&'static str>);

/// Bytes that a block takes in a batch at most: an event of its own with its name and eight fields, its hash and its
/// parent's, and its token ids.
pub(crate) fn block_bytes_max(block_size: usize) -> usize {
    128 + 5 * block_size
}

/// The events of one batch.
#[derive(Debug, Clone)]
pub struct Events {
    block_size: usize,
    events: Vec<Event>,
}

impl Events {
    /// None yet, about blocks of this number of tokens.
    pub fn new(block_size: usize) -> Events {
        Events { block_size, events: Vec::new() }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Adds a change of the cache.
    pub fn push(&mut self, entry: &CacheEntry) {
        match entry {
            CacheEntry::Cleared => self.push_cleared(),
            CacheEntry::Removed { hash } => self.push_removed(*hash),
            CacheEntry::Stored { hash, parent, tokens } => self.push_stored(*hash, *parent, tokens),
        }
    }

    /// The cache is empty. What came before in this batch is void.
    pub fn push_cleared(&mut self) {
        self.events.clear();
        self.events.push(Event::Cleared(("AllBlocksCleared",)));
    }

    fn push_removed(&mut self, hash: u64) {
        match self.events.last_mut() {
            Some(Event::Removed((_, hashes, _))) => hashes.push(hash),
            _ => self.events.push(Event::Removed(("BlockRemoved", vec![hash], MEDIUM))),
        }
    }

    /// A block is there. Blocks that follow one another in a text share an event.
    pub fn push_stored(&mut self, hash: u64, parent: Option<u64>, tokens: &[u32]) {
        match self.events.last_mut() {
            Some(Event::Stored(fields)) if parent.is_some() && parent == fields.1.last().copied() => {
                fields.1.push(hash);
                fields.3.extend_from_slice(tokens);
            }
            _ => {
                let fields =
                    ("BlockStored", vec![hash], parent, tokens.to_vec(), self.block_size, None, MEDIUM, None);
                self.events.push(Event::Stored(fields));
            }
        }
    }

    /// The batch: `unix_s` is the time, `rank` the engine's index.
    pub fn encode(&self, unix_s: f64, rank: u16) -> Vec<u8> {
        rmp_serde::to_vec(&(unix_s, &self.events, rank)).expect("tuples of numbers and text can be encoded")
    }
}
