//! The next step: who grows, who gives way, who starts, and how many tokens each one gets.

use crate::Scheduler;
use crate::kv::blocks_for;
use crate::plan::{BlockCopy, PlanRow, StepPlan};
use crate::sequence::Sequence;

/// One block in this many is kept back from newcomers while others run, so that they can cross a few block
/// boundaries before somebody has to be preempted.
const ADMISSION_RESERVE_DIVISOR: u32 = 100;

impl Scheduler {
    /// Fills the next step. The plan is empty, and needs no commit, when nothing can run.
    ///
    /// # Panics
    /// If a plan is outstanding.
    pub fn plan(&mut self, now_ns: u64) -> &StepPlan {
        assert_eq!(self.outstanding, 0, "each plan is committed before the next; see plan_ahead");
        self.plan.preempted_count = 0;
        let mut grown = 0;
        while grown < self.running.len() {
            grown = self.grow(grown);
        }
        self.fill(grown, now_ns);
        &self.plan
    }

    /// Fills the step after the outstanding one, before that one's tokens are known: its rows may stand on a token
    /// that the outstanding step draws. `None` if that one must be committed first: nothing else can run, or blocks run
    /// short (whoever has an outstanding row is not preempted), or a draw needs a token that is not here yet.
    ///
    /// # Panics
    /// If not exactly one plan is outstanding.
    pub fn plan_ahead(&mut self, now_ns: u64) -> Option<&StepPlan> {
        assert_eq!(self.outstanding, 1, "one plan is outstanding");
        let mut running = self.running.iter().map(|&key| self.sequence(key));
        if running.any(|sequence| !sequence.completes() && sequence.waits_for_token()) {
            return None;
        }
        // Blocks taken before the pool ran dry stay with their sequences, which need them in the next step anyway.
        let grown = self.running.len();
        if !(0..grown).all(|index| self.grow_freely(index)) {
            return None;
        }
        std::mem::swap(&mut self.plan, &mut self.earlier);
        (self.plan.step, self.plan.preempted_count) = (self.earlier.step, 0);
        self.fill(grown, now_ns);
        if self.plan.rows.is_empty() {
            std::mem::swap(&mut self.plan, &mut self.earlier);
            return None;
        }
        Some(&self.plan)
    }

    /// Makes the rows of the plan. The first `grown` running sequences have the blocks for all their tokens.
    fn fill(&mut self, grown: usize, now_ns: u64) {
        self.plan.rows.clear();
        self.plan.copies.clear();
        self.prefill_rows.clear();
        (self.plan.token_count, self.plan.score_count) = (0, 0);
        let prefill_first = self.prefill_first();
        if !prefill_first {
            self.place_decodes(grown);
        }
        self.place_prefills();
        if prefill_first {
            self.place_decodes(grown);
        }

        self.plan.rows.extend_from_slice(&self.prefill_rows);
        self.plan.oldest_waiting_ns = self.oldest_arrived_ns().map_or(0, |ns| now_ns.saturating_sub(ns));
        for index in 0..self.plan.rows.len() {
            let PlanRow { key, len, draw, .. } = self.plan.rows[index];
            let sequence = self.sequence_mut(key);
            sequence.computed += len;
            sequence.drawing += u32::from(draw.is_some());
        }
        let filled = u32::from(!self.plan.rows.is_empty());
        self.plan.step += u64::from(filled);
        self.outstanding += filled;
    }

    /// When the oldest waiting request arrived: the first behind the preempted ones, or one of those.
    fn oldest_arrived_ns(&self) -> Option<u64> {
        let queue = self.waiting.iter().map(|&key| self.sequence(key));
        let preempted = queue.clone().take_while(|sequence| sequence.preemptions > 0).count();
        queue.take(preempted + 1).map(|sequence| sequence.arrived_ns).min()
    }

    /// Gives the running sequence at `index` the blocks for all its tokens, at the cost of less important ones if need
    /// be, which may be itself. Gives the place of the next one to grow.
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

    /// Gives the running sequence at `index` the blocks for all its tokens, as far as there are any. False if there are
    /// too few.
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

