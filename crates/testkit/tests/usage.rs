//! What an answer that a stop string ends counts: the tokens up to the one that completes the string, however far the
//! engine ran ahead of the detokenizer and whichever role died meanwhile.

use pinion_testkit::{
    Api, End, Events, Oracle, PATIENCE, Random, Server, Signal, Usage, demo_model, kill, wait_until,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TOKENS: usize = 200;
const SEED: u64 = 5_281;

/// A prompt, a stop string in its answer, the text before it, and the tokens that it takes to find it.
struct Case {
    prompt: String,
    stop: String,
    text: String,
    tokens: u64,
}

impl Case {
    /// The two characters that begin at character `at` of the answer, or later if they are not plain ones.
    fn new(oracle: &Oracle, prompt: String, at: usize) -> Option<Case> {
        let ids = oracle.ids(&oracle.encode(&prompt), TOKENS);
        let chars: Vec<char> = oracle.decode(&ids).chars().collect();
        let plain = |pair: &[char]| pair.iter().all(char::is_ascii_graphic);
        let stop: String = chars.windows(2).skip(at).find(|pair| plain(pair))?.iter().collect();
        let tokens = (1..=TOKENS).find(|count| oracle.decode(&ids[..*count]).contains(&stop))?;
        let text = oracle.decode(&ids[..tokens]);
        let text = text[..text.find(&stop)?].to_owned();
        Some(Case { prompt, stop, text, tokens: tokens as u64 })
    }

    fn check(&self, server: &Server, streamed: bool) {
        let Case { prompt, stop, text, tokens } = self;
        let mut body = json!({"prompt": prompt, "max_tokens": TOKENS, "stop": stop});
        if streamed {
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        let answer = server.ask(Api::Completions, &body);
        assert_eq!((&answer.end, &answer.text), (&End::Complete, text), "{prompt}, {stop:?}");
        let prompt_tokens = server.oracle().encode(prompt).len() as u64;
        let usage = Usage { prompt_tokens, completion_tokens: *tokens };
        assert_eq!(answer.usage, Some(usage), "{prompt}, {stop:?}");
    }
}

fn cases(server: &Server, name: &str) -> Vec<Case> {
    let oracle = server.oracle();
    (0..40).filter_map(|at| Case::new(&oracle, format!("{name} {at}"), at * 4)).collect()
}

#[test]
fn a_stop_counts_the_same_however_fast_the_engine_is() {
    for step_us in ["0", "300", "3000"] {
        let server = Server::fake(&["--fake-step-us", step_us]);
        let cases = cases(&server, "fast or slow");
        assert!(cases.len() > 20, "too few to show anything");
        std::thread::scope(|scope| {
            for (index, case) in cases.iter().enumerate() {
                let server = &server;
                scope.spawn(move || case.check(server, index % 2 == 0));
            }
        });
        let counted: u64 = cases.iter().map(|case| case.tokens).sum();
        server.wait_idle();
        assert_eq!(server.metric("pinion_generation_tokens_total"), counted as f64);
        assert_eq!(server.metric("vllm:generation_tokens_total"), counted as f64);
        server.stop();
    }
}

/// The engine ran to the end of each text before the detokenizer had looked at its first token.
#[test]
fn a_detokenizer_that_stood_still_counts_no_more() {
    let server = Server::fake(&["--fake-step-us", "300"]);
    let cases = cases(&server, "stands still");
    let detokenizer = server.role("detokenizer-0").expect("it runs").pid;
    std::thread::scope(|scope| {
        kill(detokenizer, Signal::SIGSTOP);
        for (index, case) in cases.iter().enumerate() {
            let server = &server;
            scope.spawn(move || case.check(server, index % 2 == 0));
        }
        std::thread::sleep(Duration::from_secs(2));
        kill(detokenizer, Signal::SIGCONT);
    });
    server.wait_idle();
    server.stop();
}

#[test]
fn a_stop_counts_the_same_when_roles_die_around_it() {
    let server =
        Server::fake(&["--fake-step-us", "2000", "--restart-backoff", "5ms", "--restart-limit", "1000"]);
    let mut random = Random::new(SEED);
    for round in 0..6 {
        let cases = cases(&server, &format!("round {round}"));
        std::thread::scope(|scope| {
            for (index, case) in cases.iter().enumerate() {
                let server = &server;
                scope.spawn(move || case.check(server, index % 2 == 0));
            }
            let role = random.pick(&["engine-0", "detokenizer-0", "tokenizer-0"]);
            std::thread::sleep(Duration::from_millis(random.between(1, 400)));
            let victim = wait_until("the role runs", PATIENCE, || server.role(role));
            kill(victim.pid, Signal::SIGKILL);
        });
    }
    assert!(server.metric("pinion_restarts_total") > 0.0);
    server.wait_idle();
    server.stop();
}

/// Requests with several choices, chats and tools, with stop strings where they may have them, and how many choices the
/// answer has.
fn shapes() -> Vec<(Api, Value, usize)> {
    let says = json!([{"role": "user", "content": "Speak of the sea."}]);
    let parameters = json!({"type": "object", "properties": {"sky": {"enum": ["a blue and cloudless sky"]}},
        "required": ["sky"], "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "get_weather", "parameters": parameters}});
    vec![
        (
            Api::Completions,
            json!({"prompt": ["MENENIUS:\n", "BRUTUS:\nI"], "n": 2, "seed": 12, "stop": [".", ","]}),
            4,
        ),
        (Api::Completions, json!({"prompt": "Enter", "best_of": 3, "seed": 13, "stop": ["\n", "."]}), 1),
        (Api::Chat, json!({"messages": says, "n": 3, "seed": 14, "stop": [".", ","]}), 3),
        (
            Api::Chat,
            json!({"messages": says, "n": 2, "seed": 15, "tools": [tool], "tool_choice": "required",
                "parallel_tool_calls": false}),
            2,
        ),
        (
            Api::Chat,
            json!({"messages": says, "seed": 16, "tools": [tool], "stop": ["cloud"],
                "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}),
            1,
        ),
    ]
}

/// Choices and counts of a whole answer; of the cached tokens nothing is said. Calls have random ids.
fn choices_and_counts(server: &Server, api: Api, body: &Value) -> (Value, [u64; 2]) {
    let reply = server.post(api.path(), body);
    assert_eq!(reply.status(), 200, "{}", reply.text());
    let mut answer = reply.json();
    for choice in answer["choices"].as_array_mut().into_iter().flatten() {
        for call in choice["message"]["tool_calls"].as_array_mut().into_iter().flatten() {
            call["id"] = Value::Null;
        }
    }
    let counts = ["prompt_tokens", "completion_tokens"];
    (answer["choices"].clone(), counts.map(|name| answer["usage"][name].as_u64().expect("a count")))
}

#[test]
fn choices_chats_and_tools_count_the_same_when_roles_die_around_them() {
    let Some(model) = demo_model() else {
        println!("skipped: deploy/demo-model is not complete");
        return;
    };
    let flags = ["--dtype", "fp32", "--restart-backoff", "5ms", "--restart-limit", "1000"];
    let server = Server::start(&model, &flags);
    let shapes: Vec<_> = shapes()
        .into_iter()
        .map(|(api, mut body, choices)| {
            body["max_tokens"] = json!(120);
            let wanted = choices_and_counts(&server, api, &body);
            assert_eq!(wanted.0.as_array().map(Vec::len), Some(choices), "{body}: {}", wanted.0);
            assert!(wanted.1[1] < 120 * choices as u64, "nothing ends before its length: {body}");
            (api, body, wanted)
        })
        .collect();
    let mut random = Random::new(SEED);
    println!("seed {SEED}");
    for role in ["engine-0", "detokenizer-0", "tokenizer-0"] {
        let killed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (api, body, wanted) in &shapes {
                let (server, killed) = (&server, &killed);
                scope.spawn(move || {
                    let mut last = false;
                    while !last {
                        last = killed.load(Ordering::Acquire);
                        assert_eq!(choices_and_counts(server, *api, body), *wanted, "{body}");
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(random.between(1, 300)));
            let victim = wait_until("the role runs", PATIENCE, || server.role(role));
            wait_until("a request is at work", PATIENCE, || {
                (server.metric("pinion_requests_running") > 0.0).then_some(())
            });
            kill(victim.pid, Signal::SIGKILL);
            killed.store(true, Ordering::Release);
        });
    }
    assert!(server.metric("pinion_resumed_requests_total") > 0.0, "no death hit a request");
    server.wait_idle();
    server.stop();
}

/// Reads a stream, kills a role after its first text, and gives the counts at its end.
fn usage_over_a_death(server: &Server, body: &Value, role: Option<&str>) -> Value {
    let role = role.map(|role| server.role(role).unwrap_or_else(|| panic!("{role} runs")));
    let mut connection = server.connect();
    let bytes = body.to_string();
    connection.request("POST", "/v1/completions", &[], bytes.as_bytes()).expect("a request");
    let head = connection.head().expect("an answer begins");
    let (mut events, mut victim, mut usage) = (Events::new(connection, head), role, Value::Null);
    while let Some(event) = events.next_event().expect("the stream goes on") {
        let Ok(chunk) = serde_json::from_str::<Value>(&event.data) else { continue };
        if let Some(role) =
            victim.take_if(|_| chunk["choices"][0]["text"].as_str().is_some_and(|t| !t.is_empty()))
        {
            kill(role.pid, Signal::SIGKILL);
        }
        if chunk["usage"].is_object() {
            usage = chunk["usage"].clone();
        }
    }
    assert_eq!(victim, None, "no role died");
    usage
}

/// The successor of an engine has an empty cache, and that of another role finds the answer's own tokens in it. What
/// counts is what the engine found that drew the first token.
#[test]
fn cached_tokens_are_those_of_the_first_life() {
    // An answer takes so long that its first text is read before its end is computed.
    let flags = ["--fake-step-us", "15000", "--restart-backoff", "5ms", "--restart-limit", "1000"];
    let server = Server::fake(&flags);
    for role in ["engine-0", "detokenizer-0"] {
        let prompt = format!("{role}: {}", "a prompt that is in the cache. ".repeat(8));
        let body = json!({"prompt": prompt, "max_tokens": 150, "stream": true, "ignore_eos": true,
            "stream_options": {"include_usage": true}});
        let cached = |usage: &Value| usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        let first = usage_over_a_death(&server, &body, None);
        let wanted = usage_over_a_death(&server, &body, None);
        assert_eq!(cached(&first), Some(0));
        assert!(cached(&wanted) > Some(200), "{wanted}");
        assert_eq!(usage_over_a_death(&server, &body, Some(role)), wanted, "{role}");
    }
    assert_eq!(server.metric("pinion_resumed_requests_total"), 2.0);
    server.wait_idle();
    server.stop();
}
