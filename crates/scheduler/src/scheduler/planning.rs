//! Planning of the next step: grow block tables, preempt, start waiting requests, and share out the token budget.

use super::Scheduler;
use crate::block_table::Tail;
use crate::plan::{PlanRow, StepPlan};
use crate::policy::preemption_candidate;
use crate::sequence::Sequence;
use crate::speculation::drafts_each;
use crate::step_cost::StepWork;

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
        assert!(self.plans.outstanding() <= 1, "at most one plan is outstanding when the next is made");
        let grown = if self.plans.outstanding() == 0 {
            self.plans.begin();
            self.slide_windows();
            self.grow_all()
        } else {
            let grown = self.grow_behind()?;
            self.plans.begin();
            grown
        };
        self.fill(grown, now_ns);
        self.plans.launch()
    }

    /// Gives back the window blocks behind the running sequences. Steps in flight may still read them; what writes
    /// there next runs later.
    fn slide_windows(&mut self) {
        if self.pool.windows().is_none() {
            return;
        }
        for index in 0..self.requests.running_count() {
            let key = self.requests.running_key(index);
            self.requests.get_mut(key).slide_window(&mut self.pool);
        }
    }

    /// Gives every running sequence blocks for all its tokens; preempts as needed. Returns how many still run.
    fn grow_all(&mut self) -> usize {
        let mut grown = 0;
        while grown < self.requests.running_count() {
            grown = self.grow(grown);
        }
        grown
    }

    /// The same behind an outstanding plan. `None` if that must be committed first.
    fn grow_behind(&mut self) -> Option<usize> {
        let may_draft = drafts_each(self.requests.running_count() as u32) > 0;
        let waits = |sequence: &Sequence| !sequence.completes() && sequence.waits_for_token(may_draft);
        if self.requests.running().any(waits) {
            return None;
        }
        self.slide_windows();
        // Blocks taken before the pool ran out stay with their sequences, which need them in the next step anyway.
        let grown = self.requests.running_count();
        (0..grown).all(|index| self.grow_freely(index)).then_some(grown)
    }

    /// Fills the plan's rows. The first `grown` running sequences have blocks for all their tokens.
    fn fill(&mut self, grown: usize, now_ns: u64) {
        self.prefill_rows.clear();
        if self.budget.is_on() {
            let decodes = self.decode_work(grown);
            self.budget.begin(decodes);
        }
        let prefill_first = self.policy.puts_prefill_first(&self.requests, self.prefill_first_steps);
        self.prefill_first_steps = if prefill_first { self.prefill_first_steps + 1 } else { 0 };
        if !prefill_first {
            self.place_decodes(grown);
        }
        self.place_prefills();
        if prefill_first {
            self.place_decodes(grown);
        }
        self.place_drafts();

        let waits_ns = self.oldest_arrived_ns().map_or(0, |ns| now_ns.saturating_sub(ns));
        let plan = self.plans.last_mut();
        plan.rows.extend_from_slice(&self.draft_rows);
        plan.rows.extend_from_slice(&self.prefill_rows);
        plan.oldest_waiting_ns = waits_ns;
        self.budget.note(plan, self.prefill_rows.len());
        for row in &plan.rows {
            self.requests.get_mut(row.key).launch(row);
        }
    }

    /// The decode rows that the first `count` running sequences are about to get.
    fn decode_work(&self, count: usize) -> StepWork {
        let running = self.requests.running().take(count);
        let decodes = running.filter(|sequence| sequence.decodes() && !sequence.completes());
        decodes.fold(StepWork::default(), |work, sequence| work.and_decode(sequence.len()))
    }

    /// Arrival time of the oldest waiting request: a preempted one, or the first one behind those.
    fn oldest_arrived_ns(&self) -> Option<u64> {
        let queue = self.requests.waiting();
        let preempted = queue.clone().take_while(|sequence| sequence.preemptions() > 0).count();
        queue.take(preempted + 1).map(|sequence| sequence.arrival().arrived_ns).min()
    }

    /// Gives the running sequence at `index` blocks for all its tokens. Preempts as needed, possibly the sequence
    /// itself. Returns the index of the next sequence to grow.
    fn grow(&mut self, mut index: usize) -> usize {
        while !self.grow_freely(index) {
            let gone = self.preempt();
            if gone == index {
                assert!(self.requests.running_count() > 0, "a request that runs alone fits in the pool");
                return index;
            }
            index -= usize::from(gone < index);
        }
        index + 1
    }

    /// Gives the running sequence at `index` blocks for all its tokens without preemption. False if there are too few.
    fn grow_freely(&mut self, index: usize) -> bool {
        let key = self.requests.running_key(index);
        self.requests.get_mut(key).grow(&mut self.pool)
    }

    /// Preempts a running request: frees its blocks and puts it at the front of the queue. Returns its index before.
    fn preempt(&mut self) -> usize {
        let index = preemption_candidate(&self.requests).expect("a request that needs a block is running");
        self.requests.preempt(index, &mut self.pool);
        self.plans.last_mut().preempted_count += 1;
        self.totals.preemptions += 1;
        index
    }

    /// Adds decode rows for the first `count` running sequences, as far as the budget allows.
    fn place_decodes(&mut self, count: usize) {
        for index in 0..count {
            let key = self.requests.running_key(index);
            let sequence = self.requests.get(key);
            if sequence.decodes() && !sequence.completes() && self.room() > 0 {
                let row = self.row_of(key, 1);
                self.plans.last_mut().rows.push(row);
            }
        }
    }

    /// Adds prefill rows: for running sequences, then for waiting requests, which start with them.
    fn place_prefills(&mut self) {
        let rows_max = self.policy.prefill_rows_max.unwrap_or(u32::MAX) as usize;
        let mut next = 0;
        while self.room() > 0 && self.prefill_rows.len() < rows_max {
            let started = next == self.requests.running_count();
            // A request starts only if it gets a row, and where in its prompt that begins is known afterwards.
            if started && !(self.budget.has_room(self.limits.max_model_len) && self.start_next()) {
                return;
            }
            let key = self.requests.running_key(next);
            next += 1;
            let sequence = self.requests.get(key);
            if sequence.completes() || sequence.decodes() && !started {
                continue;
            }
            let chunk_max = self.policy.prefill_chunk_tokens_max.unwrap_or(u32::MAX);
            let scored_max = if sequence.lacks_prompt_logprobs() { self.score_room() } else { u32::MAX };
            let room = self.room().saturating_sub(self.budget.deferred());
            let start = sequence.computed();
            let window_room = sequence.table().window_room(&self.pool).saturating_sub(start);
            debug_assert!(window_room > 0, "what one token takes is reserved");
            let wanted = sequence.pending().min(chunk_max).min(room).min(scored_max).min(window_room);
            let len = self.budget.tokens(start, wanted);
            self.budget.take(start, len, wanted);
            if len > 0 {
                let row = self.row_of(key, len);
                self.prefill_rows.push(row);
            }
        }
    }

    /// Adds rows of drafts behind the decode rows, in what prompts have left of the step's tokens and time. Blocks are
    /// taken for them only while each running sequence can take one, too, so that the next step preempts none for them.
    fn place_drafts(&mut self) {
        self.draft_rows.clear();
        if !self.policy.speculation {
            return;
        }
        let (decodes, running) = (self.plans.last().rows.len(), self.requests.running_count() as u32);
        let each = drafts_each(decodes as u32);
        let rows_max = self.policy.rows_max(&self.limits) as usize;
        for index in 0..decodes {
            let rows = decodes + self.prefill_rows.len() + self.draft_rows.len();
            let key = self.plans.last().rows[index].key;
            let context = self.requests.get(key).len() + 1;
            let room = self.room().min(rows_max.saturating_sub(rows) as u32);
            let most = self.budget.decode_rows(context, each.min(room));
            let spare = self.pool.available().saturating_sub(running);
            let count = self.requests.get_mut(key).draft(most, spare, &mut self.pool);
            self.budget.take_decodes(context, count);
            self.totals.drafts += u64::from(count);
            self.plans.last_mut().token_count += count;
            let sequence = self.requests.get_mut(key);
            self.draft_rows.extend((1..=count).map(|number| sequence.draft_row(key, number)));
        }
    }

    /// Most tokens of a row that scores its prompt; at least one, so that every running sequence gets a row.
    fn score_room(&self) -> u32 {
        self.score_tokens_max.saturating_sub(self.plans.last().score_count).max(1)
    }

    /// Tokens left in the step's budget.
    fn room(&self) -> u32 {
        self.limits.max_num_batched_tokens - self.plans.last().token_count
    }

    /// Starts the next waiting request, with blocks for all its tokens: those in the prefix cache and new ones. False
    /// if there is none, if it does not fit, or if it should wait for a prefix that is being computed.
    fn start_next(&mut self) -> bool {
        let available = self.pool.available();
        if !self.requests.has_free_lane() || available == 0 {
            return false;
        }
        let Some(index) = self.policy.pick(&self.requests, self.totals.starts) else { return false };
        let alone = self.requests.running_count() == 0;
        let reserve = if alone { 0 } else { self.pool.total() / ADMISSION_RESERVE_DIVISOR };
        let key = self.requests.waiting_key(index);
        let sequence = self.requests.get_mut(key);
        // Skips the look-up. With an empty running set all blocks are available.
        if sequence.was_refused_at(available) || !sequence.table().may_reserve_window(&self.pool) {
            return false;
        }
        let tail = sequence.look_up(self.policy.prefix_partial, &self.pool);
        let cost = sequence.cost(&self.pool);
        if self.is_computed_by_another(self.requests.get(key), tail) {
            self.requests.get_mut(key).drop_found();
            return false;
        }
        if available < cost + reserve {
            self.requests.get_mut(key).refuse(available);
            return false;
        }
        if !self.requests.get(key).table().fits_window(tail, &self.pool) {
            self.requests.get_mut(key).drop_found();
            return false;
        }
        self.start(index, tail);
        true
    }

    /// Whether a running prefill will register at least half of what this waiting request lacks, and at least a block.
    /// Then the request, and the queue behind it, waits for that prefill's first token. Running prefills take their
    /// tokens in the order of their starts, so the wait is bounded by their prompts.
    fn is_computed_by_another(&self, sequence: &Sequence, tail: Option<Tail>) -> bool {
        let block_size = self.limits.block_size;
        if !(self.policy.prefix_cache && self.policy.prefix_wait) || sequence.wants_whole_prompt() {
            return false;
        }
        let found = sequence.found(tail);
        let missing = sequence.len() - found;
        let enough = found + missing.div_ceil(2).max(block_size);
        // The last token is computed in any case.
        let ids = &sequence.ids()[..sequence.ids().len() - 1];
        self.requests.running().any(|other| {
            let may = other.will_share() && ids.len().min(other.ids().len()) >= enough as usize;
            let common =
                if may { ids.iter().zip(other.ids()).take_while(|(a, b)| a == b).count() } else { 0 };
            let common = common as u32;
            let shared = if self.policy.prefix_partial { common } else { common - common % block_size };
            shared >= enough
        })
    }

    /// Moves the waiting request at `index`, which has been looked up in the prefix cache, into the running set.
    fn start(&mut self, index: usize, tail: Option<Tail>) {
        let key = self.requests.start(index);
        let sequence = self.requests.get_mut(key);
        let copies = sequence.take_blocks(tail, &mut self.pool);
        self.plans.last_mut().copies.extend(copies.block);
        self.plans.last_mut().window_copies.extend(copies.window);
        self.totals.starts += 1;
        if sequence.preemptions() == 0 {
            let (tenant, len, hits) = (sequence.arrival().tenant, sequence.len(), sequence.computed());
            if self.policy.prefix_cache && !sequence.wants_whole_prompt() {
                self.totals.prefix_query_tokens += u64::from(len);
                self.totals.prefix_hit_tokens += u64::from(hits);
            }
            self.requests.charge(tenant, len - hits);
        }
    }

    /// A row of the next `len` tokens of a running sequence.
    fn row_of(&mut self, key: u32, len: u32) -> PlanRow {
        let sequence = self.requests.get_mut(key);
        let row = sequence.row(key, len);
        sequence.table_mut().cover_window(row.start + len, &mut self.pool);
        let plan = self.plans.last_mut();
        plan.token_count += len;
        plan.score_count += row.report_len;
        row
    }
}
