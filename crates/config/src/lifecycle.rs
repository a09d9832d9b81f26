//! Start, stop, restarts and logs.

use crate::log::LogForm;
use crate::sources::{Settings, Take};
use serde::{Deserialize, Serialize};

/// How the service starts, ends, and brings roles back; and what it logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifecycle {
    /// All roles must be ready in this time, in ms.
    pub start_timeout_ms: u64,
    /// New requests are served for this long after the first signal, while `/ready` says no, in ms.
    pub drain_delay_ms: u64,
    /// Open requests may finish for this long after that, in ms.
    pub drain_timeout_ms: u64,
    /// Wait before the second restart of a role within a minute, in ms; it doubles with each further one.
    pub restart_backoff_ms: u64,
    /// Restarts of one role within a minute before the service gives up.
    pub restart_limit: u32,
    /// Requests go on after the death of a role that held them.
    pub resume: bool,
    /// A spare engine process waits for the engine to die.
    pub spare_engine: bool,
    /// A role that has not turned its loop for this long is killed, in ms; 0 is never.
    pub stuck_timeout_ms: u64,
    /// What is logged, in tracing's filter syntax.
    pub log_filter: String,
    /// Form of log lines. Older recordings do not say it.
    #[serde(default)]
    pub log_form: LogForm,
}

impl Lifecycle {
    pub(crate) fn new(settings: &Settings) -> Lifecycle {
        let take = Take(settings);
        Lifecycle {
            start_timeout_ms: take.number("start-timeout"),
            drain_delay_ms: take.number("drain-delay"),
            drain_timeout_ms: take.number("drain-timeout"),
            restart_backoff_ms: take.number("restart-backoff"),
            restart_limit: take.word("restart-limit"),
            resume: settings.switch("resume").unwrap_or(true),
            spare_engine: settings.switch("spare-engine").unwrap_or(true),
            stuck_timeout_ms: take.number("stuck-timeout"),
            log_filter: settings.text("log").unwrap_or("info").to_owned(),
            log_form: LogForm::of(settings),
        }
    }
}
