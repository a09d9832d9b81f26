//! A role that stands still: nothing is lost if it moves on, others do not wait for it without bound, and
//! health says so.

use pinion_testkit::{Answer, Api, End, PATIENCE, Server, Signal, fake_model, kill, wait_until};
use serde_json::json;
use std::time::Duration;

const ROLES: [&str; 4] = ["engine-0", "detokenizer-0", "tokenizer-0", "frontend-0"];

/// Streams of `tokens` tokens each, while the role stands still for `pause`.
fn streams_over_a_pause(
    server: &Server,
    role: &str,
    count: usize,
    tokens: usize,
    pause: Duration,
) -> Vec<Answer> {
    let victim = server.role(role).unwrap_or_else(|| panic!("{role} runs")).pid;
    std::thread::scope(|scope| {
        let ask = |index: usize| {
            let body = json!({"prompt": format!("{role} {index}"), "max_tokens": tokens, "stream": true});
            server.ask(Api::Completions, &body)
        };
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || ask(index))).collect();
        std::thread::sleep(Duration::from_millis(40));
        kill(victim, Signal::SIGSTOP);
        std::thread::sleep(pause);
        kill(victim, Signal::SIGCONT);
        threads.into_iter().map(|thread| thread.join().expect("a stream's thread")).collect()
    })
}

#[test]
fn a_short_stall_costs_time_and_nothing_else() {
    let server = Server::fake(&["--fake-step-us", "1000"]);
    let oracle = server.oracle();
    for role in ROLES {
        let answers = streams_over_a_pause(&server, role, 16, 300, Duration::from_millis(700));
        for (index, answer) in answers.iter().enumerate() {
            assert_eq!(answer.end, End::Complete, "{role}, stream {index}");
            let text = oracle.text(&oracle.encode(&format!("{role} {index}")), 300);
            assert_eq!(answer.text, text, "{role}, stream {index}");
        }
        server.wait_idle();
    }
    assert_eq!(server.metric("pinion_restarts_total"), 0.0);
    server.stop();
}

#[test]
fn an_engine_in_full_flight_does_not_wait_for_a_detokenizer_that_stands_still() {
    let folder = fake_model(1 << 16);
    let flags = ["--backend", "fake", "--stream-buffer-bytes-max", "64MiB", "--max-num-seqs", "8"];
    let server = Server::start(folder.path(), &flags);
    let oracle = server.oracle();
    let tokens = 15_000;
    let answers = streams_over_a_pause(&server, "detokenizer-0", 8, tokens, Duration::from_secs(3));
    for (index, answer) in answers.iter().enumerate() {
        let whole = oracle.text(&oracle.encode(&format!("detokenizer-0 {index}")), tokens);
        // A request that did not fit the bounds ends with an error, after a true beginning of its text.
        assert!(!matches!(answer.end, End::Cut(_)), "stream {index}: {:?}", answer.end);
        match answer.end {
            End::Complete => assert!(answer.text == whole, "stream {index}"),
            End::Error(_) | End::Cut(_) => assert!(whole.starts_with(&answer.text), "stream {index}"),
        }
    }
    let complete = answers.iter().filter(|answer| answer.end == End::Complete).count();
    println!("{complete} of {} fitted the bounds", answers.len());
    server.wait_idle();
    assert_eq!(server.metric("pinion_malformed_records_total"), 0.0);
    server.check_serves("afterwards");
    server.stop();
}

/// More answers waited for a frontend that stood still than fit its ring, and the tokenizer took no more requests.
#[test]
fn a_frontend_that_stands_still_keeps_no_other_from_its_tokenizer() {
    const WAITING: usize = 300;
    let folder = fake_model(1024);
    let flags = ["--frontends", "2", "--max-inflight", "512", "--body-bytes-max", "64KiB"];
    let server =
        Server::start(folder.path(), &[&["--backend", "fake", "--stuck-timeout", "0s"], &flags[..]].concat());
    let pid = |role| server.role(role).unwrap_or_else(|| panic!("{role} runs")).pid;
    let [tokenizer, moving, standing] = ["tokenizer-0", "frontend-0", "frontend-1"].map(pid);
    let body = json!({"prompt": "x".repeat(1000)});
    // Only one accepts now, and nothing is answered.
    kill(tokenizer, Signal::SIGSTOP);
    kill(moving, Signal::SIGSTOP);
    let mut waiting: Vec<_> = (0..WAITING).map(|_| server.connect()).collect();
    for connection in &mut waiting {
        connection.request("POST", "/tokenize", &[], body.to_string().as_bytes()).expect("a connection");
    }
    wait_until("the frontend has them", PATIENCE, || {
        (server.metric("pinion_request_slots_used") >= WAITING as f64).then_some(())
    });
    kill(standing, Signal::SIGSTOP);
    kill(moving, Signal::SIGCONT);
    kill(tokenizer, Signal::SIGCONT);
    // One of each is taken by turns, as long as the tokenizer takes any.
    for _ in 0..WAITING + 100 {
        assert_eq!(server.post("/tokenize", &body).json()["count"], 1000);
    }
    kill(standing, Signal::SIGCONT);
    for mut connection in waiting {
        connection.allow(PATIENCE);
        assert_eq!(connection.response().expect("an answer").json()["count"], 1000);
    }
    server.stop();
}

