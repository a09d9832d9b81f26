//! A step from launch to retire: inputs, graph or kernels, tokens back; two steps in flight.

use super::buckets::{bucket_for, buckets};
use super::changes::Changes;
use super::forward::{Forward, Kind};
use super::host_rows::HostRows;
use super::inputs::{Layout, Tables, fill, pad_lists};
use super::late::{LateRows, result_bytes, take};
use super::memory::{Sizes, changes_max};
use super::mixed_graphs::MixedGraphs;
use super::sampling::{OnDevice, Source, write_draws};
use super::shape::Shape;
use super::wait::{Patience, wait};
use super::weights::Weights;
use super::{CudaOptions, backend};
use crate::load::{LoadError, LoadEvent};
use crate::{
    DeviceMemory, FUTURE_TOKEN, Model, ModelInfo, Pipeline, RowOutcome, StepBatch, StepError, StepOutput,
    WarmUp,
};
use pinion_cuda::{CHANGE_BYTES, CudaError, Device, DeviceCounts, Event, Graph, Pinned, Stream};
use std::collections::VecDeque;
use std::path::Path;

/// Steps in flight: one runs, one is queued behind it.
const DEPTH: usize = 2;
/// Smallest padded size of a step that is no decode step: below it a product costs the same.
const MIXED_TOKENS_MIN: u32 = 16;

/// What travels with one step in flight.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) inputs: Pinned,
    changes: Pinned,
    pub(super) late: Pinned,
    sampled: Pinned,
    event: Event,
}

impl Slot {
    fn new(device: &Device, sizes: &Sizes, options: &CudaOptions) -> Result<Slot, CudaError> {
        Ok(Slot {
            inputs: device.pinned(sizes.input_bytes)?,
            changes: device.pinned(changes_max(options) * CHANGE_BYTES)?,
            late: device.pinned(sizes.late_bytes)?,
            sampled: device.pinned(result_bytes(options.max_rows as usize, options.max_rows as usize))?,
            event: device.event(false)?,
        })
    }

    /// Its page-locked memory.
    fn bytes(&self) -> u64 {
        let all = [&self.inputs, &self.changes, &self.late, &self.sampled];
        all.map(|pinned| pinned.bytes().len() as u64).iter().sum()
    }
}

/// A launched step.
#[derive(Debug)]
struct Launched {
    slot: usize,
    result: Result<(), StepError>,
    /// One for each row.
    sources: Vec<Source>,
    /// Rows of logits, padding included.
    logits_rows: usize,
    /// The host's rows, in row order, already sampled; and the scores of prompt tokens.
    host: StepOutput,
    /// Rows with a score that is not finite.
    broken: Vec<usize>,
}

impl Launched {
    fn new(rows: usize) -> Launched {
        let (sources, broken) = (Vec::with_capacity(rows), Vec::new());
        Launched { slot: 0, result: Ok(()), sources, logits_rows: 0, host: StepOutput::default(), broken }
    }
}

/// A decoder on a CUDA device.
#[derive(Debug)]
pub struct CudaDecoder {
    pub(super) info: ModelInfo,
    device: Device,
    pub(super) stream: Stream,
    pub(super) forward: Forward,
    pub(super) tables: Tables,
    pub(super) slots: Vec<Slot>,
    next_slot: usize,
    flight: VecDeque<Launched>,
    spare: Vec<Launched>,
    /// Padded sizes of decode steps, with the graph of each once it is captured; none of one that no graph can hold.
    pub(super) decode_buckets: Vec<u32>,
    pub(super) graphs: Vec<Option<Graph>>,
    pub(super) wants_graphs: bool,
    /// The layers of other steps, if these are captured.
    pub(super) mixed_graphs: Option<MixedGraphs>,
    /// Padded sizes of other steps.
    pub(super) token_buckets: Vec<u32>,
    is_ready: bool,
    host: HostRows,
    late: LateRows,
    /// The batch's tokens with future ones replaced, to be checked.
    known_tokens: Vec<u32>,
    /// What was taken at load; what is free is read on demand.
    memory: DeviceMemory,
    /// What the rows of the step being launched do to their logits.
    changes: Changes,
    on_device: OnDevice,
    patience: Patience,
}

pub(super) fn gone(error: CudaError) -> StepError {
    // A device error does not pass: every later call would report it too.
    StepError::Gone { reason: error.to_string() }
}

fn on_device(options: &CudaOptions) -> OnDevice {
    OnDevice {
        shaped: options.shaped_on_device,
        scored: options.scored_on_device,
        masked: options.masked_on_device,
    }
}

