//! The time budget of a step: how many prompt tokens join its decode rows. docs/design/0014-step-time-budget.md.
//!
//! Only a step with decode rows has a budget: no stream waits for another one. Prompt chunks are taken while the time
//! that [`StepCost`] predicts for the whole step stays within it. [`PROMPT_TOKENS_MIN`] tokens join in any case, so
//! that every prompt ends however little time is left.

use crate::plan::{PlanRow, StepPlan};
use crate::step_cost::{StepCost, StepWork};

/// Prompt tokens that join decode rows whatever the budget: a prompt's share of a step that has no time left, and of
/// the first steps, whose cost is not known yet.
const PROMPT_TOKENS_MIN: u32 = 32;
/// A step has at most this number of times the prompt tokens of the largest step so far: further away from what was
/// measured a prediction says little.
const GROWTH_MAX: u32 = 2;
/// [`StepTime::Auto`]: the budget is this number of times what the decode rows take alone.
const AUTO_MULTIPLE: u64 = 2;

/// How long a step with decode rows may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StepTime {
    /// As long as its tokens take.
    #[default]
    Unbounded,
    /// Twice as long as its decode rows alone, as predicted.
    Auto,
    /// This long, as predicted.
    Target {
        /// In ns.
        ns: u64,
    },
}

/// How well the predictions fit, in sums over the steps that had one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Steps.
    pub steps: u64,
    /// Their predicted times, in ns.
    pub predicted_ns: u64,
    /// Their measured times, in ns.
    pub measured_ns: u64,
    /// Differences between the two, without sign, in ns.
    pub error_ns: u64,
    /// Prompt tokens that a step had room for and a later one computed, for its time.
    pub deferred_tokens: u64,
}

/// The budget of the plan that is being filled, and what the plans before it taught.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepBudget {
    time: StepTime,
    cost: StepCost,
    /// What the plan holds so far. Its decode rows count from the beginning, also if prompts are placed first.
    work: StepWork,
    /// `None`: the plan has no budget.
    limit_ns: Option<u64>,
    /// The same for more decode rows, whose cost is known before that of prompt tokens is.
    decode_limit_ns: Option<u64>,
    /// Prompt tokens that the budget kept out of this plan.
    deferred: u32,
    times: StepTimes,
}

impl StepBudget {
    pub(crate) fn new(time: StepTime) -> StepBudget {
        StepBudget { time, ..StepBudget::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.time != StepTime::Unbounded
    }

    /// A plan with these decode rows begins.
    pub(crate) fn begin(&mut self, decodes: StepWork) {
        (self.work, self.deferred) = (decodes, 0);
        let allowed_ns = match self.time {
            StepTime::Unbounded => None,
            StepTime::Auto => Some(self.cost.predicted_ns(&decodes).saturating_mul(AUTO_MULTIPLE)),
            StepTime::Target { ns } => Some(ns),
        };
        self.decode_limit_ns = allowed_ns.filter(|_| decodes.rows > 0);
        self.limit_ns = self.decode_limit_ns.map(|ns| if self.cost.knows_prompts() { ns } else { 0 });
    }

    /// Whether a prompt token may join, wherever in its prompt it stands.
    pub(crate) fn has_room(&self, context_max: u32) -> bool {
        self.tokens(context_max, 1) > 0
    }

    /// How many of `wanted` prompt tokens behind `start` others may join.
    pub(crate) fn tokens(&self, start: u32, wanted: u32) -> u32 {
        let Some(limit_ns) = self.limit_ns else { return wanted };
        let floor = PROMPT_TOKENS_MIN.saturating_sub(self.work.prompt_tokens);
        let seen = PROMPT_TOKENS_MIN.max(self.cost.prompt_tokens_seen());
        let most = if self.cost.knows_prompts() { seen.saturating_mul(GROWTH_MAX) } else { 0 };
        let most = most.saturating_sub(self.work.prompt_tokens);
        let fits = |len: u32| self.cost.predicted_ns(&self.work.and_chunk(start, len)) <= limit_ns;
        // More tokens never take less time.
        let (mut fitting, mut over) = (0, wanted.min(most).saturating_add(1));
        while fitting + 1 < over {
            let middle = fitting + (over - fitting) / 2;
            if fits(middle) { fitting = middle } else { over = middle }
        }
        fitting.max(floor).min(wanted)
    }

    /// `len` of `wanted` prompt tokens behind `start` others join.
    pub(crate) fn take(&mut self, start: u32, len: u32, wanted: u32) {
        if len > 0 {
            self.work = self.work.and_chunk(start, len);
        }
        self.deferred += wanted - len;
    }

    /// How many of `wanted` more decode rows of a sequence may join, the first over a context of this length. Beside
    /// prompt tokens whose cost is not known none may.
    pub(crate) fn decode_rows(&self, context: u32, wanted: u32) -> u32 {
        let limit_ns = if self.work.prompt_tokens > 0 { self.limit_ns } else { self.decode_limit_ns };
        let Some(limit_ns) = limit_ns else { return wanted };
        let mut work = self.work;
        let fits = |more: &u32| {
            work = work.and_decode(context + more);
            self.cost.predicted_ns(&work) <= limit_ns
        };
        (0..wanted).take_while(fits).count() as u32
    }

    /// That number of them joins.
    pub(crate) fn take_decodes(&mut self, context: u32, count: u32) {
        if self.is_on() {
            self.work = (0..count).fold(self.work, |work, more| work.and_decode(context + more));
        }
    }

    /// Prompt tokens kept out of this plan so far.
    pub(crate) fn deferred(&self) -> u32 {
        self.deferred
    }

    /// How well predicted step times fit; `None` with [`StepTime::Unbounded`].
    pub(crate) fn times(&self) -> Option<StepTimes> {
        self.is_on().then_some(self.times)
    }

    /// A step of this plan took this long.
    pub(crate) fn measured(&mut self, plan: &StepPlan, took_ns: u64) {
        if !self.is_on() {
            return;
        }
        if let Some(predicted_ns) = plan.predicted_ns.filter(|_| took_ns > 0) {
            let times = &mut self.times;
            times.steps += 1;
            times.predicted_ns = times.predicted_ns.saturating_add(predicted_ns);
            times.measured_ns = times.measured_ns.saturating_add(took_ns);
            times.error_ns = times.error_ns.saturating_add(predicted_ns.abs_diff(took_ns));
        }
        self.cost.observe(&plan.work, took_ns);
    }

    /// Notes in a filled plan what it costs. Its last `prompt_rows` rows are the prompts'.
    pub(crate) fn note(&mut self, plan: &mut StepPlan, prompt_rows: usize) {
        let StepPlan { rows, work, predicted_ns, budget_ns, .. } = plan;
        (*work, *predicted_ns, *budget_ns) = (StepWork::default(), None, self.limit_ns);
        if !self.is_on() || rows.is_empty() {
            return;
        }
        let (decodes, prompts) = rows.split_at(rows.len() - prompt_rows);
        let decoded = decodes.iter().fold(StepWork::default(), |work, row| work.and_decode(row.start + 1));
        *work = prompts.iter().fold(decoded, |work, &PlanRow { start, len, .. }| work.and_chunk(start, len));
        *predicted_ns = self.cost.known_ns(work);
        self.times.deferred_tokens += u64::from(self.deferred);
    }
}
