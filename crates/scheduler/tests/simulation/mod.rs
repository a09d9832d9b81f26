//! A scheduler and a model around it that shows every mistake in its tokens, driven by a list of arrivals.
//!
//! The model keeps one number per position of each KV block, made from all numbers before it, and draws from all
//! numbers that a row reads through its block table. So a block that is stale, shared wrongly or written by two changes
//! what comes out. A request that fails leaves wrong numbers behind, as one with a NaN would. Where a schedule says so,
//! most draws follow a pattern, so that drafts are often right.

#![allow(dead_code, unreachable_pub)] // each test file includes it and uses its part

mod mock;
mod reader;

use mock::{Mock, alone};
use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::{Claim, FaultCode, Grammar, GrammarField, GrammarKind, RequestId, Sampling};
use pinion_scheduler::{
    Admission, Ended, Limits, PlanRow, Policy, Refusal, Request, RowResult, Scheduler, Totals,
};
use reader::Reader;
use std::collections::{HashMap, VecDeque};

pub use mock::mix;
pub use reader::Told;

pub const VOCABULARY: u32 = 24;
pub const EOS: u32 = 0;
pub const REQUESTS_MAX: u32 = 16;
/// A step with prompts first may leave a decode out, this many times in a row at most.
const PREFILL_FIRST_STEPS_MAX: u32 = 4;
/// More important ones may take a request's blocks away so often.
const OUTRANKED_MAX: u32 = 4;
/// One start in this number goes to the oldest request, if it has aged.
const AGED_STARTS_EVERY: u64 = 4;

#[derive(Debug, Clone)]
pub enum Exit {
    Cancel(u32),
    Stop(u32),
    Discard(u32),
    /// From this number of steps after arrival on, its rows fail.
    Fail(u32),
}

#[derive(Debug, Clone)]
pub struct Arrival {
    pub claim: Claim,
    pub at_step: u32,
    pub prompt: Vec<u32>,
    pub resumed: u32,
    pub max_tokens: u32,
    pub ignore_eos: bool,
    pub exit: Option<Exit>,
}

/// One schedule: everything that a run depends on.
#[derive(Debug, Clone)]
pub struct Schedule {
    pub limits: Limits,
    pub policy: Policy,
    pub arrivals: Vec<Arrival>,
    /// Empties the prefix cache each time this number of steps has passed.
    pub clear_every: Option<u32>,
    /// Each step is planned and run before the one before it is committed.
    pub ahead: bool,
    /// Most tokens follow a pattern.
    pub repeats: bool,
}

/// One request as the test sees it.
struct Watched {
    arrival: Arrival,
    expected: Vec<u32>,
    got: Vec<u32>,
    ended: Option<Ended>,
    discarded: bool,
    failed: bool,
    started: bool,
    /// Tokens that rows have been planned for, if the model pools.
    computed: u32,
    /// Step at which a first come, first served scheduler must have ended it.
    deadline: u32,
    /// When it arrived: what had happened, and how many requests were here.
    before: Totals,
    present: u64,
}

struct Simulation {
    schedule: Schedule,
    scheduler: Scheduler,
    mock: Mock,
    step: u32,
    /// Results of the steps that wait for their commit.
    in_flight: VecDeque<Vec<(RequestId, RowResult)>>,
    /// Hears of the prefix cache, when it gets round to it.
    reader: Reader,
    watched: HashMap<RequestId, Watched>,
    /// Most steps in which the requests so far can be done: one of them advances in each.
    work_steps: u32,
    /// Whether requests differ in priority, and in tenant.
    ranked: bool,
    shared: bool,
}

/// What came of a schedule.
pub struct Outcome {
    pub totals: Totals,
    pub evicted: u64,
    /// Window blocks evicted.
    pub windows_evicted: u64,
    /// What the reader of the cache's changes heard.
    pub told: Told,
    /// Tokens of the requests that reached their end undisturbed.
    pub tokens: HashMap<RequestId, Vec<u32>>,
}