/// Whether every row has one token and samples.
fn is_decode(batch: &StepBatch<'_>) -> bool {
    let counts = (batch.tokens.len(), batch.rows.iter().filter(|row| row.sample.is_some()).count());
    !batch.rows.is_empty() && counts == (batch.rows.len(), batch.rows.len())
}

impl CudaDecoder {
    pub(super) fn new(
        device: Device,
        allocated_before: u64,
        folder: &Path,
        shape: Shape,
        options: &CudaOptions,
        watch: &mut dyn FnMut(LoadEvent<'_>),
    ) -> Result<CudaDecoder, LoadError> {
        let stream = device.stream_with(options.dependent_launch).map_err(backend)?;
        let weights = Weights::read(folder, &shape, &stream, options, watch)?;
        let sizes = Sizes::of(&shape, options, device.facts().multiprocessors.max(1));
        let (weight_bytes, max_context, vocab) = (weights.bytes, shape.max_context, shape.model.vocab);
        let (family, eos) = (shape.model.family, shape.model.stop_ids.first().copied());
        let mut forward = Forward::new(&stream, shape, weights, options, &sizes)?;
        let (block_count, kv_block_bytes) = forward.cache.size();
        let decode_buckets = buckets(1, options.max_rows);
        forward.plan_fused(&stream, options, &decode_buckets)?;
        let slots = (0..DEPTH).map(|_| Slot::new(&device, &sizes, options)).collect::<Result<Vec<_>, _>>();
        let slots = slots.map_err(backend)?;
        let cache = u64::from(block_count) * kv_block_bytes;
        let memory = DeviceMemory {
            weights: weight_bytes,
            cache,
            activations: device.counts().allocated_bytes - allocated_before - weight_bytes - cache,
            staging: slots.iter().map(Slot::bytes).sum(),
            free: 0,
        };
        Ok(CudaDecoder {
            tables: Tables::new(options.max_rows, sizes.table_stride as usize),
            slots,
            next_slot: 0,
            flight: VecDeque::with_capacity(DEPTH),
            spare: (0..DEPTH).map(|_| Launched::new(options.max_rows as usize)).collect(),
            decode_buckets,
            graphs: Vec::new(),
            patience: Patience { spin: options.spin, deadline: options.step_deadline },
            wants_graphs: options.graphs,
            mixed_graphs: (options.mixed_graphs && forward.tiled).then(MixedGraphs::default),
            token_buckets: buckets(MIXED_TOKENS_MIN, options.max_tokens),
            is_ready: false,
            host: HostRows::new(&device, vocab, max_context).map_err(backend)?,
            late: LateRows::new(vocab),
            known_tokens: Vec::with_capacity(options.max_tokens as usize),
            memory,
            changes: Changes::new(changes_max(options), vocab),
            on_device: on_device(options),
            info: ModelInfo {
                family,
                dtype: options.dtype.name(),
                max_context,
                vocab_size: vocab,
                eos,
                block_size: options.block_size,
                block_count,
                kv_block_bytes,
                window: None,
                weight_bytes,
                packed: None,
                vector_width: None,
            },
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

    /// What of the device's memory is taken for what.
    pub fn memory(&self) -> DeviceMemory {
        DeviceMemory { free: self.device.counts().free_bytes, ..self.memory }
    }

    /// Whether the step would be a replay of a captured graph.
    pub fn replays(&self, batch: &StepBatch<'_>) -> bool {
        let bucket = bucket_for(&self.decode_buckets, batch.rows.len() as u32);
        is_decode(batch) && bucket.is_some_and(|(index, _)| matches!(self.graphs.get(index), Some(Some(_))))
    }

    /// Graphs captured.
    pub fn graph_count(&self) -> usize {
        self.graphs.iter().flatten().count() + self.mixed_graphs.as_ref().map_or(0, MixedGraphs::count)
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
        if is_decode(batch) {
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
    fn queue(
        &mut self,
        batch: &StepBatch<'_>,
        slot: usize,
        sources: &mut [Source],
    ) -> Result<Layout, CudaError> {
        let (layout, decode) = self.shape_of(batch);
        let Slot { inputs, changes, .. } = &mut self.slots[slot];
        let filled =
            fill(batch, layout, self.forward.tiled && decode.is_none(), &mut self.tables, inputs.bytes_mut());
        write_draws(batch, sources, layout.rows, &mut inputs.bytes_mut()[layout.draws()..]);
        let graphs = self.mixed_graphs.as_ref().filter(|_| decode.is_none());
        let mixed = graphs.and_then(|graphs| graphs.of(layout, filled));
        if let Some((padded, _)) = mixed {
            pad_lists(layout, filled, padded, inputs.bytes_mut());
        }
        self.stream.to_device(self.forward.memory.inputs, inputs, layout.bytes(filled.updates as usize))?;
        match self.changes.write(changes.bytes_mut()) {
            0 => {}
            bytes => self.stream.to_device(self.forward.memory.changes, changes, bytes)?,
        }
        self.forward.update_tables(&self.stream, layout, filled.updates)?;
        for copy in batch.copies {
            self.forward.cache.copy_block(&self.stream, copy.from, copy.to)?;
        }
        let kind = if decode.is_some() { Kind::Decode } else { Kind::Mixed(filled) };
        if let Some(graph) = decode.and_then(|index| self.graphs.get(index)?.as_ref()) {
            self.stream.replay(graph)?;
        } else if let Some((_, graph)) = mixed {
            self.stream.replay(graph)?;
            self.forward.head(&self.stream, layout, kind)?;
        } else {
            self.forward.run(&self.stream, layout, kind)?;
        }
        let Slot { late, sampled, event, .. } = &mut self.slots[slot];
        let scored_count = self.late.queue(&self.stream, &self.forward, batch, sources, late, layout)?;
        if layout.rows > 0 {
            let results = self.forward.memory.sampled.part(0, result_bytes(layout.rows, scored_count));
            self.stream.to_host(sampled, 0, results)?;
        }
        self.stream.record(event)?;
        Ok(layout)
    }

    /// Waits for the end of the step in `slot`.
    fn wait(&self, slot: usize) -> Result<(), StepError> {
        let event = &self.slots[slot].event;
        if wait(self.patience, || event.passed(), std::thread::sleep).map_err(gone)? {
            return Ok(());
        }
        let deadline = self.patience.deadline;
        Err(StepError::Gone { reason: format!("the device has not answered for {deadline:?}") })
    }

    fn launch_checked(&mut self, batch: &StepBatch<'_>, launched: &mut Launched) -> Result<(), StepError> {
        launched.sources.clear();
        launched.host.clear();
        launched.broken.clear();
        self.check(batch)?;
        let vocab = self.info.vocab_size;
        self.changes.clear();
        for (index, row) in batch.rows.iter().enumerate() {
            let source = Source::of(row, index, batch, vocab, self.on_device, &mut self.changes);
            launched.sources.push(source);
        }
        if batch.rows.is_empty() {
            return self.stream.record(&self.slots[launched.slot].event).map_err(gone);
        }
        launched.logits_rows = self.queue(batch, launched.slot, &mut launched.sources).map_err(gone)?.rows;
        let Launched { slot, sources, host, broken, .. } = launched;
        if sources.contains(&Source::Host) {
            self.wait(*slot)?;
            self.host.sample(&self.stream, &self.forward.memory, batch, sources, host)?;
        }
        self.host.score_prompts(&self.stream, &self.forward, batch, host, broken)
    }

    /// The outcomes of a step that has ended.
    fn collect(&self, launched: &mut Launched, out: &mut StepOutput) {
        out.take_prompt_scores(&mut launched.host);
        let results = self.slots[launched.slot].sampled.bytes();
        let (mut host_row, mut logits_row, mut scored) = (0, 0, 0..);
        for &source in &launched.sources {
            match source {
                Source::None => out.push(RowOutcome::None),
                Source::Ended(outcome) => out.push(outcome),
                Source::Host => {
                    out.push_with(launched.host.rows[host_row], launched.host.logprobs(host_row));
                    host_row += 1;
                }
                Source::Device(_) | Source::Late { .. } => {
                    let is_scored = matches!(source, Source::Late { is_scored: true, .. });
                    let scored = is_scored.then(|| scored.next()).flatten();
                    take(results, launched.logits_rows, logits_row, scored, out);
                }
            }
            logits_row += usize::from(source != Source::None);
        }
        for &row in &launched.broken {
            out.rows[row] = RowOutcome::NonFinite;
        }
    }
}

impl Pipeline for CudaDecoder {
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

impl Model for CudaDecoder {
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
            out.extend_from_slice(self.host.logits(&self.stream, &self.forward.memory, row)?);
        }
        Ok(())
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        Pipeline::warm_up(self, shapes)
    }
}
