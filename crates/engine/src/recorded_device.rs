//! A CUDA model as the loop drives it, with the spans of its steps.
//!
//! The device works through its queue by itself and no thread of ours sees a step begin, so a span runs from the
//! launch, or from the end of the step before if that was later, to the moment when the loop has its results. NVTX
//! ranges are around the launches: the tool lays what was queued in one beside it.

use crate::recorded::prefill_tokens;
use pinion_model::cuda::CudaDecoder;
use pinion_model::{DeviceMemory, ModelInfo, Pipeline, StepBatch, StepError, StepOutput, WarmUp, op_trace};
use pinion_os::clock;
use pinion_protocol::spans::SpanName;
use pinion_worker::Recorder;
use std::collections::VecDeque;

/// A step in flight.
#[derive(Debug)]
struct Launched {
    name: SpanName,
    begin_ns: u64,
    arguments: [u64; 2],
}

/// Records each step of a model on a device.
pub(crate) struct RecordedDevice {
    model: CudaDecoder,
    /// Steps that the loop may have in flight; 1 without overlap.
    depth: usize,
    recorder: Recorder,
    launched: VecDeque<Launched>,
    /// When the results of the last step were there.
    ended_ns: u64,
}

impl RecordedDevice {
    /// `model`, with its spans in `recorder`, and two steps in flight with `overlap`.
    pub(crate) fn new(model: CudaDecoder, overlap: bool, recorder: Recorder) -> RecordedDevice {
        let most = Pipeline::depth(&model);
        let depth = if overlap { most } else { 1 };
        RecordedDevice { model, depth, recorder, launched: VecDeque::with_capacity(most), ended_ns: 0 }
    }

    fn name(&self, batch: &StepBatch<'_>, prefill_tokens: u64) -> SpanName {
        match prefill_tokens {
            0 if self.model.replays(batch) => SpanName::GraphReplay,
            0 => SpanName::Decode,
            _ => SpanName::Prefill,
        }
    }
}

impl Pipeline for RecordedDevice {
    fn info(&self) -> &ModelInfo {
        Pipeline::info(&self.model)
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn launch(&mut self, batch: &StepBatch<'_>) -> Result<(), StepError> {
        let prefill_tokens = prefill_tokens(batch);
        let name = self.name(batch, prefill_tokens);
        let begin_ns = self.recorder.begin(name);
        let range = name.range().map(op_trace::range);
        let result = self.model.launch(batch);
        drop(range);
        self.recorder.pop();
        let arguments = [batch.rows.len() as u64, prefill_tokens];
        self.launched.push_back(Launched { name, begin_ns, arguments });
        result
    }

    fn retire(&mut self, out: &mut StepOutput) -> Result<(), StepError> {
        let result = self.model.retire(out);
        let Some(launched) = self.launched.pop_front() else { return result };
        if self.recorder.records() {
            let end_ns = clock::now_ns();
            let begin_ns = launched.begin_ns.max(self.ended_ns);
            self.recorder.record(launched.name, begin_ns, end_ns, launched.arguments);
            self.ended_ns = end_ns;
        }
        result
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        let began_ns = clock::now_ns();
        Pipeline::warm_up(&mut self.model, shapes)?;
        let ms = clock::now_ns().saturating_sub(began_ns) / 1_000_000;
        let batches = self.model.decode_buckets();
        tracing::info!(
            ?batches,
            graphs = self.model.graph_count(),
            ms,
            "products are chosen, decode steps captured"
        );
        Ok(())
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        Some(self.model.memory())
    }
}
