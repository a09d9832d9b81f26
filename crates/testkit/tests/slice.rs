//! One request at a time through the whole slice: every route, streamed and not, against the fake model's oracle.

use pinion_testkit::{Answer, Api, End, Events, Oracle, Server};
use serde_json::{Value, json};

/// A request and what must come back.
struct Case {
    name: &'static str,
    api: Api,
    /// Without `model`, `stream` and the number of tokens.
    body: Value,
    prompt_ids: Vec<u32>,
    tokens: usize,
    /// Stop strings in `body`.
    stops: Vec<String>,
}

const CONTEXT: usize = 512;

/// A piece of a text, one that does not stand at its very beginning.
fn piece_of(text: &str, from_char: usize, chars: usize) -> String {
    let piece: String = text.chars().skip(from_char).take(chars).collect();
    assert!(text.find(&piece).is_some_and(|at| at > 0), "{piece:?} would leave nothing of {text:?}");
    piece
}

fn cases(oracle: &Oracle) -> Vec<Case> {
    let text = |name, prompt: &str, tokens| Case {
        name,
        api: Api::Completions,
        body: json!({"prompt": prompt}),
        prompt_ids: oracle.encode(prompt),
        tokens,
        stops: Vec::new(),
    };
    let stopped = |name, prompt: &str, tokens, from_char, chars| {
        let ids = oracle.encode(prompt);
        let stop = piece_of(&oracle.text(&ids, tokens), from_char, chars);
        let body = json!({"prompt": prompt, "stop": [stop, "never, ever in there"]});
        Case { stops: vec![stop], ..Case { body, ..text(name, prompt, tokens) } }
    };
    let chat = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Where is "}, {"type": "text", "text": "it? 終わり"}]},
    ]);
    let ids = [104u32, 105, 0, 255, 17, 200];
    let long: String = "All the world's a stage. ".chars().cycle().take(400).collect();
    vec![
        text("plain", "To be, or not to be", 40),
        text("one character in, one token out", "x", 1),
        text("characters outside ASCII", "Grüße, 世界! 👩‍👩‍👧", 64),
        text("escapes", "a\"b\\c\nd\te\u{7f}\u{0}f", 33),
        text("a long prompt", &long, CONTEXT - 400),
        stopped("a stop string", "Out, out, brief candle", 80, 30, 2),
        stopped("a stop string over several tokens", "Tomorrow, and tomorrow", 80, 41, 5),
        stopped("a stop string of one character", "Life's but a walking shadow", 60, 20, 1),
        Case { body: json!({"prompt": ids}), prompt_ids: ids.to_vec(), ..text("ids", "", 24) },
        Case {
            body: json!({"prompt": [ids]}),
            prompt_ids: ids.to_vec(),
            ..text("a list with one list of ids", "", 24)
        },
        Case { body: json!({"prompt": ["one string"]}), ..text("a list with one string", "one string", 24) },
        Case {
            name: "seeded sampling",
            body: json!({"prompt": "seeded", "temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 11}),
            ..text("", "seeded", 24)
        },
        Case {
            name: "null is absent",
            body: json!({"prompt": "nulls", "temperature": null, "stop": null, "n": null, "logprobs": null}),
            ..text("", "nulls", 9)
        },
        Case {
            name: "chat",
            api: Api::Chat,
            body: json!({"messages": chat}),
            prompt_ids: oracle.encode_chat(&chat),
            ..text("", "", 50)
        },
        Case {
            name: "chat until the context is full",
            api: Api::Chat,
            body: json!({"messages": chat, "max_completion_tokens": null}),
            prompt_ids: oracle.encode_chat(&chat),
            ..text("", "", CONTEXT - oracle.encode_chat(&chat).len())
        },
        Case { name: "generate", api: Api::Generate, ..text("", "And all our yesterdays", 30) },
    ]
}

/// The request's body with what the case leaves out.
fn body_of(case: &Case, model: &str, stream: bool) -> Value {
    let mut body = case.body.clone();
    let names = ["max_tokens", "max_completion_tokens"];
    let count = if case.api == Api::Generate { "max_new_tokens" } else { "max_tokens" };
    if names.iter().all(|name| body.get(*name).is_none()) {
        body[count] = json!(case.tokens);
    }
    body["model"] = json!(model);
    body["stream"] = json!(stream);
    if stream && case.api != Api::Generate {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

fn check(server: &Server, oracle: &Oracle, case: &Case) {
    let stops: Vec<&str> = case.stops.iter().map(String::as_str).collect();
    let (expected, stopped) = oracle.stopped(&oracle.text(&case.prompt_ids, case.tokens), &stops);
    assert_eq!(stopped, !stops.is_empty(), "{}: the stop string is in the oracle's text", case.name);
    for stream in [false, true] {
        let answer = server.ask(case.api, &body_of(case, server.model(), stream));
        let name = format!("{}, stream {stream}", case.name);
        assert_eq!((answer.status, &answer.end), (200, &End::Complete), "{name}");
        assert_eq!(answer.text, expected, "{name}");
        if case.api == Api::Generate && stream {
            continue;
        }
        let reason = if stopped { "stop" } else { "length" };
        assert_eq!(answer.finish_reason.as_deref(), Some(reason), "{name}");
        check_usage(&name, case, stopped, &answer);
    }
}

fn check_usage(name: &str, case: &Case, stopped: bool, answer: &Answer) {
    let usage = answer.usage.unwrap_or_else(|| panic!("{name}: no usage in {answer:?}"));
    assert_eq!(usage.prompt_tokens, case.prompt_ids.len() as u64, "{name}");
    let most = case.tokens as u64;
    if stopped {
        // The engine may be some steps ahead of the text when the stop string is found.
        assert!((1..=most).contains(&usage.completion_tokens), "{name}: {usage:?}");
    } else {
        assert_eq!(usage.completion_tokens, most, "{name}");
    }
}

#[test]
fn every_route_gives_the_oracle_s_text() {
    let server = Server::fake(&["--fake-step-us", "100"]);
    let oracle = server.oracle();
    for case in cases(&oracle) {
        check(&server, &oracle, &case);
    }
    server.wait_idle();
    server.stop();
}

/// Data of every event of a stream, with the answer's own id and time replaced.
fn event_data(server: &Server, api: Api, body: &Value) -> Vec<String> {
    let mut connection = server.connect();
    connection
        .request("POST", api.path(), &[], body.to_string().as_bytes())
        .expect("a request can be written");
    let head = connection.head().expect("an answer comes");
    assert_eq!(head.status, 200);
    let mut events = Events::new(connection, head);
    let mut all = Vec::new();
    while let Some(event) = events.next_event().expect("the stream is whole") {
        assert_eq!(event.name, None, "OpenAI's streams have unnamed events");
        all.push(match serde_json::from_str::<Value>(&event.data) {
            Ok(chunk) => event.data.replacen(&format!("\"id\":{}", chunk["id"]), "\"id\":X", 1).replacen(
                &format!("\"created\":{}", chunk["created"]),
                "\"created\":0",
                1,
            ),
            Err(_) => event.data,
        });
    }
    all
}

/// Texts of the chunks differ with how tokens happen to arrive, so neighbours that differ only in their text are
/// joined; everything else must be the same byte for byte.
fn joined(events: &[String]) -> Vec<String> {
    let mut all: Vec<(String, String)> = Vec::new();
    for data in events {
        let chunk: Value = serde_json::from_str(data).unwrap_or(Value::Null);
        let choice = &chunk["choices"][0];
        let field = if choice.get("text").is_some() { &choice["text"] } else { &choice["delta"]["content"] };
        let text = field.as_str().unwrap_or_default().to_owned();
        // The text in its escaped form, as serde_json writes it.
        let frame = match text.is_empty() {
            true => data.clone(),
            false => {
                let escaped = field.to_string();
                assert!(data.contains(&escaped), "not escaped as serde_json does: {data}");
                data.replacen(&escaped, "\"T\"", 1)
            }
        };
        match all.last_mut() {
            Some((last_frame, last_text)) if *last_frame == frame && !text.is_empty() => {
                last_text.push_str(&text)
            }
            _ => all.push((frame, text)),
        }
    }
    all.into_iter().map(|(frame, text)| format!("{frame} {text:?}")).collect()
}

#[test]
fn the_plain_writer_gives_the_same_bytes() {
    let (fast, plain) = (Server::fake(&["--served-model-name", "the \"model\""]), {
        Server::fake(&["--served-model-name", "the \"model\"", "--no-fast-sse"])
    });
    let oracle = fast.oracle();
    for case in cases(&oracle).iter().filter(|case| case.api != Api::Generate && case.stops.is_empty()) {
        let body = body_of(case, fast.model(), true);
        let both = [&fast, &plain].map(|server| joined(&event_data(server, case.api, &body)));
        assert_eq!(both[0], both[1], "{}", case.name);
        assert_eq!(both[0].last().map(String::as_str), Some("[DONE] \"\""), "{}", case.name);
    }
    fast.stop();
    plain.stop();
}

#[test]
fn the_small_routes_answer() {
    let server = Server::fake(&["--served-model-name", "tiny"]);
    let oracle = server.oracle();
    for path in ["/health", "/ready", "/version", "/v1/models", "/v1/models/tiny", "/metrics"] {
        assert_eq!(server.get(path).status(), 200, "{path}");
    }
    let models = server.get("/v1/models").json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("tiny")), "{models}");
    assert_eq!(models["data"][0]["object"], "model", "{models}");
    let version = server.get("/version").json();
    assert!(version["version"].as_str().is_some_and(|v| v.split('.').count() == 3), "{version}");

    for text in ["Hello, world", "", "Grüße, 世界! 👩‍👩‍👧", "a\"b\\c\nd\u{0}"] {
        let tokens = server.post("/tokenize", &json!({"model": "tiny", "prompt": text})).json();
        let ids = oracle.encode(text);
        assert_eq!((&tokens["tokens"], &tokens["count"]), (&json!(ids), &json!(ids.len())), "{text:?}");
        let back = server.post("/detokenize", &json!({"model": "tiny", "tokens": ids})).json();
        assert_eq!(back["prompt"], json!(text), "{back}");
    }
    let chat = json!([{"role": "user", "content": "Who's there?"}]);
    let tokens = server.post("/tokenize", &json!({"messages": chat})).json();
    assert_eq!(tokens["tokens"], json!(oracle.encode_chat(&chat)));
    server.stop();
}

#[test]
fn metrics_count_what_happened() {
    let server = Server::fake(&[]);
    let oracle = server.oracle();
    for tokens in [5, 7] {
        let answer = server.ask(Api::Completions, &json!({"prompt": "count me", "max_tokens": tokens}));
        assert_eq!(answer.text, oracle.text(&oracle.encode("count me"), tokens));
    }
    server.wait_idle();
    let metrics = server.metrics();
    let total = |name: &str| metrics.total(name).unwrap_or_else(|| panic!("no {name} in {metrics:?}"));
    assert!(total("pinion_kv_blocks_total") > 0.0);
    assert_eq!((total("pinion_kv_blocks_used"), total("pinion_request_slots_used")), (0.0, 0.0));
    let edges = |suffix: &str| metrics.samples.keys().filter(|name| name.contains(suffix)).count();
    // Seven rings of a service with one process per role, each with depth and capacity.
    assert_eq!((edges("ring_used_bytes"), edges("ring_capacity_bytes")), (7, 7), "{metrics:?}");
    server.stop();
}

#[test]
fn request_ids_are_echoed_or_made() {
    let server = Server::fake(&[]);
    let body = json!({"prompt": "who am I", "max_tokens": 3}).to_string();
    let id_of = |fields: &[(&str, &str)]| {
        let response = server.request("POST", "/v1/completions", fields, body.as_bytes()).expect("an answer");
        assert_eq!(response.status(), 200);
        response.head.field("x-request-id").map(str::to_owned)
    };
    assert_eq!(id_of(&[("X-Request-Id", "mine-7")]).as_deref(), Some("mine-7"));
    let made = id_of(&[]).expect("an id is made");
    assert!(!made.is_empty() && made != id_of(&[]).expect("an id is made"));
    // One that could break a header or a log line is not echoed as it is.
    let long = "x".repeat(5000);
    for odd in ["a\tb", long.as_str()] {
        assert_ne!(id_of(&[("X-Request-Id", odd)]).as_deref(), Some(odd));
    }
    server.stop();
}

#[test]
fn a_connection_serves_many_requests() {
    let server = Server::fake(&[]);
    let oracle = server.oracle();
    let mut connection = server.connect();
    for round in 0..20 {
        let prompt = format!("round {round}");
        let body = json!({"prompt": prompt, "max_tokens": 4}).to_string();
        connection.request("POST", "/v1/completions", &[], body.as_bytes()).expect("the connection is open");
        let answer = Answer::of_response(Api::Completions, &connection.response().expect("an answer"));
        assert_eq!(answer.text, oracle.text(&oracle.encode(&prompt), 4));
    }
    drop(connection);
    server.stop();
}
