//! Admission, plan, commit and the ways out.

use crate::kv::{BlockPool, blocks_for};
use crate::plan::{Ended, Event, PlanRow, RowResult, RowView, StepPlan};
use crate::request::{Limits, Refusal, Request};
use crate::sequence::Sequence;
use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::{Fault, FaultCode, RequestId};
use std::collections::{HashMap, VecDeque};

/// One block in this many is kept back from newcomers while others run, so that they can cross a few block
/// boundaries before somebody has to be preempted.
const ADMISSION_RESERVE_DIVISOR: u32 = 100;

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Prompt tokens computed, repeated ones included.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Requests that left through the finished queue.
    pub finished: u64,
    /// Times a request gave its blocks back.
    pub preemptions: u64,
}

/// See the crate's head. `plan` and `commit` alternate; everything else may be called at any time.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) limits: Limits,
    pub(crate) pool: BlockPool,
    /// All requests, by key.
    pub(crate) sequences: Vec<Option<Sequence>>,
    pub(crate) free_keys: Vec<u32>,
    pub(crate) by_id: HashMap<RequestId, u32>,
    /// Keys in order of arrival. Every running request arrived before every waiting one.
    pub(crate) running: Vec<u32>,
    pub(crate) waiting: VecDeque<u32>,
    pub(crate) free_lanes: Vec<u32>,
    next_ordinal: u64,
    plan: StepPlan,
    /// Prefill rows of the plan in the making.
    prefill_rows: Vec<PlanRow>,
    /// Between a plan and its commit.
    planned: bool,
    events: Vec<Event>,
    finished: Vec<Ended>,
    totals: Totals,
}

impl Scheduler {
    /// An empty scheduler. All its tables have their final size from here on.
    ///
    /// # Panics
    /// If a limit is 0: they come from a checked configuration.
    pub fn new(limits: Limits) -> Self {
        assert!(limits.max_num_seqs > 0 && limits.max_num_batched_tokens > 0, "a step has room for a token");
        assert!(limits.block_size > 0 && limits.block_count > 0, "the KV pool is not empty");
        assert!(limits.max_requests > 0 && limits.max_model_len > 0, "a request fits");
        let (requests, running) = (limits.max_requests as usize, limits.running_max() as usize);
        Scheduler {
            limits,
            pool: BlockPool::new(limits.block_count),
            sequences: (0..requests).map(|_| None).collect(),
            free_keys: (0..limits.max_requests).rev().collect(),
            by_id: HashMap::with_capacity(requests),
            running: Vec::with_capacity(running),
            waiting: VecDeque::with_capacity(requests),
            free_lanes: (0..limits.running_max()).rev().collect(),
            next_ordinal: 0,
            plan: StepPlan { rows: Vec::with_capacity(running), ..StepPlan::default() },
            prefill_rows: Vec::with_capacity(running),
            planned: false,
            events: Vec::with_capacity(running),
            finished: Vec::with_capacity(requests),
            totals: Totals::default(),
        }
    }

