//! What an operator may choose: the cache, the shape of prefill, and who of the waiting goes next.
//!
//! No choice lets a request starve. Whoever was preempted goes before everyone else, and a request that has seen
//! [`Policy::overtaken_max`] others start goes, at the head of the queue, before all that the policy prefers.

use crate::Scheduler;

/// Waiting requests that [`Admission::Pack`] looks at.
const LOOKAHEAD_WINDOW: usize = 64;
/// [`Admission::Shortest`] takes a request for this many tokens longer with each one that started before it arrived.
const AGEING_TOKENS_PER_START: u64 = 16;
/// [`Admission::Deadline`]: a longer prompt than this has proportionally more time.
const TARGET_PROMPT_TOKENS: u64 = 256;
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
            admission: Admission::Fifo,
            prefill_chunk_tokens_max: None,
            prefill_rows_max: None,
            prefill_first_from: None,
            overtaken_max: 256,
        }
    }
}

impl Scheduler {
    /// Place in the queue of the request that goes next. O(1), O(window) or O(queue), by policy.
    pub(crate) fn pick(&self) -> Option<usize> {
        let front = self.sequence(*self.waiting.front()?);
        let overtaken_max = u64::from(self.policy.overtaken_max);
        if front.preemptions > 0 || self.waited_starts(front.starts_before) >= overtaken_max {
            return Some(0);
        }
        let least = |window: usize, cost: &dyn Fn(u32) -> u64| {
            let costs = self.waiting.iter().take(window).map(|&key| cost(key)).enumerate();
            costs.min_by_key(|&(_, cost)| cost).map(|(index, _)| index) // the first of equals
        };
        match self.policy.admission {
            Admission::Fifo => Some(0),
            Admission::Pack => least(LOOKAHEAD_WINDOW, &|key| u64::from(self.sequence(key).len())),
            Admission::Shortest => least(usize::MAX, &|key| {
                let sequence = self.sequence(key);
                u64::from(sequence.len()) + sequence.starts_before * AGEING_TOKENS_PER_START
            }),
            Admission::Deadline { target_ns } => least(usize::MAX, &|key| {
                let sequence = self.sequence(key);
                let length = u64::from(sequence.len()).max(TARGET_PROMPT_TOKENS);
                let time_ns = u128::from(target_ns) * u128::from(length) / u128::from(TARGET_PROMPT_TOKENS);
                sequence.arrived_ns.saturating_add(u64::try_from(time_ns).unwrap_or(u64::MAX))
            }),
        }
    }

    /// Starts since there were `starts_before` of them.
    fn waited_starts(&self, starts_before: u64) -> u64 {
        self.totals.starts - starts_before
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
