//! Logs: one subscriber per process, to standard error, a line per event. Nothing logs per token.

use tracing_subscriber::EnvFilter;

/// Installs the process's subscriber. A filter that does not parse falls back to `info` (the config has
/// already refused it, so that only happens across builds). Calling it twice keeps the first.
pub fn install(filter: &str, json: bool) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let installed = if json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.with_target(false).with_ansi(false).try_init()
    };
    if installed.is_err() {
        tracing::debug!("a subscriber is already installed");
    }
}
