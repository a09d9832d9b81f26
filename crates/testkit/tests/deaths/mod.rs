//! Roles that die while an answer is streamed.

use pinion_testkit::{PATIENCE, Server, Signal, kill, wait_until};

/// Flags of a service whose streams take long enough to be hit.
pub(crate) const FLAGS: [&str; 10] = [
    "--backend",
    "fake",
    "--tool-call-parser",
    "hermes",
    "--fake-step-us",
    "5000",
    "--restart-backoff",
    "20ms",
    "--restart-limit",
    "1000",
];

/// Deaths of a role until one hits a stream.
const DEATHS_MAX: usize = 20;

/// Streams an answer and kills the engine under it, then another one and kills the detokenizer. `check` gets each.
pub(crate) fn under_streams(server: &Server, stream: impl Fn() -> String + Sync, check: impl Fn(&str)) {
    for role in ["engine-0", "detokenizer-0"] {
        let hit = (0..DEATHS_MAX).any(|_| {
            let (before, answer) = (server.metric(RESUMED), dies_under(server, role, &stream));
            check(&answer);
            server.metric(RESUMED) > before
        });
        assert!(hit, "{DEATHS_MAX} deaths of {role} were not noticed");
    }
}

const RESUMED: &str = "pinion_resumed_requests_total";

/// The answer of a stream under which the role dies some tokens after its beginning, or after its end where this thread
/// is late.
fn dies_under(server: &Server, role: &str, stream: impl Fn() -> String + Sync) -> String {
    let victim = wait_until("the role runs", PATIENCE, || server.role(role));
    let generated = || server.metric("pinion_engine_generated_tokens_total");
    let before = generated();
    // A successor counts from 0 again, from its first step on.
    let flows = |now: f64| now >= before + 20.0 || (20.0..before).contains(&now);
    let answer = std::thread::scope(|scope| {
        let answer = scope.spawn(&stream);
        wait_until("tokens flow", PATIENCE, || flows(generated()).then_some(()));
        kill(victim.pid, Signal::SIGKILL);
        answer.join().expect("the client's thread")
    });
    println!("{role} died under a stream");
    wait_until("it has a successor", PATIENCE, || {
        let back = server.role(role).is_some_and(|found| found.pid != victim.pid);
        (back && server.get("/ready").status() == 200).then_some(())
    });
    answer
}
