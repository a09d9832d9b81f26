//! How the engine's loop drives a model: launch a step, retire it later.
//!
//! [`Inline`] computes within the launch. [`Threaded`] gives the model a thread of its own, so that the loop plans and
//! publishes while a step runs; a device with its own queue would be a third [`Pipeline`]. Steps run in the order of
//! their launches, one after the other, whatever the pipeline. docs/design/0005-overlap.md.

use crate::owned_batch::OwnedBatch;
use crate::{
    DeviceMemory, LoadError, Model, ModelInfo, RowOutcome, StepBatch, StepError, StepOutput, WarmUp,
};
use std::any::Any;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Stands in a batch for the token that the step launched before draws for the row of the same
/// [`slot`](crate::Row::slot). It is the last query token of its row. No vocabulary has it.
pub const FUTURE_TOKEN: u32 = u32::MAX;

/// A model that has not answered for this long is stuck, unless its operator allows longer steps. Far longer than any
/// step takes.
pub const STEP_DEADLINE: Duration = Duration::from_secs(120);

/// The same for an operator who has no step called stuck: that of a model that will not answer still ends.
pub const STEP_DEADLINE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Loading and warming take longer than a step; the launcher's start timeout is what an operator meets.
const START_DEADLINE: Duration = Duration::from_secs(3600);

/// How long the end of the model's thread is waited for.
const STOP_DEADLINE: Duration = Duration::from_secs(2);

/// Steps in flight on a [`Threaded`] model: one runs, one waits.
const THREADED_DEPTH: usize = 2;

/// A model as the engine's loop drives it.
pub trait Pipeline: Send {
    /// Facts about the model, fixed at load.
    fn info(&self) -> &ModelInfo;

    /// How many steps may be launched and not retired. With 1 no batch holds a [`FUTURE_TOKEN`].
    fn depth(&self) -> usize;

    /// Starts a step. The batch may change as soon as this returns.
    ///
    /// # Errors
    /// [`StepError::Gone`]; what is wrong with the step itself is told when it is retired.
    ///
    /// # Panics
    /// If [`Pipeline::depth`] steps are in flight.
    fn launch(&mut self, batch: &StepBatch<'_>) -> Result<(), StepError>;

    /// Waits for the oldest step in flight and takes its result. See [`Model::step`].
    ///
    /// # Errors
    /// See [`StepError`]. The step is retired all the same.
    ///
    /// # Panics
    /// If no step is in flight.
    fn retire(&mut self, out: &mut StepOutput) -> Result<(), StepError>;

    /// See [`Model::warm_up`].
    ///
    /// # Errors
    /// See [`StepError`].
    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError>;

    /// Has `task` done by the thread that runs the model, after the steps launched so far and before the next one. It
    /// may come back before that is done.
    ///
    /// # Errors
    /// [`StepError::Gone`].
    fn between_steps(&mut self, task: Task) -> Result<(), StepError> {
        task();
        Ok(())
    }

    /// What of a device's memory is taken for what, if the model runs on one.
    fn device_memory(&self) -> Option<DeviceMemory> {
        None
    }
}

/// Something to do on the model's thread.
pub type Task = Box<dyn FnOnce() + Send>;

/// Computes each step within its launch, on the caller's thread.
pub struct Inline {
    model: Box<dyn Model>,
    out: StepOutput,
    launched: Option<Result<(), StepError>>,
}

impl Inline {
    /// A pipeline of depth 1 around `model`.
    pub fn new(model: Box<dyn Model>) -> Inline {
        Inline { model, out: StepOutput::default(), launched: None }
    }
}

impl Pipeline for Inline {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn depth(&self) -> usize {
        1
    }

    fn launch(&mut self, batch: &StepBatch<'_>) -> Result<(), StepError> {
        assert!(self.launched.is_none(), "one step at a time");
        self.launched = Some(self.model.step(batch, &mut self.out));
        Ok(())
    }

