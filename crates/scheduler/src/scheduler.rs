//! The scheduler, and every operation on it but planning: admit, commit, end and discard.

mod planning;

use crate::kv::BlockPool;
use crate::listing::CacheChange;
use crate::plan::{Ended, Event, PlanRow, Plans, RowResult, RowView, StepLoad, StepPlan};
use crate::policy::{Admission, Policy};
use crate::request::{Limits, Refusal, Request};
use crate::requests::Requests;
use crate::sequence::{Sequence, SequenceState};
use crate::step_budget::{StepBudget, StepTimes};
use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::{Fault, FaultCode, RequestId};

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Prompt tokens computed, repeated ones included.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Requests that left through the finished queue.
    pub finished: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Times a request entered the running set, including after a preemption.
    pub starts: u64,
    /// Tokens looked up in the prefix cache: those of each request at its first start.
    pub prefix_query_tokens: u64,
    /// How many of them it held.
    pub prefix_hit_tokens: u64,
    /// Drafts that were given a row.
    pub drafts: u64,
    /// Drafts that were sampled.
    pub accepted_drafts: u64,
}

/// See the crate's documentation. Each plan is committed, in order; at most one other may be made before that.
/// Everything else may be called at any time.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    policy: Policy,
    pool: BlockPool,
    requests: Requests,
    plans: Plans,
    /// Prefill rows of the plan being filled.
    prefill_rows: Vec<PlanRow>,
    /// Rows of drafts of the plan being filled.
    draft_rows: Vec<PlanRow>,
    /// Steps in a row, up to the last one, in which prefill came before decode.
    prefill_first_steps: u32,
    budget: StepBudget,
    /// Most prompt tokens that a step scores, not counting one per row.
    score_tokens_max: u32,
    events: Vec<Event>,
    finished: Vec<Ended>,
    totals: Totals,
}

impl Scheduler {
    /// An empty scheduler with the default [`Policy`].
    ///
    /// # Panics
    /// If a limit is 0. The configuration has checked them.
    pub fn new(limits: Limits) -> Self {
        Self::with_policy(limits, Policy::default())
    }

    /// An empty scheduler. Its tables have their final size from here on.
    ///
    /// # Panics
    /// If a limit is 0, or a window takes more than there is. The configuration has checked them.
    pub fn with_policy(limits: Limits, policy: Policy) -> Self {
        assert!(limits.max_num_seqs > 0 && limits.max_num_batched_tokens > 0, "a step has room for a token");
        assert!(limits.block_size > 0 && limits.block_count > 0, "the KV pool is not empty");
        assert!(limits.max_requests > 0 && limits.max_model_len > 0, "a request fits");
        let most = [policy.prefill_chunk_tokens_max, policy.prefill_rows_max];
        assert!(!most.contains(&Some(0)), "a prompt may be computed");
        let (block_count, block_size) = (limits.block_count, limits.block_size);
        let (running, rows) = (limits.running_max() as usize, policy.rows_max(&limits) as usize);
        Scheduler {
            limits,
            policy,
            pool: if policy.prefix_cache {
                BlockPool::with_prefix_cache(block_count, block_size)
            } else {
                BlockPool::new(block_count)
            }
            .with_windows(policy.window, block_size),
            requests: Requests::new(&limits),
            plans: Plans::new(rows),
            prefill_rows: Vec::with_capacity(running),
            draft_rows: Vec::with_capacity(rows),
            prefill_first_steps: 0,
            budget: StepBudget::new(policy.step_time),
            score_tokens_max: u32::MAX,
            events: Vec::with_capacity(rows),
            finished: Vec::with_capacity(limits.max_requests as usize),
            totals: Totals::default(),
        }
    }

    /// Limits the prompt tokens that one step scores, from the next plan on; each row still scores at least one.
    /// Scoring and its records slow a step down.
    pub fn limit_scores(&mut self, tokens_max: u32) {
        self.score_tokens_max = tokens_max;
    }

