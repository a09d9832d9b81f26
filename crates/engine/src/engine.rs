//! The step loop: drain the inbox, plan, launch, publish.

use crate::batch::{Batch, PlanShaping};
use crate::ports::Ports;
use crate::publish::Streams;
use pinion_model::{Model, RowOutcome, StepOutput};
use pinion_protocol::frontend_inbox::{self, FinishReason};
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::status::Gauge;
use pinion_protocol::{FaultCode, RequestId};
use pinion_scheduler::{Ended, Limits, Policy, RowResult, Scheduler};

/// So many failed steps in a row mean that the model is broken and the process must be replaced.
const FAILED_STEPS_MAX: u32 = 8;
/// Waiting requests whose slots are looked at in one turn; running ones are looked at in every turn.
const WAITING_WATCHED_MAX: usize = 64;

/// The sizes that an engine works within.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// What the scheduler works within.
    pub limits: Limits,
    /// How it chooses within them.
    pub policy: Policy,
    /// Records taken from the inboxes in one turn.
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
        let rows = limits.max_num_seqs.min(limits.max_num_batched_tokens) as usize;
        let each_row = limits.max_model_len.div_ceil(limits.block_size).min(limits.block_count) as usize;
        if self.policy.prefix_cache { rows * each_row } else { limits.block_count as usize }
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

/// What a slot says about a request that is under way here.
#[derive(Debug, Clone, Copy)]
enum Wish {
    /// End it and say why.
    End(FinishReason),
    /// Nobody owns it any more.
    Forget,
}

/// One model, its scheduler and the reused buffers between them.
pub struct Engine {
    pub(crate) sizes: Sizes,
    pub(crate) scheduler: Scheduler,
    pub(crate) model: Box<dyn Model>,
    pub(crate) streams: Streams,
    pub(crate) encoded: Vec<u8>,
    pub(crate) next_inbox: usize,
    batch: Batch,
    output: StepOutput,
    results: Vec<RowResult>,
    wishes: Vec<(RequestId, Wish)>,
    ended: Vec<Ended>,
    next_watched: usize,
    failed_steps: u32,
}

impl Engine {
    /// An engine with nothing to do. Everything that the loop needs is allocated here.
    pub fn new(model: Box<dyn Model>, sizes: Sizes) -> Engine {
        let limits = &sizes.limits;
        let row_count_max = limits.max_num_seqs.min(limits.max_num_batched_tokens) as usize;
        let token_count_max = limits.max_num_batched_tokens as usize;
        Engine {
            scheduler: Scheduler::with_policy(*limits, sizes.policy),
            streams: Streams::new(sizes.detokenizer_count, row_count_max),
            // Rejections and finished records are small; the buffer has its final size after the first few.
            encoded: Vec::with_capacity(1024),
            next_inbox: 0,
            batch: Batch::new(row_count_max, token_count_max, sizes.table_entries_max()),
            output: StepOutput::with_capacity(row_count_max),
            results: Vec::with_capacity(row_count_max),
            wishes: Vec::with_capacity(row_count_max + WAITING_WATCHED_MAX),
            ended: Vec::with_capacity(limits.max_requests as usize),
            next_watched: 0,
            failed_steps: 0,
            model,
            sizes,
        }
    }

