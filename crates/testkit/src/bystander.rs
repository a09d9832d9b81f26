//! The victim test: while a test does bad things to a service, someone else is being served by it.

use crate::answer::{Api, End};
use crate::http::Response;
use crate::server::Server;
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tokens of each answer that the bystander reads.
const TOKENS: usize = 200;

/// Runs `attack` on a service of the fake backend while a bystander streams one answer after the other from
/// it. The second argument of `attack` checks that the service still answers; call it after each bad thing.
/// In the end nothing may be in use, and the service must stop cleanly.
///
/// # Panics
/// If the bystander notices anything.
pub fn beside_a_stream(attack: impl FnOnce(&Server, &dyn Fn(&str))) {
    let server = Server::fake(&["--fake-step-us", "500"]);
    let oracle = server.oracle();
    let busy = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let bystander = scope.spawn(|| {
            while busy.load(Ordering::Relaxed) {
                let body = json!({"prompt": "bystander", "max_tokens": TOKENS, "stream": true});
                let answer = server.ask(Api::Completions, &body);
                assert_eq!(answer.end, End::Complete, "the bystander: {answer:?}");
                assert_eq!(answer.text, oracle.text(&oracle.encode("bystander"), TOKENS), "the bystander");
            }
        });
        let still_answers = |name: &str| {
            let answer = server.ask(Api::Completions, &json!({"prompt": "still there", "max_tokens": 2}));
            assert_eq!(answer.text, oracle.text(&oracle.encode("still there"), 2), "after {name}");
        };
        let attack = std::panic::AssertUnwindSafe(|| attack(&server, &still_answers));
        let result = std::panic::catch_unwind(attack);
        busy.store(false, Ordering::Relaxed);
        let unharmed = bystander.join();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        unharmed.expect("the bystander gets its text");
    });
    server.wait_idle();
    server.stop();
}

/// Checks that a response is a refusal of this status, in OpenAI's error shape, with this `param` if one is
/// given.
///
/// # Panics
/// If it is not.
pub fn check_refusal(name: &str, response: &Response, status: u16, param: Option<&str>) {
    assert_eq!(response.status(), status, "{name}: {}", String::from_utf8_lossy(&response.body));
    let body = response.json();
    let error = &body["error"];
    assert_eq!(error["type"], "invalid_request_error", "{name}: {body}");
    assert!(error["message"].as_str().is_some_and(|message| message.len() > 5), "{name}: {body}");
    assert!(error.get("code").is_some() && error.get("param").is_some(), "{name}: all four members: {body}");
    if let Some(param) = param {
        assert_eq!(error["param"], param, "{name}: {body}");
    }
}
