//! What this service says about itself: metrics, health, load, timelines and traces.

pub(crate) mod exposition;
pub mod health;
pub mod incidents;
pub(crate) mod live;
pub mod load;
pub mod metrics;
pub(crate) mod orca;
pub(crate) mod slow;
pub mod stats;
pub mod timeline;
pub(crate) mod trace;
pub(crate) mod view;