/// Of more than some thirty it was told only half, and no request got an answer any more.
#[test]
fn a_role_that_stands_still_while_another_dies_again_and_again_hears_of_it_all() {
    let server =
        Server::fake(&["--stuck-timeout", "0s", "--restart-backoff", "0ms", "--restart-limit", "1000"]);
    let tokenizer = server.role("tokenizer-0").expect("a tokenizer runs").pid;
    kill(tokenizer, Signal::SIGSTOP);
    let mut old = 0;
    for _ in 0..45 {
        let frontend =
            wait_until("a frontend", PATIENCE, || server.role("frontend-0").filter(|found| found.pid != old));
        old = frontend.pid;
        kill(old, Signal::SIGKILL);
    }
    kill(tokenizer, Signal::SIGCONT);
    server.check_serves("afterwards");
    server.stop();
}

/// Those that share no request with it were told of every successor only when it moved again.
#[test]
fn a_role_that_stands_still_holds_up_no_recovery_of_others() {
    let flags =
        ["--frontends", "2", "--detokenizers", "2", "--fake-step-us", "5000", "--stuck-timeout", "0s"];
    let server = Server::fake(&flags);
    let (oracle, tokens) = (server.oracle(), 400);
    let pid = |role| server.role(role).unwrap_or_else(|| panic!("{role} runs")).pid;
    let standing = ["frontend-1", "detokenizer-1"].map(pid);
    standing.iter().for_each(|pid| kill(*pid, Signal::SIGSTOP));
    let old = pid("engine-0");
    // The first request of a frontend has its first slot, and with it the first detokenizer.
    let body = json!({"prompt": "moves", "max_tokens": tokens, "stream": true});
    let begun = server.begin(Api::Completions, &[body]);
    kill(old, Signal::SIGKILL);
    for events in begun {
        let answer = Answer::of_events(Api::Completions, events);
        assert_eq!(answer.end, End::Complete);
        assert_eq!(answer.text, oracle.text(&oracle.encode("moves"), tokens));
    }
    assert!(server.metric("pinion_resumed_requests_total") > 0.0, "the engine died without an effect");
    kill(standing[1], Signal::SIGCONT);
    // A connection is the successor's to take: it is the only one that can.
    kill(pid("frontend-0"), Signal::SIGKILL);
    wait_until("requests are served again", PATIENCE, || {
        let body = json!({"prompt": "again", "max_tokens": 1}).to_string();
        let answered = server.request("POST", Api::Completions.path(), &[], body.as_bytes());
        answered.ok().filter(|response| response.status() == 200)
    });
    kill(standing[0], Signal::SIGCONT);
    server.check_serves("afterwards");
    server.wait_idle();
    server.stop();
}

#[test]
fn a_role_that_never_moves_on_is_replaced() {
    let server = Server::fake(&["--stuck-timeout", "5s"]);
    for role in ROLES {
        let old = server.role(role).unwrap_or_else(|| panic!("{role} runs")).pid;
        kill(old, Signal::SIGSTOP);
        wait_until(&format!("{role} is replaced"), PATIENCE, || {
            server.role(role).filter(|found| found.pid != old)
        });
        let body = json!({"prompt": "x", "max_tokens": 1}).to_string();
        wait_until("requests are served again", PATIENCE, || {
            let answered = server.request("POST", Api::Completions.path(), &[], body.as_bytes());
            answered.ok().filter(|response| response.status() == 200)
        });
        server.check_serves(role);
    }
    server.stop();
}

/// The engine has long finished when the detokenizer is found to hang; what it held goes on all the same.
#[test]
fn streams_outlive_a_detokenizer_that_hangs() {
    let server = Server::fake(&["--fake-step-us", "1000", "--stuck-timeout", "8s"]);
    let (oracle, role, tokens) = (server.oracle(), "detokenizer-0", 300);
    let victim = server.role(role).expect("a detokenizer runs").pid;
    let body = |index| json!({"prompt": format!("{role} {index}"), "max_tokens": tokens, "stream": true});
    let begun = server.begin(Api::Completions, &(0..8).map(body).collect::<Vec<_>>());
    kill(victim, Signal::SIGSTOP);
    wait_until("it is replaced", PATIENCE, || server.role(role).filter(|found| found.pid != victim));
    for (index, events) in begun.into_iter().enumerate() {
        let answer = Answer::of_events(Api::Completions, events);
        assert_eq!(answer.end, End::Complete, "stream {index}");
        let text = oracle.text(&oracle.encode(&format!("{role} {index}")), tokens);
        assert_eq!(answer.text, text, "stream {index}");
    }
    assert_eq!(server.metric("pinion_restarts_total"), 1.0);
    server.wait_idle();
    server.stop();
}

#[test]
fn health_tells_of_a_role_that_stands_still() {
    let server = Server::fake(&[]);
    let engine = server.role("engine-0").expect("an engine runs").pid;
    kill(engine, Signal::SIGSTOP);
    let problems = wait_until("health says that something is wrong", PATIENCE, || {
        let response = server.get("/health");
        (response.status() == 503).then(|| response.text())
    });
    assert!(problems.contains("engine-0"), "{problems}");
    kill(engine, Signal::SIGCONT);
    wait_until("health is good again", PATIENCE, || (server.get("/health").status() == 200).then_some(()));
    server.check_serves("as before");
    server.stop();
}
