//! The service's tests in one program, so that what they share is compiled and linked once. deploy/run_tests.py
//! runs each module in a process of its own; `cargo test --package pinion-testkit MODULE::` runs one.

mod deaths;
#[path = "../../model/tests/tiny/mod.rs"]
mod tiny;
#[path = "../../model/tests/tiny_prequantized/mod.rs"]
mod tiny_prequantized;

mod attack;
mod bad_http;
mod bad_input;
mod bad_start;
mod cache;
mod chat;
mod corrupt;
mod cuda;
mod deploy;
mod descriptors;
mod disconnect;
mod doctor;
mod embeddings;
mod fairness;
mod families;
mod fields;
mod gguf;
mod hostile_folder;
mod hosts;
mod in_process;
mod jitter;
mod keys;
mod kv_events;
mod lifecycle;
mod limits;
mod log;
mod messages;
mod nemesis;
mod nemesis_model;
mod operators;
mod otlp;
mod overlap;
mod prequantized;
mod profile;
mod prompt_logprobs;
mod pull;
mod reasoning;
mod replay;
mod responses;
mod restart;
mod sampling;
mod sandbox;
mod slice;
mod small_routes;
mod spare;
mod speculation;
mod stall;
mod step_time;
mod streams;
mod structured;
mod terminal_log;
mod timeline;
mod tmpdir;
mod tool_calls;
mod top;
mod torch;
mod trace;
mod transport;
mod usage;
