//! The step loop: drain the inbox, plan, launch, retire the step before, commit, publish.
//!
//! With a pipeline of depth 2 the loop plans and launches a step while the one before it still runs, and commits and
//! publishes that one's tokens while the new one does: docs/design/0005-overlap.md. With depth 1 each step is retired
//! in the turn that launched it.

use crate::batch::{Batch, PlanShaping};
use crate::cache_events::CacheEvents;
use crate::constraints::Constraints;
use crate::gauges::{count_ended, set_gauges};
use crate::ports::Ports;
use crate::publish::Streams;
use crate::step_sizes::StepSizes;
use crate::wish::{Wish, wish};
use pinion_grammar::Grammars;
use pinion_model::{DeviceMemory, Pipeline, RowOutcome, StepError, StepOutput, op_trace};
use pinion_os::clock;
use pinion_protocol::frontend_inbox::{self, FinishReason};
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::spans::SpanName;
use pinion_protocol::status::Gauge;
use pinion_protocol::{FaultCode, RequestId};
use pinion_scheduler::{Ended, Limits, Policy, RowResult, Scheduler, SequenceState};
use pinion_worker::Recorder;
use std::ffi::CStr;

/// After this number of failed steps in a row the model is broken and the process must be replaced.
const FAILED_STEPS_MAX: usize = 8;
/// Waiting requests whose slots are looked at in one turn; running ones are looked at in every turn.
const WAITING_WATCHED_MAX: usize = 64;
/// Prompt tokens whose logprobs one step reports, but for one of each row: each meets the head and takes up to a
/// record's share of the ring.
const SCORES_PER_STEP_MAX: u32 = 128;
/// With so much waiting for the detokenizers, steps report as few prompt tokens as they can.
const SCORES_LAG_BYTES_MAX: usize = 64 << 10;
/// Back-pressure: with this many bytes waiting for the detokenizers no step is launched, so a model that is faster than
/// its readers works at their pace, and no stream ends for it.
const STEP_LAG_BYTES_MAX: usize = 256 << 10;

/// Range of the loop's thread in a trace of libtorch's operations.
const PUBLISH: &CStr = c"pinion.publish";

/// The sizes that an engine works within.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// What the scheduler works within.
    pub limits: Limits,
    /// How it chooses within them.
    pub policy: Policy,
    /// Records taken from the inboxes in one turn; 0 takes all that are there.
    pub command_budget: u32,
    /// Take more than that while there are fewer requests than fill a step.
    pub fill_to_target: bool,
    /// Detokenizer processes.
    pub detokenizer_count: u16,
}

impl Sizes {
    /// Entries of all block tables of one step. Rows that share blocks name them more than once.
    fn table_entries_max(&self) -> usize {
        let limits = &self.limits;
        let rows = self.policy.rows_max(limits) as usize;
        let each_row = limits.max_model_len.div_ceil(limits.block_size).min(limits.block_count) as usize;
        let one_holder = !self.policy.prefix_cache && !self.policy.speculation;
        if one_holder { limits.block_count as usize } else { rows * each_row }
    }
}

/// What a turn came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// There was something to do and there may be more.
    Worked,
    /// Nothing to do until a record arrives.
    Idle,
}

/// The model has failed so often that this process is of no use any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The last failure.
    pub reason: String,
}

/// One model's pipeline, its scheduler and the reused buffers between them.
pub struct Engine {
    pub(crate) sizes: Sizes,
    pub(crate) scheduler: Scheduler,
    pub(crate) pipeline: Box<dyn Pipeline>,
    pub(crate) streams: Streams,
    pub(crate) constraints: Constraints,
    pub(crate) encoded: Vec<u8>,
    pub(crate) next_inbox: usize,
    batch: Batch,
    output: StepOutput,
    results: Vec<RowResult>,
    wishes: Vec<(RequestId, Wish)>,
    ended: Vec<Ended>,
    next_watched: usize,
    /// Steps that were launched and not retired.
    in_flight: usize,
    /// Since when the oldest of them has the model for itself.
    running_since_ns: u64,
    /// Number of the last retired step.
    pub(crate) step: u64,
    /// Why the latest steps failed, without one between them that did not.
    failures: Vec<String>,
    step_sizes: StepSizes,
    /// Present if the service has an events role.
    cache_events: Option<CacheEvents>,
}

