//! Every microsecond has an owner: the stages of a request add up to what its client saw.

use pinion_testkit::{PATIENCE, Server, wait_until};
use serde_json::{Value, json};
use std::time::Instant;

/// 40 steps of 10 ms: what a connection and a wake-up cost is far below 2 % of them.
const TOKENS: u32 = 40;
const STEP_MS: u32 = 10;
const FLAGS: [&str; 4] = ["--fake-step-us", "10000", "--fake-prefill-us-per-token", "100"];
/// The largest difference between the stages' sum and the client's own time.
const SHARE_MAX: f64 = 0.02;
/// Another program may hold a core between our stamps and the client's; one undisturbed try is enough.
const TRIES: usize = 30;

fn sum_ms(timings: &Value) -> f64 {
    let stages = timings["stages_ms"].as_object().expect("stages");
    stages.values().map(|ms| ms.as_f64().expect("a number")).sum()
}

/// The client's milliseconds and the timings that came with the answer to `prompt`.
fn ask(server: &Server, stream: bool, prompt: &str) -> (f64, Value) {
    let body = json!({"prompt": prompt, "max_tokens": TOKENS, "stream": stream, "timings": true}).to_string();
    let begin = Instant::now();
    let mut connection = server.connect();
    connection.request("POST", "/v1/completions", &[], body.as_bytes()).expect("a request can be written");
    let response = connection.response().expect("an answer");
    let client_ms = begin.elapsed().as_secs_f64() * 1e3;
    assert_eq!(response.status(), 200);
    let timings = if stream {
        let text = response.text();
        let event = text.lines().find(|line| line.contains("\"timings\"")).expect("an event with timings");
        let event: Value = serde_json::from_str(event.trim_start_matches("data: ")).expect("JSON");
        event["timings"].clone()
    } else {
        response.json()["timings"].clone()
    };
    (client_ms, timings)
}

#[test]
fn the_stages_of_a_request_add_up_to_what_its_client_saw() {
    let server = Server::fake(&FLAGS);
    ask(&server, false, "how long");
    for stream in [false, true] {
        let mut shares = Vec::new();
        for _ in 0..TRIES {
            let (client_ms, timings) = ask(&server, stream, "how long");
            let sum_ms = sum_ms(&timings);
            assert!((sum_ms - timings["e2e_ms"].as_f64().expect("a number")).abs() < 1e-6, "{timings}");
            // Both clocks are CLOCK_MONOTONIC, and the server's span lies within the client's.
            assert!(sum_ms < client_ms, "{client_ms} ms at the client: {timings}");
            let (decode, steps) = (&timings["stages_ms"]["decode"], f64::from((TOKENS - 1) * STEP_MS));
            assert!(decode.as_f64().expect("a number") >= steps * 0.99, "{timings}");
            assert_eq!(timings["predicted_n"], json!(TOKENS));
            shares.push((client_ms - sum_ms) / client_ms);
            if shares.last().is_some_and(|share| *share <= SHARE_MAX) {
                break;
            }
        }
        println!("stream {stream}: not owned by a stage: {shares:?}");
        assert!(shares.iter().any(|share| *share <= SHARE_MAX), "stream {stream}: {shares:?}");
    }
    server.stop();
}

#[test]
fn the_page_of_slow_requests_says_what_shared_their_steps() {
    let server = Server::fake(&FLAGS);
    std::thread::scope(|scope| {
        // No common beginning: the cache would leave one token of a prompt, which counts as a decode row.
        for prompt in ["first", "second", "third", "last"] {
            let server = &server;
            scope.spawn(move || ask(server, true, prompt));
        }
    });
    let page = wait_until("four slow requests", PATIENCE, || {
        let page = server.get("/debug/slow").json();
        (page["by_e2e"].as_array().map(Vec::len) == Some(4)).then_some(page)
    });
    for entry in page["by_e2e"].as_array().expect("a list") {
        let timings = &entry["timings"];
        let number = |value: &Value| value.as_f64().expect("a number");
        assert!((sum_ms(timings) - number(&timings["e2e_ms"])).abs() < 1e-6, "{entry}");
        let batch = &timings["batch"];
        assert_eq!(batch["steps"], json!(TOKENS), "{entry}");
        assert!((1.0..=4.0).contains(&number(&batch["rows_mean"])), "{entry}");
        assert!(number(&batch["prefill_tokens_max"]) >= number(&timings["prompt_n"]), "{entry}");
    }
    let largest = page["by_e2e"].as_array().expect("a list").iter();
    let largest = largest.filter_map(|entry| entry["timings"]["batch"]["rows_max"].as_u64()).max();
    assert!(largest > Some(1), "no requests shared a step: {page}");
    server.stop();
}
