//! A role dies under live streams: every stream ends once and clearly, and the service comes back by itself.

use pinion_testkit::{Answer, Api, End, PATIENCE, Random, Server, Signal, kill, wait_until};
use serde_json::json;

const STREAMS: usize = 16;
const TOKENS: usize = 400;
const SEED: u64 = 99_173;
/// Exit code as docs/OPERATIONS.md has it.
const EXIT_RESTART_LIMIT: i32 = 6;

fn prompt(index: usize) -> String {
    format!("stream {index} under fire")
}

/// How a stream may end when this role dies: who comes while it is down is refused, with status 503.
fn may_end(role: &str, answer: &Answer) -> bool {
    match (role, &answer.end) {
        (_, End::Complete) => true,
        ("frontend-0", End::Cut(_)) => true,
        ("engine-0" | "detokenizer-0" | "tokenizer-0", End::Error(code)) => {
            code == "role_restarted" || code == "unavailable" && answer.status == 503
        }
        _ => false,
    }
}

/// Kills a role under streams `rounds` times.
fn check(role: &str, rounds: u64) {
    let server = Server::fake(&["--fake-step-us", "3000", "--restart-backoff", "20ms"]);
    let oracle = server.oracle();
    let mut disturbed = 0;
    for round in 0..rounds {
        println!("{role}, round {round}, seed {}", SEED + round);
        let mut random = Random::new(SEED + round);
        let victim = server.role(role).unwrap_or_else(|| panic!("{role} runs"));
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let ask = |index: usize| {
                let body = json!({"prompt": prompt(index), "max_tokens": TOKENS, "stream": true});
                server.ask(Api::Completions, &body)
            };
            let threads: Vec<_> = (0..STREAMS).map(|index| scope.spawn(move || ask(index))).collect();
            if round == 0 {
                // Streams are under way.
                wait_until("a stream runs", PATIENCE, || {
                    (server.metric("pinion_requests_running") > 0.0).then_some(())
                });
            } else {
                // Anywhere from the middle of admission to the middle of the streams.
                std::thread::sleep(std::time::Duration::from_millis(random.between(5, 600) as u64));
            }
            kill(victim.pid, Signal::SIGKILL);
            threads.into_iter().map(|thread| thread.join().expect("a stream's thread")).collect()
        });
        for (index, answer) in answers.iter().enumerate() {
            let (end, status) = (&answer.end, answer.status);
            assert!(may_end(role, answer), "{role}, stream {index}: {end:?}, {status}");
            let whole = oracle.text(&oracle.encode(&prompt(index)), TOKENS);
            match answer.end {
                End::Complete => assert_eq!(answer.text, whole, "{role}, stream {index}"),
                End::Error(_) | End::Cut(_) => {
                    disturbed += 1;
                    assert!(
                        whole.starts_with(&answer.text),
                        "{role}, stream {index}: not a beginning of its text"
                    );
                }
            }
        }
        comes_back(&server, role, victim.pid);
    }
    // Whoever was only queued at a dying tokenizer may have been lucky each time; the others cannot all be.
    assert!(disturbed > 0 || role == "tokenizer-0", "{role} died and nobody noticed: the test shows nothing");
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
        match response.status() {
            200 => Some(()),
            503 => {
                assert!(response.head.field("retry-after").is_some(), "{:?}", response.head);
                None
            }
            other => panic!("{other} while {role} restarts: {}", response.text()),
        }
    });
    server.wait_idle();
    server.check_serves("as before");
    let names: Vec<String> = server.roles().into_iter().map(|found| found.name).collect();
    let wanted = ["pinion-detokenizer-0", "pinion-engine-0", "pinion-frontend-0", "pinion-tokenizer-0"];
    assert_eq!(names, wanted);
    assert_eq!(server.processes().len(), 5, "{:?}", server.processes());
}

#[test]
fn the_engine_dies() {
    check("engine-0", 4);
}

#[test]
fn the_detokenizer_dies() {
    check("detokenizer-0", 4);
}

#[test]
fn the_tokenizer_dies() {
    check("tokenizer-0", 4);
}

#[test]
fn the_frontend_dies() {
    check("frontend-0", 4);
}

#[test]
fn a_restarting_frontend_refuses_nobody() {
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