    fn retire(&mut self, out: &mut StepOutput) -> Result<(), StepError> {
        let result = self.launched.take().expect("a step was launched");
        std::mem::swap(out, &mut self.out);
        result
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        self.model.warm_up(shapes)
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        self.model.device_memory()
    }
}

/// A step on its way to the model's thread and back. There are [`THREADED_DEPTH`] of them, used again and again.
#[derive(Debug)]
struct Work {
    batch: OwnedBatch,
    out: StepOutput,
    result: Result<(), StepError>,
}

enum Job {
    Step(Box<Work>),
    WarmUp(WarmUp),
    /// Has no answer.
    Task(Task),
}

enum Done {
    Loaded(Result<ModelInfo, LoadError>),
    Step(Box<Work>),
    WarmedUp(Result<(), StepError>),
}

/// Gives the model a thread of its own, which loads, warms and runs it: libtorch's thread settings belong to the thread
/// that made them. The thread inherits the CPUs of the one that starts it.
pub struct Threaded {
    info: ModelInfo,
    /// `None` once the thread is told to end.
    jobs: Option<SyncSender<Job>>,
    done: Receiver<Done>,
    /// Those not in flight.
    #[expect(clippy::vec_box, reason = "they travel as boxes, so that a hand-over moves one pointer")]
    spare: Vec<Box<Work>>,
    thread: Option<JoinHandle<()>>,
    step_deadline: Duration,
}

impl Threaded {
    /// Starts the thread and waits until it has loaded the model. A step that takes longer than `step_deadline` counts
    /// as stuck.
    ///
    /// # Errors
    /// What `load` says, or that the thread cannot be made or panicked.
    pub fn start(
        load: impl FnOnce() -> Result<Box<dyn Model>, LoadError> + Send + 'static,
        step_deadline: Duration,
    ) -> Result<Threaded, LoadError> {
        let (jobs, jobs_in) = sync_channel(THREADED_DEPTH);
        let (done_out, done) = sync_channel(THREADED_DEPTH);
        let failed = |message: String| LoadError::Backend { operation: "the model's thread", message };
        let builder = std::thread::Builder::new().name("model".into());
        let thread =
            builder.spawn(move || run(load, &jobs_in, &done_out)).map_err(|e| failed(e.to_string()))?;
        let info = match done.recv_timeout(START_DEADLINE) {
            Ok(Done::Loaded(loaded)) => loaded?,
            Ok(Done::Step(_) | Done::WarmedUp(_)) => return Err(failed("it answered out of turn".into())),
            Err(RecvTimeoutError::Timeout) => return Err(failed("it did not load in time".into())),
            Err(RecvTimeoutError::Disconnected) => return Err(failed(last_words(thread))),
        };
        let work =
            || Box::new(Work { batch: OwnedBatch::default(), out: StepOutput::default(), result: Ok(()) });
        let spare = (0..THREADED_DEPTH).map(|_| work()).collect();
        Ok(Threaded { info, jobs: Some(jobs), done, spare, thread: Some(thread), step_deadline })
    }

    fn send(&mut self, job: Job) -> Result<(), StepError> {
        match self.jobs.as_ref().map(|jobs| jobs.send(job)) {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(self.gone()),
        }
    }

    fn receive(&mut self, deadline: Duration) -> Result<Done, StepError> {
        match self.done.recv_timeout(deadline) {
            Ok(done) => Ok(done),
            Err(RecvTimeoutError::Disconnected) => Err(self.gone()),
            Err(RecvTimeoutError::Timeout) => {
                Err(StepError::Gone { reason: format!("the model has not answered for {deadline:?}") })
            }
        }
    }

    fn gone(&mut self) -> StepError {
        self.jobs = None;
        let reason = self.thread.take().map_or_else(|| "the model's thread has ended".into(), last_words);
        StepError::Gone { reason }
    }
}

/// How a thread ended that has let go of its channel.
fn last_words(thread: JoinHandle<()>) -> String {
    let said = |panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
    };
    match thread.join() {
        Ok(()) => "the model's thread has ended".into(),
        Err(panic) => format!("the model's thread panicked: {}", said(panic)),
    }
}

impl Pipeline for Threaded {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn depth(&self) -> usize {
        THREADED_DEPTH
    }

    fn launch(&mut self, batch: &StepBatch<'_>) -> Result<(), StepError> {
        let mut work = self.spare.pop().expect("fewer steps in flight than the depth");
        work.batch.copy_from(batch);
        self.send(Job::Step(work))
    }

