//! What an operator may choose: the cache, the shape of prefill, and who of the waiting goes next.
//!
//! Who goes next is decided in this order: the tenant that was served least ([`crate::tenants`]), its most important
//! requests, of these whoever was preempted, and then the operator's choice.
//!
//! No choice lets a request starve. One that has seen [`Policy::overtaken_max`] others start goes before all others of
//! its tenant and priority, and every fourth start of its tenant is its own as soon as it is the oldest. So among the
//! requests of one tenant it sees at most [`Policy::overtaken_max`] starts and then four for each that stands before it.
//! It is preempted in favour of more important ones at most four times.

use crate::Scheduler;
use crate::sequence::Sequence;

/// Waiting requests that [`Admission::Pack`] looks at.
const LOOKAHEAD_WINDOW: usize = 64;
/// [`Admission::Shortest`] takes a request for this many tokens longer with each one that started before it arrived.
const AGEING_TOKENS_PER_START: u64 = 16;
/// [`Admission::Deadline`]: a longer prompt than this has proportionally more time.
const TARGET_PROMPT_TOKENS: u64 = 256;
/// While a tenant's requests differ in priority, every so many of its starts go to its oldest request if that has been
/// overtaken [`Policy::overtaken_max`] times, whatever its priority.
const AGED_STARTS_EVERY: u64 = 4;
/// A request is preempted in favour of more important ones so often, and then no more.
const OUTRANKED_MAX: u32 = 4;
/// Steps in a row that prompts may have for themselves before every decoding request gets its token again.
pub(crate) const PREFILL_FIRST_STEPS_MAX: u32 = 4;

/// Who of the waiting requests goes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admission {
    /// The one that arrived first.
    #[default]
    Fifo,
    /// The shortest of the first 64 in order of arrival.
    Pack,
    /// The shortest of all, where who arrives later counts as longer.
    Shortest,
    /// The one whose deadline is first.
    Deadline {
        /// From arrival to the deadline of a prompt of up to 256 tokens, in ns; longer prompts have proportionally
        /// more.
        target_ns: u64,
    },
}

/// The switches of a scheduler, fixed for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Keep the KV blocks of what was computed for requests that begin alike.
    pub prefix_cache: bool,
    /// With the cache: copy the first part of a block too, if a request goes on differently in the middle of it.
    pub prefix_partial: bool,
    /// With the cache: whoever begins like a request whose prompt is being computed waits until that is there.
    pub prefix_wait: bool,
    /// Who of the waiting requests goes next.
    pub admission: Admission,
    /// Most prompt tokens of one request in one step; `None`: the step's own limit.
    pub prefill_chunk_tokens_max: Option<u32>,
    /// Most requests with prompt tokens in one step; `None`: the step's own limit.
    pub prefill_rows_max: Option<u32>,
    /// So many requests in prefill, those that wait for it included, get a step's tokens before decodes do; `None`:
    /// never.
    pub prefill_first_from: Option<u32>,
    /// Starts of others after which a waiting request is overtaken no more.
    pub overtaken_max: u32,
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
            overtaken_max: 256,
        }
    }
}

impl Scheduler {
    /// Place in the queue of the request that goes next. O(1), O(window) or O(queue), by policy; O(queue) while the
    /// requests that are here differ in priority or tenant.
    pub(crate) fn pick(&self) -> Option<usize> {
        let alike = self.ranked == 0 && self.tenants.live() <= 1;
        let front = self.sequence(*self.waiting.front()?);
        let tenant = if alike { front.tenant } else { self.next_tenant()? };
        let queue = || self.waiting.iter().map(|&key| self.sequence(key)).enumerate();
        let theirs = || queue().filter(|(_, sequence)| sequence.tenant == tenant);
        let mut class = front.claim.priority;
        if !alike {
            class = theirs().map(|(_, sequence)| sequence.claim.priority).min()?;
            let (index, oldest) = theirs().min_by_key(|(_, sequence)| sequence.ordinal)?;
            if self.is_aged(oldest) && self.tenants.starts(tenant).is_multiple_of(AGED_STARTS_EVERY) {
                return Some(index);
            }
        }
        let classmates = || theirs().filter(|(_, sequence)| sequence.claim.priority == class);
        let (first, sequence) = classmates().next()?;
        if sequence.preemptions > 0 || self.is_aged(sequence) {
            return Some(first);
        }
        let least = |window: usize, cost: &dyn Fn(&Sequence) -> u64| {
            let costs = classmates().take(window).map(|(index, sequence)| (index, cost(sequence)));
            costs.min_by_key(|&(_, cost)| cost).map(|(index, _)| index) // the first of equals
        };
        match self.policy.admission {
            Admission::Fifo => Some(first),
            Admission::Pack => least(LOOKAHEAD_WINDOW, &|sequence| u64::from(sequence.len())),
            Admission::Shortest => least(usize::MAX, &|sequence| {
                u64::from(sequence.len()) + sequence.starts_before * AGEING_TOKENS_PER_START
            }),
            Admission::Deadline { target_ns } => least(usize::MAX, &|sequence| {
                let length = u64::from(sequence.len()).max(TARGET_PROMPT_TOKENS);
                let time_ns = u128::from(target_ns) * u128::from(length) / u128::from(TARGET_PROMPT_TOKENS);
                sequence.arrived_ns.saturating_add(u64::try_from(time_ns).unwrap_or(u64::MAX))
            }),
        }
    }

    /// Of the tenants with waiting requests the one that was served least; of equals the one that has waited longest.
    fn next_tenant(&self) -> Option<u32> {
        let queue = self.waiting.iter().map(|&key| self.sequence(key));
        let next = queue.min_by_key(|sequence| (self.tenants.served(sequence.tenant), sequence.ordinal));
        next.map(|sequence| sequence.tenant)
    }

    /// Whether it has seen so many others start that it is overtaken no more.
    fn is_aged(&self, sequence: &Sequence) -> bool {
        self.totals.starts - sequence.starts_before >= u64::from(self.policy.overtaken_max)
    }

    /// Place in the running set of the request that gives way when blocks run out: the least important one, of those
    /// the one that started last. Whoever was outranked [`OUTRANKED_MAX`] times is more important than all who were
    /// not, and of two such the one that arrived first.
    pub(crate) fn victim(&self) -> Option<usize> {
        let running = self.running.iter().map(|&key| self.sequence(key)).enumerate();
        let last = running.max_by_key(|(index, sequence)| {
            let protected = sequence.outranked >= OUTRANKED_MAX;
            let arrival = if protected { sequence.ordinal } else { 0 };
            (!protected, if protected { 0 } else { sequence.claim.priority }, arrival, *index)
        });
        last.map(|(index, _)| index)
    }

    /// Whether somebody who runs is more important than this one.
    pub(crate) fn is_outranked(&self, priority: i32) -> bool {
        self.ranked > 0 && self.running.iter().any(|&key| self.sequence(key).claim.priority < priority)
    }

    /// Whether prompts get this step's tokens before decodes do.
    pub(crate) fn prefill_first(&mut self) -> bool {
        let first = self.prefill_first_steps < PREFILL_FIRST_STEPS_MAX
            && self.policy.prefill_first_from.is_some_and(|from| {
                let prefills = self.running.iter().map(|&key| self.sequence(key));
                let prefills = prefills.filter(|s| !s.decodes() && !s.completes()).count();
                prefills + self.waiting.len() >= from as usize
            });
        self.prefill_first_steps = if first { self.prefill_first_steps + 1 } else { 0 };
        first
    }
}
