//! What this service says about itself: metrics, health, load, timelines and traces.

pub(crate) mod exposition;
pub mod health;
pub mod incidents;
pub mod load;
pub mod load_log;
pub mod metrics;
pub(crate) mod orca;
pub mod otlp;
pub(crate) mod slow;
pub(crate) mod stats_page;
pub mod timeline;
pub(crate) mod trace;
pub(crate) mod view;
