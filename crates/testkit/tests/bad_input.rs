//! Requests that nobody should send: each gets its status and an error that names the field, the service goes
//! on, and whoever is being served meanwhile notices nothing.

use pinion_testkit::{beside_a_stream, check_refusal};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const PATHS: [&str; 5] = [COMPLETIONS, CHAT, "/generate", "/tokenize", "/detokenize"];

/// A body that is right for this path.
fn right(path: &str) -> Value {
    match path {
        CHAT => json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
        "/detokenize" => json!({"tokens": [104, 105]}),
        "/generate" => json!({"prompt": "hi", "max_new_tokens": 2}),
        "/tokenize" => json!({"prompt": "hi"}),
        _ => json!({"prompt": "hi", "max_tokens": 2}),
    }
}

/// Field, and values that it must not take, on these paths.
fn wrong_values() -> Vec<(&'static [&'static str], &'static str, Vec<Value>)> {
    let generation: &[&str] = &[COMPLETIONS, CHAT, "/generate"];
    let openai: &[&str] = &[COMPLETIONS, CHAT];
    let count = || {
        vec![
            json!(0),
            json!(-1),
            json!(1.5),
            json!("5"),
            json!(true),
            json!([]),
            json!({}),
            json!(1e300),
            json!(1u64 << 31),
            json!(u64::MAX),
        ]
    };
    let not_true = || vec![json!("yes"), json!(1), json!([]), json!({})];
    let many: Vec<String> = (0..17).map(|index| format!("stop {index}")).collect();
    let prompts = || {
        vec![
            json!(5),
            json!(true),
            json!({}),
            json!([]),
            json!([[]]),
            json!([1, "a"]),
            json!(["a", "b"]),
            json!([[1], [2]]),
            json!([-1]),
            json!([257]),
            json!([1u64 << 32]),
            json!([u64::MAX]),
            json!([1.5]),
            json!([1e300]),
            json!([null]),
            json!(""),
        ]
    };
    vec![
        (&[COMPLETIONS, "/generate"], "prompt", prompts()),
        (openai, "max_tokens", count()),
        (&[CHAT], "max_completion_tokens", count()),
        (&["/generate"], "max_new_tokens", count()),
        (
            generation,
            "temperature",
            vec![json!(-0.1), json!(100.5), json!(1e300), json!("hot"), json!(true), json!([]), json!({})],
        ),
        (
            generation,
            "top_p",
            vec![json!(0), json!(-0.5), json!(1.01), json!("x"), json!(false), json!([0.5])],
        ),
        (generation, "top_k", vec![json!(-2), json!(1.5), json!("x"), json!(1u64 << 31), json!([])]),
        (generation, "seed", vec![json!("x"), json!(1.5), json!(1e300), json!([]), json!(true)]),
        (
            generation,
            "stop",
            vec![
                json!(5),
                json!([5]),
                json!(""),
                json!(["a", ""]),
                json!("x".repeat(257)),
                json!({}),
                json!(many),
                json!(true),
            ],
        ),
        (generation, "stream", not_true()),
        (openai, "stream_options", vec![json!(5), json!([]), json!({"include_usage": true})]),
        (openai, "ignore_eos", not_true()),
        (&["/generate"], "do_sample", not_true()),
        (&["/generate"], "stop_on_eos", not_true()),
        (openai, "n", vec![json!(0), json!(2), json!(-1), json!("1"), json!(1.5), json!(u64::MAX)]),
        (&[COMPLETIONS], "best_of", vec![json!(2)]),
        (&[COMPLETIONS], "echo", vec![json!(true)]),
        (&[COMPLETIONS], "suffix", vec![json!("end")]),
        (openai, "logprobs", vec![json!(true), json!(5)]),
        (&[CHAT], "top_logprobs", vec![json!(3)]),
        (openai, "logit_bias", vec![json!({"5": 1}), json!(5)]),
        (openai, "presence_penalty", vec![json!(0.5), json!("x")]),
        (openai, "frequency_penalty", vec![json!(-2), json!([])]),
        (&[CHAT], "tools", vec![json!([{"type": "function"}]), json!(5)]),
        (&[CHAT], "response_format", vec![json!({"type": "json_object"}), json!(5)]),
        (&["/tokenize"], "prompt", vec![json!(5), json!([]), json!({}), json!(true)]),
        (
            &["/detokenize"],
            "tokens",
            vec![json!("x"), json!(5), json!([-1]), json!([257]), json!([1.5]), json!(["a"]), json!([[1]])],
        ),
        (&PATHS, "model", vec![json!(5), json!([]), json!(true)]),
    ]
}

#[test]
fn every_field_is_checked_by_type_and_range() {
    beside_a_stream(|server, still_answers| {
        for (paths, field, values) in wrong_values() {
            for path in paths {
                for value in &values {
                    let mut body = right(path);
                    body[field] = value.clone();
                    let name = format!(
                        "{path} with {field} = {}",
                        &value.to_string()[..value.to_string().len().min(60)]
                    );
                    check_refusal(&name, &server.post(path, &body), 400, Some(field));
                }
                still_answers(field);
            }
        }
    });
}

