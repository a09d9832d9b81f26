//! The scheduler's tables, and every operation on them but planning: admit, commit, end and discard.

use crate::kv::{BlockPool, blocks_for};
use crate::plan::{Company, Ended, Event, PlanRow, RowResult, RowView, StepLoad, StepPlan};
use crate::policy::Policy;
use crate::request::{Limits, Refusal, Request};
use crate::sequence::{Progress, Sequence, SequenceState, State};
use crate::step_budget::StepBudget;
use crate::tenants::Tenants;
use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::{Fault, FaultCode, RequestId};
use std::collections::{HashMap, VecDeque};

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
}

/// See the crate's documentation. Each plan is committed, in order; at most one other may be made before that.
/// Everything else may be called at any time.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) limits: Limits,
    pub(crate) policy: Policy,
    pub(crate) pool: BlockPool,
    /// All requests, by key.
    pub(crate) sequences: Vec<Option<Sequence>>,
    pub(crate) free_keys: Vec<u32>,
    pub(crate) by_id: HashMap<RequestId, u32>,
    /// Keys in the order in which they started.
    pub(crate) running: Vec<u32>,
    /// Keys: first the preempted requests in the order of their starts, then the others in the order of arrival.
    pub(crate) waiting: VecDeque<u32>,
    pub(crate) free_lanes: Vec<u32>,
    pub(crate) tenants: Tenants,
    /// Requests with a priority other than 0.
    pub(crate) ranked: u32,
    /// Whether requests have ever differed in priority or tenant.
    pub(crate) mixed: bool,
    next_ordinal: u64,
    /// The last plan.
    pub(crate) plan: StepPlan,
    /// The plan before it, if both are outstanding.
    pub(crate) earlier: StepPlan,
    /// Plans without a commit yet: 0, 1 or 2.
    pub(crate) outstanding: u32,
    /// Prefill rows of the plan being filled.
    pub(crate) prefill_rows: Vec<PlanRow>,
    /// Steps in a row, up to the last one, in which prefill came before decode.
    pub(crate) prefill_first_steps: u32,
    pub(crate) budget: StepBudget,
    /// Most prompt tokens that a step scores, not counting one per row.
    pub(crate) score_tokens_max: u32,
    events: Vec<Event>,
    finished: Vec<Ended>,
    pub(crate) totals: Totals,
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
    /// If a limit is 0. The configuration has checked them.
    pub fn with_policy(limits: Limits, policy: Policy) -> Self {
        assert!(limits.max_num_seqs > 0 && limits.max_num_batched_tokens > 0, "a step has room for a token");
        assert!(limits.block_size > 0 && limits.block_count > 0, "the KV pool is not empty");
        assert!(limits.max_requests > 0 && limits.max_model_len > 0, "a request fits");
        let most = [policy.prefill_chunk_tokens_max, policy.prefill_rows_max];
        assert!(!most.contains(&Some(0)), "a prompt may be computed");
        let (block_count, block_size) = (limits.block_count, limits.block_size);
        let (requests, running) = (limits.max_requests as usize, limits.running_max() as usize);
        Scheduler {
            limits,
            policy,
            pool: if policy.prefix_cache {
                BlockPool::with_prefix_cache(block_count, block_size)
            } else {
                BlockPool::new(block_count)
            },
            sequences: (0..requests).map(|_| None).collect(),
            free_keys: (0..limits.max_requests).rev().collect(),
            by_id: HashMap::with_capacity(requests),
            running: Vec::with_capacity(running),
            waiting: VecDeque::with_capacity(requests),
            free_lanes: (0..limits.running_max()).rev().collect(),
            tenants: Tenants::new(limits.max_requests),
            ranked: 0,
            mixed: false,
            next_ordinal: 0,
            plan: StepPlan::with_capacity(running),
            earlier: StepPlan::with_capacity(running),
            outstanding: 0,
            prefill_rows: Vec::with_capacity(running),
            prefill_first_steps: 0,
            budget: StepBudget::new(policy.step_time),
            score_tokens_max: u32::MAX,
            events: Vec::with_capacity(running),
            finished: Vec::with_capacity(requests),
            totals: Totals::default(),
        }
    }

    /// Limits the prompt tokens that one step scores, from the next plan on; each row still scores at least one.
    /// Scoring and its records slow a step down.
    pub fn limit_scores(&mut self, tokens_max: u32) {
        self.score_tokens_max = tokens_max;
    }

    /// Queues a request. A resumed request that is already complete ends at once, through the finished queue like every
    /// other. This is the only place that allocates a request's storage.
    ///
    /// # Errors
    /// [`Refusal`]: the request is a duplicate, can never fit, or the queue is full. Nothing changes then.
    pub fn admit(&mut self, request: Request, now_ns: u64) -> Result<(), Refusal> {
        if self.by_id.contains_key(&request.id) {
            return Err(Refusal::Duplicate);
        }
        let length_max = self.length_max(&request).map_err(Refusal::Fault)?;
        let Some(key) = self.free_keys.pop() else {
            let message = format!("the engine's queue of {} requests is full", self.limits.max_requests);
            return Err(Refusal::Fault(Fault::new(FaultCode::TooManyRequests, message)));
        };
        let Request { id, claim, sampling, mut ids, prompt_tokens } = request;
        let resumed_tokens = ids.len() as u32 - prompt_tokens;
        // A resumed request has reported its prompt before.
        let asks = sampling.prompt_logprobs.is_some() && resumed_tokens == 0;
        ids.reserve_exact(length_max as usize - ids.len());
        let block_count = blocks_for(length_max, self.limits.block_size) as usize;
        let sequence = Sequence {
            id,
            claim,
            tenant: self.tenants.enter(claim.tenant, claim.weight),
            sampling,
            ids,
            prompt_tokens,
            resumed_tokens,
            length_max,
            computed: 0,
            in_flight: 0,
            blocks: Vec::with_capacity(block_count),
            registered: 0,
            copied_from: None,
            progress: Progress::Prefill,
            cached_tokens: 0,
            reported: if asks { 0 } else { prompt_tokens },
            state: State::Waiting { refused_at: 0 },
            ordinal: self.next_ordinal,
            starts_before: self.totals.starts,
            arrived_ns: now_ns,
            had_row: false,
            preemptions: 0,
            priority_preemptions: 0,
            company: Company::default(),
        };
        self.next_ordinal += 1;
        self.ranked += u32::from(claim.priority != 0);
        self.mixed |= self.ranked > 0 || self.tenants.live() > 1;
        let over = sequence.end(&self.limits.stop_ids).filter(|_| !sequence.lacks_prompt_logprobs());
        self.sequences[key as usize] = Some(sequence);
        self.by_id.insert(id, key);
        self.waiting.push_back(key);
        if let Some(reason) = over {
            self.end(id, reason);
        }
        Ok(())
    }

    /// The length at which a request ends, if it can run at all.
    fn length_max(&self, request: &Request) -> Result<u32, Fault> {
        let limits = &self.limits;
        let (prompt, ids) = (u64::from(request.prompt_tokens), request.ids.len() as u64);
        if prompt == 0 || prompt > ids {
            return Err(Fault::new(FaultCode::Internal, "an admitted request has no prompt"));
        }
        let context = u64::from(limits.max_model_len);
        let pool = u64::from(limits.block_count) * u64::from(limits.block_size);
        let too_long = |message: String| Err(Fault::new(FaultCode::ContextLengthExceeded, message));
        let wanted = match request.sampling.max_tokens {
            Some(max_tokens) => prompt + u64::from(max_tokens),
            None => context.min(pool).max(prompt + 1),
        };
        if wanted > context {
            return too_long(format!("prompt and output need {wanted} tokens; the context holds {context}"));
        }
        if wanted > pool {
            return too_long(format!("prompt and output need {wanted} tokens; the KV cache holds {pool}"));
        }
        if ids > wanted {
            let message = format!("{ids} prompt and resumed tokens are more than the {wanted} asked for");
            return Err(Fault::new(FaultCode::Internal, message));
        }
        Ok(wanted as u32)
    }

    /// The last plan.
    pub fn current_plan(&self) -> &StepPlan {
        &self.plan
    }

    /// The plan that the next commit is for: the oldest outstanding one, else the last one.
    pub fn oldest_plan(&self) -> &StepPlan {
        if self.outstanding == 2 { &self.earlier } else { &self.plan }
    }

    /// Tokens and blocks of a row of the current plan.
    ///
    /// # Panics
    /// If the row's request has been discarded since.
    pub fn row(&self, row: &PlanRow) -> RowView<'_> {
        let sequence = self.sequence(row.key);
        assert_eq!(sequence.ordinal, row.ordinal, "a plan's rows are read before anything is discarded");
        let known = sequence.ids.len();
        let end = known.min((row.start + row.len) as usize);
        RowView {
            tokens: &sequence.ids[known.min(row.start as usize)..end],
            ids: &sequence.ids,
            blocks: &sequence.blocks,
            sampling: &sequence.sampling,
            prompt_tokens: sequence.prompt_tokens,
        }
    }

    /// All ids of a row's request; `None` if it has ended since the plan.
    pub fn ids_of(&self, row: &PlanRow) -> Option<&[u32]> {
        let sequence = self.sequences[row.key as usize].as_ref();
        sequence.filter(|sequence| sequence.ordinal == row.ordinal).map(|sequence| sequence.ids.as_slice())
    }

    /// Applies the model's results, one per row of the oldest outstanding plan, and returns the new tokens in row
    /// order. A result that does not fit its row ends that request with [`FaultCode::Internal`]. Rows of requests that
    /// ended since the plan are skipped.
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
        let rows = if self.outstanding == 0 { 0 } else { self.oldest_plan().rows.len() };
        assert_eq!(results.len(), rows, "one result per row");
        let load = self.oldest_plan().load();
        for (index, result) in results.iter().enumerate() {
            let row = self.oldest_plan().rows[index];
            self.commit_row(index as u32, &row, *result, load);
        }
        self.outstanding = self.outstanding.saturating_sub(1);
        let sequences = &self.sequences;
        self.running.retain(|&key| sequences[key as usize].is_some());
        if cfg!(debug_assertions) {
            self.check();
        }
        &self.events
    }

    fn commit_row(&mut self, index_in_plan: u32, row: &PlanRow, result: RowResult, load: StepLoad) {
        let Some(sequence) = self.sequences[row.key as usize].as_mut().filter(|s| s.ordinal == row.ordinal)
        else {
            return;
        };
        let prompt_left = sequence.prompt_tokens.saturating_sub(row.start);
        self.totals.prompt_tokens += u64::from(row.len.min(prompt_left));
        sequence.in_flight -= u32::from(row.draw.is_some());
        sequence.company.join(load);
        if row.report_len > 0 && !matches!(result, RowResult::Failed(_)) {
            sequence.reported = row.report().end;
        }
        match (row.draw, result) {
            (Some(index), RowResult::Token(token)) => {
                sequence.ids.push(token);
                let end = sequence.end(&self.limits.stop_ids);
                self.events.push(Event {
                    id: row.id,
                    row: index_in_plan,
                    token,
                    sequence: index,
                    first: index == sequence.resumed_tokens,
                    last: end.is_some(),
                    eos: end == Some(FinishReason::Stop),
                });
                self.totals.generated_tokens += 1;
                self.tenants.charge(sequence.tenant, 1);
                self.register(row.key, row.start + row.len);
                if let Some(reason) = end {
                    self.leave(row.key, reason, true);
                }
            }
            (None, RowResult::Computed) => {
                // The request generates nothing; its prompt is complete.
                if sequence.ids.len() as u32 >= sequence.length_max && !sequence.lacks_prompt_logprobs() {
                    self.leave(row.key, FinishReason::Length, false);
                }
            }
            (Some(_), RowResult::Again) => {
                sequence.computed -= 1;
                if sequence.progress == Progress::Prefill {
                    sequence.progress = Progress::AwaitingMask;
                }
            }
            (Some(_), RowResult::Complete) => self.leave(row.key, FinishReason::Stop, false),
            (_, RowResult::Failed(code)) => {
                if code == FaultCode::NonFinite {
                    self.forget(row.key);
                }
                self.leave(row.key, FinishReason::Failed(code), false);
            }
            (Some(_), RowResult::Computed)
            | (None, RowResult::Token(_) | RowResult::Again | RowResult::Complete) => {
                self.leave(row.key, FinishReason::Failed(FaultCode::Internal), false);
            }
        }
    }

    /// Registers the whole blocks of the first `computed` tokens in the prefix cache. Called only after a token was
    /// sampled from them: the token depends on all KV before it, so no non-finite value is registered.
    fn register(&mut self, key: u32, computed: u32) {
        let sequence = self.sequences[key as usize].as_mut().expect("a key names a sequence");
        let block_size = self.limits.block_size as usize;
        let whole = computed as usize / block_size;
        for index in sequence.registered as usize..whole {
            let before = index.checked_sub(1).map(|before| sequence.blocks[before]);
            let tokens = &sequence.ids[index * block_size..][..block_size];
            sequence.blocks[index] = self.pool.register(sequence.blocks[index], before, tokens);
        }
        sequence.registered = sequence.registered.max(whole as u32);
        let before = std::mem::replace(&mut sequence.progress, Progress::Sampled);
        if before != Progress::Sampled && self.policy.prefix_partial {
            let tail = &sequence.ids[whole * block_size..computed as usize];
            let before = whole.checked_sub(1).map(|before| sequence.blocks[before]);
            if let Some(&block) = sequence.blocks.get(whole) {
                self.pool.register_tail(block, before, tail);
            }
        }
    }

    /// Takes a request's blocks out of the prefix cache: it had a non-finite value, which may be in any of them.
    fn forget(&mut self, key: u32) {
        let sequence = self.sequences[key as usize].as_ref().expect("a key names a sequence");
        let copied =
            sequence.copied_from.filter(|&(block, contents)| self.pool.contents(block) == Some(contents));
        // Has no effect on blocks that are not registered.
        for block in sequence.blocks.iter().copied().chain(copied.map(|(block, _)| block)) {
            self.pool.forget(block);
        }
    }

    /// Empties the prefix cache. Current requests are not affected.
    pub fn clear_prefix_cache(&mut self) {
        self.pool.clear_cache();
    }

    /// Ends a running or waiting request; it leaves through the finished queue. False if there is no such request.
    pub fn end(&mut self, id: RequestId, reason: FinishReason) -> bool {
        let Some(key) = self.unlink(id) else { return false };
        self.leave(key, reason, false);
        true
    }

    /// Removes a request, also from the finished queue: nothing is reported about it after this. Does nothing if there
    /// is no such request.
    pub fn discard(&mut self, id: RequestId) {
        self.finished.retain(|ended| ended.finished.id != id);
        if let Some(key) = self.unlink(id) {
            self.remove(key);
        }
    }

    /// The requests that ended since the last call, in that order. Each request appears exactly once.
    pub fn drain_finished(&mut self) -> std::vec::Drain<'_, Ended> {
        self.finished.drain(..)
    }

    /// Removes a request from the running set or the queue.
    fn unlink(&mut self, id: RequestId) -> Option<u32> {
        let key = *self.by_id.get(&id)?;
        if let Some(index) = self.running.iter().position(|&running| running == key) {
            self.running.remove(index);
        } else if let Some(index) = self.waiting.iter().position(|&waiting| waiting == key) {
            self.waiting.remove(index);
        }
        Some(key)
    }

    fn leave(&mut self, key: u32, reason: FinishReason, announced: bool) {
        let sequence = self.remove(key);
        let (finished, preemptions) = (sequence.finished(reason), sequence.preemptions);
        self.finished.push(Ended { finished, preemptions, company: sequence.company, announced });
        self.totals.finished += 1;
    }

    fn remove(&mut self, key: u32) -> Sequence {
        let waited = self.sequence(key).is_waiting();
        self.release(key);
        let sequence = self.sequences[key as usize].take().expect("a key names a sequence");
        self.by_id.remove(&sequence.id);
        self.tenants.leave(sequence.tenant, waited);
        self.ranked -= u32::from(sequence.claim.priority != 0);
        self.free_keys.push(key);
        sequence
    }

    /// Frees a sequence's blocks and lane; it then counts as waiting.
    pub(crate) fn release(&mut self, key: u32) {
        let sequence = self.sequences[key as usize].as_mut().expect("a key names a sequence");
        for block in sequence.blocks.drain(..).rev() {
            self.pool.release(block);
        }
        (sequence.registered, sequence.copied_from) = (0, None);
        sequence.progress = Progress::Prefill;
        self.free_lanes.extend(sequence.lane());
        sequence.state = State::Waiting { refused_at: 0 };
    }

    /// Tokens of the row's prompt that came from the prefix cache.
    pub fn cached_tokens(&self, row: &PlanRow) -> u32 {
        self.sequence(row.key).cached_tokens
    }

    pub(crate) fn sequence(&self, key: u32) -> &Sequence {
        self.sequences[key as usize].as_ref().expect("a key names a sequence")
    }

    pub(crate) fn sequence_mut(&mut self, key: u32) -> &mut Sequence {
        self.sequences[key as usize].as_mut().expect("a key names a sequence")
    }

    /// Running requests in the order of their starts.
    pub fn running(&self) -> impl ExactSizeIterator<Item = RequestId> + '_ {
        self.running.iter().map(|&key| self.sequence(key).id)
    }

    /// Waiting requests: the preempted ones, then the others in the order of arrival.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = RequestId> + '_ {
        self.waiting.iter().map(|&key| self.sequence(key).id)
    }

    /// Every request that runs or waits, with how far it is.
    pub fn states(&self) -> impl Iterator<Item = (RequestId, SequenceState)> + '_ {
        self.running
            .iter()
            .chain(&self.waiting)
            .map(|&key| (self.sequence(key).id, self.sequence(key).summary()))
    }

    /// Whether no request runs or waits. The finished queue may still hold some that have ended.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// The block pool, for its counts.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Counts since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }
}