    /// Takes a request into the queue. One that brings along all it could generate ends at once, through the finished
    /// queue like every other. This is the only place where a request's storage is allocated.
    ///
    /// # Errors
    /// [`Refusal`]: it is here already, it can never fit, or the queue is full. Nothing has changed then.
    pub fn admit(&mut self, request: Request, now_ns: u64) -> Result<(), Refusal> {
        if self.by_id.contains_key(&request.id) {
            return Err(Refusal::Duplicate);
        }
        let length_max = self.length_max(&request).map_err(Refusal::Fault)?;
        let Some(key) = self.free_keys.pop() else {
            let message = format!("the engine's queue of {} requests is full", self.limits.max_requests);
            return Err(Refusal::Fault(Fault::new(FaultCode::TooManyRequests, message)));
        };
        let Request { id, sampling, mut ids, prompt_tokens } = request;
        let resumed_tokens = ids.len() as u32 - prompt_tokens;
        ids.reserve_exact(length_max as usize - ids.len());
        let block_count = blocks_for(length_max, self.limits.block_size) as usize;
        let sequence = Sequence {
            id,
            sampling,
            ids,
            prompt_tokens,
            resumed_tokens,
            length_max,
            computed: 0,
            blocks: Vec::with_capacity(block_count),
            lane: None,
            ordinal: self.next_ordinal,
            arrived_ns: now_ns,
            scheduled_before: false,
            preemptions: 0,
        };
        self.next_ordinal += 1;
        let over = sequence.end(self.limits.eos);
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

    /// Fills the next step. The plan is empty when nothing can run.
    ///
    /// # Panics
    /// If the previous plan was not committed.
    pub fn plan(&mut self, now_ns: u64) -> &StepPlan {
        assert!(!self.planned, "each plan is committed before the next");
        self.plan.rows.clear();
        self.prefill_rows.clear();
        (self.plan.token_count, self.plan.preempted_count) = (0, 0);

        let decodes = self.running.iter().filter(|&&key| self.sequence(key).decodes()).count();
        let mut prefill_budget = self.limits.max_num_batched_tokens - decodes as u32;
        let mut next = 0;
        while next < self.running.len() {
            if !self.grow(next) {
                break; // It was the youngest, gave its own blocks back and is no longer in the set.
            }
            self.place(self.running[next], &mut prefill_budget);
            next += 1;
        }
        // Who was just preempted stands at the queue's head and does not fit: it needs all that it gave, and somebody
        // has taken some of that.
        while prefill_budget > 0 && self.start_next() {
            let youngest = *self.running.last().expect("a request has just started");
            self.place(youngest, &mut prefill_budget);
        }

        self.plan.rows.extend_from_slice(&self.prefill_rows);
        self.plan.step += u64::from(!self.plan.rows.is_empty());
        let oldest = self.waiting.front().map(|&key| self.sequence(key).arrived_ns);
        self.plan.oldest_waiting_ns = oldest.map_or(0, |arrived_ns| now_ns.saturating_sub(arrived_ns));
        self.planned = true;
        &self.plan
    }

    /// Gives the running sequence at `index` the blocks for all its tokens, at the cost of the youngest ones if need
    /// be. False if it was itself the youngest.
    fn grow(&mut self, index: usize) -> bool {
        let key = self.running[index];
        loop {
            let needed = blocks_for(self.sequence(key).len(), self.limits.block_size) as usize;
            if self.sequence(key).blocks.len() >= needed {
                return true;
            }
            match self.pool.take() {
                Some(block) => self.sequence_mut(key).blocks.push(block),
                None => {
                    self.preempt_youngest();
                    if index == self.running.len() {
                        assert!(index > 0, "a request that runs alone fits in the pool");
                        return false;
                    }
                }
            }
        }
    }

    /// The youngest running request gives everything back and waits at the head of the queue.
    fn preempt_youngest(&mut self) {
        let key = self.running.pop().expect("one who needs a block runs");
        self.release(key);
        let sequence = self.sequence_mut(key);
        sequence.computed = 0;
        sequence.preemptions += 1;
        self.waiting.push_front(key);
        self.plan.preempted_count += 1;
        self.totals.preemptions += 1;
    }

    /// Moves the head of the queue into the running set, with blocks for all its tokens. False if there is none, or
    /// no room for it.
    fn start_next(&mut self) -> bool {
        let Some(&key) = self.waiting.front() else { return false };
        let block_size = self.limits.block_size;
        let len = self.sequence(key).len();
        let reserve = if self.running.is_empty() { 0 } else { self.pool.total() / ADMISSION_RESERVE_DIVISOR };
        // One token more than it has: else a full last block would mean preemption in the very next step.
        if self.pool.free() < blocks_for(len + 1, block_size) + reserve {
            return false;
        }
        let Some(lane) = self.free_lanes.pop() else { return false };
        self.waiting.pop_front();
        self.running.push(key);
        for _ in 0..blocks_for(len, block_size) {
            let block = self.pool.take().expect("there are enough free blocks");
            self.sequence_mut(key).blocks.push(block);
        }
        self.sequence_mut(key).lane = Some(lane);
        true
    }

    /// Writes the row of a running sequence: its one decode token, or as much prefill as the budget has left.
    fn place(&mut self, key: u32, prefill_budget: &mut u32) {
        let sequence = self.sequences[key as usize].as_mut().expect("a running key names a sequence");
        let pending = sequence.pending();
        let decodes = sequence.decodes();
        let len = if decodes { 1 } else { pending.min(*prefill_budget) };
        if len == 0 {
            return;
        }
        let row = PlanRow {
            id: sequence.id,
            key,
            ordinal: sequence.ordinal,
            lane: sequence.lane.expect("a running sequence has a lane"),
            start: sequence.computed,
            len,
            draw: (len == pending).then(|| sequence.generated()),
            first: !sequence.scheduled_before,
        };
        sequence.scheduled_before = true;
        self.plan.token_count += len;
        if decodes {
            self.plan.rows.push(row);
        } else {
            *prefill_budget -= len;
            self.prefill_rows.push(row);
        }
    }

    /// The plan that waits for its commit, or the last one.
    pub fn current_plan(&self) -> &StepPlan {
        &self.plan
    }

    /// Tokens and blocks of a row of the current plan.
    ///
    /// # Panics
    /// If the row's request was discarded since.
    pub fn row(&self, row: &PlanRow) -> RowView<'_> {
        let sequence = self.sequence(row.key);
        assert_eq!(sequence.ordinal, row.ordinal, "a plan's rows are read before anything is discarded");
        RowView {
            tokens: &sequence.ids[row.start as usize..][..row.len as usize],
            ids: &sequence.ids,
            blocks: &sequence.blocks,
            sampling: &sequence.sampling,
            prompt_tokens: sequence.prompt_tokens,
        }
    }

