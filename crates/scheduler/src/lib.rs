//! The scheduler: which tokens of which sequences the next step computes, and which KV blocks hold them.
//!
//! It is pure: no clock (time is an argument), no I/O, no threads, no model. Start at [`Scheduler`].
//! [`Scheduler::admit`] queues a request, [`Scheduler::plan`] returns the next step, [`Scheduler::commit`] takes the
//! model's results and returns the new tokens, and [`Scheduler::drain_finished`] returns every ended request exactly
//! once. [`kv`] is the block pool with the prefix cache. [`Policy`] holds the operator's choices.
//!
//! # How a step is filled
//! Each running sequence that lacks the KV of one token gets a decode row. The rest of the token budget goes to prefill
//! chunks, in the order in which the requests started, and then to waiting requests, in the order of the policy. A
//! request starts only if every running request has a row in the same step, so there are never more running sequences
//! than tokens in the budget. With [`Policy::prefill_first_from`] prompts take their tokens first, for a bounded number
//! of steps in a row, so that decodes do not starve. With [`Policy::step_time`] the prompt tokens beside decode rows
//! are limited by the time that they are predicted to take; the caller reports each step's time to
//! [`Scheduler::measured`].
//!
//! # What is proposed
//! With [`Policy::speculation`] a sequence that repeats its own text gets rows for the tokens that it is likely to
//! sample next, one for each such *draft*, behind its decode row. Each row samples as it would if its draft were a
//! token. A commit takes a draft's row only if the draft was sampled by the row before; so drafts change how many
//! tokens a step gives, never which. Drafts take rows, tokens and blocks that nothing else wants.
//!
//! # When blocks run out
//! A request that starts takes blocks for all tokens it has; decoding takes one more at each block boundary. If no
//! block is free or cached, the running request with the lowest priority is preempted; among equals, the one that
//! started last. It gives all its blocks back and returns to the front of the queue. When it starts again it takes from
//! the prefix cache what is still there and computes the rest again. It samples the same tokens, because a sample
//! depends only on (seed, index). There is always progress: among equals the oldest running request is never preempted,
//! a request is preempted for a higher priority a bounded number of times, and a request that cannot fit alone is
//! refused on admission.
//!
//! # What layers with a window keep
//! With [`Policy::window`] a block has two parts. Its *window block* holds the KV of the layers that see a window only,
//! and exists while the block is within the window of a running sequence, or longer while nothing else wants it
//! ([`Windows`]). A running sequence reserves what its window takes, so none is preempted for a window block; one that
//! finds too little unreserved waits. A cached prefix is taken only as far as the window behind it is still there.
//!
//! # What is shared
//! Whole blocks, found by all tokens up to their end. If a request diverges inside a block, the common beginning is
//! copied ([`StepPlan::copies`]). A block is registered in the prefix cache only after a token was sampled from it, so
//! a request that fails leaves nothing behind that could fail another. Sharing changes what is computed, never the
//! output.

mod block_table;
pub mod kv;
mod listing;
mod plan;
mod policy;
mod prefix;
mod request;
mod requests;
mod scheduler;
mod sequence;
mod speculation;
mod step_budget;
mod step_cost;
mod tenants;
mod tokens;
mod window_table;
mod windows;

pub use listing::CacheChange;
pub use plan::{BlockCopy, Company, Ended, Event, PlanRow, RowResult, RowView, StepLoad, StepPlan};
pub use policy::{Admission, Policy};
pub use request::{Limits, Refusal, Request};
pub use scheduler::{Scheduler, Totals};
pub use sequence::SequenceState;
pub use speculation::Drafts;
pub use step_budget::{StepTime, StepTimes};
pub use step_cost::StepWork;
pub use windows::{NONE as NO_WINDOW_BLOCK, Windows};
