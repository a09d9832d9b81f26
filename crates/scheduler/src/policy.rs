//! The operator's choices: the prefix cache, the shape of prefill, and the order of admission.
//!
//! The next request is chosen in this order: the tenant that was served least ([`crate::tenants`]), the highest
//! priority among its requests, preempted requests before others, and then the operator's admission policy.
//!
//! No policy starves a request. A request that [`Policy::overtaken_max`] others have overtaken goes before all others
//! of its tenant and priority; once it is its tenant's oldest, it also gets every fourth start of that tenant. So it
//! waits for at most [`Policy::overtaken_max`] starts of its tenant, and then for four per request ahead of it. It is
//! preempted for a higher priority at most four times.

use crate::requests::Requests;
use crate::sequence::Sequence;
use crate::{Limits, StepTime};
use pinion_protocol::WindowKv;
use pinion_protocol::limits::DRAFT_STEP_ROWS_MAX;

/// Waiting requests that [`Admission::Pack`] looks at.
const LOOKAHEAD_WINDOW: usize = 64;
/// [`Admission::Shortest`] adds this many tokens to a request's length for each request that started before it arrived.
const AGEING_TOKENS_PER_START: u64 = 16;
/// [`Admission::Deadline`]: the deadline of a longer prompt is proportionally later.
const TARGET_PROMPT_TOKENS: u64 = 256;
/// While a tenant's requests differ in priority, one start in this many goes to its oldest request, whatever its
/// priority, once that request has been overtaken [`Policy::overtaken_max`] times.
const AGED_STARTS_EVERY: u64 = 4;
/// Most times a request is preempted for a higher priority.
const PRIORITY_PREEMPTIONS_MAX: u32 = 4;
/// Most steps in a row in which prefill comes before decode.
const PREFILL_FIRST_STEPS_MAX: u32 = 4;

/// The order in which waiting requests start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admission {
    /// First come, first served.
    #[default]
    Fifo,
    /// The shortest of the first 64 in order of arrival.
    Pack,
    /// The shortest of all. Each start before a request's arrival adds to its length, so that a long request ages.
    Shortest,
    /// The earliest deadline.
    Deadline {
        /// From arrival to the deadline of a prompt of up to 256 tokens, in ns; proportionally more for longer prompts.
        target_ns: u64,
    },
}

/// The scheduler's policies. They do not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Keep computed KV blocks for later requests with the same prefix.
    pub prefix_cache: bool,
    /// With the prefix cache: copy the common beginning of a block when a request diverges inside it.
    pub prefix_partial: bool,
    /// With the prefix cache: a request that shares the prefix of a prompt in prefill waits until that prefix is
    /// cached.
    pub prefix_wait: bool,
    /// The order in which waiting requests start.
    pub admission: Admission,
    /// Most prompt tokens of one request in one step; `None`: the step's own limit.
    pub prefill_chunk_tokens_max: Option<u32>,
    /// Most requests with prompt tokens in one step; `None`: the step's own limit.
    pub prefill_rows_max: Option<u32>,
    /// Prefill comes before decode in a step while at least this many requests are in prefill or wait for it; `None`:
    /// never.
    pub prefill_first_from: Option<u32>,
    /// How long a step with decode rows may take; limits the prompt tokens that join it.
    pub step_time: StepTime,
    /// Starts of other requests after which a waiting request is no longer overtaken.
    pub overtaken_max: u32,
    /// The model gives a vector for each prompt: all of it is computed, though nothing is generated.
    pub pools: bool,
    /// Propose tokens that a text repeats, and verify them in rows of their own.
    pub speculation: bool,
    /// What layers with a window keep of the KV; `None`: all of it, as the others.
    pub window: Option<WindowKv>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            prefix_cache: true,
            prefix_partial: true,
            prefix_wait: true,
            admission: Admission::Fifo,
            prefill_chunk_tokens_max: None,
            prefill_rows_max: None,
            prefill_first_from: None,
            step_time: StepTime::Unbounded,
            overtaken_max: 256,
            pools: false,
            speculation: false,
            window: None,
        }
    }
}

