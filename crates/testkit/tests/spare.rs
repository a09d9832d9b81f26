//! The warm standby: it takes the place of an engine that dies, and costs nothing before.

use pinion_testkit::{Answer, Api, End, PATIENCE, Process, Server, Signal};
use pinion_testkit::{cpus_allowed, is_alive, kill, wait_until};
use serde_json::json;
use std::time::Duration;

const STREAMS: usize = 8;
const TOKENS: usize = 300;
/// A spare that comes, comes in this time after the service is ready, unless the machine is very slow.
const NO_SPARE_TIME: Duration = Duration::from_secs(3);

fn prompt(index: usize) -> String {
    format!("stream {index} with a spare")
}

fn spare(server: &Server) -> Process {
    wait_until("a spare waits", PATIENCE, || server.spare())
}

fn next_spare(server: &Server, old: &Process) -> Process {
    wait_until("another spare waits", PATIENCE, || server.spare().filter(|found| found != old))
}

fn engine(server: &Server) -> Process {
    wait_until("the engine runs", PATIENCE, || server.role("engine-0"))
}

/// Runs streams and `disturb` when each has begun, and checks that each gets its own text.
fn under_streams(server: &Server, disturb: impl FnOnce()) {
    let body = |index| json!({"prompt": prompt(index), "max_tokens": TOKENS, "stream": true});
    let begun = server.begin(Api::Completions, &(0..STREAMS).map(body).collect::<Vec<_>>());
    disturb();
    let answers = begun.into_iter().map(|events| Answer::of_events(Api::Completions, events));
    let oracle = server.oracle();
    for (index, answer) in answers.enumerate() {
        let whole = oracle.text(&oracle.encode(&prompt(index)), TOKENS);
        assert_eq!((&answer.end, &answer.text), (&End::Complete, &whole), "stream {index}");
    }
}

/// Waits until a spare has its libraries and reads its socket. One that loads when it is given work may be too late for
/// it and make room for another process.
fn has_loaded(spare: &Process) {
    wait_until("it reads its socket", PATIENCE, || {
        (held(spare.pid).matches("\nsocket:").count() >= 2).then_some(())
    });
}

fn takes_over(flags: &[&str]) {
    let server = Server::fake(&[&["--fake-step-us", "6000"], flags].concat());
    let mut waiting = spare(&server);
    for death in 1..=2 {
        has_loaded(&waiting);
        let old = engine(&server);
        let cpus = cpus_allowed(old.pid);
        under_streams(&server, || kill(old.pid, Signal::SIGKILL));
        let successor = engine(&server);
        assert_eq!(successor.pid, waiting.pid, "{flags:?}, death {death}");
        assert_eq!(cpus_allowed(successor.pid), cpus, "{flags:?}, death {death}");
        waiting = next_spare(&server, &waiting);
        assert_eq!(server.metric("pinion_restarts_total"), f64::from(death));
    }
    wait_until("the spare is counted", PATIENCE, || {
        (server.metric("pinion_spare_engines") == 1.0).then_some(())
    });
    assert_eq!(server.get("/health").status(), 200);
    server.stop();
}

#[test]
fn a_spare_takes_the_place_of_an_engine_that_dies() {
    takes_over(&[]);
    takes_over(&["--ipc", "channel"]);
}

/// What shared memory and doorbells are called in /proc/PID/maps and /proc/PID/fd.
const SHARED: [&str; 2] = ["/memfd:", "anon_inode:[eventfd]"];

/// What a process maps, and what its descriptors are.
fn held(pid: u32) -> String {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.fold(maps, |text, link| format!("{text}\n{}", link.display()))
}

/// No ring, no page, no doorbell, no config, and no memory for a model or a device.
#[test]
fn a_spare_holds_nothing_before_it_has_work() {
    let server = Server::fake(&[]);
    let (serving, waiting) = (engine(&server), spare(&server));
    has_loaded(&waiting);
    for what in SHARED {
        assert!(held(serving.pid).contains(what), "the engine has no {what}: the test shows nothing");
        assert!(!held(waiting.pid).contains(what), "{}", held(waiting.pid));
    }
    server.stop();
}

/// Whatever becomes of spares, the service does not give up: it may not lose a role even once.
#[test]
fn a_spare_that_dies_is_replaced_and_no_request_notices() {
    let server = Server::fake(&["--fake-step-us", "3000", "--restart-limit", "0"]);
    let serving = engine(&server);
    let mut waiting = spare(&server);
    under_streams(&server, || {
        for _ in 0..3 {
            kill(waiting.pid, Signal::SIGKILL);
            waiting = next_spare(&server, &waiting);
        }
    });
    assert_eq!(engine(&server), serving);
    assert_eq!(server.metric("pinion_restarts_total"), 0.0);
    assert_eq!(server.metric("pinion_resumed_requests_total"), 0.0);
    server.stop();
}

#[test]
fn an_engine_and_its_spare_may_die_together() {
    const DEATHS: u32 = 4;
    // The deaths of spares do not count: one more than these would end the service.
    let limit = DEATHS.to_string();
    let flags = ["--fake-step-us", "6000", "--restart-limit", &limit, "--restart-backoff", "0ms"];
    let server = Server::fake(&flags);
    let mut waiting = spare(&server);
    for death in 0..DEATHS {
        let mut both = [engine(&server), waiting.clone()];
        if death % 2 == 1 {
            both.reverse();
        }
        under_streams(&server, || both.iter().for_each(|process| kill(process.pid, Signal::SIGKILL)));
        waiting = next_spare(&server, &waiting);
        assert!(both.iter().all(|process| process.pid != engine(&server).pid));
    }
    server.stop();
}

/// As one that is lost in swap.
#[test]
fn a_spare_that_does_not_answer_is_passed_over() {
    let server = Server::fake(&["--fake-step-us", "6000", "--restart-limit", "1"]);
    let (old, waiting) = (engine(&server), spare(&server));
    kill(waiting.pid, Signal::SIGSTOP);
    under_streams(&server, || kill(old.pid, Signal::SIGKILL));
    wait_until("it is given up", PATIENCE, || (!is_alive(waiting.pid)).then_some(()));
    let successor = engine(&server);
    assert!(![old.pid, waiting.pid].contains(&successor.pid));
    next_spare(&server, &waiting);
    server.stop();
}

#[test]
fn a_spare_goes_with_its_launcher() {
    let mut server = Server::fake(&[]);
    // It may still be loading.
    spare(&server);
    server.signal(Signal::SIGKILL);
    server.wait_exit(PATIENCE);
    wait_until("no process is left", PATIENCE, || server.processes().is_empty().then_some(()));
}

#[test]
fn without_the_switch_there_is_no_spare() {
    let server = Server::fake(&["--fake-step-us", "6000", "--no-spare-engine"]);
    let old = engine(&server);
    under_streams(&server, || kill(old.pid, Signal::SIGKILL));
    std::thread::sleep(NO_SPARE_TIME);
    assert_eq!(server.spare(), None);
    assert_eq!(server.metric("pinion_spare_engines"), 0.0);
    assert_eq!(server.metric("pinion_restarts_total"), 1.0);
    server.stop();
}
