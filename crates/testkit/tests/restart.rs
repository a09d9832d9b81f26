//! A role dies under live streams: they go on from their last token as if nothing had happened, and the service comes
//! back by itself. Only the clients of a dead frontend lose their connections.

use pinion_testkit::{Answer, Api, End, PATIENCE, Random, Server, Signal, kill, wait_until};
use serde_json::{Value, json};

const STREAMS: usize = 16;
const TOKENS: usize = 400;
const SEED: u64 = 99_173;
/// Exit code as docs/OPERATIONS.md has it.
const EXIT_RESTART_LIMIT: i32 = 6;
const RESUMED: &str = "pinion_resumed_requests_total";

fn prompt(index: usize) -> String {
    format!("stream {index} under fire")
}

fn whole(server: &Server, index: usize) -> String {
    let oracle = server.oracle();
    oracle.text(&oracle.encode(&prompt(index)), TOKENS)
}

/// Runs the streams, and `disturb` beside them.
fn answers(server: &Server, disturb: impl FnOnce()) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let ask = |index: usize| {
            let body = json!({"prompt": prompt(index), "max_tokens": TOKENS, "stream": true});
            server.ask(Api::Completions, &body)
        };
        let threads: Vec<_> = (0..STREAMS).map(|index| scope.spawn(move || ask(index))).collect();
        disturb();
        threads.into_iter().map(|thread| thread.join().expect("a stream's thread")).collect()
    })
}

/// Runs the streams, and `disturb` when each of them has its first token. The steps must last longer than it takes to
/// begin them.
fn answers_of_begun(server: &Server, disturb: impl FnOnce()) -> Vec<Answer> {
    let body = |index| json!({"prompt": prompt(index), "max_tokens": TOKENS, "stream": true});
    let begun = server.begin(Api::Completions, &(0..STREAMS).map(body).collect::<Vec<_>>());
    disturb();
    begun.into_iter().map(|events| Answer::of_events(Api::Completions, events)).collect()
}

/// Kills a role under streams `rounds` times.
fn check(role: &str, rounds: u64, flags: &[&str]) {
    let all = ["--fake-step-us", "6000", "--restart-backoff", "20ms"];
    let server = Server::fake(&[&all, flags].concat());
    let mut cut = 0;
    for round in 0..rounds {
        println!("{role}, round {round}, seed {}", SEED + round);
        let mut random = Random::new(SEED + round);
        let victim = server.role(role).unwrap_or_else(|| panic!("{role} runs"));
        let strike = || kill(victim.pid, Signal::SIGKILL);
        let answers = match (round, role) {
            (0, "tokenizer-0") => answers(&server, || {
                wait_until("a request has come", PATIENCE, || {
                    (server.metric("pinion_request_slots_used") > 0.0).then_some(())
                });
                strike();
            }),
            (0, _) => answers_of_begun(&server, strike),
            _ => answers(&server, || {
                // Anywhere from the middle of admission to the middle of the streams.
                std::thread::sleep(std::time::Duration::from_millis(random.between(5, 600)));
                strike();
            }),
        };
        for (index, answer) in answers.iter().enumerate() {
            let whole = whole(&server, index);
            match &answer.end {
                End::Complete => assert_eq!(answer.text, whole, "{role}, stream {index}"),
                End::Error(code) => panic!("{role}, stream {index}: {code}"),
                End::Cut(_) => {
                    cut += 1;
                    assert_eq!(role, "frontend-0", "stream {index}");
                    assert!(whole.starts_with(&answer.text), "stream {index}: not a beginning of its text");
                }
            }
        }
        comes_back(&server, role, victim.pid);
    }
    match role {
        "frontend-0" => assert!(cut > 0, "the frontend died without an effect: the test shows nothing"),
        // Requests that were only queued at a dying tokenizer may have been lucky each time.
        "tokenizer-0" => println!("{} went on", server.metric(RESUMED)),
        _ => assert!(server.metric(RESUMED) > 0.0, "{role} died without an effect: the test shows nothing"),
    }
    server.stop();
}

/// Waits until the role has a successor and everything is as before.
fn comes_back(server: &Server, role: &str, old: u32) {
    wait_until(&format!("{role} has a successor"), PATIENCE, || {
        server.role(role).filter(|found| found.pid != old)
    });
    wait_until("requests are served again", PATIENCE, || {
        let body = json!({"prompt": "again", "max_tokens": 3}).to_string();
        let response = server.request("POST", "/v1/completions", &[], body.as_bytes()).ok()?;
        assert_eq!(response.status(), 200, "while {role} restarts: {}", response.text());
        Some(())
    });
    server.wait_idle();
    server.check_serves("as before");
    let names: Vec<String> = server.roles().into_iter().map(|found| found.name).collect();
    let wanted = ["pinion-detokenizer-0", "pinion-engine-0", "pinion-frontend-0", "pinion-tokenizer-0"];
    assert_eq!(names, wanted);
    wait_until("no process is left over", PATIENCE, || {
        // A later standby is not among the processes from before.
        let (processes, spare) = (server.processes(), server.spare());
        let left = processes.iter().filter(|found| spare.as_ref().is_none_or(|spare| spare.pid != found.pid));
        (left.count() == 5).then_some(())
    });
}

#[test]
fn the_engine_dies() {
    check("engine-0", 4, &[]);
}

#[test]
fn a_role_dies_where_channels_are_in_place_of_rings() {
    for role in ["engine-0", "detokenizer-0", "tokenizer-0"] {
        check(role, 1, &["--ipc", "channel"]);
    }
}

