//! A request inside the scheduler.

mod drafting;

use crate::block_table::{BlockTable, Copies, Tail};
use crate::kv::BlockPool;
use crate::plan::{Company, Ended, PlanRow, RowView, StepLoad};
use crate::policy::Policy;
use crate::request::Request;
use crate::speculation::{Drafts, Speculation};
use crate::tokens::Tokens;
use pinion_protocol::frontend_inbox::{FinishReason, Finished};
use pinion_protocol::{RequestId, Sampling, StopIds};
use std::ops::Range;

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In the queue, without blocks. It did not fit when this many blocks were available (0: not tried yet).
    Waiting { refused_at: u32 },
    /// In the running set.
    Running {
        /// Its index below `max_num_seqs`, kept while it runs.
        lane: u32,
    },
}

/// How far a sequence has come since it last started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// No token has been sampled.
    Prefill,
    /// The prompt is computed, but no token could be sampled: the grammar's mask is late.
    AwaitingMask,
    /// At least one token has been sampled, so its blocks are registered in the prefix cache.
    Sampled,
}

/// A request's place among the others. It does not change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) id: RequestId,
    pub(crate) priority: i32,
    /// Its tenant's index in the table.
    pub(crate) tenant: u32,
    /// Index in the order of arrival.
    pub(crate) ordinal: u64,
    pub(crate) arrived_ns: u64,
    /// Starts of all requests before this one arrived.
    pub(crate) starts_before: u64,
}

/// A request's tokens and the blocks that hold their KV.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    arrival: Arrival,
    sampling: Sampling,
    tokens: Tokens,
    prompt_tokens: u32,
    /// Generated tokens that came with the request when it was resumed.
    resumed_tokens: u32,
    /// Number of tokens at which the request ends.
    length_max: u32,
    blocks: BlockTable,
    /// Tokens whose KV is in `blocks`, or will be when the outstanding steps are done.
    computed: u32,
    /// Tokens that outstanding steps sample in any case. They follow the known ones, and are not known yet.
    in_flight: u32,
    progress: Progress,
    /// Prompt tokens that the first start found in the prefix cache.
    cached_tokens: u32,
    state: State,
    /// Prompt tokens whose logprobs have been reported; all of them if none are requested.
    reported: u32,
    /// A vector of its whole prompt is wanted, and not all of that has been computed.
    lacks_vector: bool,
    /// It has had a row in a step.
    had_row: bool,
    preemptions: u32,
    /// Preemptions for a request of higher priority.
    priority_preemptions: u32,
    company: Company,
    /// `None`: nothing is drafted for it.
    speculation: Option<Speculation>,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceState {
    /// In the queue.
    Waiting,
    /// In the queue again.
    Preempted,
    /// It runs; no token has been sampled since it started.
    Prefill,
    /// It runs; its prompt is computed, and the mask of its first token is late.
    AwaitingMask,
    /// It runs, and tokens have been sampled.
    Decode,
}

impl Sequence {
    /// A request in the queue. This is the only place that allocates a request's storage.
    pub(crate) fn new(
        request: Request,
        arrival: Arrival,
        length_max: u32,
        block_size: u32,
        policy: &Policy,
    ) -> Sequence {
        let Request { sampling, ids, prompt_tokens, .. } = request;
        let resumed_tokens = ids.len() as u32 - prompt_tokens;
        // A resumed request has reported its prompt before.
        let asks = sampling.prompt_logprobs.is_some() && resumed_tokens == 0;
        // What a grammar allows behind a draft is not known before the draft is a token.
        let drafts = policy.speculation && !policy.pools && !sampling.waits_for_output();
        Sequence {
            arrival,
            tokens: Tokens::new(ids, length_max),
            speculation: drafts.then(Speculation::new),
            sampling,
            prompt_tokens,
            resumed_tokens,
            length_max,
            blocks: BlockTable::new(block_size, length_max, policy.window),
            computed: 0,
            in_flight: 0,
            progress: Progress::Prefill,
            cached_tokens: 0,
            state: State::Waiting { refused_at: 0 },
            reported: if asks { 0 } else { prompt_tokens },
            lacks_vector: policy.pools,
            had_row: false,
            preemptions: 0,
            priority_preemptions: 0,
            company: Company::default(),
        }
    }