    /// The least important running request gives everything back and waits at the head of the queue. Gives the place
    /// that it had.
    fn preempt(&mut self) -> usize {
        let index = self.victim().expect("one who needs a block runs");
        let key = self.running.remove(index);
        self.release(key);
        let outranked = self.is_outranked(self.sequence(key).claim.priority);
        let sequence = self.sequence_mut(key);
        sequence.computed = 0;
        sequence.preemptions += 1;
        sequence.outranked += u32::from(outranked);
        let tenant = sequence.tenant;
        self.tenants.preempted(tenant);
        self.waiting.push_front(key);
        self.plan.preempted_count += 1;
        self.totals.preemptions += 1;
        index
    }

    /// Rows for those of the first `count` running sequences that lack one token, as far as the step has room.
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

    /// Prefill rows: of who runs, then of waiting requests, which start with them.
    fn place_prefills(&mut self) {
        let rows_max = self.policy.prefill_rows_max.unwrap_or(u32::MAX) as usize;
        let mut next = 0;
        while self.room() > 0 && self.prefill_rows.len() < rows_max {
            let started = next == self.running.len();
            if started && !self.start_next() {
                return;
            }
            let key = self.running[next];
            next += 1;
            let sequence = self.sequence(key);
            if sequence.completes() || sequence.decodes() && !started {
                continue;
            }
            let chunk_max = self.policy.prefill_chunk_tokens_max.unwrap_or(u32::MAX);
            let owed_max = if sequence.owes_prompt_logprobs() { self.score_room() } else { u32::MAX };
            let len = sequence.pending().min(chunk_max).min(self.room()).min(owed_max);
            let row = self.row_of(key, len);
            self.prefill_rows.push(row);
        }
    }

    /// Tokens that a row may have that reports logprobs of its prompt: one at least, so that nobody who runs is left out.
    fn score_room(&self) -> u32 {
        self.score_tokens_max.saturating_sub(self.plan.score_count).max(1)
    }

    /// Tokens that the step still takes.
    fn room(&self) -> u32 {
        self.limits.max_num_batched_tokens - self.plan.token_count
    }

    /// Moves the next waiting request into the running set, with blocks for all its tokens: those that the prefix cache
    /// has, and new ones. False if there is none, or no room for it, or if it does better to wait.
    fn start_next(&mut self) -> bool {
        let available = self.pool.available();
        if self.free_lanes.is_empty() || available == 0 {
            return false;
        }
        let Some(index) = self.pick() else { return false };
        let reserve = if self.running.is_empty() { 0 } else { self.pool.total() / ADMISSION_RESERVE_DIVISOR };
        let block_size = self.limits.block_size;
        let key = self.waiting[index];
        // Not worth a look into the cache. When nobody runs any more, all blocks are available: more than then.
        if available <= self.sequence(key).refused_at {
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
        // One token more than it has: else a full last block would mean preemption in the very next step.
        let soon = (sequence.len() + 1).min(sequence.length_max);
        if available - cached_hits < blocks_for(soon, block_size) - hits + reserve {
            let sequence = self.sequence_mut(key);
            sequence.blocks.clear();
            sequence.refused_at = available;
            return false;
        }
        self.start(index, tail);
        true
    }

    /// Puts the blocks that the prefix cache has of a waiting sequence into its table, and gives the one that the beginning
    /// of the next can be copied from. Takes no reference: what was found stands until a block is taken.
    fn look_up(&mut self, key: u32) -> Option<(u32, u32)> {
        let sequence = self.sequences[key as usize].as_mut().expect("a waiting key names a sequence");
        if sequence.owes_prompt_logprobs() {
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

    /// Whether a running request is about to make findable what a waiting one would compute, half of it at least and no
    /// less than a block: then the waiting one, and with it the queue, waits for that one's first token. That one has a
    /// row in every step, so the wait is as long as its prompt takes.
    fn is_computed_by_another(&self, sequence: &Sequence, covered: u32) -> bool {
        let block_size = self.limits.block_size;
        if !(self.policy.prefix_cache && self.policy.prefix_wait) || sequence.owes_prompt_logprobs() {
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

    /// The waiting request at `index` enters the running set. Its table has what the prefix cache has; `tail` was looked up
    /// before blocks are taken, which may take that one: its contents stand until the step begins.
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
        sequence.refused_at = 0;
        sequence.lane = self.free_lanes.pop();
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
            lane: sequence.lane.expect("a running sequence has a lane"),
            start,
            len,
            draw: sequence.draws_after(len).then(|| sequence.len() - sequence.prompt_tokens),
            report_start: report.start,
            report_len: report.len() as u32,
            first: !std::mem::replace(&mut sequence.scheduled_before, true),
        };
        self.plan.score_count += row.report_len;
        row
    }
}