    /// Queues a request. A resumed request that is already complete ends at once, through the finished queue like every
    /// other. Allocates the request's storage; nothing else here allocates.
    ///
    /// # Errors
    /// [`Refusal`]: the request is a duplicate, can never fit, or the queue is full. Nothing changes then.
    pub fn admit(&mut self, request: Request, now_ns: u64) -> Result<(), Refusal> {
        let id = request.id;
        if self.requests.contains(id) {
            return Err(Refusal::Duplicate);
        }
        let length_max = self.limits.length_max(&request).map_err(Refusal::Fault)?;
        if self.requests.is_full() {
            let message = format!("the engine's queue of {} requests is full", self.limits.max_requests);
            return Err(Refusal::Fault(Fault::new(FaultCode::TooManyRequests, message)));
        }
        let (block_size, starts) = (self.limits.block_size, self.totals.starts);
        let sequence = self.requests.admit(request, length_max, block_size, now_ns, starts, &self.policy);
        let over = sequence.end(&self.limits.stop_ids).filter(|_| !sequence.wants_whole_prompt());
        if let Some(reason) = over {
            self.end(id, reason);
        }
        Ok(())
    }

    /// The last plan.
    pub fn current_plan(&self) -> &StepPlan {
        self.plans.last()
    }

    /// The plan that the next commit is for: the oldest outstanding one, else the last one.
    pub fn oldest_plan(&self) -> &StepPlan {
        self.plans.oldest()
    }

