//! The data edges over `ipc-channel` instead of rings: the same text, and the same way back after a death.

use pinion_testkit::{Api, PATIENCE, Server, Signal, kill, wait_until};
use serde_json::json;

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