    fn retire(&mut self, out: &mut StepOutput) -> Result<(), StepError> {
        assert!(self.spare.len() < THREADED_DEPTH, "a step is in flight");
        match self.receive(self.step_deadline)? {
            Done::Step(mut work) => {
                std::mem::swap(out, &mut work.out);
                let result = std::mem::replace(&mut work.result, Ok(()));
                self.spare.push(work);
                result
            }
            Done::Loaded(_) | Done::WarmedUp(_) => unreachable!("the thread answers in turn"),
        }
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        self.spare.iter_mut().for_each(|work| work.batch.reserve(shapes, &self.info));
        self.send(Job::WarmUp(*shapes))?;
        match self.receive(START_DEADLINE)? {
            Done::WarmedUp(result) => result,
            Done::Loaded(_) | Done::Step(_) => unreachable!("the thread answers in turn"),
        }
    }

    fn between_steps(&mut self, task: Task) -> Result<(), StepError> {
        self.send(Job::Task(task))
    }
}

impl Drop for Threaded {
    /// Lets the thread finish what it has, so that nothing of the model runs while the process ends. One that is stuck
    /// is left behind.
    fn drop(&mut self) {
        self.jobs = None;
        while self.thread.is_some() {
            match self.done.recv_timeout(STOP_DEADLINE) {
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => _ = self.thread.take().map(JoinHandle::join),
            }
        }
    }
}

/// The model's thread: load, then one job after the other until the sender is gone.
fn run(
    load: impl FnOnce() -> Result<Box<dyn Model>, LoadError>,
    jobs: &Receiver<Job>,
    done: &SyncSender<Done>,
) {
    let mut model = match load() {
        Ok(model) => model,
        Err(error) => {
            // The receiver is gone: ignore.
            _ = done.send(Done::Loaded(Err(error)));
            return;
        }
    };
    if done.send(Done::Loaded(Ok(model.info().clone()))).is_ok() {
        serve(&mut *model, jobs, done);
    }
}

/// Runs one job after the other until the sender or the receiver is gone.
fn serve(model: &mut dyn Model, jobs: &Receiver<Job>, done: &SyncSender<Done>) {
    let mut drawn = Drawn::default();
    let mut answered = Ok(());
    while answered.is_ok() {
        let Ok(job) = jobs.recv() else { return };
        let answer = match job {
            Job::Step(mut work) => {
                drawn.resolve(&mut work.batch);
                work.result = model.step(&work.batch.as_step(), &mut work.out);
                drawn.note(&work.batch, &work.out);
                Done::Step(work)
            }
            Job::WarmUp(shapes) => Done::WarmedUp(model.warm_up(&shapes)),
            Job::Task(task) => {
                task();
                continue;
            }
        };
        answered = done.send(answer);
    }
}

/// The future-token buffer: what the last step drew, by lane.
#[derive(Debug, Default)]
struct Drawn {
    tokens: Vec<u32>,
}

impl Drawn {
    /// Puts the tokens that the last step drew into the batch. If that step failed there is none; then
    /// the row's result is not used, because its request has failed.
    fn resolve(&self, batch: &mut OwnedBatch) {
        batch.resolve(|lane| self.tokens.get(lane as usize).copied().unwrap_or(0));
    }

