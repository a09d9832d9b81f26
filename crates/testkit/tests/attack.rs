//! Requests made to cost much: each is refused by name while 32 other streams get exactly their text, and nothing stays
//! in use. How long a refusal takes, and what it does to the others' pace, is measured by
//! `benchmarks/checks/attack.py`.

use pinion_testkit::{Api, End, Server, check_refusal};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};

const STREAMS: usize = 32;
const TOKENS: usize = 300;
const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A bomb: its name, where it goes, the body, and the field that the refusal names.
type Bomb = (&'static str, &'static str, String, Option<&'static str>);

fn with(field: &str, value: Value) -> String {
    let mut body = json!({"prompt": "x", "max_tokens": 1});
    body[field] = value;
    body.to_string()
}

fn chat(field: &str, value: Value) -> String {
    let mut body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    body[field] = value;
    body.to_string()
}

fn bombs() -> Vec<Bomb> {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let stops: Vec<String> = (0..10_000).map(|index| format!("stop {index}")).collect();
    let biases: serde_json::Map<String, Value> =
        (0..1_000_000).map(|id| (id.to_string(), json!(1))).collect();
    let part = |bytes: usize| json!({"type": "text", "text": "x".repeat(bytes)});
    let parts = vec![part(10); 10_000_000 / 42];
    let long_parts = vec![part(2500); 4000];
    let mut crooked = long_parts.clone();
    crooked.push(json!([[[{"type": "text"}]]]));
    let tools: Vec<Value> = (0..10_000)
        .map(|index| json!({"type": "function", "function": {"name": format!("f{index}"), "parameters": {}}}))
        .collect();
    let said = |content: Value| json!([{"role": "user", "content": content}]);
    vec![
        ("100 000 levels", COMPLETIONS, format!(r#"{{"prompt":"x","x":{deep}}}"#), None),
        ("10 000 stop strings", COMPLETIONS, with("stop", json!(stops)), Some("stop")),
        ("a million choices", COMPLETIONS, with("n", json!(1_000_000)), Some("n")),
        ("a million choices", CHAT, chat("n", json!(1_000_000)), Some("n")),
        ("a million candidates", COMPLETIONS, with("best_of", json!(1_000_000)), Some("best_of")),
        ("10^9 logprobs", COMPLETIONS, with("logprobs", json!(1_000_000_000)), Some("logprobs")),
        (
            "10^9 prompt logprobs",
            COMPLETIONS,
            with("prompt_logprobs", json!(1_000_000_000)),
            Some("prompt_logprobs"),
        ),
        ("10^9 top logprobs", CHAT, chat("top_logprobs", json!(1_000_000_000)), Some("top_logprobs")),
        ("a million biases", COMPLETIONS, with("logit_bias", Value::Object(biases)), Some("logit_bias")),
        (
            "a million stop ids",
            COMPLETIONS,
            with("stop_token_ids", json!(vec![1; 1_000_000])),
            Some("stop_token_ids"),
        ),
        ("a huge top_k", COMPLETIONS, with("top_k", json!(1u64 << 40)), Some("top_k")),
        ("a huge max_tokens", COMPLETIONS, with("max_tokens", json!(1u64 << 40)), Some("max_tokens")),
        ("the largest max_tokens", COMPLETIONS, with("max_tokens", json!(i32::MAX)), Some("prompt")),
        ("a million prompts", COMPLETIONS, with("prompt", json!(vec!["x"; 1_000_000])), Some("prompt")),
        ("a million ids", COMPLETIONS, with("prompt", json!(vec![1; 1_000_000])), Some("prompt")),
        ("a long text", COMPLETIONS, with("prompt", json!("x".repeat(10_000_000))), Some("prompt")),
        ("10 MB of parts", CHAT, chat("messages", said(json!(parts))), Some("messages[0].content")),
        ("10 MB in long parts", CHAT, chat("messages", said(json!(long_parts))), Some("messages")),
        (
            "10 MB of parts, one crooked",
            CHAT,
            chat("messages", said(json!(crooked))),
            Some("messages[0].content[4000].type"),
        ),
        ("10 000 tools", CHAT, chat("tools", json!(tools)), Some("tools")),
    ]
}

#[test]
fn every_bomb_is_refused_by_name_and_the_others_get_their_text() {
    // A body as large as the service can be told to take: each bomb is really looked at.
    let server =
        Server::fake(&["--fake-step-us", "2000", "--body-bytes-max", "16777216", "--max-num-seqs", "40"]);
    let oracle = server.oracle();
    let bombs = bombs();
    let busy = AtomicBool::new(true);
    let answers: Vec<_> = std::thread::scope(|scope| {
        for index in 0..STREAMS {
            let (server, oracle, busy) = (&server, &oracle, &busy);
            scope.spawn(move || {
                let prompt = format!("stream {index}");
                let expected = oracle.text(&oracle.encode(&prompt), TOKENS);
                while busy.load(Ordering::Relaxed) {
                    let body = json!({"prompt": prompt, "max_tokens": TOKENS, "stream": true});
                    let answer = server.ask(Api::Completions, &body);
                    assert_eq!(answer.end, End::Complete, "stream {index}: {answer:?}");
                    assert_eq!(answer.text, expected, "stream {index}");
                }
            });
        }
        let send = |bomb: &Bomb| server.request("POST", bomb.1, &[], bomb.2.as_bytes());
        let answers = bombs.iter().map(send).collect();
        busy.store(false, Ordering::Relaxed);
        answers
    });
    for ((name, _, _, param), answer) in bombs.iter().zip(answers) {
        check_refusal(name, &answer.expect("an answer"), 400, *param);
    }
    server.wait_idle();
    server.check_serves("after the bombs");
    server.stop();
}
