//! What arrives at a simulated service, and when.

use crate::prompts::Prompts;
use crate::random::Random;
use crate::trace::{Row, Trace};
use crate::workload::{Lengths, Selection};

/// Where the draws of the prefixes begin.
const PREFIX_STREAM: u64 = 0x9f;

/// Prompts that begin alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefixes {
    /// Different beginnings; each prompt has one of them.
    pub count: usize,
    pub tokens: u32,
}

impl Prefixes {
    /// Gives a trace without blocks the blocks of these prefixes: the first block of a prompt is one of theirs, the
    /// others are its own.
    pub(super) fn put_into(self, trace: &mut Trace, seed: u64) {
        let mut random = Random::stream(seed, PREFIX_STREAM);
        let mut own = self.count as u64;
        for row in &mut trace.rows {
            let others = row.input_tokens.div_ceil(self.tokens).saturating_sub(1);
            row.blocks = vec![random.below(self.count) as u64];
            row.blocks.extend(own..own + u64::from(others));
            own += u64::from(others);
        }
        trace.block_tokens = self.tokens;
    }
}

/// Arrivals in their order. Prompts are made when they are asked for: those of all requests need not fit in memory.
pub(super) struct Traffic {
    prompts: Prompts,
    block_tokens: u32,
    arrivals: Vec<(u64, Row, Lengths)>,
}

impl Traffic {
    pub(super) fn new(selection: Selection, prompts: Prompts, scale: f64) -> Traffic {
        let times = selection.arrivals_ns(scale);
        let arrival = |(at_ns, (row, lengths)): (u64, &(Row, Lengths))| (at_ns, row.clone(), *lengths);
        let arrivals = times.into_iter().zip(&selection.rows).map(arrival).collect();
        Traffic { prompts, block_tokens: selection.block_tokens, arrivals }
    }

    pub(super) fn len(&self) -> usize {
        self.arrivals.len()
    }

    pub(super) fn arrives_ns(&self, index: usize) -> Option<u64> {
        self.arrivals.get(index).map(|arrival| arrival.0)
    }

    pub(super) fn lengths(&self, index: usize) -> Lengths {
        self.arrivals[index].2
    }

    pub(super) fn ids(&self, index: usize) -> Vec<u32> {
        let (_, row, lengths) = &self.arrivals[index];
        self.prompts.ids(index, row, self.block_tokens, lengths.input)
    }
}
