//! Planning of the next step: grow block tables, preempt, start waiting requests, and share out the token budget.

use crate::Scheduler;
use crate::kv::blocks_for;
use crate::plan::{BlockCopy, PlanRow, StepPlan};
use crate::sequence::{Sequence, State};

/// One block in this many is reserved when a request starts beside others, so that these can cross a few block
/// boundaries before a preemption.
const ADMISSION_RESERVE_DIVISOR: u32 = 100;

impl Scheduler {
    /// Plans the next step: behind the outstanding one if there is one, before that one's tokens are known. `None` if
    /// there is nothing to launch now: nothing can run, or the outstanding step must be committed first because there
    /// are too few blocks (a sequence with an outstanding row is not preempted) or sampling needs a token in flight.
    ///
    /// # Panics
    /// If two plans are outstanding.
    pub fn plan(&mut self, now_ns: u64) -> Option<&StepPlan> {
        assert!(self.outstanding <= 1, "at most one plan is outstanding when the next is made");
        let behind = self.outstanding == 1;
        let grown = if behind { self.grow_behind()? } else { self.grow_all() };
        self.fill(grown, now_ns);
        if self.plan.rows.is_empty() {
            if behind {
                std::mem::swap(&mut self.plan, &mut self.earlier);
            }
            return None;
        }
        Some(&self.plan)
    }

    /// Gives every running sequence blocks for all its tokens; preempts as needed. Returns how many still run.
    fn grow_all(&mut self) -> usize {
        self.plan.preempted_count = 0;
        let mut grown = 0;
        while grown < self.running.len() {
            grown = self.grow(grown);
        }
        grown
    }

    /// The same behind an outstanding plan, which becomes the earlier one. `None` if that must be committed first.
    fn grow_behind(&mut self) -> Option<usize> {
        let mut running = self.running.iter().map(|&key| self.sequence(key));
        if running.any(|sequence| !sequence.completes() && sequence.waits_for_token()) {
            return None;
        }
        // Blocks taken before the pool ran out stay with their sequences, which need them in the next step anyway.
        let grown = self.running.len();
        if !(0..grown).all(|index| self.grow_freely(index)) {
            return None;
        }
        std::mem::swap(&mut self.plan, &mut self.earlier);
        (self.plan.step, self.plan.preempted_count) = (self.earlier.step, 0);
        Some(grown)
    }

    /// Fills the plan's rows. The first `grown` running sequences have blocks for all their tokens.
    fn fill(&mut self, grown: usize, now_ns: u64) {
        self.plan.rows.clear();
        self.plan.copies.clear();
        self.prefill_rows.clear();
        (self.plan.token_count, self.plan.score_count) = (0, 0);
        if self.budget.is_on() {
            let decodes = self.decode_work(grown);
            self.budget.begin(decodes);
        }
        let prefill_first = self.prefill_first();
        if !prefill_first {
            self.place_decodes(grown);
        }
        self.place_prefills();
        if prefill_first {
            self.place_decodes(grown);
        }

        self.plan.rows.extend_from_slice(&self.prefill_rows);
        self.note_cost();
        self.plan.oldest_waiting_ns = self.oldest_arrived_ns().map_or(0, |ns| now_ns.saturating_sub(ns));
        for index in 0..self.plan.rows.len() {
            let PlanRow { key, len, draw, .. } = self.plan.rows[index];
            let sequence = self.sequence_mut(key);
            sequence.computed += len;
            sequence.in_flight += u32::from(draw.is_some());
        }
        let filled = u32::from(!self.plan.rows.is_empty());
        self.plan.step += u64::from(filled);
        self.outstanding += filled;
    }

    /// Arrival time of the oldest waiting request: a preempted one, or the first one behind those.
    fn oldest_arrived_ns(&self) -> Option<u64> {
        let queue = self.waiting.iter().map(|&key| self.sequence(key));
        let preempted = queue.clone().take_while(|sequence| sequence.preemptions > 0).count();
        queue.take(preempted + 1).map(|sequence| sequence.arrived_ns).min()
    }

    /// Gives the running sequence at `index` blocks for all its tokens. Preempts as needed, possibly the sequence
    /// itself. Returns the index of the next sequence to grow.
    fn grow(&mut self, mut index: usize) -> usize {
        while !self.grow_freely(index) {
            let gone = self.preempt();
            if gone == index {
                assert!(!self.running.is_empty(), "a request that runs alone fits in the pool");
                return index;
            }
            index -= usize::from(gone < index);
        }
        index + 1
    }

