//! Every role dies again and again, at random and on top of each other, while clients go on asking. What they get
//! is right, unless their frontend died or they saw death after death without a token; and in the end everything is as
//! in the beginning.

use pinion_testkit::{Answer, Api, End, PATIENCE, Random, Server, Signal, kill, wait_until};
use serde_json::json;
use std::time::{Duration, Instant};

const CLIENTS: usize = 8;
const SEED: u64 = 31_337;
const TIME: Duration = Duration::from_secs(12);

/// Right, or a beginning that a dying frontend cut, or given up after death upon death.
fn check_answer(prompt: &str, whole: &str, answer: &Answer, streamed: bool) {
    match &answer.end {
        End::Complete => assert_eq!(answer.text, whole, "{prompt}"),
        End::Error(code) => {
            assert_eq!(code, "role_restarted", "{prompt}: {answer:?}");
            assert!(matches!((answer.status, streamed), (503, _) | (200, true)), "{prompt}: {answer:?}");
            assert!(whole.starts_with(&answer.text), "{prompt}: not a beginning of its text");
        }
        End::Cut(_) => assert!(whole.starts_with(&answer.text), "{prompt}: not a beginning of its text"),
    }
}

/// Asks until `end`, and then until one answer was complete; returns how many were, and how many not.
fn client(server: &Server, index: usize, end: Instant) -> (usize, usize) {
    let oracle = server.oracle();
    let mut random = Random::new(SEED + 1 + index as u64);
    let (mut complete, mut broken) = (0, 0);
    while Instant::now() < end || complete == 0 && Instant::now() < end + PATIENCE {
        let prompt = format!("client {index} asks {} {}", complete + broken, "?".repeat(random.below(50)));
        let (tokens, streamed) = (1 + random.below(300), random.below(3) > 0);
        let body = json!({"prompt": prompt, "max_tokens": tokens, "stream": streamed});
        let answer = server.ask(Api::Completions, &body);
        check_answer(&prompt, &oracle.text(&oracle.encode(&prompt), tokens), &answer, streamed);
        if answer.end == End::Complete {
            complete += 1;
        } else {
            broken += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    (complete, broken)
}

/// Kills until `end`; returns how often.
fn nemesis(server: &Server, roles: &[&str], end: Instant) -> usize {
    let mut random = Random::new(SEED);
    let mut kills = 0;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(random.between(1, 700)));
        let name = random.pick(roles);
        if let Some(role) = server.role(name) {
            kill(role.pid, Signal::SIGKILL);
            kills += 1;
        }
    }
    kills
}

/// Clients and nemesis against a service of these roles.
fn check(roles: &[&str], flags: &[&str]) {
    println!("seed {SEED}");
    let all = ["--fake-step-us", "300", "--restart-backoff", "5ms", "--restart-limit", "1000"];
    let server = Server::fake(&[&all, flags].concat());
    let end = Instant::now() + TIME;
    let (counts, kills) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|index| {
                let server = &server;
                scope.spawn(move || client(server, index, end))
            })
            .collect();
        let kills = nemesis(&server, roles, end);
        let counts: Vec<_> =
            clients.into_iter().map(|client| client.join().expect("a client's thread")).collect();
        (counts, kills)
    });
    println!("{kills} deaths; complete and broken answers of each client: {counts:?}");
    assert!(kills > 0 && counts.iter().all(|(complete, _)| *complete > 0), "{kills} deaths, {counts:?}");
    wait_until("all roles are back and serve", PATIENCE, || {
        let body = json!({"prompt": "again", "max_tokens": 2}).to_string();
        let response = server.request("POST", "/v1/completions", &[], body.as_bytes()).ok()?;
        (response.status() == 200 && server.roles().len() == roles.len()).then_some(())
    });
    server.wait_idle();
    assert_eq!(server.metric("pinion_malformed_records_total"), 0.0);
    server.check_serves("as in the beginning");
    server.stop();
}

#[test]
fn any_role_may_die_at_any_time() {
    check(&["engine-0", "detokenizer-0", "tokenizer-0", "frontend-0"], &[]);
}

#[test]
fn any_of_many_may_die_at_any_time() {
    let light = ["detokenizer", "tokenizer", "frontend"];
    let names: Vec<String> =
        light.iter().flat_map(|role| [0, 1].map(|index| format!("{role}-{index}"))).collect();
    let roles: Vec<&str> = names.iter().map(String::as_str).chain(["engine-0"]).collect();
    check(&roles, &["--frontends", "2", "--tokenizers", "2", "--detokenizers", "2"]);
}