    fn note(&mut self, batch: &OwnedBatch, out: &StepOutput) {
        for (row, outcome) in batch.rows.iter().zip(&out.rows) {
            if let RowOutcome::Token(token) = *outcome {
                let lane = row.slot as usize;
                if lane >= self.tokens.len() {
                    self.tokens.resize(lane + 1, 0);
                }
                self.tokens[lane] = token;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FakeModel, FakeOptions, FakeShape, Row, SampleParams, Unshaped, WindowTables, fake_token};

    const STEPS: u32 = 1500;

    fn fake() -> Box<dyn Model> {
        let shape =
            FakeShape { vocab_size: 50, max_context: 2048, eos: None, block_size: 16, block_count: 128 };
        Box::new(FakeModel::new(shape, FakeOptions::default()))
    }

    fn work() -> Box<Work> {
        Box::new(Work { batch: OwnedBatch::default(), out: StepOutput::default(), result: Ok(()) })
    }

    /// The `index`-th row of a sequence of one prompt token: each stands on the token that the one before draws.
    fn fill(batch: &mut OwnedBatch, index: u32, blocks: &[u32]) {
        let row = Row {
            slot: 3,
            query_start: 0,
            query_len: 1,
            context_len: index + 1,
            prompt_len: 1,
            blocks_start: 0,
            blocks_len: blocks.len() as u32,
            sample: Some(SampleParams::GREEDY),
            scored: None,
        };
        batch.copy_from(&StepBatch {
            tokens: &[if index == 0 { 7 } else { FUTURE_TOKEN }],
            positions: &[index],
            rows: &[row],
            blocks,
            copies: &[],
            windows: WindowTables::NONE,
            shaping: &Unshaped,
        });
    }

    /// The loop of the model's thread, here on the test's own, where allocations are counted.
    #[test]
    fn overlap_the_models_thread_allocates_nothing() {
        let (jobs, jobs_in) = sync_channel(THREADED_DEPTH);
        let (done_out, done) = sync_channel(THREADED_DEPTH);
        let feeder = std::thread::spawn(move || {
            let blocks: Vec<u32> = (0..128).collect();
            let mut spare: Vec<Box<Work>> = (0..THREADED_DEPTH).map(|_| work()).collect();
            for index in 0..STEPS {
                let mut work = spare.pop().expect("one comes back for each that goes");
                fill(&mut work.batch, index, &blocks);
                jobs.send(Job::Step(work)).expect("the loop lives");
                if spare.is_empty() {
                    let Ok(Done::Step(work)) = done.recv() else { panic!("an answer to each step") };
                    assert_eq!(work.result, Ok(()));
                    spare.push(work);
                }
            }
            drop(jobs);
            done.iter().count()
        });
        let counted = allocation_counter::measure(|| serve(&mut *fake(), &jobs_in, &done_out));
        drop(done_out);
        assert_eq!(feeder.join().expect("the feeder does not panic"), 1);
        // The model, the future-token buffer, the outputs, and what a channel needs when it blocks for the first time.
        println!("{} allocations in {STEPS} steps", counted.count_total);
        assert!(counted.count_total < 64);
    }

    #[test]
    fn overlap_future_tokens_are_resolved() {
        let mut pipeline = Threaded::start(|| Ok(fake()), STEP_DEADLINE).expect("a fake model");
        let (blocks, mut out, mut drawn) = (Vec::from_iter(0..128), StepOutput::default(), Vec::new());
        let mut batch = OwnedBatch::default();
        for index in 0..STEPS {
            fill(&mut batch, index, &blocks);
            pipeline.launch(&batch.as_step()).expect("the thread lives");
            if index > 0 {
                assert_eq!(pipeline.retire(&mut out), Ok(()));
                drawn.extend(out.token(0));
            }
        }
        assert_eq!(pipeline.retire(&mut out), Ok(()));
        drawn.extend(out.token(0));
        let expected: Vec<u32> =
            (0..STEPS).map(|index| fake_token(&[7], u64::from(index), 50, None)).collect();
        assert_eq!(drawn, expected);

        // The fake reads only prompts back; that what it was fed is what was drawn shows in the batch itself.
        let mut buffer = Drawn::default();
        out.rows.clear();
        out.push(RowOutcome::Token(41));
        buffer.note(&batch, &out);
        buffer.resolve(&mut batch);
        assert_eq!(batch.tokens, [41]);
    }

    #[test]
    fn a_step_may_take_as_long_as_it_is_told() {
        let slow = || -> Result<Box<dyn Model>, LoadError> {
            let shape =
                FakeShape { vocab_size: 50, max_context: 2048, eos: None, block_size: 16, block_count: 128 };
            let options = FakeOptions { step_us: 200_000.0, ..FakeOptions::default() };
            Ok(Box::new(FakeModel::new(shape, options)))
        };
        let (blocks, mut out, mut batch) =
            (Vec::from_iter(0..128), StepOutput::default(), OwnedBatch::default());
        fill(&mut batch, 0, &blocks);
        for (deadline, expected) in [
            (STEP_DEADLINE_MAX, Ok(())),
            (
                Duration::from_millis(1),
                Err(StepError::Gone { reason: "the model has not answered for 1ms".into() }),
            ),
        ] {
            let mut pipeline = Threaded::start(slow, deadline).expect("a fake model");
            pipeline.launch(&batch.as_step()).expect("the thread lives");
            assert_eq!(pipeline.retire(&mut out), expected);
        }
    }

    #[test]
    fn a_model_that_cannot_be_loaded_says_why() {
        let reason = || LoadError::Options { reason: "no".into() };
        let error = Threaded::start(move || Err(reason()), STEP_DEADLINE).err();
        assert_eq!(error, Some(reason()));
        let error = Threaded::start(|| panic!("no weights at all"), STEP_DEADLINE).err();
        assert!(error.is_some_and(|error| error.to_string().contains("no weights at all")));
    }
}
