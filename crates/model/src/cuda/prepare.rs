//! What runs before ready, so that no request waits for it: every shape of a step once, every kernel, and the captures.

use super::engine::{CudaDecoder, Slot};
use super::forward::{Forward, Kind};
use super::inputs::{Filled, Layout, Tables, fill, pad_lists, pad_updates};
use super::mixed_graphs::MixedGraphs;
use super::sampling::write_draws;
use crate::{StepBatch, Unshaped, WindowTables};
use pinion_cuda::{CudaError, SCORED_BYTES, SCORES_BYTES, Score, Scored, Stream};

impl CudaDecoder {
    /// Captures the graph of every decode bucket, and runs every padded size of the other steps once, so that each
    /// product's algorithm is chosen. Longest first: what the library allocates for one serves the shorter ones.
    pub(super) fn prepare(&mut self) -> Result<(), CudaError> {
        for index in (0..self.token_buckets.len()).rev() {
            let layout = Layout { tokens: self.token_buckets[index] as usize, rows: 0 };
            self.pad_inputs(layout, Filled::default())?;
            self.forward.run(&self.stream, layout, Kind::Mixed(Filled::default()))?;
        }
        self.touch()?;
        let mut graphs = Vec::with_capacity(self.decode_buckets.len());
        for index in 0..self.decode_buckets.len() {
            let bucket = self.decode_buckets[index] as usize;
            let layout = Layout { tokens: bucket, rows: bucket };
            self.pad_inputs(layout, Filled::default())?;
            self.forward.run(&self.stream, layout, Kind::Decode)?;
            self.stream.synchronize()?;
            if self.wants_graphs {
                graphs.push(self.forward.capture(&self.stream, layout)?);
            }
        }
        self.graphs = graphs;
        if self.mixed_graphs.is_some() {
            self.mixed_graphs = Some(self.capture_mixed()?);
        }
        self.stream.synchronize()
    }

    fn capture_mixed(&mut self) -> Result<MixedGraphs, CudaError> {
        let CudaDecoder { stream, forward, token_buckets, slots, tables, .. } = self;
        MixedGraphs::capture(stream, forward, token_buckets, |layout, padded| {
            pad_inputs(stream, forward, &mut slots[0], tables, layout, padded)
        })
    }

    /// Runs what no decode step runs, over padding, so that no request is the first use of a kernel or a GEMM's shape:
    /// tables, copied blocks, single queries and tiles of a prompt, and the rows of a mixed step with its head.
    fn touch(&mut self) -> Result<(), CudaError> {
        let tokens = self.token_buckets[0] as usize;
        for index in 0..self.decode_buckets.len() {
            let layout = Layout { tokens, rows: self.decode_buckets[index] as usize };
            let filled = Filled { updates: 1, singles: 1, tiles: u32::from(self.forward.tiled) };
            self.pad_inputs(layout, filled)?;
            self.forward.update_tables(&self.stream, layout, filled.updates)?;
            self.forward.run(&self.stream, layout, Kind::Mixed(filled))?;
            self.stream.synchronize()?;
        }
        self.touch_late()?;
        // Nothing is in the cache yet.
        if self.info.block_count > 1 {
            self.forward.cache.copy_block(&self.stream, 0, 1)?;
        }
        self.stream.synchronize()
    }

    /// Scores of the first row of logits, as of a row that wants logprobs.
    fn touch_late(&mut self) -> Result<(), CudaError> {
        let late = &mut self.slots[0].late;
        Scored { row: 0, best: 0 }.write(&mut late.bytes_mut()[..SCORED_BYTES]);
        self.stream.to_device(self.forward.memory.late, late, SCORED_BYTES)?;
        self.stream.score(&Score {
            logits: self.forward.memory.logits,
            scored: self.forward.memory.late.part(0, SCORED_BYTES),
            scores: self.forward.memory.sampled.part(0, SCORES_BYTES),
            count: 1,
            rows: 1,
            vocab: self.info.vocab_size,
        })
    }

    fn pad_inputs(&mut self, layout: Layout, padded: Filled) -> Result<(), CudaError> {
        pad_inputs(&self.stream, &self.forward, &mut self.slots[0], &mut self.tables, layout, padded)
    }
}

/// Inputs of a step of nothing but padding: lists as long as `padded` says, and one change of no lane's table.
fn pad_inputs(
    stream: &Stream,
    forward: &Forward,
    slot: &mut Slot,
    tables: &mut Tables,
    layout: Layout,
    padded: Filled,
) -> Result<(), CudaError> {
    let empty = StepBatch {
        tokens: &[],
        positions: &[],
        rows: &[],
        blocks: &[],
        copies: &[],
        windows: WindowTables::NONE,
        shaping: &Unshaped,
    };
    let inputs = &mut slot.inputs;
    fill(&empty, layout, false, tables, inputs.bytes_mut());
    write_draws(&empty, &[], layout.rows, &mut inputs.bytes_mut()[layout.draws()..]);
    pad_lists(layout, Filled::default(), padded, inputs.bytes_mut());
    pad_updates(layout, inputs.bytes_mut());
    stream.to_device(forward.memory.inputs, inputs, layout.bytes(1))?;
    stream.synchronize()
}