    /// Applies what the model answered, one result per row of the plan, and gives the new tokens in row order. A
    /// result that does not fit its row ends that request with [`FaultCode::Internal`]. Rows of requests that ended
    /// since the plan are skipped.
    ///
    /// # Panics
    /// If there is no plan, or another number of results than rows.
    pub fn commit(&mut self, results: &[RowResult]) -> &[Event] {
        assert!(std::mem::take(&mut self.planned), "a commit follows a plan");
        assert_eq!(results.len(), self.plan.rows.len(), "one result per row");
        self.events.clear();
        for (index, result) in results.iter().enumerate() {
            let row = self.plan.rows[index];
            self.commit_row(&row, *result);
        }
        let sequences = &self.sequences;
        self.running.retain(|&key| sequences[key as usize].is_some());
        if cfg!(debug_assertions) {
            self.check();
        }
        &self.events
    }

    fn commit_row(&mut self, row: &PlanRow, result: RowResult) {
        let Some(sequence) = self.sequences[row.key as usize].as_mut().filter(|s| s.ordinal == row.ordinal)
        else {
            return;
        };
        let prompt_left = sequence.prompt_tokens.saturating_sub(row.start);
        self.totals.prompt_tokens += u64::from(row.len.min(prompt_left));
        sequence.computed = row.start + row.len;
        match (row.draw, result) {
            (Some(index), RowResult::Token(token)) => {
                sequence.ids.push(token);
                let end = sequence.end(self.limits.eos);
                self.events.push(Event {
                    id: row.id,
                    token,
                    sequence: index,
                    first: index == sequence.resumed_tokens,
                    last: end.is_some(),
                    eos: end == Some(FinishReason::Stop),
                });
                self.totals.generated_tokens += 1;
                if let Some(reason) = end {
                    self.leave(row.key, reason, true);
                }
            }
            (None, RowResult::Computed) => {}
            (_, RowResult::Failed(code)) => self.leave(row.key, FinishReason::Failed(code), false),
            (Some(_), RowResult::Computed) | (None, RowResult::Token(_)) => {
                self.leave(row.key, FinishReason::Failed(FaultCode::Internal), false);
            }
        }
    }

    /// Ends a request wherever it is; it leaves through the finished queue. False if it is not here (any more).
    pub fn end(&mut self, id: RequestId, reason: FinishReason) -> bool {
        let Some(key) = self.unlink(id) else { return false };
        self.leave(key, reason, false);
        true
    }

    /// Forgets a request wherever it is, even in the finished queue: nothing about it comes out after this. Does
    /// nothing if it is not here.
    pub fn discard(&mut self, id: RequestId) {
        self.finished.retain(|ended| ended.finished.id != id);
        if let Some(key) = self.unlink(id) {
            self.remove(key);
        }
    }

    /// The requests that ended since the last call, each exactly once in its life, in the order of their ends.
    pub fn drain_finished(&mut self) -> std::vec::Drain<'_, Ended> {
        self.finished.drain(..)
    }

    /// Takes a request out of the running set or the queue.
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
        self.finished.push(Ended { finished, preemptions, announced });
        self.totals.finished += 1;
    }

    fn remove(&mut self, key: u32) -> Sequence {
        self.release(key);
        let sequence = self.sequences[key as usize].take().expect("a key names a sequence");
        self.by_id.remove(&sequence.id);
        self.free_keys.push(key);
        sequence
    }

    /// Gives back the blocks and the lane of a sequence.
    fn release(&mut self, key: u32) {
        let sequence = self.sequences[key as usize].as_mut().expect("a key names a sequence");
        for block in sequence.blocks.drain(..) {
            self.pool.release(block);
        }
        self.free_lanes.extend(sequence.lane.take());
    }

    pub(crate) fn sequence(&self, key: u32) -> &Sequence {
        self.sequences[key as usize].as_ref().expect("a key names a sequence")
    }

    fn sequence_mut(&mut self, key: u32) -> &mut Sequence {
        self.sequences[key as usize].as_mut().expect("a key names a sequence")
    }

    /// Running requests, oldest first.
    pub fn running(&self) -> impl ExactSizeIterator<Item = RequestId> + '_ {
        self.running.iter().map(|&key| self.sequence(key).id)
    }

    /// Waiting requests, oldest first.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = RequestId> + '_ {
        self.waiting.iter().map(|&key| self.sequence(key).id)
    }

    /// Whether no request is here. The finished queue may still hold some that have ended.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// The block pool, to read its numbers.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Counts since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }
}
