//! Jitter control at start, and the observer of what is left of jitter, from outside.

use pinion_testkit::{Api, End, PATIENCE, Server, Signal, kill, wait_until};
use serde_json::json;
use std::time::Duration;

/// Times that an engine is stopped until one stop is as wanted.
const TRIES: usize = 50;

/// A size from /proc/PID/status in KiB.
fn status_kib(pid: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the role lives");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells it");
    line.trim_matches([':', '\t', ' ']).trim_end_matches(" kB").trim().parse().expect("a number")
}

#[test]
fn jitter_control_brings_memory_in_and_says_what_it_may_lock() {
    let mut shared_kib = Vec::new();
    for on in [true, false] {
        let server = Server::fake(&[if on { "--jitter-control" } else { "--no-jitter-control" }]);
        let text = server.stderr_text();
        let (locked, refused) =
            (text.matches("memory locked").count(), text.matches("memory not locked (").count());
        assert_eq!(locked + refused, if on { 4 } else { 0 }, "one ready line for each role: {text}");
        for role in server.roles() {
            let lies_locked = status_kib(role.pid, "VmLck") > 0;
            assert_eq!(lies_locked, locked > 0, "{}: {text}", role.name);
        }
        let tokenizer = server.role("tokenizer-0").expect("it runs");
        shared_kib.push(status_kib(tokenizer.pid, "RssShmem"));
        server.check_serves("Be not afeard");
        server.stop();
    }
    assert!(shared_kib[0] > 2 * shared_kib[1], "rings in memory, with and without: {shared_kib:?} KiB");
}

/// A role that stands still in the middle of its work has paused; one that sleeps has not.
#[test]
fn pauses_are_counted_and_told_of_and_sleep_is_none() {
    const PAUSES: &str = "pinion_role_pauses_total";
    let server = Server::fake(&["--pause-warn-ms", "60", "--max-num-seqs", "16"]);
    let engine = server.role("engine-0").expect("it runs").pid;
    let stand_still = || {
        kill(engine, Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(150));
        kill(engine, Signal::SIGCONT);
    };
    let pauses = || {
        let all = server.metrics().samples;
        let of_engine = |name: &str| name.starts_with(PAUSES) && name.contains("engine");
        let found = all.iter().find(|(name, _)| of_engine(name));
        *found.unwrap_or_else(|| panic!("no {PAUSES} of the engine in {all:?}")).1
    };
    // Others may take the CPU from a role in the middle of a short turn, too; an engine that sleeps is not always hit.
    let slept = (0..TRIES).any(|_| {
        let before = pauses();
        stand_still();
        server.check_serves("so it has turned");
        pauses() == before
    });
    assert!(slept, "each of {TRIES} stops of an idle engine was a pause: {}", server.stderr_text());

    // How often it is hit between two steps of the model, which are waited for and no pause, is chance.
    let body = json!({"prompt": "on and on", "max_tokens": 450, "n": 128});
    let paused = (0..TRIES).any(|_| {
        let before = pauses();
        std::thread::scope(|scope| {
            let stream = scope.spawn(|| server.ask(Api::Completions, &body));
            // The answer may have come before the look.
            wait_until("the engine works", PATIENCE, || {
                (server.metric("pinion_requests_running") > 0.0 || stream.is_finished()).then_some(())
            });
            stand_still();
            assert_eq!(stream.join().expect("a stream's thread").end, End::Complete);
        });
        pauses() > before
    });
    assert!(paused, "{TRIES} stops in the middle of work and no pause");
    assert!(server.metric("pinion_role_pause_seconds_total") > 0.06);
    assert!(server.metric("pinion_role_page_faults_total") > 0.0);
    assert!(server.metric("pinion_role_context_switches_total") > 0.0);
    let text = server.stderr_text();
    assert!(text.contains("paused: a turn") && text.contains("involuntary_switches"), "{text}");
    let trace = server.post("/debug/trace", &json!({})).text();
    assert!(trace.contains(r#""name":"pinion.pause""#), "a pause is a span of the trace");
    server.stop();
}
