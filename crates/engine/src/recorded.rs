//! A model whose steps are recorded as spans, on whichever thread runs it.

use pinion_model::{DeviceMemory, Model, ModelInfo, StepBatch, StepError, StepOutput, WarmUp, op_trace};
use pinion_protocol::spans::SpanName;
use pinion_worker::Recorder;

/// Records each step of a model.
pub(crate) struct Recorded {
    model: Box<dyn Model>,
    recorder: Recorder,
}

impl Recorded {
    /// `model`, with its spans in `recorder`.
    pub(crate) fn new(model: Box<dyn Model>, recorder: Recorder) -> Recorded {
        Recorded { model, recorder }
    }
}

/// Tokens of rows that do more than draw the next token from one.
pub(crate) fn prefill_tokens(batch: &StepBatch<'_>) -> u64 {
    let rows = batch.rows.iter().filter(|row| row.query_len > 1 || row.sample.is_none());
    rows.map(|row| u64::from(row.query_len)).sum()
}

impl Model for Recorded {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        let prefill_tokens = prefill_tokens(batch);
        let name = if prefill_tokens > 0 { SpanName::Prefill } else { SpanName::Decode };
        let begin_ns = self.recorder.begin(name);
        let _range = name.range().map(op_trace::range);
        let result = self.model.step(batch, out);
        self.recorder.end(name, begin_ns, [batch.rows.len() as u64, prefill_tokens]);
        result
    }

    fn logits(&mut self, batch: &StepBatch<'_>, out: &mut Vec<f32>) -> Result<(), StepError> {
        self.model.logits(batch, out)
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        self.model.warm_up(shapes)
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        self.model.device_memory()
    }
}
