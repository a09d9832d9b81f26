//! The pure scheduler: which tokens of which sequences the next step computes, and which KV blocks hold them.
//!
//! It knows no clock (the time comes in as an argument), no I/O, no threads and no model. Start at [`Scheduler`]:
//! [`Scheduler::admit`] takes a request, [`Scheduler::plan`] says what to compute, [`Scheduler::commit`] takes what
//! the model answered and gives the tokens, [`Scheduler::drain_finished`] gives every ended request exactly once.
//! [`kv`] is the block pool underneath, with the prefix cache; [`Policy`] is what an operator may choose.
//!
//! # How a step is filled
//! Every running sequence that lacks one token of KV gets its decode row; what is left of the token budget goes to
//! prefill chunks in the order in which the requests started, and then to waiting requests, first come first served or
//! as the policy says. A request enters the running set only when everything already in it got a row in the same step,
//! so there are never more running sequences than tokens in the budget. With [`Policy::prefill_first_from`] prompts
//! take their tokens first, but only for a few steps in a row, so no decode is left out for long.
//!
//! # When blocks run out
//! Entering the running set takes the blocks for all tokens known so far; decoding takes one more at each block
//! boundary. If there is none, not even a cached one, the least important running request, of equals the one that started
//! last, gives all of its blocks back and returns to the front of the queue with its tokens as its prefix. Later it takes from the prefix cache what
//! is still there, computes the rest again and draws the same tokens, because a draw depends only on (seed, index).
//! Among equals the one that started first is never a victim, whoever was outranked a few times is outranked no more, and
//! one that could not fit even alone is refused at the door, so there is always progress.
//!
//! # What is shared
//! Whole blocks, found by all tokens up to their end. Of a block that is known only in part the beginning is copied
//! ([`StepPlan::copies`]). A block becomes findable when a token has been drawn after it was
//! computed, so a request that fails leaves nothing that could fail another. Sharing changes who computes, never
//! what comes out.

mod check;
pub mod kv;
mod plan;
mod planning;
mod policy;
mod prefix;
mod request;
mod scheduler;
mod sequence;
mod tenants;

pub use plan::{BlockCopy, Company, Ended, Event, PlanRow, RowResult, RowView, StepLoad, StepPlan};
pub use policy::{Admission, Policy};
pub use request::{Limits, Refusal, Request};
pub use scheduler::{Scheduler, Totals};