    /// Gives the running sequence at `index` blocks for all its tokens without preemption. False if there are too few.
    fn grow_freely(&mut self, index: usize) -> bool {
        let key = self.running[index];
        let sequence = self.sequences[key as usize].as_mut().expect("a running key names a sequence");
        // The KV of a last token is never read.
        let needed = blocks_for(sequence.len(), self.limits.block_size) as usize;
        while !sequence.completes() && sequence.blocks.len() < needed {
            let Some(block) = self.pool.take() else { return false };
            sequence.blocks.push(block);
        }
        true
    }

    /// Preempts a running request: frees its blocks and puts it at the front of the queue. Returns its index before.
    fn preempt(&mut self) -> usize {
        let index = self.preemption_candidate().expect("a request that needs a block is running");
        let key = self.running.remove(index);
        self.release(key);
        let for_priority = self.runs_higher_than(self.sequence(key).claim.priority);
        let sequence = self.sequence_mut(key);
        sequence.computed = 0;
        sequence.preemptions += 1;
        sequence.priority_preemptions += u32::from(for_priority);
        let tenant = sequence.tenant;
        self.tenants.preempted(tenant);
        self.waiting.push_front(key);
        self.plan.preempted_count += 1;
        self.totals.preemptions += 1;
        index
    }

    /// Adds decode rows for the first `count` running sequences, as far as the budget allows.
    fn place_decodes(&mut self, count: usize) {
        for index in 0..count {
            let key = self.running[index];
            let sequence = self.sequence(key);
            if sequence.decodes() && !sequence.completes() && self.room() > 0 {
                let row = self.row_of(key, 1);
                self.plan.rows.push(row);
            }
        }
    }

    /// Adds prefill rows: for running sequences, then for waiting requests, which start with them.
    fn place_prefills(&mut self) {
        let rows_max = self.policy.prefill_rows_max.unwrap_or(u32::MAX) as usize;
        let mut next = 0;
        while self.room() > 0 && self.prefill_rows.len() < rows_max {
            let started = next == self.running.len();
            // A request starts only if it gets a row, and where in its prompt that begins is known afterwards.
            if started && !(self.budget.has_room(self.limits.max_model_len) && self.start_next()) {
                return;
            }
            let key = self.running[next];
            next += 1;
            let sequence = self.sequence(key);
            if sequence.completes() || sequence.decodes() && !started {
                continue;
            }
            let chunk_max = self.policy.prefill_chunk_tokens_max.unwrap_or(u32::MAX);
            let scored_max = if sequence.lacks_prompt_logprobs() { self.score_room() } else { u32::MAX };
            let room = self.room().saturating_sub(self.budget.deferred());
            let wanted = sequence.pending().min(chunk_max).min(room).min(scored_max);
            let start = sequence.computed;
            let len = self.budget.tokens(start, wanted);
            self.budget.take(start, len, wanted);
            if len > 0 {
                let row = self.row_of(key, len);
                self.prefill_rows.push(row);
            }
        }
    }

    /// Most tokens of a row that scores its prompt; at least one, so that every running sequence gets a row.
    fn score_room(&self) -> u32 {
        self.score_tokens_max.saturating_sub(self.plan.score_count).max(1)
    }

    /// Tokens left in the step's budget.
    fn room(&self) -> u32 {
        self.limits.max_num_batched_tokens - self.plan.token_count
    }

    /// Starts the next waiting request, with blocks for all its tokens: those in the prefix cache and new ones. False
    /// if there is none, if it does not fit, or if it should wait for a prefix that is being computed.
    fn start_next(&mut self) -> bool {
        let available = self.pool.available();
        if self.free_lanes.is_empty() || available == 0 {
            return false;
        }
        let Some(index) = self.pick() else { return false };
        let reserve = if self.running.is_empty() { 0 } else { self.pool.total() / ADMISSION_RESERVE_DIVISOR };
        let block_size = self.limits.block_size;
        let key = self.waiting[index];
        // It did not fit with as many blocks; skip the look-up. With an empty running set all blocks are available.
        if let State::Waiting { refused_at } = self.sequence(key).state
            && available <= refused_at
        {
            return false;
        }
        let tail = self.look_up(key);
        let sequence = self.sequence(key);
        let hits = sequence.blocks.len() as u32;
        if self.is_computed_by_another(sequence, hits * block_size + tail.map_or(0, |(_, tokens)| tokens)) {
            self.sequence_mut(key).blocks.clear();
            return false;
        }
        let cached_hits = hits - self.pool.held_of(&sequence.blocks);
        // One token more than it has: otherwise a full last block would cause a preemption in the next step.
        let soon = (sequence.len() + 1).min(sequence.length_max);
        if available - cached_hits < blocks_for(soon, block_size) - hits + reserve {
            let sequence = self.sequence_mut(key);
            sequence.blocks.clear();
            sequence.state = State::Waiting { refused_at: available };
            return false;
        }
        self.start(index, tail);
        true
    }

