//! A step from launch to retire: inputs, graph or kernels, tokens back; two steps in flight.

use super::buckets::{bucket_for, buckets};
use super::forward::{Forward, Kind};
use super::inputs::{Filled, Layout, Tables, fill};
use super::memory::Sizes;
use super::sampling::{Source, write_draws};
use super::weights::Weights;
use super::{CudaOptions, backend};
use crate::config_json::ConfigJson;
use crate::gpt2_weights::Gpt2Shape;
use crate::load::LoadError;
use crate::sampler::Sampler;
use crate::{
    FUTURE_TOKEN, Model, ModelInfo, Pipeline, Row, RowOutcome, STEP_DEADLINE, StepBatch, StepError,
    StepOutput, Unshaped, WarmUp,
};
use pinion_ops::cuda::{
    CudaError, Device, DeviceCounts, Event, GEMV_ROWS_MAX, Graph, Pinned, SAMPLED_BYTES, Sampled,
    SampledState, Stream,
};
use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

/// Steps in flight: one runs, one is queued behind it.
const DEPTH: usize = 2;
/// Smallest padded size of a step that is no decode step: below it a product costs the same.
const MIXED_TOKENS_MIN: u32 = 16;
/// Looks at an event between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 256;

/// What travels with one step in flight.
#[derive(Debug)]
struct Slot {
    inputs: Pinned,
    sampled: Pinned,
    event: Event,
}

/// A launched step.
#[derive(Debug)]
struct Launched {
    slot: usize,
    result: Result<(), StepError>,
    /// One for each row.
    sources: Vec<Source>,
    /// The host's rows, in row order, already sampled; and the scores of prompt tokens.
    host: StepOutput,
    /// Rows with a score that is not finite.
    broken: Vec<usize>,
}

/// A GPT-2 on a CUDA device.
#[derive(Debug)]
pub struct CudaGpt2 {
    info: ModelInfo,
    device: Device,
    stream: Stream,
    forward: Forward,
    tables: Tables,
    slots: Vec<Slot>,
    next_slot: usize,
    flight: VecDeque<Launched>,
    spare: Vec<Launched>,
    /// Padded sizes of decode steps, with the graph of each once it is captured; none of one that no graph can hold.
    decode_buckets: Vec<u32>,
    graphs: Vec<Option<Graph>>,
    wants_graphs: bool,
    /// Padded sizes of other steps.
    token_buckets: Vec<u32>,
    is_ready: bool,
    sampler: Sampler,
    host_logits: Pinned,
    host_row: Vec<f32>,
    host_token: Pinned,
    /// The batch's tokens with future ones replaced, to be checked.
    known_tokens: Vec<u32>,
}

fn gone(error: CudaError) -> StepError {
    // A device error does not pass: every later call would report it too.
    StepError::Gone { reason: error.to_string() }
}

impl CudaGpt2 {
    pub(super) fn new(
        device: Device,
        folder: &Path,
        config: &ConfigJson,
        shape: Gpt2Shape,
        options: &CudaOptions,
    ) -> Result<CudaGpt2, LoadError> {
        let facts = device.facts().clone();
        let stream = device.stream().map_err(backend)?;
        let weights = Weights::read(folder, &shape, &stream, options.dtype)?;
        let sizes = Sizes::of(&shape, options, facts.multiprocessors.max(1));
        let weight_bytes = weights.bytes;
        let mut forward = Forward::new(&stream, shape, weights, options, &sizes).map_err(backend)?;
        let (block_count, kv_block_bytes) = forward.take_cache(&stream, options)?;
        let decode_buckets = buckets(1, options.max_rows);
        forward.plan_fused(&stream, options, &decode_buckets).map_err(backend)?;
        let slot = || -> Result<Slot, CudaError> {
            let sampled = device.pinned(options.max_rows as usize * SAMPLED_BYTES)?;
            Ok(Slot { inputs: device.pinned(sizes.input_bytes)?, sampled, event: device.event(false)? })
        };
        let slots = (0..DEPTH).map(|_| slot()).collect::<Result<_, _>>().map_err(backend)?;
        let launched = || Launched {
            slot: 0,
            result: Ok(()),
            sources: Vec::with_capacity(options.max_rows as usize),
            host: StepOutput::default(),
            broken: Vec::new(),
        };
        let info = ModelInfo {
            family: "gpt2",
            dtype: options.dtype.name(),
            max_context: shape.positions,
            vocab_size: shape.vocab,
            eos: config.eos(),
            block_size: options.block_size,
            block_count,
            kv_block_bytes,
            weight_bytes,
        };
        Ok(CudaGpt2 {
            tables: Tables::new(options.max_rows, sizes.table_stride as usize),
            slots,
            next_slot: 0,
            flight: VecDeque::with_capacity(DEPTH),
            spare: (0..DEPTH).map(|_| launched()).collect(),
            decode_buckets,
            graphs: Vec::new(),
            wants_graphs: options.graphs,
            token_buckets: buckets(MIXED_TOKENS_MIN, options.max_tokens),
            is_ready: false,
            sampler: Sampler::new(shape.vocab as usize),
            host_logits: device.pinned(shape.vocab as usize * 4).map_err(backend)?,
            host_row: Vec::with_capacity(shape.vocab as usize),
            host_token: device.pinned(4).map_err(backend)?,
            known_tokens: Vec::with_capacity(options.max_tokens as usize),
            info,
            stream,
            forward,
            device,
        })
    }

