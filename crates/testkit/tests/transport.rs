//! The data edges over `ipc-channel` instead of rings: the same text, and the same way back after a death.

use pinion_testkit::{Api, PATIENCE, Server, Signal, kill, wait_until};
use serde_json::json;
use std::time::Duration;

/// Both ends of an edge die in one turn of the launcher, or one while the other starts: the edge is made anew twice,
/// and the reader's end can be handed out once.
#[test]
fn two_roles_that_die_together_find_each_other_again() {
    let flags =
        ["--ipc", "channel", "--fake-step-us", "200", "--restart-backoff", "1ms", "--restart-limit", "100"];
    let server = Server::fake(&flags);
    let pairs = [("engine-0", "tokenizer-0"), ("detokenizer-0", "frontend-0"), ("tokenizer-0", "frontend-0")];
    for pause in [Duration::ZERO, Duration::from_millis(30)] {
        for (first, second) in pairs {
            let old = [first, second].map(|role| server.role(role).expect("it runs").pid);
            // A launcher that stands still sees both at once.
            if pause.is_zero() {
                server.signal(Signal::SIGSTOP);
            }
            kill(old[0], Signal::SIGKILL);
            std::thread::sleep(pause);
            kill(old[1], Signal::SIGKILL);
            server.signal(Signal::SIGCONT);
            wait_until("both have successors, and all serve", PATIENCE, || {
                let new = [first, second].map(|role| server.role(role));
                let is_new =
                    new.iter().zip(old).all(|(role, old)| role.as_ref().is_some_and(|role| role.pid != old));
                let health = server.request("GET", "/health", &[], b"").ok()?;
                (is_new && health.status() == 200 && server.roles().len() == 4).then_some(())
            });
            server.check_serves(&format!("after the deaths of {first} and {second}, {pause:?} apart"));
        }
    }
    server.stop();
}

#[test]
fn the_slow_transport_gives_the_same_text_and_survives_deaths() {
    let server = Server::fake(&["--ipc", "channel", "--fake-step-us", "200"]);
    let oracle = server.oracle();
    let check = |prompt: &str, tokens| {
        for stream in [false, true] {
            let body = json!({"prompt": prompt, "max_tokens": tokens, "stream": stream});
            let answer = server.ask(Api::Completions, &body);
            assert_eq!(answer.text, oracle.text(&oracle.encode(prompt), tokens), "{prompt}, stream {stream}");
        }
    };
    check("before any death", 60);
    for role in ["tokenizer-0", "detokenizer-0", "engine-0", "frontend-0"] {
        let old = server.role(role).unwrap_or_else(|| panic!("{role} runs")).pid;
        kill(old, Signal::SIGKILL);
        wait_until(&format!("{role} has a successor"), PATIENCE, || {
            server.role(role).filter(|found| found.pid != old)
        });
        let body = json!({"prompt": "x", "max_tokens": 1});
        wait_until("requests are served again", PATIENCE, || {
            let answered = server.request("POST", Api::Completions.path(), &[], body.to_string().as_bytes());
            answered.ok().filter(|response| response.status() == 200)
        });
        check(role, 30);
    }
    server.stop();
}
