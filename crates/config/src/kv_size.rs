//! How many blocks the KV cache has, and how many window blocks: docs/design/0020-window-kv.md.

use crate::choices::Backend;
use crate::computing::Computing;
use crate::fault::Collector;
use crate::machine::Machine;
use crate::model_facts::ModelFacts;
use crate::sources::Settings;
use crate::value::{Value, human_bytes};
use pinion_protocol::{WindowKv, window_blocks_of_sequence};

/// Tokens per sequence for which a KV cache without a given size has room.
const KV_TOKENS_PER_SEQUENCE: u32 = 1024;
/// Most blocks that nothing but their number takes memory for: layers that all have a window leave none to them.
const BARE_BLOCKS_MAX: u64 = 1 << 20;

/// Bytes that a KV cache without a given size may take of the machine's memory.
pub(crate) fn memory_for_cache(settings: &Settings, machine: &Machine) -> Option<u64> {
    let share = match settings.get("kv-cache-memory-share").map(|s| &s.value) {
        Some(Value::Share(share)) => *share,
        _ => 1.0,
    };
    machine.memory_bytes.map(|bytes| (bytes as f64 * share) as u64)
}

/// What the size of the KV cache follows from.
pub(crate) struct KvCache<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) machine: &'a Machine,
    pub(crate) computing: &'a Computing,
    pub(crate) max_model_len: u32,
}

/// Bytes of a block, and what window blocks take if some layers keep their window only.
#[derive(Debug, Clone, Copy)]
struct Costs {
    /// Of a block over the layers that keep whole contexts.
    block: u64,
    /// Of a window block.
    window_block: u64,
    window: Option<WindowKv>,
    /// Blocks that fill every sequence of a step.
    blocks_max: u64,
}

impl Costs {
    fn bytes(&self, blocks: u64) -> u64 {
        let window_blocks = self.window.map_or(0, |window| u64::from(window.blocks));
        blocks.saturating_mul(self.block).saturating_add(window_blocks.saturating_mul(self.window_block))
    }

    /// The blocks that `bytes` hold beside the window blocks.
    fn blocks_in(&self, bytes: u64) -> u64 {
        let rest = bytes.saturating_sub(self.bytes(0));
        rest.checked_div(self.block).unwrap_or(self.blocks_max)
    }
}

impl KvCache<'_> {
    fn number(&self, option: &str, otherwise: u64) -> u64 {
        self.settings.number(option).unwrap_or(otherwise)
    }

    /// What all blocks cost if every layer keeps all KV.
    fn whole(&self, model: &ModelFacts) -> Costs {
        let block = self.number("block-size", 16) * self.computing.kv_bytes_per_token(model);
        Costs { block, window_block: 0, window: None, blocks_max: 0 }
    }

    /// The same if layers with a window keep only that: window blocks for as many sequences as run at once and for a
    /// step's prompt tokens. Our own kernels on the CPU can do it.
    fn windowed(&self, model: &ModelFacts) -> Option<Costs> {
        let is_on = self.settings.switch("window-kv").unwrap_or(true);
        let on_cpu = self.computing.takes_host_memory() && self.computing.backend == Backend::Native;
        let window = model.window.filter(|window| is_on && on_cpu && window.tokens < self.max_model_len)?;
        let block_tokens = self.number("block-size", 16);
        let per_token = self.computing.kv_bytes_per_token(model);
        let in_window = per_token / u64::from(model.layers) * u64::from(window.layers);
        let seqs = self.number("max-num-seqs", 1);
        let of_sequence = u64::from(window_blocks_of_sequence(window.tokens, block_tokens as u32));
        let of_step = self.number("max-num-batched-tokens", 1).div_ceil(block_tokens);
        let blocks = u32::try_from(seqs * of_sequence + of_step).ok()?;
        let one_sequence = u64::from(self.max_model_len).div_ceil(block_tokens);
        Some(Costs {
            block: block_tokens * (per_token - in_window),
            window_block: block_tokens * in_window,
            window: Some(WindowKv { tokens: window.tokens, blocks }),
            blocks_max: (seqs * one_sequence).min(BARE_BLOCKS_MAX),
        })
    }

    /// Blocks, and window blocks where they make room for more blocks than there would be without.
    pub(crate) fn blocks(&self, model: &ModelFacts, faults: &mut Collector) -> (u32, Option<WindowKv>) {
        let settings = self.settings;
        let block_tokens = self.number("block-size", 16);
        let one_sequence = u64::from(self.max_model_len).div_ceil(block_tokens);
        // the fake backend keeps no keys and values, and a GPU's memory is seen when its engine starts
        let on_cpu = self.computing.takes_host_memory();
        let memory = self.machine.memory_bytes.filter(|_| on_cpu);
        let by_tokens = settings.number("kv-cache-tokens").map(|n| n.div_ceil(block_tokens));
        let by_bytes = settings.number("kv-cache-bytes");
        if by_tokens.is_some() && by_bytes.is_some() {
            let reason = format!("{} is also given; give one of the two", settings.origin("kv-cache-tokens"));
            faults.add(&settings.origin("kv-cache-bytes"), reason);
        }
        let share = memory_for_cache(settings, self.machine).filter(|_| on_cpu);
        let per_sequence = u64::from(self.max_model_len.min(KV_TOKENS_PER_SEQUENCE)).div_ceil(block_tokens);
        let wanted = (self.number("max-num-seqs", 1) * per_sequence).max(one_sequence);
        let blocks_of = |costs: &Costs| match (by_bytes, by_tokens) {
            (Some(bytes), _) => costs.blocks_in(bytes),
            (None, Some(blocks)) => blocks,
            (None, None) => share.map_or(wanted, |room| wanted.min(costs.blocks_in(room))),
        };
        let whole = self.whole(model);
        let windowed = self.windowed(model).filter(|costs| {
            let window_blocks = costs.window.map_or(0, |window| u64::from(window.blocks));
            window_blocks < blocks_of(&whole)
        });
        let mut costs = windowed.unwrap_or(whole);
        if let (Some(bytes), 0, Some(window)) = (by_bytes, costs.block, &mut costs.window) {
            // Nothing else takes memory.
            let most = (bytes / costs.window_block).min(costs.blocks_max);
            window.blocks = window.blocks.max(most as u32);
        }
        let (option, room) = match (by_bytes, by_tokens) {
            (Some(_), _) => ("kv-cache-bytes", memory),
            (None, Some(_)) => ("kv-cache-tokens", memory),
            (None, None) => ("kv-cache-memory-share", share),
        };
        let (blocks, origin) = (blocks_of(&costs), settings.origin(option));
        let bytes = costs.bytes(blocks);
        if blocks < one_sequence {
            let reason = format!(
                "{} tokens of KV cache cannot hold one sequence of {} tokens (max-model-len), which takes {}; give a \
                 larger cache, or --max-model-len {} or less",
                blocks * block_tokens,
                self.max_model_len,
                human_bytes(costs.bytes(one_sequence)),
                blocks * block_tokens,
            );
            faults.add(&origin, reason);
        } else if let Some(room) = room.filter(|room| bytes > *room) {
            let (cache, room) = (human_bytes(bytes), human_bytes(room));
            faults.add(&origin, format!("a KV cache of {cache} is more than the memory, {room}"));
        }
        let count = u32::try_from(blocks).unwrap_or_else(|_| {
            faults.add(&origin, format!("{blocks} blocks are more than a 32-bit index counts"));
            u32::MAX
        });
        (count, costs.window)
    }
}