    /// The device's name, for the operator.
    pub fn device_name(&self) -> &str {
        &self.device.facts().name
    }

    /// What the device has done so far, over all its users: for tests and benchmarks.
    pub fn counts(&self) -> DeviceCounts {
        self.device.counts()
    }

    /// Sizes that decode steps are padded to.
    pub fn decode_buckets(&self) -> &[u32] {
        &self.decode_buckets
    }

    /// Every index of the batch, future tokens allowed where they may stand.
    fn check(&mut self, batch: &StepBatch<'_>) -> Result<(), StepError> {
        let bad = |row: usize, reason: &'static str| Err(StepError::BadBatch { row, reason });
        self.known_tokens.clear();
        self.known_tokens.extend_from_slice(batch.tokens);
        for row in batch.rows {
            let last = (row.query_start + row.query_len).saturating_sub(1) as usize;
            if let Some(token) = self.known_tokens.get_mut(last).filter(|token| **token == FUTURE_TOKEN) {
                *token = 0;
            }
        }
        StepBatch { tokens: &self.known_tokens, ..*batch }.check(&self.info.batch_limits())?;
        let max_tokens = self.token_buckets.last().copied().unwrap_or(0);
        if batch.rows.len() > self.forward.lanes as usize || batch.tokens.len() > max_tokens as usize {
            return bad(0, "more rows or tokens than a step may have");
        }
        match batch.rows.iter().position(|row| row.slot >= self.forward.lanes) {
            Some(row) => bad(row, "a lane past the last"),
            None => Ok(()),
        }
    }

    /// How the batch is padded and run.
    fn shape_of(&self, batch: &StepBatch<'_>) -> (Layout, Option<usize>) {
        let (tokens, rows) = (batch.tokens.len() as u32, batch.rows.len() as u32);
        if tokens == rows && batch.rows.iter().all(|row| row.sample.is_some()) {
            let (index, bucket) = bucket_for(&self.decode_buckets, rows).expect("the check bounds the rows");
            return (Layout { tokens: bucket as usize, rows: bucket as usize }, Some(index));
        }
        let sampling = batch.rows.iter().filter(|row| row.sample.is_some()).count() as u32;
        let (_, tokens) = bucket_for(&self.token_buckets, tokens).expect("the check bounds the tokens");
        let rows = match sampling {
            0 => 0,
            rows => bucket_for(&self.decode_buckets, rows).expect("no more rows sample than there are").1,
        };
        (Layout { tokens: tokens as usize, rows: rows as usize }, None)
    }

    /// Queues everything of a checked batch.
    fn queue(&mut self, batch: &StepBatch<'_>, slot: usize, sources: &[Source]) -> Result<Layout, CudaError> {
        let (layout, decode) = self.shape_of(batch);
        let Slot { inputs, sampled, event } = &mut self.slots[slot];
        let filled =
            fill(batch, layout, self.forward.tiled && decode.is_none(), &mut self.tables, inputs.bytes_mut());
        write_draws(batch, sources, layout.rows, &mut inputs.bytes_mut()[layout.draws()..]);
        self.stream.to_device(self.forward.memory.inputs, inputs, layout.bytes(filled.updates as usize))?;
        self.forward.update_tables(&self.stream, layout, filled.updates)?;
        for copy in batch.copies {
            self.forward.copy_block(&self.stream, copy.from, copy.to)?;
        }
        match decode {
            Some(index) => match self.graphs.get(index) {
                Some(Some(graph)) => self.stream.replay(graph)?,
                _ => self.forward.run(&self.stream, layout, Kind::Decode)?,
            },
            None => self.forward.run(&self.stream, layout, Kind::Mixed(filled))?,
        }
        if layout.rows > 0 {
            let tokens = self.forward.memory.sampled.part(0, layout.rows * SAMPLED_BYTES);
            self.stream.to_host(sampled, 0, tokens)?;
        }
        self.stream.record(event)?;
        Ok(layout)
    }