/// Runs a schedule to its end. Panics if anything is not as it must be.
pub fn simulate(schedule: Schedule) -> Outcome {
    let (limits, policy) = (schedule.limits, schedule.policy);
    let mut arrivals = schedule.arrivals.clone();
    arrivals.sort_by_key(|arrival| arrival.at_step);
    let repeats = schedule.repeats;
    let last_arrival = arrivals.last().map_or(0, |arrival| arrival.at_step);
    let mut simulation = Simulation {
        schedule,
        scheduler: Scheduler::with_policy(limits, policy),
        mock: Mock::new(&limits, policy.window, repeats),
        step: 0,
        in_flight: VecDeque::new(),
        reader: Reader::default(),
        watched: HashMap::new(),
        work_steps: 0,
        ranked: arrivals.iter().any(|arrival| arrival.claim.priority != arrivals[0].claim.priority),
        shared: arrivals.iter().any(|arrival| arrival.claim.tenant != arrivals[0].claim.tenant),
    };
    simulation.scheduler.list_cache_changes();
    let mut arrivals = arrivals.into_iter().enumerate().peekable();
    let mut again = true;
    while again || arrivals.peek().is_some() || !simulation.in_flight.is_empty() {
        while let Some((slot, arrival)) = arrivals.next_if(|(_, a)| a.at_step <= simulation.step) {
            simulation.arrive(slot, arrival);
        }
        simulation.exits();
        simulation.run_step();
        simulation.check_waits(last_arrival);
        again = !simulation.scheduler.is_empty();
    }
    simulation.check_end();
    simulation.reader.read_all(&mut simulation.scheduler);
    simulation.check_news();
    let pool = simulation.scheduler.pool();
    let whole = |watched: &Watched| watched.ended.is_some() && watched.got.len() == watched.expected.len();
    Outcome {
        totals: simulation.scheduler.totals(),
        evicted: pool.evicted(),
        windows_evicted: pool.windows().map_or(0, |windows| windows.evicted()),
        told: simulation.reader.told,
        tokens: simulation.watched.into_iter().filter(|(_, w)| whole(w)).map(|(id, w)| (id, w.got)).collect(),
    }
}

/// A grammar, whose rows wait for the token before theirs.
fn anything() -> Grammar {
    Grammar { kind: GrammarKind::Regex, field: GrammarField::GuidedRegex, text: ".*".into() }
}

impl Simulation {
    fn arrive(&mut self, slot: usize, arrival: Arrival) {
        let limits = self.schedule.limits;
        let id = RequestId { frontend: 0, slot: slot as u16, generation: 1 };
        let eos_ends = limits.stop_ids.first().is_some() && !arrival.ignore_eos;
        let repeats = self.schedule.repeats;
        let expected = alone(&arrival.prompt, arrival.max_tokens as usize, !eos_ends, repeats);
        let resumed = expected.len().min(arrival.resumed as usize);
        let mut ids = arrival.prompt.clone();
        ids.extend(&expected[..resumed]);
        let prompt_tokens = arrival.prompt.len() as u32;
        let (max_tokens, ignore_eos) = (Some(arrival.max_tokens), arrival.ignore_eos);
        // The mock takes no notice, but the scheduler must.
        let grammar = slot.is_multiple_of(5).then(anything);
        let sampling = Sampling { max_tokens, ignore_eos, grammar, ..Sampling::default() };
        let request = Request { id, claim: arrival.claim, sampling, ids, prompt_tokens };
        let length = prompt_tokens + arrival.max_tokens;
        let fits = length <= limits.max_model_len.min(limits.block_count * limits.block_size);
        let present = self.scheduler.running().len() + self.scheduler.waiting().len();
        match self.scheduler.admit(request.clone(), u64::from(self.step)) {
            Ok(()) => {
                assert!(fits, "a request that can never fit was taken");
                if expected.len() > resumed {
                    assert_eq!(self.scheduler.admit(request, 0), Err(Refusal::Duplicate));
                }
                let pauses = self.schedule.policy.prefill_first_from.map_or(0, |_| PREFILL_FIRST_STEPS_MAX);
                // Ahead, a step that is not launched may stand between two that are.
                let turns = if self.schedule.ahead { 2 * length + 2 } else { length };
                // Work that more important ones undo is done again.
                let repeats = if self.ranked { OUTRANKED_MAX } else { 0 };
                self.work_steps += turns * (1 + pauses) * (1 + repeats);
                let watched = Watched {
                    got: expected[..resumed].to_vec(),
                    deadline: self.step + self.work_steps,
                    before: self.scheduler.totals(),
                    present: present as u64,
                    ended: None,
                    discarded: false,
                    failed: false,
                    started: false,
                    computed: 0,
                    arrival,
                    expected,
                };
                self.watched.insert(id, watched);
            }
            Err(Refusal::Fault(fault)) => {
                let full = present == REQUESTS_MAX as usize;
                let code = if fits { FaultCode::TooManyRequests } else { FaultCode::ContextLengthExceeded };
                assert!(fault.code == code && (full || !fits), "{fault}");
            }
            Err(Refusal::Duplicate) => panic!("{id} was never here"),
        }
        self.collect();
    }