    /// One turn of the loop.
    ///
    /// # Errors
    /// [`Broken`]: the model failed [`FAILED_STEPS_MAX`] times in a row. The requests of those steps have their ends.
    pub fn turn(&mut self, ports: &mut impl Ports) -> Result<Turn, Broken> {
        let received = self.drain(ports);
        self.watch(ports);

        let began_ns = ports.now_ns();
        let row_count = self.scheduler.plan(began_ns).rows.len();
        let launched = if row_count > 0 { self.launch(ports, began_ns) } else { Ok(()) };

        let ended_count = self.publish(ports, began_ns);
        launched?;
        let worked = received > 0 || row_count > 0 || ended_count > 0;
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
                Wish::Forget => self.scheduler.discard(id),
            }
        }
    }

    /// Runs the model over the plan and fills `results`, one per row. A failed step fails its rows and no other
    /// request.
    fn launch(&mut self, ports: &impl Ports, began_ns: u64) -> Result<(), Broken> {
        self.batch.fill(&self.scheduler);
        let rows = &self.scheduler.current_plan().rows;
        for row in rows.iter().filter(|row| row.first) {
            ports.stamp(row.id, Stage::FirstScheduled, began_ns);
        }
        self.results.clear();
        let shaping = PlanShaping { scheduler: &self.scheduler, eos: self.sizes.limits.eos };
        let failure = match self.model.step(&self.batch.as_step(&shaping), &mut self.output) {
            Ok(()) if self.output.rows.len() == rows.len() => {
                let vocab_size = self.model.info().vocab_size;
                self.results.extend(self.output.rows.iter().map(|row| result(*row, vocab_size)));
                self.failed_steps = 0;
                return Ok(());
            }
            Ok(()) => format!("{} outcomes for {} rows", self.output.rows.len(), rows.len()),
            Err(error) => error.to_string(),
        };
        self.results.resize(rows.len(), RowResult::Failed(FaultCode::Internal));
        self.failed_steps += 1;
        tracing::error!(%failure, rows = rows.len(), in_a_row = self.failed_steps, "a step failed; so do its requests");
        if self.failed_steps < FAILED_STEPS_MAX {
            return Ok(());
        }
        Err(Broken {
            reason: format!("{FAILED_STEPS_MAX} steps failed in a row, the last one with: {failure}"),
        })
    }

    /// Commits the results and sends what came of them. Gives how many requests ended.
    fn publish(&mut self, ports: &mut impl Ports, began_ns: u64) -> usize {
        let now_ns = ports.now_ns();
        let row_count = self.scheduler.current_plan().rows.len();
        // Events come in row order, at most one for each row.
        let mut rows = self.batch.ids().iter().enumerate();
        for event in self.scheduler.commit(&self.results[..row_count]) {
            let row = rows.find(|(_, id)| **id == event.id).map(|(row, _)| row);
            self.streams.token(event, row.map_or(&[], |row| self.output.logprobs(row)));
            if event.first {
                ports.stamp(event.id, Stage::FirstToken, now_ns);
            }
        }
        let mut ended_count = self.publish_ended(ports, now_ns);
        let step = self.scheduler.current_plan().step;
        let (streams, scheduler) = (&mut self.streams, &mut self.scheduler);
        let detokenizer_count = self.sizes.detokenizer_count;
        streams.flush(ports, step, now_ns, |stuck| {
            tracing::error!(detokenizer = stuck, "the detokenizer does not read; its requests end");
            let theirs = |id: RequestId| id.detokenizer(detokenizer_count) == stuck;
            ended_count += end_where(scheduler, FaultCode::Unavailable, theirs);
        });
        ports.publish();
        self.set_gauges(ports, row_count, now_ns - began_ns);
        ended_count
    }

    fn publish_ended(&mut self, ports: &mut impl Ports, now_ns: u64) -> usize {
        let mut all = std::mem::take(&mut self.ended);
        all.extend(self.scheduler.drain_finished());
        let ended_count = all.len();
        for Ended { finished, preemptions, company, announced } in all.drain(..) {
            let id = finished.id;
            if !announced {
                self.streams.last(id, finished.generated_tokens);
            }
            ports.stamp(id, Stage::LastToken, now_ns);
            ports.count(id, Counter::GeneratedTokens, u64::from(finished.generated_tokens));
            ports.count(id, Counter::CachedTokens, u64::from(finished.cached_tokens));
            ports.count(id, Counter::Preemptions, u64::from(preemptions));
            ports.count(id, Counter::Steps, u64::from(company.steps));
            ports.count(id, Counter::BatchRowsSum, company.rows_sum);
            ports.count(id, Counter::BatchRowsMax, u64::from(company.rows_max));
            ports.count(id, Counter::BatchPrefillSum, company.prefill_sum);
            ports.count(id, Counter::BatchPrefillMax, u64::from(company.prefill_max));
            finished.encode(&mut self.encoded);
            self.tell_frontend(id.frontend, frontend_inbox::kind::FINISHED, ports);
        }
        self.ended = all;
        ended_count
    }

    fn set_gauges(&self, ports: &impl Ports, row_count: usize, step_ns: u64) {
        let (plan, totals) = (self.scheduler.current_plan(), self.scheduler.totals());
        ports.set_gauge(Gauge::Steps, plan.step);
        ports.set_gauge(Gauge::KvBlocksUsed, u64::from(self.scheduler.pool().held()));
        ports.set_gauge(Gauge::KvBlocksTotal, u64::from(self.scheduler.pool().total()));
        ports.set_gauge(Gauge::KvBlocksCached, u64::from(self.scheduler.pool().cached()));
        ports.set_gauge(Gauge::PrefixQueryTokens, totals.prefix_query_tokens);
        ports.set_gauge(Gauge::PrefixHitTokens, totals.prefix_hit_tokens);
        ports.set_gauge(Gauge::RequestsRunning, self.scheduler.running().len() as u64);
        ports.set_gauge(Gauge::RequestsWaiting, self.scheduler.waiting().len() as u64);
        ports.set_gauge(Gauge::PromptTokens, totals.prompt_tokens);
        ports.set_gauge(Gauge::GeneratedTokens, totals.generated_tokens);
        ports.set_gauge(Gauge::RequestsFinished, totals.finished);
        ports.set_gauge(Gauge::Preemptions, totals.preemptions);
        ports.set_gauge(Gauge::OldestWaitingNs, plan.oldest_waiting_ns);
        if row_count > 0 {
            ports.set_gauge(Gauge::LastStepNs, step_ns);
        }
    }

    /// Drops every request that `gone` names, without a word: whoever would hear it has gone.
    pub fn discard_where(&mut self, gone: impl Fn(RequestId) -> bool) {
        let ids: Vec<_> =
            self.scheduler.running().chain(self.scheduler.waiting()).filter(|&id| gone(id)).collect();
        for id in ids {
            self.scheduler.discard(id);
        }
    }

    /// Forgets what the prefix cache holds; requests that are here go on undisturbed.
    pub fn clear_prefix_cache(&mut self, ports: &impl Ports) {
        self.scheduler.clear_prefix_cache();
        self.set_gauges(ports, 0, 0);
    }

    /// The detokenizer has died: its requests end with an event of their frontend.
    pub fn lose_detokenizer(&mut self, index: u16) {
        let detokenizer_count = self.sizes.detokenizer_count;
        self.discard_where(|id| id.detokenizer(detokenizer_count) == index);
        self.streams.forget(index);
    }

    /// Whether no request is here and nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.scheduler.is_empty() && !self.streams.owes()
    }

    /// Whether a consumer is owed events that its outbox did not take.
    pub fn owes(&self) -> bool {
        self.streams.owes()
    }
}