    /// Samples the host's rows of the step just queued, which it waits for, and gives their tokens to their lanes.
    fn sample_on_host(
        &mut self,
        batch: &StepBatch<'_>,
        sources: &[Source],
        slot: usize,
        out: &mut StepOutput,
    ) -> Result<(), StepError> {
        out.clear();
        if !sources.contains(&Source::Host) {
            return Ok(());
        }
        self.wait(slot)?;
        let mut logits_row = 0;
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(params) = &row.sample else { continue };
            if sources[index] == Source::Host {
                self.load_logits(logits_row)?;
                let shaping = batch.shaping.shaping(index);
                self.sampler.draw_row(&mut self.host_row, params, shaping, out);
                if let Some(RowOutcome::Token(token)) = out.rows.last() {
                    self.give_lane(row, *token).map_err(gone)?;
                }
            }
            logits_row += 1;
        }
        Ok(())
    }

    /// Scores the prompt tokens of the rows that ask, a few at a time: so few that no algorithm has to be chosen for them.
    fn score_prompts(
        &mut self,
        batch: &StepBatch<'_>,
        out: &mut StepOutput,
        broken: &mut Vec<usize>,
    ) -> Result<(), StepError> {
        let at_once = GEMV_ROWS_MAX.min(self.forward.lanes) as usize;
        for (index, row) in batch.rows.iter().enumerate() {
            let Some(scored) = &row.scored else { continue };
            let range = row.scored_range();
            for begin in range.clone().step_by(at_once) {
                let len = at_once.min(range.end - begin);
                self.forward.score(&self.stream, begin, len as u32).map_err(gone)?;
                for offset in 0..len {
                    self.load_logits(offset)?;
                    let token = batch.successor(row, scored, begin + offset);
                    if !self.sampler.score_known(&self.host_row, token, scored.alternatives, out) {
                        broken.push(index);
                    }
                }
            }
            out.end_prompt_scores(index);
        }
        Ok(())
    }

    /// Brings one row of logits to the host.
    fn load_logits(&mut self, row: usize) -> Result<(), StepError> {
        let bytes = self.info.vocab_size as usize * 4;
        let from = self.forward.memory.logits.part(row * bytes, bytes);
        self.stream.to_host(&mut self.host_logits, 0, from).map_err(gone)?;
        self.stream.synchronize().map_err(gone)?;
        let words = self.host_logits.bytes()[..bytes].chunks_exact(4);
        self.host_row.clear();
        self.host_row.extend(words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])));
        Ok(())
    }

    fn give_lane(&mut self, row: &Row, token: u32) -> Result<(), CudaError> {
        self.host_token.bytes_mut()[..4].copy_from_slice(&token.to_le_bytes());
        let lane = self.forward.memory.lane_tokens.part(4 * row.slot as usize, 4);
        self.stream.to_device(lane, &self.host_token, 4)?;
        // The next row uses the same four bytes.
        self.stream.synchronize()
    }

    /// Waits for the end of the step in `slot`.
    fn wait(&self, slot: usize) -> Result<(), StepError> {
        let began = Instant::now();
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.slots[slot].event.passed().map_err(gone)? {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if began.elapsed() > STEP_DEADLINE {
                let reason = format!("the device has not answered for {STEP_DEADLINE:?}");
                return Err(StepError::Gone { reason });
            }
        }
    }

    fn launch_checked(&mut self, batch: &StepBatch<'_>, launched: &mut Launched) -> Result<(), StepError> {
        launched.sources.clear();
        launched.host.clear();
        launched.broken.clear();
        self.check(batch)?;
        let vocab = self.info.vocab_size;
        let sources = batch.rows.iter().enumerate().map(|(index, row)| Source::of(row, index, batch, vocab));
        launched.sources.extend(sources);
        if batch.rows.is_empty() {
            return self.stream.record(&self.slots[launched.slot].event).map_err(gone);
        }
        self.queue(batch, launched.slot, &launched.sources).map_err(gone)?;
        let Launched { slot, sources, host, broken, .. } = launched;
        self.sample_on_host(batch, sources, *slot, host)?;
        self.score_prompts(batch, host, broken)
    }

    /// The outcomes of a step that has ended.
    fn collect(&self, launched: &mut Launched, out: &mut StepOutput) {
        out.take_prompt_scores(&mut launched.host);
        let mut sampled = self.slots[launched.slot].sampled.bytes().chunks_exact(SAMPLED_BYTES);
        let mut host_row = 0;
        for &source in &launched.sources {
            let device = if source == Source::None { None } else { sampled.next() };
            match source {
                Source::None => out.push(RowOutcome::None),
                Source::Host => {
                    out.push_with(launched.host.rows[host_row], launched.host.logprobs(host_row));
                    host_row += 1;
                }
                Source::Device => {
                    let bytes = device.expect("a place for each row that samples");
                    out.push(match Sampled::read(bytes) {
                        SampledState::Token(token) => RowOutcome::Token(token),
                        // The kernel writes one of the two for every row that is not skipped.
                        SampledState::NonFinite | SampledState::None => RowOutcome::NonFinite,
                    });
                }
            }
        }
        for &row in &launched.broken {
            out.rows[row] = RowOutcome::NonFinite;
        }
    }

    /// Captures the graph of every decode bucket, and runs every padded size of the other steps once, so that each product's
    /// algorithm is chosen. Longest first: what the library allocates for one serves the shorter ones.
    fn prepare(&mut self) -> Result<(), CudaError> {
        for index in (0..self.token_buckets.len()).rev() {
            let layout = Layout { tokens: self.token_buckets[index] as usize, rows: 0 };
            self.pad_inputs(layout)?;
            self.forward.run(&self.stream, layout, Kind::Mixed(Filled::default()))?;
        }
        let mut graphs = Vec::with_capacity(self.decode_buckets.len());
        for index in 0..self.decode_buckets.len() {
            let bucket = self.decode_buckets[index] as usize;
            let layout = Layout { tokens: bucket, rows: bucket };
            self.pad_inputs(layout)?;
            self.forward.run(&self.stream, layout, Kind::Decode)?;
            self.stream.synchronize()?;
            if self.wants_graphs {
                graphs.push(self.forward.capture(&self.stream, layout)?);
            }
        }
        self.graphs = graphs;
        self.stream.synchronize()
    }

    /// Inputs of a step of nothing but padding.
    fn pad_inputs(&mut self, layout: Layout) -> Result<(), CudaError> {
        let empty = StepBatch {
            tokens: &[],
            positions: &[],
            rows: &[],
            blocks: &[],
            copies: &[],
            shaping: &Unshaped,
        };
        let inputs = &mut self.slots[0].inputs;
        fill(&empty, layout, false, &mut self.tables, inputs.bytes_mut());
        write_draws(&empty, &[], layout.rows, &mut inputs.bytes_mut()[layout.draws()..]);
        self.stream.to_device(self.forward.memory.inputs, inputs, layout.bytes(0))?;
        self.stream.synchronize()
    }
}