    fn exits(&mut self) {
        for (&id, watched) in &mut self.watched {
            let since = self.step - watched.arrival.at_step;
            let over = watched.ended.is_some() || watched.discarded;
            match watched.arrival.exit {
                Some(Exit::Cancel(after)) if after == since => {
                    assert_eq!(self.scheduler.end(id, FinishReason::Cancelled), !over);
                }
                Some(Exit::Stop(after)) if after == since => {
                    assert_eq!(self.scheduler.end(id, FinishReason::Stop), !over);
                }
                Some(Exit::Discard(after)) if after == since => {
                    self.scheduler.discard(id);
                    self.scheduler.discard(id);
                    watched.discarded |= !over;
                }
                Some(_) | None => {}
            }
        }
        self.collect();
    }

    fn collect(&mut self) {
        for ended in self.scheduler.drain_finished() {
            let watched = self.watched.get_mut(&ended.finished.id).expect("a request that ends was admitted");
            assert!(!watched.discarded, "nothing comes of a discarded request");
            assert!(watched.ended.replace(ended).is_none(), "{} ended twice", ended.finished.id);
        }
    }

    /// What the reader was told is the beginning of a request's text, never what was only proposed or drawn in vain.
    fn check_news(&mut self) {
        for news in self.reader.news.drain(..) {
            let is_text = self.watched.values().any(|watched| {
                let text = watched.arrival.prompt.iter().chain(&watched.expected);
                text.take(news.len()).eq(&news)
            });
            assert!(is_text, "{news:?} is the text of no request");
        }
    }

    fn run_step(&mut self) {
        let launched = self.launch();
        self.reader.turn(&mut self.scheduler, u64::from(self.step));
        self.check_news();
        if !launched || !self.schedule.ahead || self.in_flight.len() == 2 {
            self.commit();
        }
        self.collect();
        self.step += 1;
        if self.schedule.clear_every.is_some_and(|every| self.step.is_multiple_of(every)) {
            self.scheduler.clear_prefix_cache();
            assert_eq!(self.scheduler.pool().cached(), 0);
        }
    }

    /// Plans a step and computes it, as a device does that runs steps in the order of their launches.
    fn launch(&mut self) -> bool {
        let Some(rows) = self.plan() else { return false };
        self.mock.copy(&self.scheduler);
        self.mock.check_writes(&self.scheduler, &rows);
        let mut results = Vec::new();
        for row in &rows {
            let watched = self.watched.get_mut(&row.id).expect("a request that runs was admitted");
            let since = self.step - watched.arrival.at_step;
            let poisoned = matches!(watched.arrival.exit, Some(Exit::Fail(after)) if after <= since);
            let result = self.mock.row(&self.scheduler, row, poisoned);
            watched.started = true;
            if self.schedule.policy.pools {
                assert_eq!(row.start, watched.computed, "{}: each position once, in order", row.id);
                watched.computed += row.len;
            }
            results.push((row.id, result));
        }
        self.in_flight.push_back(results);
        true
    }

    fn commit(&mut self) {
        let step = self.in_flight.pop_front().unwrap_or_default();
        for (id, result) in &step {
            let watched = self.watched.get_mut(id).expect("a request that runs was admitted");
            watched.failed |= matches!(result, RowResult::Failed(_)) && watched.ended.is_none();
        }
        let took_ns = mix(u64::from(self.step), step.len() as u64) % 4000;
        self.scheduler.measured(took_ns);
        let results: Vec<RowResult> = step.into_iter().map(|(_, result)| result).collect();
        for event in self.scheduler.commit(&results) {
            let watched = self.watched.get_mut(&event.id).expect("a request that runs was admitted");
            assert_eq!(event.sequence as usize, watched.got.len(), "no token is repeated or skipped");
            watched.got.push(event.token);
            assert_eq!(event.last, watched.got.len() == watched.expected.len());
            assert_eq!(results[event.row as usize], RowResult::Token(event.token));
        }
        self.scheduler.check();
    }

