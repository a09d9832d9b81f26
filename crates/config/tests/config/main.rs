//! Tests of the configuration through its public face. Start with `sources`.

mod backends;
mod documentation;
mod hub;
mod kv_events;
mod lists;
mod machines;
mod model_folders;
mod otlp;
mod plans;
mod pooling;
mod rings;
mod scheduling;
mod shells;
mod sources;
mod tree;
mod values;
mod windows;