impl Pipeline for CudaGpt2 {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn depth(&self) -> usize {
        DEPTH
    }

    fn launch(&mut self, batch: &StepBatch<'_>) -> Result<(), StepError> {
        let mut launched = self.spare.pop().expect("fewer steps in flight than the depth");
        launched.slot = self.next_slot;
        self.next_slot = (self.next_slot + 1) % DEPTH;
        launched.result = self.launch_checked(batch, &mut launched);
        if launched.result.is_err() {
            // Some of the changes may not have reached the device.
            self.tables.forget();
        }
        self.flight.push_back(launched);
        Ok(())
    }

    fn retire(&mut self, out: &mut StepOutput) -> Result<(), StepError> {
        let mut launched = self.flight.pop_front().expect("a step is in flight");
        out.clear();
        let mut result = std::mem::replace(&mut launched.result, Ok(()));
        if result.is_ok() {
            result = self.wait(launched.slot);
        }
        if result.is_ok() {
            self.collect(&mut launched, out);
        }
        self.spare.push(launched);
        result
    }

    /// Captures everything that will be replayed. Afterwards nothing is captured any more.
    fn warm_up(&mut self, _shapes: &WarmUp) -> Result<(), StepError> {
        assert!(!self.is_ready, "nothing is captured after ready");
        self.prepare()
            .map_err(|error| StepError::Backend { operation: error.operation, message: error.message })?;
        self.is_ready = true;
        Ok(())
    }
}

impl Model for CudaGpt2 {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        Pipeline::launch(self, batch)?;
        Pipeline::retire(self, out)
    }

    fn logits(&mut self, batch: &StepBatch<'_>, out: &mut Vec<f32>) -> Result<(), StepError> {
        let mut step = StepOutput::default();
        self.step(batch, &mut step)?;
        out.clear();
        let sampling = batch.rows.iter().filter(|row| row.sample.is_some()).count();
        for row in 0..sampling {
            self.load_logits(row)?;
            out.extend_from_slice(&self.host_row);
        }
        Ok(())
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        Pipeline::warm_up(self, shapes)
    }
}
