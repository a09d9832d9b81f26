//! Fields of requests that other servers have, through the real processes: ids and counts in answers, truncated
//! prompts, tokens that may be drawn, special tokens, compact JSON, and unknown fields.

use pinion_testkit::{Api, Response, Server};
use serde_json::{Value, json};

const END: u32 = 256;

fn with(base: &Value, extra: Value) -> Value {
    let mut body = base.clone();
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    body
}

fn ids(value: &Value) -> Vec<u32> {
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok()).expect("a token id");
    value.as_array().unwrap_or_else(|| panic!("no list of ids: {value}")).iter().map(id).collect()
}

fn chunks(response: &Response) -> Vec<Value> {
    let text = response.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

fn text(server: &Server, body: &Value) -> String {
    let answer = server.post("/v1/completions", body).json();
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {answer}")).to_owned()
}

#[test]
fn answers_show_ids_and_counts() {
    let server = Server::fake(&[]);
    let oracle = server.oracle();
    let messages = json!([{"role": "user", "content": "Hé?"}]);
    for (api, base, prompt) in [
        (Api::Completions, json!({"prompt": "ids of this"}), oracle.encode("ids of this")),
        (Api::Chat, json!({ "messages": messages }), oracle.encode_chat(&messages)),
    ] {
        let expected = oracle.ids(&prompt, 30);
        let body = with(&base, json!({"max_tokens": 30, "ignore_eos": true, "return_token_ids": true}));
        let whole = server.post(api.path(), &body).json();
        let place = if api == Api::Chat { &whole } else { &whole["choices"][0] };
        assert_eq!(ids(&place["prompt_token_ids"]), prompt);
        assert_eq!(ids(&whole["choices"][0]["token_ids"]), expected);

        let options = json!({"include_usage": true, "continuous_usage_stats": true});
        let body = with(&body, json!({"stream": true, "stream_options": options}));
        let chunks = chunks(&server.post(api.path(), &body));
        let place = if api == Api::Chat { &chunks[0] } else { &chunks[0]["choices"][0] };
        assert_eq!(ids(&place["prompt_token_ids"]), prompt);
        let (mut found, mut counts) = (Vec::new(), Vec::new());
        for chunk in &chunks {
            let usage = &chunk["usage"];
            assert_eq!(usage["prompt_tokens"].as_u64(), Some(prompt.len() as u64), "{chunk}");
            counts.push(usage["completion_tokens"].as_u64().expect("a count"));
            if let Some(choice) = chunk["choices"].get(0) {
                found.extend(ids(&choice["token_ids"]));
            }
        }
        assert_eq!(found, expected);
        assert!(counts.is_sorted() && counts.last() == Some(&30) && counts[0] < 30, "{counts:?}");
        // Who asks for neither gets neither.
        let plain = server.post(api.path(), &with(&base, json!({"max_tokens": 3, "stream": true}))).text();
        assert!(!plain.contains("token_ids") && !plain.contains("usage"), "{plain}");
    }
    // Several choices of several prompts have each their own.
    let body =
        json!({"prompt": ["one", "two"], "n": 2, "max_tokens": 5, "return_token_ids": true, "stream": true});
    let mut seen = vec![Vec::new(); 4];
    for chunk in chunks(&server.post("/v1/completions", &body)) {
        let choice = &chunk["choices"][0];
        if !choice["prompt_token_ids"].is_null() {
            seen[choice["index"].as_u64().expect("an index") as usize].push(ids(&choice["prompt_token_ids"]));
        }
    }
    let [one, two] = ["one", "two"].map(|prompt| vec![oracle.encode(prompt)]);
    assert_eq!(seen, [one.clone(), one, two.clone(), two]);
    server.stop();
}

#[test]
fn prompts_are_truncated_from_their_beginning() {
    let server = Server::fake(&[]);
    let oracle = server.oracle();
    let long = "A prompt of some length. ".repeat(30);
    let tail = |count: usize| long[long.len() - count..].to_owned();
    let ask = |truncated: i64, extra: Value| {
        let base = json!({"max_tokens": 12, "truncate_prompt_tokens": truncated, "return_token_ids": true});
        server.post("/v1/completions", &with(&base, extra)).json()
    };
    for (truncated, kept) in [(7, 7), (300, 300), (-1, 500)] {
        let prompt = oracle.encode(&tail(kept));
        for given in [json!(long), json!(oracle.encode(&long))] {
            let answer = ask(truncated, json!({ "prompt": given }));
            let choice = &answer["choices"][0];
            assert_eq!(ids(&choice["prompt_token_ids"]), prompt, "{truncated}");
            assert_eq!(ids(&choice["token_ids"]), oracle.ids(&prompt, 12), "{truncated}");
            assert_eq!(answer["usage"]["prompt_tokens"].as_u64(), Some(kept as u64));
        }
    }
    let refused = ask(0, json!({"prompt": "a"}));
    assert_eq!(refused["error"]["param"], "truncate_prompt_tokens");
    let refused = ask(3, json!({"prompt": "a", "echo": true}));
    assert_eq!(refused["error"]["param"], "truncate_prompt_tokens");
    server.stop();
}

#[test]
fn only_what_is_allowed_is_drawn() {
    let server = Server::fake(&[]);
    let base = json!({"prompt": "draw", "max_tokens": 60, "temperature": 1, "seed": 3});
    let allowed: Vec<u32> = "abc".bytes().map(u32::from).collect();
    let few = text(&server, &with(&base, json!({"allowed_token_ids": allowed, "max_tokens": 200})));
    assert!(few.len() == 200 && few.bytes().all(|byte| b"abc".contains(&byte)), "{few}");
    // What the fake model likes best.
    let words = json!(["aaa", "aca", "ab"]);
    let without = text(
        &server,
        &with(&base, json!({"allowed_token_ids": allowed, "bad_words": words, "max_tokens": 200})),
    );
    assert_eq!(without.len(), 200);
    for word in ["aaa", "aca", "ab"] {
        assert!(few.contains(word) && !without.contains(word), "{word}: {few} {without}");
    }
    let none = text(&server, &with(&base, json!({"allowed_token_ids": [97, 98], "bad_words": ["b"]})));
    assert_eq!(none, "a".repeat(60));
    // The end of a text is a token, too.
    let answer = server.post("/v1/completions", &with(&base, json!({"allowed_token_ids": [END]}))).json();
    assert_eq!(
        (&answer["choices"][0]["text"], &answer["choices"][0]["finish_reason"]),
        (&json!(""), &json!("stop"))
    );
    server.stop();
}

#[test]
fn special_tokens_are_shown_where_a_client_wants_them() {
    let server = Server::fake(&[]);
    let base = json!({"prompt": "x", "max_tokens": 3, "allowed_token_ids": [END], "ignore_eos": true});
    assert_eq!(text(&server, &base), "");
    let shown = with(&base, json!({"skip_special_tokens": false, "spaces_between_special_tokens": true}));
    assert_eq!(text(&server, &shown), "<|endoftext|>".repeat(3));
    server.stop();
}

/// The fake model takes white space wherever it may.
#[test]
fn json_is_compact_unless_white_space_is_asked_for() {
    let server = Server::fake(&[]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": [1, 2]}}, "required": ["a", "b"]});
    let named = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let base = json!({"prompt": "x", "max_tokens": 200, "response_format": named});
    let spaces = |text: &str| text.chars().filter(|c| c.is_whitespace()).count();
    for seed in 0..8 {
        let base = with(&base, json!({ "seed": seed }));
        let compact = text(&server, &base);
        assert!(
            compact.starts_with("{\"a\": ") && compact.contains(", \"b\": ") && spaces(&compact) == 3,
            "{compact}"
        );
        let spaced = text(&server, &with(&base, json!({"guided_whitespace_pattern": "\n\n"})));
        assert_eq!(spaces(&spaced) % 2, 0, "{spaced:?}");
        let value: Value = serde_json::from_str(&spaced).expect("JSON");
        assert!(value["a"].is_boolean() && spaced != compact, "{spaced:?}");
    }
    server.stop();
}

#[test]
fn unknown_fields_are_named_or_refused() {
    const NAME: &str = "x-pinion-ignored-fields";
    let body = json!({"prompt": "x", "max_tokens": 2, "temprature": 0, "frob\r\nnicate": 1, "metadata": {}, "nothing": null});
    let server = Server::fake(&[]);
    for stream in [false, true] {
        let response = server.post("/v1/completions", &with(&body, json!({ "stream": stream })));
        assert_eq!(response.status(), 200);
        assert_eq!(response.head.field(NAME), Some("temprature, frob??nicate"));
    }
    assert_eq!(server.metric("pinion_ignored_fields_total"), 4.0);
    let plain = server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 2, "metadata": {}}));
    assert_eq!((plain.status(), plain.head.field(NAME)), (200, None));
    // What a peer would have honoured is no warning.
    for (field, value) in [
        ("grammar", json!("root ::= \"a\"")),
        ("num_beams", json!(4)),
        ("stop_regex", json!("a")),
        ("logits_processors", json!(["x"])),
    ] {
        let refused = server.post("/v1/completions", &with(&body, json!({ field: value })));
        assert_eq!((refused.status(), refused.json()["error"]["param"].as_str()), (400, Some(field)));
    }
    // Synonyms mean what they stand for.
    let oracle = server.oracle();
    let expected = oracle.text(&oracle.encode("synonym"), 9);
    assert_eq!(text(&server, &json!({"prompt": "synonym", "n_predict": 9, "ignore_eos": true})), expected);
    server.stop();
    let server = Server::fake(&["--strict-fields"]);
    let refused = server.post("/v1/completions", &json!({"prompt": "x", "temprature": 0}));
    let error = refused.json()["error"].clone();
    assert_eq!((refused.status(), error["param"].as_str()), (400, Some("temprature")));
    assert!(
        error["message"].as_str().is_some_and(|message| message.contains("did you mean temperature?")),
        "{error}"
    );
    server.check_serves("strict");
    server.stop();
}
