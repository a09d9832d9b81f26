//! KV events as msgpack: vLLM's `KVEventBatch`, whose structs are arrays. docs/design/0018-kv-events.md names the
//! version.

use serde::Serialize;

/// Where blocks lie. The same on a CPU: readers weigh other words as tiers that are slower than the model's own memory.
const MEDIUM: &str = "GPU";

/// One event, in the order of vLLM's fields after the class's name, which is the kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
enum Event {
    /// Kind.
    Cleared((&'static str,)),
    /// Kind, names, medium.
    Removed((&'static str, Vec<u64>, &'static str)),
    /// Kind, names, parent's name, token ids, tokens of a block, LoRA's id, medium, LoRA's name.
    Stored(StoredFields),
}

type StoredFields =
    (&'static str, Vec<u64>, Option<u64>, Vec<u32>, usize, Option<u64>, &'static str, Option<&'static str>);

/// Bytes that a block takes in a batch at most: an event of its own with its kind and its fields, among them its
/// name and its parent's, and its token ids.
pub(crate) fn block_bytes_max(block_size: usize) -> usize {
    128 + 5 * block_size
}

/// The events of one batch.
#[derive(Debug, Clone, PartialEq)]
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

    /// The cache is empty. What came before in this batch is void.
    pub fn push_cleared(&mut self) {
        self.events.clear();
        self.events.push(Event::Cleared(("AllBlocksCleared",)));
    }

    /// A block is gone.
    pub fn push_removed(&mut self, name: u64) {
        match self.events.last_mut() {
            Some(Event::Removed((_, names, _))) => names.push(name),
            _ => self.events.push(Event::Removed(("BlockRemoved", vec![name], MEDIUM))),
        }
    }

    /// A block is there. Blocks that follow one another in a text share an event.
    pub fn push_stored(&mut self, name: u64, parent: Option<u64>, tokens: &[u32]) {
        match self.events.last_mut() {
            Some(Event::Stored(fields)) if parent.is_some() && parent == fields.1.last().copied() => {
                fields.1.push(name);
                fields.3.extend_from_slice(tokens);
            }
            _ => {
                let fields =
                    ("BlockStored", vec![name], parent, tokens.to_vec(), self.block_size, None, MEDIUM, None);
                self.events.push(Event::Stored(fields));
            }
        }
    }

    /// The batch: `unix_s` is the time, `rank` the engine's index.
    pub fn encode(&self, unix_s: f64, rank: u16) -> Vec<u8> {
        rmp_serde::to_vec(&(unix_s, &self.events, rank)).expect("tuples of numbers and text can be encoded")
    }
}
