//! Invalid requests: each gets its status and an error that names the field, the service goes
//! on, and other requests in flight are unaffected.

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

/// Paths, a field, and an array of values that it must not take there.
fn wrong_values() -> Vec<(&'static [&'static str], &'static str, Value)> {
    let generation: &[&str] = &[COMPLETIONS, CHAT, "/generate"];
    let openai: &[&str] = &[COMPLETIONS, CHAT];
    let count = json!([0, -2, 1.5, "5", true, [], {}, 1e300, 1u64 << 31, u64::MAX]);
    let not_boolean = json!(["yes", 1, [], {}]);
    let many: Vec<String> = (0..17).map(|index| format!("stop {index}")).collect();
    let texts = json!([5, true, {}, [], ""]);
    let lists = json!([[[]], [1, "a"], ["a", 1], [[1], []], [1.5], [1e300], [null], [true]]);
    let ids = json!([[-1], [257], [1u64 << 32], [u64::MAX]]);
    vec![
        (&[COMPLETIONS, "/generate"], "prompt", texts),
        (&[COMPLETIONS, "/generate"], "prompt", lists),
        (&[COMPLETIONS, "/generate"], "prompt", ids),
        (&["/generate"], "prompt", json!([["a", "b"], [[1], [2]]])),
        (openai, "max_tokens", count.clone()),
        (&[CHAT], "max_completion_tokens", count.clone()),
        (&["/generate"], "max_new_tokens", count),
        (generation, "temperature", json!([-0.1, 100.5, 1e300, "hot", true, [], {}])),
        (generation, "top_p", json!([0, -0.5, 1.01, "x", false, [0.5]])),
        (generation, "top_k", json!([-2, 1.5, "x", 1u64 << 31, []])),
        (generation, "seed", json!(["x", 1.5, 1e300, [], true])),
        (generation, "stop", json!([5, [5], "", ["a", ""], "x".repeat(257), {}, many, true])),
        (generation, "stream", not_boolean.clone()),
        (openai, "stream_options", json!([5, [], {"include_usage": true}])),
        (openai, "ignore_eos", not_boolean.clone()),
        (&["/generate"], "do_sample", not_boolean.clone()),
        (&["/generate"], "stop_on_eos", not_boolean),
        (openai, "n", json!([0, 129, -1, "1", 1.5, u64::MAX])),
        (&[COMPLETIONS], "best_of", json!([0, -1, 129, 1_000_000, "2", 1.5])),
        (&[CHAT], "best_of", json!([2])),
        (&[COMPLETIONS], "echo", json!([1, "x"])),
        (openai, "prompt_logprobs", json!([-1, 21, 1_000_000_000, true, "x", 1.5])),
        (&[COMPLETIONS], "suffix", json!(["end"])),
        (&[COMPLETIONS], "logprobs", json!([true, 21, -1, 1.5, "x", 1_000_000_000])),
        (&[CHAT], "logprobs", json!([5, "x"])),
        (&[CHAT], "top_logprobs", json!([3, 21, -1, "x"])),
        (generation, "logit_bias", json!([{"257": 1}, {"5": 101}, {"5": "x"}, {"x": 1}, {"-1": 1}, 5])),
        (generation, "presence_penalty", json!([2.5, 1e300, "x"])),
        (generation, "frequency_penalty", json!([-2.5, []])),
        (generation, "repetition_penalty", json!([0, -1, 1e300, "x"])),
        (generation, "min_p", json!([-0.1, 1.1, "x"])),
        (generation, "stop_token_ids", json!([[257], [-1], ["a"], 5])),
        (generation, "min_tokens", json!([3, -1, u64::MAX, "x"])),
        (generation, "include_stop_str_in_output", json!(["yes", 1])),
        (&[CHAT], "tools", json!([5, {}, true])),
        (&[CHAT], "tool_choice", json!(["required", 5])),
        (&[CHAT], "functions", json!([[{"name": "f"}]])),
        (&[CHAT], "response_format", json!([5, [], "json_object"])),
        (&["/tokenize"], "prompt", json!([5, [], {}, true])),
        (&["/detokenize"], "tokens", json!(["x", 5, [-1], [257], [1.5], ["a"], [[1]]])),
        (&PATHS, "model", json!([5, [], true])),
    ]
}

#[test]
fn every_field_is_checked_by_type_and_range() {
    beside_a_stream(|server, still_answers| {
        for (paths, field, values) in wrong_values() {
            for path in paths {
                for value in values.as_array().expect("the table has arrays") {
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
            "messages[0].content[0].type",
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

/// Sends every body, and looks for the status, the code (null where empty) and the field.
fn check_table(table: &[(&str, &str, Value, &str)], status: u16, code: &str) {
    beside_a_stream(|server, still_answers| {
        for (name, path, body, param) in table {
            let name = format!("{path}: {name}");
            let response = server.post(path, body);
            check_refusal(&name, &response, status, Some(param));
            assert_eq!(response.json()["error"]["code"].as_str().unwrap_or_default(), code, "{name}");
            still_answers(&name);
        }
    });
}

#[test]
fn what_is_missing_is_said() {
    let table = [
        ("no prompt", COMPLETIONS, json!({}), "prompt"),
        ("no messages", CHAT, json!({}), "messages"),
        ("no prompt", "/generate", json!({}), "prompt"),
        ("no prompt", "/tokenize", json!({}), "prompt"),
        ("no tokens", "/detokenize", json!({}), "tokens"),
        ("prompt and messages", "/tokenize", json!({"prompt": "x", "messages": []}), "messages"),
    ];
    check_table(&table, 400, "");
}

#[test]
fn what_does_not_fit_the_context_is_said() {
    let text = "x".repeat(600);
    let ids: Vec<u32> = vec![65; 600];
    let chat = json!([{"role": "user", "content": text}]);
    let table = [
        ("text", COMPLETIONS, json!({"prompt": text}), "prompt"),
        ("ids", COMPLETIONS, json!({"prompt": ids}), "prompt"),
        ("no room for a token", COMPLETIONS, json!({"prompt": &ids[..512], "max_tokens": 1}), "prompt"),
        ("prompt and answer", COMPLETIONS, json!({"prompt": &ids[..400], "max_tokens": 113}), "prompt"),
        ("chat", CHAT, json!({"messages": chat}), "messages"),
        ("ids", "/detokenize", json!({"tokens": ids}), "tokens"),
    ];
    check_table(&table, 400, "context_length_exceeded");
}

#[test]
fn an_unknown_model_is_said_before_anything_else() {
    let table = [
        ("completions", COMPLETIONS, json!({"model": "gpt-9", "prompt": "x"}), "model"),
        ("chat", CHAT, json!({"model": "", "messages": []}), "model"),
        ("tokenize", "/tokenize", json!({"model": "\u{0}", "prompt": 5}), "model"),
    ];
    check_table(&table, 404, "model_not_found");
}

#[test]
fn unknown_paths_and_wrong_methods_are_said() {
    let table = [
        ("GET", "/v1/nothing", 404),
        ("POST", "/", 405),
        ("POST", "/nothing", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "//health", 404),
        ("GET", COMPLETIONS, 405),
        ("DELETE", CHAT, 405),
        ("POST", "/health", 405),
        ("PUT", "/metrics", 405),
        ("BREW", "/version", 405),
    ];
    beside_a_stream(|server, still_answers| {
        for (method, path, status) in table {
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
