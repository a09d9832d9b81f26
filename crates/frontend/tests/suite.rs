//! The frontend's tests in one program, so that what they share is compiled and linked once. deploy/run_tests.py
//! runs each module in a process of its own; `cargo test --package pinion-frontend MODULE::` runs one.

mod asked;
mod harness;

mod abuse;
mod access;
mod admission;
mod answers;
mod bodies;
mod chats;
mod choices;
mod echo;
mod framing;
mod grammar;
mod logprobs;
mod messages_api;
mod metrics;
mod orders;
mod pages;
mod pooling;
mod reasoning;
mod recovery;
mod responses_api;
mod routing;
mod small_routes;
mod sse;
mod text_form;
mod timings;
mod tool_calls;
mod waits;