#[test]
fn messages_are_checked_one_by_one() {
    let user = json!({"role": "user", "content": "hi"});
    let table = [
        (json!(5), "messages"),
        (json!("hi"), "messages"),
        (json!([]), "messages"),
        (json!({}), "messages"),
        (json!([5]), "messages[0]"),
        (json!([user, "x"]), "messages[1]"),
        (json!([{"role": "wizard", "content": "x"}]), "messages[0].role"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([user, {"role": "user"}]), "messages[1].content"),
        (json!([{"role": "user", "content": 5}]), "messages[0].content"),
        (json!([{"role": "user", "content": null}]), "messages[0].content"),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]),
            "messages[0].content[0]",
        ),
    ];
    beside_a_stream(|server, still_answers| {
        for (messages, param) in table {
            for path in [CHAT, "/tokenize"] {
                let name = format!("{path} {messages}");
                let response = server.post(path, &json!({"messages": messages}));
                check_refusal(&name, &response, 400, Some(param));
            }
            still_answers(param);
        }
        let many: Vec<Value> = (0..4097).map(|_| user.clone()).collect();
        check_refusal(
            "too many messages",
            &server.post(CHAT, &json!({"messages": many})),
            400,
            Some("messages"),
        );
        still_answers("too many messages");
    });
}

#[test]
fn what_is_missing_too_long_or_unknown_is_said() {
    let long = "x".repeat(600);
    let ids: Vec<u32> = vec![65; 600];
    let over = "x".repeat(400);
    let table = [
        ("no prompt", COMPLETIONS, json!({}), 400, None, Some("prompt")),
        ("no messages", CHAT, json!({}), 400, None, Some("messages")),
        ("no prompt", "/generate", json!({}), 400, None, Some("prompt")),
        ("no prompt", "/tokenize", json!({}), 400, None, Some("prompt")),
        ("no tokens", "/detokenize", json!({}), 400, None, Some("tokens")),
        (
            "prompt over the context",
            COMPLETIONS,
            json!({"prompt": long}),
            400,
            Some("context_length_exceeded"),
            Some("prompt"),
        ),
        (
            "ids over the context",
            COMPLETIONS,
            json!({"prompt": ids}),
            400,
            Some("context_length_exceeded"),
            Some("prompt"),
        ),
        (
            "a full context leaves no room",
            COMPLETIONS,
            json!({"prompt": &ids[..512], "max_tokens": 1}),
            400,
            Some("context_length_exceeded"),
            Some("prompt"),
        ),
        (
            "prompt and answer over it",
            COMPLETIONS,
            json!({"prompt": over, "max_tokens": 113}),
            400,
            Some("context_length_exceeded"),
            Some("prompt"),
        ),
        (
            "chat over the context",
            CHAT,
            json!({"messages": [{"role": "user", "content": long}]}),
            400,
            Some("context_length_exceeded"),
            Some("messages"),
        ),
        (
            "ids over the context",
            "/detokenize",
            json!({"tokens": ids}),
            400,
            Some("context_length_exceeded"),
            Some("tokens"),
        ),
        (
            "unknown model",
            COMPLETIONS,
            json!({"model": "gpt-9", "prompt": "x"}),
            404,
            Some("model_not_found"),
            Some("model"),
        ),
        (
            "unknown model",
            CHAT,
            json!({"model": "", "messages": []}),
            404,
            Some("model_not_found"),
            Some("model"),
        ),
        (
            "prompt and messages",
            "/tokenize",
            json!({"prompt": "x", "messages": []}),
            400,
            None,
            Some("messages"),
        ),
    ];
    beside_a_stream(|server, still_answers| {
        for (name, path, body, status, code, param) in table {
            let name = format!("{path}: {name}");
            let response = server.post(path, &body);
            check_refusal(&name, &response, status, param);
            if let Some(code) = code {
                assert_eq!(response.json()["error"]["code"], code, "{name}");
            }
            still_answers(&name);
        }
        for (method, path, status) in [
            ("GET", "/v1/nothing", 404),
            ("POST", "/", 404),
            ("GET", "/v1/models/other", 404),
            ("GET", "//health", 404),
            ("GET", COMPLETIONS, 405),
            ("DELETE", CHAT, 405),
            ("POST", "/health", 405),
            ("PUT", "/metrics", 405),
            ("BREW", "/version", 405),
        ] {
            let name = format!("{method} {path}");
            let response = server.request(method, path, &[], b"{}").expect("an answer");
            check_refusal(&name, &response, status, None);
            assert_eq!(response.head.field("allow").is_some(), status == 405, "{name}");
            still_answers(&name);
        }
    });
}

#[test]
fn bodies_that_are_no_json_objects_are_refused() {
    let deep = |open: &str, close: &str, depth: usize| {
        format!("{{\"prompt\":{}1{}}}", open.repeat(depth), close.repeat(depth)).into_bytes()
    };
    let bodies: Vec<Vec<u8>> = [
        "",
        " ",
        "{",
        "{\"prompt\":\"x\"",
        "{\"prompt\":\"x",
        "[]",
        "null",
        "3",
        "\"x\"",
        "{\"prompt\":\"x\"} x",
        "{prompt: 1}",
        "{'a':1}",
        "{\"prompt\":\"x\",}",
        "{\"prompt\":\"\\ud800\"}",
        "{\"prompt\":\"x\",\"temperature\":NaN}",
        "{\"prompt\":\"x\",\"temperature\":1e999}",
        "{\"prompt\":\"x\",\"top_p\":Infinity}",
        "{\"prompt\":\"x\",\"top_p\":-Infinity}",
        "\u{feff}{\"prompt\":\"x\"}",
        "{\"prompt\":\"a\nb\"}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .chain([
        b"{\"prompt\":\"\xff\xfe\"}".to_vec(),
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03".to_vec(),
        vec![0; 1000],
        deep("[", "]", 100_000),
        deep("{\"a\":", "}", 80_000),
        "[".repeat(100_000).into_bytes(),
    ])
    .collect();
    beside_a_stream(|server, still_answers| {
        for body in &bodies {
            let name = format!("{:?}", String::from_utf8_lossy(&body[..body.len().min(40)]));
            for path in PATHS {
                let response = server.request("POST", path, &[], body).expect("an answer");
                check_refusal(&format!("{path} {name}"), &response, 400, None);
            }
            still_answers(&name);
        }
    });
}