impl Engine {
    /// An engine with nothing to do. Everything that the loop needs is allocated here.
    pub fn new(pipeline: Box<dyn Pipeline>, sizes: Sizes) -> Engine {
        let limits = &sizes.limits;
        let row_count_max = sizes.policy.rows_max(limits) as usize;
        let token_count_max = limits.max_num_batched_tokens as usize;
        Engine {
            scheduler: Scheduler::with_policy(*limits, sizes.policy),
            streams: Streams::new(sizes.detokenizer_count, row_count_max),
            constraints: Constraints::new(limits.max_requests as usize),
            // Rejections and finished records are small; the buffer has its final size after the first few.
            encoded: Vec::with_capacity(1024),
            next_inbox: 0,
            batch: Batch::new(
                row_count_max,
                token_count_max,
                sizes.table_entries_max(),
                sizes.policy.window.is_some(),
            ),
            output: StepOutput::with_capacity(row_count_max),
            results: Vec::with_capacity(row_count_max),
            wishes: Vec::with_capacity(row_count_max + WAITING_WATCHED_MAX),
            ended: Vec::with_capacity(limits.max_requests as usize),
            next_watched: 0,
            in_flight: 0,
            running_since_ns: 0,
            step: 0,
            failures: Vec::new(),
            step_sizes: StepSizes::default(),
            cache_events: None,
            pipeline,
            sizes,
        }
    }

    /// The same engine, with the threads that requests with a grammar need.
    pub fn with_grammars(mut self, threads: Grammars) -> Engine {
        self.constraints.set_threads(threads);
        self
    }

    /// The same engine, which tells the events role what its prefix cache holds.
    pub fn with_cache_events(mut self) -> Engine {
        self.scheduler.list_cache_changes();
        self.cache_events = Some(CacheEvents::new(self.sizes.limits.block_size));
        self
    }

    /// The events role is another process now, which knows nothing.
    pub fn repeat_cache_events(&mut self) {
        self.scheduler.repeat_cache_changes();
    }

    /// If the events role has not heard everything: whether its ring took nothing in the last turn.
    pub fn cache_events_stall(&self) -> Option<bool> {
        let events = self.cache_events.as_ref().filter(|_| self.scheduler.pool().has_changes());
        events.map(CacheEvents::is_stalled)
    }