fn wish(id: RequestId, ports: &impl Ports) -> Option<Wish> {
    match ports.slot(id) {
        Some(state) if state.live && state.generation == id.generation => {
            if state.cancelled {
                Some(Wish::End(FinishReason::Cancelled))
            } else if state.stopped {
                Some(Wish::End(FinishReason::Stop))
            } else {
                None
            }
        }
        Some(_) | None => Some(Wish::Forget),
    }
}

/// A token outside the vocabulary would poison the sequence, so it fails the row.
fn result(outcome: RowOutcome, vocab_size: u32) -> RowResult {
    match outcome {
        RowOutcome::Token(token) if token < vocab_size => RowResult::Token(token),
        RowOutcome::Token(_) => RowResult::Failed(FaultCode::Internal),
        RowOutcome::None => RowResult::Computed,
        RowOutcome::NonFinite => RowResult::Failed(FaultCode::NonFinite),
    }
}

fn end_where(scheduler: &mut Scheduler, code: FaultCode, whose: impl Fn(RequestId) -> bool) -> usize {
    let ids: Vec<_> = scheduler.running().chain(scheduler.waiting()).filter(|&id| whose(id)).collect();
    ids.iter().filter(|&&id| scheduler.end(id, FinishReason::Failed(code))).count()
}