    /// The rows of the next step; `None` if the one in flight must be committed first.
    fn plan(&mut self) -> Option<Vec<PlanRow>> {
        let (limits, policy) = (self.schedule.limits, self.schedule.policy);
        let ahead = !self.in_flight.is_empty();
        let preemptions = self.scheduler.totals().preemptions;
        let now_ns = u64::from(self.step);
        if self.scheduler.plan(now_ns).is_none() {
            assert!(ahead || self.scheduler.is_empty(), "requests are here and nothing is planned");
            return None;
        }
        let plan = self.scheduler.current_plan();
        assert!(!plan.rows.is_empty(), "an empty plan is none");
        assert!(plan.token_count <= limits.max_num_batched_tokens, "over the token budget");
        let sequences = plan.rows.iter().filter(|row| row.draft == 0).count();
        assert!(sequences <= limits.max_num_seqs as usize, "over the sequence limit");
        assert!(plan.rows.len() <= policy.rows_max(&limits) as usize, "over the row limit");
        assert!(plan.rows.iter().all(|row| row.len > 0), "a row without a token");
        assert_eq!(plan.token_count, plan.rows.iter().map(|row| row.len).sum::<u32>());
        let chunk_max = policy.prefill_chunk_tokens_max.unwrap_or(u32::MAX);
        assert!(plan.rows.iter().all(|row| row.len <= chunk_max), "over the chunk size");
        let chunks = plan.rows.iter().filter(|row| row.len > 1).count();
        assert!(chunks <= policy.prefill_rows_max.unwrap_or(u32::MAX) as usize, "over the prefill batch");
        let rows = plan.rows.clone();
        assert!(
            !ahead || self.scheduler.totals().preemptions == preemptions,
            "preempted with a row in flight"
        );
        self.scheduler.check();
        for (index, row) in rows.iter().enumerate() {
            let same = rows[..index].iter().filter(|other| other.lane == row.lane || other.id == row.id);
            assert_eq!(
                same.clone().count() as u32,
                row.draft,
                "one row, and one for each draft in its order"
            );
            let base = rows.iter().find(|other| other.id == row.id).expect("the row itself, at least");
            let own = (row.lane, row.start, row.draw, row.len);
            let draft = row.draft;
            assert!(
                draft == 0 || own == (base.lane, base.start + draft, base.draw.map(|draw| draw + draft), 1),
                "{row:?} does not follow {base:?}"
            );
        }
        Some(rows)
    }

    fn check_waits(&self, last_arrival: u32) {
        let Schedule { limits, policy, .. } = &self.schedule;
        let totals = self.scheduler.totals();
        assert!(self.step <= last_arrival + self.work_steps + 1, "the scheduler goes round in circles");
        for (id, watched) in &self.watched {
            if watched.ended.is_some() || watched.discarded {
                continue;
            }
            if policy.admission == Admission::Fifo && !self.ranked && !self.shared {
                assert!(self.step <= watched.deadline, "{id} starves");
            }
            let again = totals.preemptions - watched.before.preemptions;
            let each = if self.ranked { AGED_STARTS_EVERY } else { 1 };
            let turns = u64::from(policy.overtaken_max) + each * (watched.present + again + 1);
            let starts = totals.starts - watched.before.starts;
            // Those of the step in which its own turn comes may be counted as well.
            let in_a_step = u64::from(limits.max_num_seqs);
            // Between tenants it is tokens, not starts, that are bounded.
            assert!(
                watched.started || self.shared || starts <= turns + in_a_step,
                "{id} is overtaken too often"
            );
        }
    }

    fn check_end(&self) {
        let pool = self.scheduler.pool();
        assert_eq!(pool.held(), 0, "blocks are left behind");
        assert_eq!(pool.cached() + pool.free(), pool.total());
        if let Some(windows) = pool.windows() {
            assert_eq!(windows.used(), 0, "window blocks are left behind");
            assert_eq!(windows.idle() + windows.free(), windows.total());
            assert!(windows.idle() <= pool.cached(), "only cached blocks own them");
        }
        for (id, watched) in &self.watched {
            assert_eq!(watched.got, watched.expected[..watched.got.len()], "{id}: other tokens than alone");
            let Some(ended) = watched.ended else {
                assert!(watched.discarded, "{id} never ended");
                continue;
            };
            assert_eq!(ended.finished.generated_tokens as usize, watched.got.len());
            assert!(ended.finished.cached_tokens <= ended.finished.prompt_tokens);
            let whole = watched.got.len() == watched.expected.len();
            match ended.finished.reason {
                FinishReason::Length => {
                    assert!(whole && watched.got.len() as u32 == watched.arrival.max_tokens);
                    let (pools, computed) = (self.schedule.policy.pools, watched.computed);
                    assert!(!pools || computed == ended.finished.prompt_tokens, "{id}: {computed} tokens");
                }
                FinishReason::Stop if whole && watched.got.last() == Some(&EOS) => {}
                FinishReason::Stop => assert!(matches!(watched.arrival.exit, Some(Exit::Stop(_)))),
                FinishReason::Cancelled => assert!(matches!(watched.arrival.exit, Some(Exit::Cancel(_)))),
                FinishReason::Failed(code) => assert!(watched.failed && code == FaultCode::NonFinite),
            }
        }
    }
}