    /// Every request in the scheduler, with how far it is.
    pub fn states(&self) -> impl Iterator<Item = (RequestId, SequenceState)> + '_ {
        self.scheduler.states()
    }

    /// What of a device's memory the model takes for what, if it runs on one.
    pub fn device_memory(&self) -> Option<DeviceMemory> {
        self.pipeline.device_memory()
    }

    /// One turn of the loop.
    ///
    /// # Errors
    /// [`Broken`]: the model failed `FAILED_STEPS_MAX` times in a row, and the requests of those steps have their
    /// ends; or it is gone.
    pub fn turn(&mut self, ports: &mut impl Ports) -> Result<Turn, Broken> {
        let begin_ns = ports.recorder().begin(SpanName::EngineStep);
        let received = self.drain(ports) + self.admit_compiled(ports);
        self.watch(ports);

        let lag_bytes = ports.detokenizer_lag_bytes();
        self.scheduler.limit_scores(if lag_bytes > SCORES_LAG_BYTES_MAX { 0 } else { SCORES_PER_STEP_MAX });
        let launched = lag_bytes <= STEP_LAG_BYTES_MAX && self.plan(ports);
        if launched {
            ports.planned(self.scheduler.current_plan());
            self.launch(ports)?;
        }
        // As many steps as may be are in flight, or no other can be before the oldest is committed.
        let full = self.in_flight == self.pipeline.depth();
        let retires = self.in_flight > 0 && (full || !launched);
        if retires {
            self.retire(ports)?;
        }

        let commit_ns = ports.recorder().begin(SpanName::EngineCommit);
        if retires {
            self.commit(ports);
        }
        let range = retires.then(|| op_trace::range(PUBLISH));
        let publish_ns = ports.recorder().begin(SpanName::EnginePublish);
        let ended_count = self.publish(ports);
        drop(range);
        self.check_failures()?;
        let worked = received > 0 || launched || retires || ended_count > 0;
        let rows = if retires { self.results.len() as u64 } else { 0 };
        let spans = [
            (SpanName::EnginePublish, publish_ns, [rows, ended_count as u64]),
            (SpanName::EngineCommit, commit_ns, [rows, ended_count as u64]),
            (SpanName::EngineStep, begin_ns, [self.step, rows]),
        ];
        record_turn(ports.recorder(), spans, worked);
        Ok(if worked { Turn::Worked } else { Turn::Idle })
    }

    /// Looks at the slots of the requests that are here: cancelled, stopped, or not theirs any more.
    fn watch(&mut self, ports: &impl Ports) {
        self.wishes.clear();
        let waiting_count = self.scheduler.waiting().len();
        let first = if self.next_watched < waiting_count { self.next_watched } else { 0 };
        self.next_watched = first + WAITING_WATCHED_MAX;
        let waiting = self.scheduler.waiting().skip(first).take(WAITING_WATCHED_MAX);
        for id in self.scheduler.running().chain(waiting) {
            self.wishes.extend(wish(id, ports).map(|wish| (id, wish)));
        }
        for (id, wish) in self.wishes.drain(..) {
            match wish {
                Wish::End(reason) => _ = self.scheduler.end(id, reason),
                Wish::Forget => {
                    self.scheduler.discard(id);
                    self.constraints.forget(id);
                }
            }
        }
    }

    /// Plans a step: behind the one in flight if there is one. False if there is nothing to launch now.
    fn plan(&mut self, ports: &impl Ports) -> bool {
        let now_ns = ports.now_ns();
        ports.recorder().push(SpanName::EnginePlan);
        let launches = self.scheduler.plan(now_ns).is_some();
        let rows = if launches { &self.scheduler.current_plan().rows[..] } else { &[] };
        for row in rows.iter().filter(|row| row.first) {
            ports.stamp(row.id, Stage::FirstScheduled, now_ns);
            // Now, and not only at the end: this process's successor does not know it.
            ports.count(row.id, Counter::CachedTokens, u64::from(self.scheduler.cached_tokens(row)));
        }
        // With the timeline or without: a replay takes the recorded looks at the clock one by one.
        let end_ns = if launches { ports.now_ns() } else { now_ns };
        if launches && ports.recorder().records() {
            let queued = [self.scheduler.running().len(), self.scheduler.waiting().len()];
            let queued = queued.map(|count| count as u64);
            ports.recorder().record(SpanName::EnginePlan, now_ns, end_ns, queued);
        }
        ports.recorder().pop();
        launches
    }

    /// Hands the plan to the model.
    fn launch(&mut self, ports: &mut impl Ports) -> Result<(), Broken> {
        self.batch.fill(&self.scheduler);
        let shaping = PlanShaping {
            scheduler: &self.scheduler,
            constraints: &self.constraints,
            stop_ids: &self.sizes.limits.stop_ids,
        };
        let began_ns = ports.now_ns();
        if self.in_flight == 0 {
            self.running_since_ns = began_ns;
        }
        self.in_flight += 1;
        let launched = self.pipeline.launch(&self.batch.as_step(&shaping));
        ports.excuse(ports.now_ns().saturating_sub(began_ns));
        launched.map_err(|gone| Broken { reason: gone.to_string() })
    }

    /// Waits for the oldest step in flight and fills `results`, one per row. A failed step fails its rows and no other
    /// request. The error says that the model is gone: then nothing is known about the rows, and this process's
    /// successor resumes them.
    fn retire(&mut self, ports: &mut impl Ports) -> Result<(), Broken> {
        self.in_flight -= 1;
        self.results.clear();
        let row_count = self.scheduler.oldest_plan().rows.len();
        let began_ns = ports.now_ns();
        let retired = self.pipeline.retire(&mut self.output);
        ports.excuse(ports.now_ns().saturating_sub(began_ns));
        let failure = match retired {
            Ok(()) if self.output.rows.len() == row_count => {
                let vocab_size = self.pipeline.info().vocab_size;
                self.results.extend(self.output.rows.iter().map(|row| result(*row, vocab_size)));
                self.failures.clear();
                return Ok(());
            }
            Ok(()) => format!("{} outcomes for {row_count} rows", self.output.rows.len()),
            Err(StepError::Gone { reason }) => return Err(Broken { reason }),
            Err(error) => error.to_string(),
        };
        self.results.resize(row_count, RowResult::Failed(FaultCode::Internal));
        let in_a_row = self.failures.len() + 1;
        tracing::error!(%failure, rows = row_count, in_a_row, "a step failed; so do its requests");
        self.failures.push(failure);
        Ok(())
    }

    /// Whether too many steps failed in a row.
    fn check_failures(&self) -> Result<(), Broken> {
        match self.failures.get(FAILED_STEPS_MAX - 1) {
            Some(last) => {
                let reason = format!("{FAILED_STEPS_MAX} steps failed in a row, the last one with: {last}");
                Err(Broken { reason })
            }
            None => Ok(()),
        }
    }

    /// Commits the results of the step that was retired and stages its tokens.
    fn commit(&mut self, ports: &mut impl Ports) {
        self.publish_prompts(ports);
        self.publish_vectors(ports);
        let now_ns = ports.now_ns();
        let plan = self.scheduler.oldest_plan();
        self.step = plan.step;
        // What a refused draft computes is no token of anyone's.
        let mut step_tokens = plan.token_count - plan.draft_count();
        let took_ns = now_ns.saturating_sub(self.running_since_ns);
        // What a step takes that fails says nothing about those that do not.
        if self.failures.is_empty() {
            self.scheduler.measured(took_ns);
        }
        for event in self.scheduler.commit(&self.results) {
            self.constraints.committed(event);
            self.streams.token(event, self.output.logprobs(event.row as usize));
            step_tokens += u32::from(event.of_draft);
            if event.first {
                ports.stamp(event.id, Stage::FirstToken, now_ns);
            }
        }
        self.step_sizes.count(step_tokens, ports);
        ports.set_gauge(Gauge::LastStepNs, took_ns);
        self.running_since_ns = now_ns;
    }

    /// Sends what came of the turn. Gives how many requests ended.
    fn publish(&mut self, ports: &mut impl Ports) -> usize {
        let now_ns = ports.now_ns();
        let mut ended_count = self.publish_ended(ports, now_ns);
        let (streams, scheduler) = (&mut self.streams, &mut self.scheduler);
        let detokenizer_count = self.sizes.detokenizer_count;
        streams.flush(ports, self.step, now_ns, |stuck| {
            tracing::error!(detokenizer = stuck, "the detokenizer does not read; its requests end");
            let theirs = |id: RequestId| id.detokenizer(detokenizer_count) == stuck;
            ended_count += end_where(scheduler, FaultCode::Unavailable, theirs);
        });
        // Before the records: a client that has its answer finds it counted.
        set_gauges(&self.scheduler, self.step, self.constraints.waiting(), ports);
        if let Some(events) = &mut self.cache_events {
            events.send(&mut self.scheduler, ports);
        }
        ports.publish();
        ended_count
    }

    /// Sends the scores of prompt tokens, which go ahead of whatever their requests generate.
    fn publish_prompts(&mut self, ports: &mut impl Ports) {
        let plan = self.scheduler.oldest_plan();
        if plan.score_count == 0 {
            return;
        }
        for (index, (row, result)) in plan.rows.iter().zip(&self.results).enumerate() {
            let report = row.report();
            if report.is_empty() || matches!(result, RowResult::Failed(_)) {
                continue;
            }
            let Some(ids) = self.scheduler.ids_of(row) else { continue };
            let begin = ids.first().copied().filter(|_| report.start == 0);
            self.streams.prompt(ports, row.id, report.start, begin, self.output.prompt_scores(index));
        }
    }

    /// Sends the vectors of prompts, each ahead of its request's end.
    fn publish_vectors(&mut self, ports: &mut impl Ports) {
        if self.pipeline.info().vector_width.is_none() {
            return;
        }
        for index in 0..self.results.len() {
            let row = self.scheduler.oldest_plan().rows[index];
            let values = self.output.pooled(index);
            let is_here = self.results[index] == RowResult::Computed && self.scheduler.ids_of(&row).is_some();
            if is_here && !values.is_empty() {
                frontend_inbox::encode_pooled(&mut self.encoded, row.id, values);
                self.tell_frontend(row.id.frontend, frontend_inbox::kind::POOLED, ports);
            }
        }
    }

    fn publish_ended(&mut self, ports: &mut impl Ports, now_ns: u64) -> usize {
        let mut all = std::mem::take(&mut self.ended);
        all.extend(self.scheduler.drain_finished());
        let ended_count = all.len();
        for ended in all.drain(..) {
            let Ended { finished, announced, .. } = ended;
            let id = finished.id;
            self.constraints.forget(id);
            if !announced {
                self.streams.last(id, finished.generated_tokens);
            }
            ports.stamp(id, Stage::LastToken, now_ns);
            count_ended(&ended, ports);
            finished.encode(&mut self.encoded);
            self.tell_frontend(id.frontend, frontend_inbox::kind::FINISHED, ports);
        }
        self.ended = all;
        ended_count
    }

    /// Drops every request that `gone` names, without a record: its reader is gone.
    pub fn discard_where(&mut self, gone: impl Fn(RequestId) -> bool) {
        let ids: Vec<_> =
            self.scheduler.running().chain(self.scheduler.waiting()).filter(|&id| gone(id)).collect();
        for id in ids {
            self.scheduler.discard(id);
            self.constraints.forget(id);
        }
        self.constraints.discard_where(gone);
    }

    /// Forgets what the prefix cache holds; requests that are here go on undisturbed.
    pub fn clear_prefix_cache(&mut self, ports: &impl Ports) {
        self.scheduler.clear_prefix_cache();
        set_gauges(&self.scheduler, self.step, self.constraints.waiting(), ports);
    }

    /// The detokenizer has died: pending events for it are dropped. Its frontends take its requests back by their
    /// slots, and those that they send again meanwhile are not mixed up with them.
    pub fn lose_detokenizer(&mut self, index: u16) {
        self.streams.forget(index);
    }

    /// Drops every request whose slot has moved on: there is never more than one for a slot that is here by right.
    pub(crate) fn discard_stale(&mut self, ports: &impl Ports) {
        self.discard_where(|id| matches!(wish(id, ports), Some(Wish::Forget)));
    }

    /// Whether no request is here, no step is in flight and nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.in_flight == 0 && self.scheduler.is_empty() && !self.streams.owes() && !self.compiles()
    }

    /// Whether a request waits for its grammar, whose thread rings no bell.
    pub fn compiles(&self) -> bool {
        self.constraints.compiles()
    }

    /// Whether events are pending that a consumer's outbox did not take.
    pub fn owes(&self) -> bool {
        self.streams.owes()
    }
}

