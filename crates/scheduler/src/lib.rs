//! The pure scheduler: which tokens of which sequences the next step computes, and which KV blocks hold them.
//!
//! It knows no clock (the time comes in as an argument), no I/O, no threads and no model. Start at [`Scheduler`]:
//! [`Scheduler::admit`] takes a request, [`Scheduler::plan`] says what to compute, [`Scheduler::commit`] takes what
//! the model answered and gives the tokens, [`Scheduler::drain_finished`] gives every ended request exactly once.
//! [`kv`] is the block pool underneath.
//!
//! # How a step is filled
//! Requests run in the order of their arrival. Every running sequence that lacks one token of KV gets its decode row;
//! what is left of the token budget goes to prefill chunks, oldest first, and then to waiting requests, first come
//! first served. A request enters the running set only when everything already in it got a row in the same step, so
//! there are never more running sequences than tokens in the budget and none of them can be left out twice.
//!
//! # When blocks run out
//! Entering the running set takes the blocks for all tokens known so far; decoding takes one more at each block
//! boundary. If there is none, the youngest running request gives all of its blocks back and returns to the front of
//! the queue with its tokens as its prefix; it is computed again later and draws the same tokens, because a draw
//! depends only on (seed, index). The oldest running request is never a victim, and one that could not fit even alone
//! is refused at the door, so there is always progress.

mod check;
pub mod kv;
mod plan;
mod request;
mod scheduler;
mod sequence;

pub use plan::{Ended, Event, PlanRow, RowResult, RowView, StepPlan};
pub use request::{Limits, Refusal, Request};
pub use scheduler::{Scheduler, Totals};