impl Policy {
    /// Most rows of one step: one for each running sequence; with drafts at least as many as a step with drafts has.
    pub fn rows_max(&self, limits: &Limits) -> u32 {
        let drafts =
            if self.speculation { DRAFT_STEP_ROWS_MAX.min(limits.max_num_batched_tokens) } else { 0 };
        limits.running_max().max(drafts)
    }

    /// Queue index of the next request to start, after `starts` of them. O(1), O(window) or O(queue), by policy;
    /// O(queue) while requests differ in priority or tenant.
    pub(crate) fn pick(&self, requests: &Requests, starts: u64) -> Option<usize> {
        let is_aged =
            |sequence: &Sequence| starts - sequence.arrival().starts_before >= u64::from(self.overtaken_max);
        let alike = requests.are_alike();
        let front = requests.waiting().next()?.arrival();
        let tenant = if alike { front.tenant } else { next_tenant(requests)? };
        let theirs = || requests.waiting().enumerate().filter(|(_, s)| s.arrival().tenant == tenant);
        let mut class = front.priority;
        if !alike {
            class = theirs().map(|(_, sequence)| sequence.arrival().priority).min()?;
            let (index, oldest) = theirs().min_by_key(|(_, sequence)| sequence.arrival().ordinal)?;
            if is_aged(oldest) && requests.tenants().starts(tenant).is_multiple_of(AGED_STARTS_EVERY) {
                return Some(index);
            }
        }
        let classmates = || theirs().filter(|(_, sequence)| sequence.arrival().priority == class);
        let (first, sequence) = classmates().next()?;
        if sequence.preemptions() > 0 || is_aged(sequence) {
            return Some(first);
        }
        let least = |window: usize, cost: &dyn Fn(&Sequence) -> u64| {
            let costs = classmates().take(window).map(|(index, sequence)| (index, cost(sequence)));
            costs.min_by_key(|&(_, cost)| cost).map(|(index, _)| index) // the first of equals
        };
        match self.admission {
            Admission::Fifo => Some(first),
            Admission::Pack => least(LOOKAHEAD_WINDOW, &|sequence| u64::from(sequence.len())),
            Admission::Shortest => least(usize::MAX, &|sequence| {
                u64::from(sequence.len()) + sequence.arrival().starts_before * AGEING_TOKENS_PER_START
            }),
            Admission::Deadline { target_ns } => least(usize::MAX, &|sequence| {
                let length = u64::from(sequence.len()).max(TARGET_PROMPT_TOKENS);
                let time_ns = u128::from(target_ns) * u128::from(length) / u128::from(TARGET_PROMPT_TOKENS);
                sequence.arrival().arrived_ns.saturating_add(u64::try_from(time_ns).unwrap_or(u64::MAX))
            }),
        }
    }

    /// Whether prefill comes before decode in a step; it did in the last `steps` ones.
    pub(crate) fn puts_prefill_first(&self, requests: &Requests, steps: u32) -> bool {
        steps < PREFILL_FIRST_STEPS_MAX
            && self.prefill_first_from.is_some_and(|from| {
                let prefills = requests.running().filter(|s| !s.decodes() && !s.completes()).count();
                prefills + requests.waiting_count() >= from as usize
            })
    }
}

/// The least-served tenant with waiting requests; among equals, the one with the oldest request.
fn next_tenant(requests: &Requests) -> Option<u32> {
    let queue = requests.waiting().map(Sequence::arrival);
    let next = queue.min_by_key(|arrival| (requests.tenants().served(arrival.tenant), arrival.ordinal));
    next.map(|arrival| arrival.tenant)
}

/// Index in the running set of the request to preempt: the lowest priority, among equals the one that started last.
/// A request that was preempted for a higher priority [`PRIORITY_PREEMPTIONS_MAX`] times ranks above all others;
/// among such requests the oldest ranks highest.
pub(crate) fn preemption_candidate(requests: &Requests) -> Option<usize> {
    let last = requests.running().enumerate().max_by_key(|(index, sequence)| {
        let protected = sequence.priority_preemptions() >= PRIORITY_PREEMPTIONS_MAX;
        let arrival = sequence.arrival();
        let (priority, ordinal) = if protected { (0, arrival.ordinal) } else { (arrival.priority, 0) };
        (!protected, priority, ordinal, *index)
    });
    last.map(|(index, _)| index)
}