    /// Tokens and blocks of a row of the current plan.
    ///
    /// # Panics
    /// If the row's request has been discarded since.
    pub fn row(&self, row: &PlanRow) -> RowView<'_> {
        let sequence = self.requests.of_row(row);
        sequence.expect("a plan's rows are read before anything is discarded").view(row)
    }

    /// All ids of a row's request; `None` if it has ended since the plan.
    pub fn ids_of(&self, row: &PlanRow) -> Option<&[u32]> {
        self.requests.of_row(row).map(Sequence::ids)
    }

    /// Applies the model's results, one per row of the oldest outstanding plan, and returns the new tokens in row
    /// order. A result that does not fit its row ends that request with [`FaultCode::Internal`]. Rows of requests that
    /// ended since the plan are skipped, and those that stand on a draft that was not sampled.
    ///
    /// A request that ends here may have a row in the next plan, which was made ahead. That row is stale: its token is
    /// skipped, and its blocks are freed now although the row may still write to them. That is safe. A device runs
    /// steps in launch order, so the block's next holder writes later. A registered block is whole, and a row writes
    /// only behind whole blocks.
    ///
    /// # Panics
    /// If the numbers of results and rows differ.
    pub fn commit(&mut self, results: &[RowResult]) -> &[Event] {
        self.events.clear();
        let rows = if self.plans.outstanding() == 0 { 0 } else { self.plans.oldest().rows.len() };
        assert_eq!(results.len(), rows, "one result per row");
        let load = self.plans.oldest().load();
        for (index, result) in results.iter().enumerate() {
            let row = self.plans.oldest().rows[index];
            self.commit_row(index as u32, &row, *result, load);
        }
        self.plans.committed();
        self.requests.drop_removed();
        if cfg!(debug_assertions) {
            self.check();
        }
        &self.events
    }

    fn commit_row(&mut self, index_in_plan: u32, row: &PlanRow, result: RowResult, load: StepLoad) {
        let Some(sequence) = self.requests.of_row_mut(row).filter(|sequence| sequence.stands(row)) else {
            return;
        };
        let prompt_left = sequence.prompt_tokens().saturating_sub(row.start);
        self.totals.prompt_tokens += u64::from(row.len.min(prompt_left));
        sequence.land(row, load, matches!(result, RowResult::Failed(_)));
        match (row.draw, result) {
            (Some(index), RowResult::Token(token)) => {
                let was_draft = sequence.push(token);
                sequence.register(row.start + row.len, self.policy.prefix_partial, &mut self.pool);
                let end = sequence.end(&self.limits.stop_ids);
                self.events.push(Event {
                    id: row.id,
                    row: index_in_plan,
                    token,
                    sequence: index,
                    of_draft: row.draft > 0,
                    first: sequence.is_first(index),
                    last: end.is_some(),
                    eos: end == Some(FinishReason::Stop),
                });
                self.totals.generated_tokens += 1;
                self.totals.accepted_drafts += u64::from(was_draft);
                let tenant = sequence.arrival().tenant;
                self.requests.charge(tenant, 1);
                if let Some(reason) = end {
                    self.leave(row.key, reason, true);
                }
            }
            (None, RowResult::Computed) => {
                // A request that generates nothing ends when its prompt is complete.
                if sequence.is_over() {
                    self.leave(row.key, FinishReason::Length, false);
                }
            }
            (Some(_), RowResult::Again) => sequence.again(),
            (Some(_), RowResult::Complete) => self.leave(row.key, FinishReason::Stop, false),
            (_, RowResult::Failed(code)) => {
                if code == FaultCode::NonFinite {
                    sequence.forget(&mut self.pool);
                }
                self.leave(row.key, FinishReason::Failed(code), false);
            }
            (Some(_), RowResult::Computed)
            | (None, RowResult::Token(_) | RowResult::Again | RowResult::Complete) => {
                self.leave(row.key, FinishReason::Failed(FaultCode::Internal), false);
            }
        }
    }

    /// Empties the prefix cache. Current requests are not affected.
    pub fn clear_prefix_cache(&mut self) {
        self.pool.clear_cache();
    }

    /// Lists the changes of the prefix cache from here on. To be called before the first request.
    pub fn list_cache_changes(&mut self) {
        self.pool.list_changes();
    }

    /// The reader of the changes knows nothing: it is told everything anew.
    pub fn repeat_cache_changes(&mut self) {
        self.pool.repeat_changes();
    }

    /// The next change of the prefix cache, which counts as told. Changes wait until they are asked for, never more
    /// than two for each block; what comes and goes meanwhile is not told.
    pub fn next_cache_change(&mut self) -> Option<CacheChange<'_>> {
        self.pool.next_change()
    }

    /// Ends a running or waiting request; it leaves through the finished queue. False if there is no such request.
    pub fn end(&mut self, id: RequestId, reason: FinishReason) -> bool {
        let Some(key) = self.requests.unlink(id) else { return false };
        self.leave(key, reason, false);
        true
    }

    /// Removes a request, also from the finished queue: nothing is reported about it after this. Does nothing if there
    /// is no such request.
    pub fn discard(&mut self, id: RequestId) {
        self.finished.retain(|ended| ended.finished.id != id);
        if let Some(key) = self.requests.unlink(id) {
            self.requests.remove(key, &mut self.pool);
        }
    }

    /// The requests that ended since the last call, in that order. Each request appears exactly once.
    pub fn drain_finished(&mut self) -> std::vec::Drain<'_, Ended> {
        self.finished.drain(..)
    }

    fn leave(&mut self, key: u32, reason: FinishReason, announced: bool) {
        let sequence = self.requests.remove(key, &mut self.pool);
        self.finished.push(sequence.ended(reason, announced));
        self.totals.finished += 1;
    }

    /// The oldest outstanding step, which is about to be committed, took this long. Nothing else may be in that time.
    pub fn measured(&mut self, took_ns: u64) {
        if self.plans.outstanding() > 0 {
            self.budget.measured(self.plans.oldest(), took_ns);
        }
    }

    /// How well predicted step times fit; `None` with [`crate::StepTime::Unbounded`].
    pub fn step_times(&self) -> Option<StepTimes> {
        self.budget.times()
    }

    /// Tokens of the row's prompt that came from the prefix cache.
    pub fn cached_tokens(&self, row: &PlanRow) -> u32 {
        self.requests.get(row.key).cached_tokens()
    }

    /// Running requests in the order of their starts.
    pub fn running(&self) -> impl ExactSizeIterator<Item = RequestId> + '_ {
        self.requests.running().map(|sequence| sequence.arrival().id)
    }

    /// Waiting requests: the preempted ones, then the others in the order of arrival.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = RequestId> + '_ {
        self.requests.waiting().map(|sequence| sequence.arrival().id)
    }

    /// Every request that runs or waits, with how far it is.
    pub fn states(&self) -> impl Iterator<Item = (RequestId, SequenceState)> + '_ {
        let sequences = self.requests.running().chain(self.requests.waiting());
        sequences.map(|sequence| (sequence.arrival().id, sequence.summary()))
    }

    /// Whether no request runs or waits. The finished queue may still hold some that have ended.
    pub fn is_empty(&self) -> bool {
        self.requests.running_count() + self.requests.waiting_count() == 0
    }

    /// The block pool, for its counts.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Counts since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Checks all invariants. Runs after each commit in debug builds. O(requests + blocks).
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&mut self) {
        self.requests.check(self.policy.admission == Admission::Fifo, self.plans.outstanding());
        self.pool.check(self.requests.live().map(Sequence::blocks));
        self.pool.check_windows(self.requests.live().map(|sequence| sequence.table().windows()));
    }
}