    pub(crate) fn arrival(&self) -> &Arrival {
        &self.arrival
    }

    pub(crate) fn ids(&self) -> &[u32] {
        self.tokens.known()
    }

    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Tokens whose KV is in its blocks, or will be when the outstanding steps are done.
    pub(crate) fn computed(&self) -> u32 {
        self.computed
    }

    /// Prompt tokens that its first start found in the prefix cache.
    pub(crate) fn cached_tokens(&self) -> u32 {
        self.cached_tokens
    }

    pub(crate) fn preemptions(&self) -> u32 {
        self.preemptions
    }

    pub(crate) fn priority_preemptions(&self) -> u32 {
        self.priority_preemptions
    }

    pub(crate) fn blocks(&self) -> &[u32] {
        self.blocks.as_slice()
    }

    /// Its table of blocks.
    pub(crate) fn table(&self) -> &BlockTable {
        &self.blocks
    }

    /// The same, to take and give back window blocks.
    pub(crate) fn table_mut(&mut self) -> &mut BlockTable {
        &mut self.blocks
    }

    /// Gives back the window blocks that its next row does not see.
    pub(crate) fn slide_window(&mut self, pool: &mut BlockPool) {
        self.blocks.slide_window(self.computed, pool);
    }

    /// Tokens and blocks of a row.
    pub(crate) fn view(&self, row: &PlanRow) -> RowView<'_> {
        let ids = self.tokens.with_drafts();
        let end = ids.len().min((row.start + row.len) as usize);
        // A row that draws knows nothing of the drafts behind its own.
        let known = if row.draw.is_some() { end } else { self.tokens.len() as usize };
        RowView {
            tokens: &ids[end.min(row.start as usize)..end],
            ids: &ids[..known],
            blocks: self.blocks.as_slice(),
            windows: self.blocks.window_entries(),
            sampling: &self.sampling,
            prompt_tokens: self.prompt_tokens,
        }
    }

    /// How far it is.
    pub(crate) fn summary(&self) -> SequenceState {
        match (self.state, self.progress) {
            (State::Waiting { .. }, _) if self.preemptions > 0 => SequenceState::Preempted,
            (State::Waiting { .. }, _) => SequenceState::Waiting,
            (State::Running { .. }, Progress::Prefill) => SequenceState::Prefill,
            (State::Running { .. }, Progress::AwaitingMask) => SequenceState::AwaitingMask,
            (State::Running { .. }, Progress::Sampled) => SequenceState::Decode,
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    pub(crate) fn lane(&self) -> Option<u32> {
        match self.state {
            State::Running { lane } => Some(lane),
            State::Waiting { .. } => None,
        }
    }

    /// Length in tokens, including tokens in flight.
    pub(crate) fn len(&self) -> u32 {
        self.tokens.len() + self.in_flight
    }

    /// Whether the outstanding steps bring it to its last token, whatever they sample; or, if it only wants its prompt
    /// scored, to the last scored token.
    pub(crate) fn completes(&self) -> bool {
        let only_scored = self.length_max == self.prompt_tokens;
        self.len() >= self.length_max && (!only_scored || self.pending() == 0)
    }

    /// Tokens without KV: 1 in decode, more in prefill.
    pub(crate) fn pending(&self) -> u32 {
        self.len() - self.computed
    }

    /// Whether logprobs of prompt tokens are still to be reported.
    pub(crate) fn lacks_prompt_logprobs(&self) -> bool {
        self.reported < self.prompt_tokens
    }

    /// Whether its prompt is computed for more than the next token: every position, whatever the prefix cache has.
    pub(crate) fn wants_whole_prompt(&self) -> bool {
        self.lacks_prompt_logprobs() || self.lacks_vector
    }

    /// The prompt tokens whose logprobs a row of `len` tokens at `start` reports: each position scores the token after
    /// it, and position 0 also reports the prompt's first token. Tokens reported before a preemption are left out.
    pub(crate) fn report(&self, start: u32, len: u32) -> Range<u32> {
        let begin = if start == 0 { 0 } else { start + 1 };
        let end = (start + len + 1).min(self.prompt_tokens);
        self.reported.max(begin).min(end)..end
    }

    /// Whether the next sampled token will register its blocks in the prefix cache.
    pub(crate) fn will_share(&self) -> bool {
        self.progress == Progress::Prefill
            && self.length_max > self.prompt_tokens
            && !self.lacks_prompt_logprobs()
    }

    /// Whether only its last token lacks KV, so that its next row is a decode row.
    pub(crate) fn decodes(&self) -> bool {
        self.computed > 0 && self.pending() == 1
    }

    /// Whether a token is sampled after a row of the next `len` tokens. A request that generates nothing has none.
    pub(crate) fn samples_after(&self, len: u32) -> bool {
        len == self.pending() && self.len() < self.length_max
    }

    /// Tokens that it has or soon needs blocks for: one more than its length. Otherwise a full last block would cause a
    /// preemption in the next step.
    fn soon(&self) -> u32 {
        (self.len() + 1).min(self.length_max)
    }

    /// Looks it up in the prefix cache, for [`Sequence::take_blocks`]; see [`BlockTable::look_up`].
    pub(crate) fn look_up(&mut self, partial: bool, pool: &BlockPool) -> Option<Tail> {
        if self.wants_whole_prompt() {
            return None;
        }
        self.blocks.look_up(self.tokens.known(), partial, pool)
    }

    /// Its first tokens that [`Sequence::look_up`] found.
    pub(crate) fn found(&self, tail: Option<Tail>) -> u32 {
        self.blocks.token_room() + tail.map_or(0, |tail| tail.tokens)
    }

    /// Blocks that it takes out of the available ones if it starts now: new ones, and the cached ones that were found.
    pub(crate) fn cost(&self, pool: &BlockPool) -> u32 {
        let found = self.blocks.as_slice();
        self.blocks.lacks(self.soon()) + found.len() as u32 - pool.held_of(found)
    }

    /// Whether it did not fit when this number of blocks, or more, was available.
    pub(crate) fn was_refused_at(&self, available: u32) -> bool {
        matches!(self.state, State::Waiting { refused_at } if available <= refused_at)
    }

    /// It does not start, because it does not fit in the available blocks.
    pub(crate) fn refuse(&mut self, available: u32) {
        self.state = State::Waiting { refused_at: available };
        self.drop_found();
    }

    /// It does not start now.
    pub(crate) fn drop_found(&mut self) {
        self.blocks.drop_found();
    }

    /// It enters the running set.
    pub(crate) fn enter(&mut self, lane: u32) {
        self.state = State::Running { lane };
    }

    /// Takes blocks for all its tokens: those that were found and new ones. Returns the copies to make.
    pub(crate) fn take_blocks(&mut self, tail: Option<Tail>, pool: &mut BlockPool) -> Copies {
        self.computed = self.found(tail);
        if self.preemptions == 0 {
            self.cached_tokens = self.computed.min(self.prompt_tokens);
        }
        self.blocks.begin(self.len(), tail, pool)
    }

    /// Takes blocks for all its tokens while it runs. False if the pool has too few.
    pub(crate) fn grow(&mut self, pool: &mut BlockPool) -> bool {
        // The KV of a last token is never read.
        self.completes() || self.blocks.grow(self.len(), pool)
    }

    /// A row of its next `len` tokens.
    pub(crate) fn row(&mut self, key: u32, len: u32) -> PlanRow {
        let start = self.computed;
        let report = self.report(start, len);
        PlanRow {
            id: self.arrival.id,
            key,
            ordinal: self.arrival.ordinal,
            lane: self.lane().expect("a running sequence has a lane"),
            start,
            len,
            draw: self.samples_after(len).then(|| self.len() - self.prompt_tokens),
            draft: 0,
            report_start: report.start,
            report_len: report.len() as u32,
            first: !std::mem::replace(&mut self.had_row, true),
        }
    }

    /// A plan with this row of it is outstanding. That of a draft counts when the draft is accepted.
    pub(crate) fn launch(&mut self, row: &PlanRow) {
        if row.draft > 0 {
            return;
        }
        self.computed += row.len;
        self.in_flight += u32::from(row.draw.is_some());
    }

    /// A step of this size with this row of it, which stands, is committed.
    pub(crate) fn land(&mut self, row: &PlanRow, load: StepLoad, failed: bool) {
        if row.draft > 0 {
            self.computed += row.len;
            return;
        }
        self.in_flight -= u32::from(row.draw.is_some());
        self.company.join(load);
        if row.report_len > 0 && !failed {
            self.reported = row.report().end;
        }
        if row.start + row.len >= self.prompt_tokens {
            self.lacks_vector = false;
        }
    }

    /// Registers the blocks of its first `computed` tokens in the prefix cache: the whole ones and, if `partial` and at
    /// the first token since it started, the tokens behind those. Called only after a token was sampled from them: the
    /// token depends on all KV before it, so no non-finite value is registered.
    pub(crate) fn register(&mut self, computed: u32, partial: bool, pool: &mut BlockPool) {
        let first = std::mem::replace(&mut self.progress, Progress::Sampled) != Progress::Sampled;
        self.blocks.register(self.tokens.known(), computed, first && partial, pool);
    }

    /// No token could be sampled after its last one, which is computed again.
    pub(crate) fn again(&mut self) {
        self.computed -= 1;
        if self.progress == Progress::Prefill {
            self.progress = Progress::AwaitingMask;
        }
    }

    /// Takes its blocks out of the prefix cache: it had a non-finite value, which may be in any of them.
    pub(crate) fn forget(&self, pool: &mut BlockPool) {
        self.blocks.forget(pool);
    }

    /// Gives its blocks back and returns its lane, if it had one; it then counts as waiting.
    pub(crate) fn release(&mut self, pool: &mut BlockPool) -> Option<u32> {
        let lane = self.lane();
        self.tokens.drop_drafts();
        self.blocks.release(pool);
        self.progress = Progress::Prefill;
        self.state = State::Waiting { refused_at: 0 };
        lane
    }

    /// The same for a request that will start again.
    pub(crate) fn preempt(&mut self, for_priority: bool, pool: &mut BlockPool) -> Option<u32> {
        self.computed = 0;
        self.preemptions += 1;
        self.priority_preemptions += u32::from(for_priority);
        self.release(pool)
    }

    /// Generated tokens whose values are known.
    pub(crate) fn generated(&self) -> u32 {
        self.tokens.len() - self.prompt_tokens
    }

    /// Whether all its tokens are known and all that is wanted of its prompt is computed.
    pub(crate) fn is_over(&self) -> bool {
        self.tokens.len() >= self.length_max && !self.wants_whole_prompt()
    }

    /// Whether the generated token with this index is the first one that is not resumed.
    pub(crate) fn is_first(&self, index: u32) -> bool {
        index == self.resumed_tokens
    }

    /// The finish reason, if the request ends with its last token.
    pub(crate) fn end(&self, stop_ids: &StopIds) -> Option<FinishReason> {
        let before = self.generated().checked_sub(1);
        let last = self.ids().last().copied();
        let stops =
            last.zip(before).is_some_and(|(token, before)| self.sampling.ends_at(token, before, stop_ids));
        if stops {
            Some(FinishReason::Stop)
        } else if self.tokens.len() >= self.length_max {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// What is reported of it at its end. `announced`: an event with `last` has.
    pub(crate) fn ended(&self, reason: FinishReason, announced: bool) -> Ended {
        let finished = Finished {
            id: self.arrival.id,
            reason,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            generated_tokens: self.generated(),
        };
        let drafts = self.speculation.as_ref().map_or_else(Drafts::default, Speculation::total);
        Ended { finished, preemptions: self.preemptions, company: self.company, drafts, announced }
    }

    /// # Panics
    /// If an invariant of a running sequence does not hold.
    pub(crate) fn check_running(&self, outstanding: u32) {
        let has_work = self.pending() > 0 || self.wants_whole_prompt();
        assert!(!self.is_waiting() && has_work && !self.is_over(), "a running request has work");
        assert!(self.in_flight <= outstanding, "at most one sampled token per step");
        assert!(self.blocks.token_room() >= self.computed, "computed tokens lie in blocks");
        assert!(self.tokens.drafts() == 0 || outstanding > 0, "drafts belong to a plan");
        self.blocks.check();
    }

    /// # Panics
    /// If an invariant of a waiting sequence does not hold.
    pub(crate) fn check_waiting(&self) {
        assert!(self.is_waiting() && self.blocks().is_empty(), "a waiting request holds no block");
        assert_eq!((self.computed, self.in_flight), (0, 0), "a waiting request has no row");
        assert!(!self.is_over(), "a complete request has left");
        self.blocks.check();
    }
}
