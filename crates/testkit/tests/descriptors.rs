//! Connections up to the limit on descriptors: idle ones make room, and a service without room says so.

use pinion_testkit::{
    Answer, Api, Connection, End, PATIENCE, Server, Signal, descriptor_count, kill, wait_until,
};
use serde_json::json;
use std::process::Command;

const LIMIT: u32 = 96;
/// More than the limit has room for.
const CLIENTS: usize = 120;

/// Half heads, which are no idle connections.
fn open_halves(server: &Server) -> Vec<Connection> {
    (0..CLIENTS)
        .map(|_| {
            let mut connection = server.connect();
            let _ = connection.write(b"GET /live HTTP/1.1\r\nHo");
            connection
        })
        .collect()
}

#[test]
fn at_the_limit_new_clients_are_answered_and_a_role_that_dies_comes_back() {
    let server = Server::fake_with_descriptors(LIMIT, &["--idle-timeout", "10m", "--header-timeout", "4s"]);
    // The longest idle go, one for each that comes. Each is idle before the next one comes.
    let idle: Vec<Connection> = (0..CLIENTS)
        .map(|_| {
            let mut connection = server.connect();
            connection.request("GET", "/live", &[], b"").expect("there is room");
            assert_eq!(connection.response().expect("an answer").status(), 200);
            connection
        })
        .collect();
    assert_eq!(server.get("/health").status(), 200);
    server.check_serves("beside more clients than descriptors");
    assert!(server.metric("pinion_connections_displaced_total") >= (CLIENTS - LIMIT as usize) as f64);
    assert_eq!(server.metric("pinion_connections_refused_total"), 0.0);
    assert_eq!(server.metric("pinion_accept_errors_total"), 0.0);
    // The links to a successor need descriptors too.
    let frontend = server.role("frontend-0").expect("it runs");
    assert!(descriptor_count(frontend.pid) < LIMIT as usize);
    kill(server.role("engine-0").expect("it runs").pid, Signal::SIGKILL);
    wait_until("the engine is back", PATIENCE, || (server.get("/ready").status() == 200).then_some(()));
    server.check_serves("after a death at the limit");
    drop(idle);

    // While half heads hold everything, others hear that there is no room. They do so for a time only: a test that is
    // late begins again.
    let (mut halves, refused) = wait_until("a client is refused", PATIENCE, || {
        let halves = open_halves(&server);
        let health = server.get("/health");
        (health.status() == 503).then_some((halves, health))
    });
    assert_eq!(refused.head.field("retry-after"), Some("1"));
    assert_eq!(refused.json()["error"]["code"], "too_many_connections");
    assert_eq!(halves[0].response().expect("its time is over").status(), 408);
    wait_until("there is room again", PATIENCE, || (server.get("/health").status() == 200).then_some(()));
    assert!(server.metric("pinion_connections_refused_total") > 0.0);
    assert_eq!(server.role("frontend-0").map(|role| role.pid), Some(frontend.pid), "it has lived on");
    drop(halves);
    server.wait_idle();
    server.stop();
}

/// One descriptor that the launcher did not get for a successor ended the service.
#[test]
fn a_successor_that_cannot_be_started_for_a_while_is_started_later() {
    let server = Server::fake_with_descriptors(256, &["--fake-step-us", "5000", "--restart-limit", "100"]);
    let oracle = server.oracle();
    wait_until("the spare waits", PATIENCE, || server.spare());
    let body = json!({"prompt": "waits", "max_tokens": 300, "stream": true});
    let begun = server.begin(Api::Completions, &[body]);
    let allow = |count: u32| {
        let set = format!("--nofile={count}:256");
        let pid = server.pid().to_string();
        assert!(Command::new("prlimit").args(["--pid", &pid, &set]).status().expect("prlimit").success());
    };
    // Fewer than the launcher has; those that it waits for are no more than that.
    allow(24);
    let spare = server.spare();
    kill(server.role("engine-0").expect("it runs").pid, Signal::SIGKILL);
    let refused = "cannot restart it now; trying again";
    wait_until("a start is refused twice", PATIENCE, || {
        (server.stderr_text().matches(refused).count() > 1).then_some(())
    });
    assert_eq!(server.spare(), spare, "it still waits");
    allow(256);
    for events in begun {
        let answer = Answer::of_events(Api::Completions, events);
        assert_eq!(answer.end, End::Complete);
        assert_eq!(answer.text, oracle.text(&oracle.encode("waits"), 300));
    }
    server.check_serves("afterwards");
    server.stop();
}