    /// Looks a waiting sequence up in the prefix cache: appends whole blocks to its table and returns (block, tokens)
    /// to copy the beginning of the next one from. Takes no references; the result is valid until a block is taken.
    fn look_up(&mut self, key: u32) -> Option<(u32, u32)> {
        let sequence = self.sequences[key as usize].as_mut().expect("a waiting key names a sequence");
        if sequence.lacks_prompt_logprobs() {
            return None;
        }
        self.pool.find_prefix(&sequence.ids, &mut sequence.blocks);
        if !self.policy.prefix_partial {
            return None;
        }
        let covered = sequence.blocks.len() * self.limits.block_size as usize;
        let rest = &sequence.ids[covered..sequence.ids.len() - 1];
        self.pool.find_tail(sequence.blocks.last().copied(), rest)
    }

    /// Whether a running prefill will register at least half of what this waiting request lacks, and at least a block.
    /// Then the request, and the queue behind it, waits for that prefill's first token. Running prefills take their
    /// tokens in the order of their starts, so the wait is bounded by their prompts.
    fn is_computed_by_another(&self, sequence: &Sequence, covered: u32) -> bool {
        let block_size = self.limits.block_size;
        if !(self.policy.prefix_cache && self.policy.prefix_wait) || sequence.lacks_prompt_logprobs() {
            return false;
        }
        let missing = sequence.len() - covered;
        let enough = covered + missing.div_ceil(2).max(block_size);
        // The last token is computed in any case.
        let ids = &sequence.ids[..sequence.ids.len() - 1];
        self.running.iter().map(|&key| self.sequence(key)).any(|other| {
            let may = other.will_share() && ids.len().min(other.ids.len()) >= enough as usize;
            let common = if may { ids.iter().zip(&other.ids).take_while(|(a, b)| a == b).count() } else { 0 };
            let common = common as u32;
            let shared = if self.policy.prefix_partial { common } else { common - common % block_size };
            shared >= enough
        })
    }

    /// Moves the waiting request at `index` into the running set. `look_up` has filled its table. Taking blocks may
    /// evict the block of `tail`, but its contents stay until the step begins.
    fn start(&mut self, index: usize, tail: Option<(u32, u32)>) {
        let block_size = self.limits.block_size;
        let key = self.waiting.remove(index).expect("it was picked from the queue");
        let sequence = self.sequences[key as usize].as_mut().expect("a waiting key names a sequence");
        let hits = sequence.blocks.len() as u32;
        sequence.copied_from = tail.and_then(|(from, _)| Some((from, self.pool.contents(from)?)));
        for &block in &sequence.blocks {
            self.pool.share(block);
        }
        for _ in hits..blocks_for(sequence.len(), block_size) {
            sequence.blocks.push(self.pool.take().expect("there are enough blocks"));
        }
        (sequence.registered, sequence.computed) = (hits, hits * block_size);
        if let Some((from, tokens)) = tail {
            self.plan.copies.push(BlockCopy { from, to: sequence.blocks[hits as usize], tokens });
            sequence.computed += tokens;
        }
        if sequence.preemptions == 0 {
            sequence.cached_tokens = sequence.computed.min(sequence.prompt_tokens);
            self.totals.prefix_query_tokens += u64::from(sequence.len());
            self.totals.prefix_hit_tokens += u64::from(sequence.computed);
            self.tenants.charge(sequence.tenant, sequence.len() - sequence.computed);
        }
        let lane = self.free_lanes.pop().expect("a request starts only with a free lane");
        sequence.state = State::Running { lane };
        self.tenants.started(sequence.tenant);
        self.running.push(key);
        self.totals.starts += 1;
    }

    /// A row of the next `len` tokens of a running sequence.
    fn row_of(&mut self, key: u32, len: u32) -> PlanRow {
        self.plan.token_count += len;
        let sequence = self.sequence_mut(key);
        let start = sequence.computed;
        let report = sequence.report(start, len);
        let row = PlanRow {
            id: sequence.id,
            key,
            ordinal: sequence.ordinal,
            lane: sequence.lane().expect("a running sequence has a lane"),
            start,
            len,
            draw: sequence.samples_after(len).then(|| sequence.len() - sequence.prompt_tokens),
            report_start: report.start,
            report_len: report.len() as u32,
            first: !std::mem::replace(&mut sequence.had_row, true),
        };
        self.plan.score_count += row.report_len;
        row
    }
}
