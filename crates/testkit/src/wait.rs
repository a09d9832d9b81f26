//! Waiting with a deadline, by looking again and again.

use std::time::{Duration, Instant};

/// How long anything may take before it counts as hanging: far above what two cores need that
/// others keep busy as well.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Looks until `look` gives something.
///
/// # Panics
/// When `limit` has passed; `what` says what was waited for.
pub fn wait_until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} in vain until {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}