#[test]
fn the_detokenizer_dies() {
    check("detokenizer-0", 4, &["--stream-interval", "3"]);
}

#[test]
fn the_tokenizer_dies() {
    check("tokenizer-0", 4, &[]);
}

#[test]
fn the_frontend_dies() {
    check("frontend-0", 4, &[]);
}

#[test]
fn the_same_streams_outlive_death_after_death() {
    let server = Server::fake(&["--fake-step-us", "10000", "--restart-backoff", "0ms"]);
    let answers = answers_of_begun(&server, || {
        for role in ["engine-0", "detokenizer-0", "engine-0"] {
            let old = server.role(role).expect("it runs").pid;
            let before = server.metric(RESUMED);
            kill(old, Signal::SIGKILL);
            wait_until("streams go on", PATIENCE, || (server.metric(RESUMED) > before).then_some(()));
        }
    });
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!((&answer.end, &answer.text), (&End::Complete, &whole(&server, index)), "stream {index}");
    }
    server.stop();
}

/// A request that kills the engine whenever it runs, beside streams that do not.
#[test]
fn a_request_that_kills_the_engine_ends_alone() {
    const FATAL: u32 = 200;
    let server = Server::fake(&["--fake-step-us", "3000", "--fake-fatal-token", "200"]);
    let harmless = (0..STREAMS).all(|index| !server.oracle().encode(&prompt(index)).contains(&FATAL));
    assert!(harmless, "another token must be the fatal one");
    let answers = answers_of_begun(&server, || {
        let body = json!({"prompt": [1, 2, FATAL], "max_tokens": 5}).to_string();
        let reply = server.request("POST", "/v1/completions", &[], body.as_bytes()).expect("an answer");
        let error: Value = serde_json::from_str(&reply.text()).expect("an error is JSON");
        assert_eq!((reply.status(), &error["error"]["code"]), (503, &json!("role_restarted")), "{error}");
    });
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!((&answer.end, &answer.text), (&End::Complete, &whole(&server, index)), "stream {index}");
    }
    server.check_serves("as before");
    // The frontend hears of a death before the launcher has counted it.
    wait_until("both deaths are counted", PATIENCE, || {
        (server.metric("pinion_restarts_total") >= 2.0).then_some(())
    });
    assert_eq!(server.metric("pinion_restarts_total"), 2.0, "it was tried once again, and alone");
    assert_eq!(server.metric("pinion_quarantined_requests_total"), 1.0);
    server.stop();
}

#[test]
fn without_resuming_a_death_ends_the_streams() {
    let server = Server::fake(&["--fake-step-us", "10000", "--no-resume"]);
    let answers = answers_of_begun(&server, || {
        kill(server.role("engine-0").expect("it runs").pid, Signal::SIGKILL);
    });
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!(answer.end, End::Error("role_restarted".to_owned()), "stream {index}");
        assert!(
            whole(&server, index).starts_with(&answer.text),
            "stream {index}: not a beginning of its text"
        );
    }
    server.stop();
}

#[test]
fn a_restarting_frontend_refuses_no_connection() {
    let server = Server::fake(&["--restart-backoff", "20ms"]);
    for _ in 0..3 {
        let old = server.role("frontend-0").expect("a frontend runs").pid;
        kill(old, Signal::SIGKILL);
        // The listening socket is the launcher's: a connection waits in the kernel until the successor takes it.
        // Only one that the dying process had just taken can break.
        wait_until("a request is answered", PATIENCE, || {
            let mut connection = server.connect();
            let body = json!({"prompt": "patience", "max_tokens": 2}).to_string();
            connection.request("POST", "/v1/completions", &[], body.as_bytes()).ok()?;
            Some(()).filter(|()| Answer::read(Api::Completions, false, connection).end == End::Complete)
        });
        comes_back(&server, "frontend-0", old);
    }
    server.stop();
}

#[test]
fn a_service_that_gives_up_tells_who_waits() {
    let mut server =
        Server::fake(&["--fake-step-us", "10000", "--restart-limit", "1", "--drain-timeout", "20s"]);
    let answers = answers_of_begun(&server, || {
        let old = server.role("engine-0").expect("it runs").pid;
        kill(old, Signal::SIGKILL);
        wait_until("streams go on", PATIENCE, || (server.metric(RESUMED) > 0.0).then_some(()));
        let successor = server.role("engine-0").filter(|found| found.pid != old);
        kill(successor.expect("it is back").pid, Signal::SIGKILL);
    });
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!(answer.end, End::Error("role_restarted".into()), "stream {index}");
        assert!(
            whole(&server, index).starts_with(&answer.text),
            "stream {index}: not a beginning of its text"
        );
    }
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(EXIT_RESTART_LIMIT));
    let text = server.stderr_text();
    assert!(text.contains("engine-0") && text.contains("giving up"), "{text}");
}

#[test]
fn a_storm_of_deaths_ends_the_service() {
    let mut server = Server::fake(&["--restart-limit", "3", "--restart-backoff", "10ms"]);
    let code = wait_until("the launcher gives up", PATIENCE, || match server.role("engine-0") {
        Some(engine) => {
            kill(engine.pid, Signal::SIGKILL);
            wait_until("it is dead", PATIENCE, || (!pinion_testkit::is_alive(engine.pid)).then_some(()));
            None
        }
        None if pinion_testkit::is_alive(server.pid()) => None,
        None => Some(server.wait_exit(PATIENCE).code()),
    });
    assert_eq!(code, Some(EXIT_RESTART_LIMIT));
    let text = server.stderr_text();
    assert!(text.contains("engine-0") && text.contains("giving up"), "{text}");
    assert_eq!(server.processes(), []);
}