/// Ends the ranges of a turn, inner ones first, and keeps their spans if there was work in them.
fn record_turn(recorder: &Recorder, spans: [(SpanName, u64, [u64; 2]); 3], worked: bool) {
    let end_ns = if worked && recorder.records() { clock::now_ns() } else { 0 };
    for (name, begin_ns, arguments) in spans {
        if end_ns > 0 {
            recorder.record(name, begin_ns, end_ns, arguments);
        }
        recorder.pop();
    }
}

/// A token outside the vocabulary would poison the sequence, so it fails the row.
fn result(outcome: RowOutcome, vocab_size: u32) -> RowResult {
    match outcome {
        RowOutcome::Token(token) if token < vocab_size => RowResult::Token(token),
        RowOutcome::Token(_) => RowResult::Failed(FaultCode::Internal),
        RowOutcome::None => RowResult::Computed,
        RowOutcome::Complete => RowResult::Complete,
        RowOutcome::Late => RowResult::Again,
        RowOutcome::Unmasked => RowResult::Failed(FaultCode::GrammarFailed),
        RowOutcome::NonFinite => RowResult::Failed(FaultCode::NonFinite),
    }
}

fn end_where(scheduler: &mut Scheduler, code: FaultCode, whose: impl Fn(RequestId) -> bool) -> usize {
    let ids: Vec<_> = scheduler.running().chain(scheduler.waiting()).filter(|&id| whose(id)).collect();
    ids.iter().filter(|&&id| scheduler.end(id, FinishReason::Failed(code))).count()
}
