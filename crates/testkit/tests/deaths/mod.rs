//! Roles that die while an answer is streamed.

use pinion_testkit::{PATIENCE, Server, Signal, kill, wait_until};
use std::time::Duration;

/// Flags of a service whose streams take long enough to be hit.
pub(crate) const FLAGS: [&str; 8] = [
    "--backend",
    "fake",
    "--tool-call-parser",
    "hermes",
    "--fake-step-us",
    "5000",
    "--restart-backoff",
    "20ms",
];

/// Streams an answer and kills the engine under it, then another one and kills the detokenizer. `check` gets each.
pub(crate) fn under_streams(server: &Server, stream: impl Fn() -> String + Sync, check: impl Fn(&str)) {
    for role in ["engine-0", "detokenizer-0"] {
        let victim = server.role(role).unwrap_or_else(|| panic!("{role} runs"));
        let before = server.metric("pinion_resumed_requests_total");
        let answer = std::thread::scope(|scope| {
            let answer = scope.spawn(&stream);
            wait_until("tokens flow", PATIENCE, || {
                (server.metric("pinion_requests_running") > 0.0).then_some(())
            });
            std::thread::sleep(Duration::from_millis(150));
            kill(victim.pid, Signal::SIGKILL);
            answer.join().expect("the client's thread")
        });
        println!("{role} died under a stream");
        check(&answer);
        assert!(server.metric("pinion_resumed_requests_total") > before, "{role} died unnoticed");
        wait_until("it has a successor", PATIENCE, || {
            server.role(role).filter(|found| found.pid != victim.pid)
        });
    }
}
