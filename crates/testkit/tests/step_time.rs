//! The time budget of steps through the real processes: the same texts with and without, and what /metrics says.

use pinion_testkit::{Answer, Api, End, Server, demo_model};
use serde_json::{Value, json};

/// A stream with long prompts beside it.
fn requests(prompt: &str, copies: usize, seeds: u64) -> Vec<Value> {
    let body = |n: u64| {
        let repeated = prompt.repeat(if n == 0 { 1 } else { copies });
        let tokens = if n == 0 { 200 } else { 8 };
        let temperature = if n.is_multiple_of(2) { 0.0 } else { 0.8 };
        json!({"prompt": format!("{n} {repeated}"), "max_tokens": tokens, "temperature": temperature, "seed": n,
               "ignore_eos": true, "stream": true})
    };
    (0..seeds).map(body).collect()
}

/// The texts of all requests. The first one streams when the others come, one after the other.
fn texts(server: &Server, requests: &[Value]) -> Vec<String> {
    let ask = |body: &Value| {
        let answer: Answer = server.ask(Api::Completions, body);
        assert_eq!((answer.status, &answer.end), (200, &End::Complete), "{body}");
        answer.text
    };
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| ask(&requests[0]));
        let others: Vec<String> = requests[1..].iter().map(ask).collect();
        let mut texts = vec![stream.join().expect("a stream's thread")];
        texts.extend(others);
        texts
    })
}

#[test]
fn the_fake_backend_gives_the_same_texts_with_and_without_a_budget() {
    let requests = requests("Under the greenwood tree who loves to lie with me. ", 5, 6);
    let run = |time: &str| {
        let flags = ["--fake-step-us", "2000", "--fake-prefill-us-per-token", "50", "--step-time-ms", time];
        let server = Server::fake(&flags);
        let texts = texts(&server, &requests);
        server.wait_idle();
        let metric = |name: &str| server.metric(name);
        let deferred = metric("pinion_deferred_prompt_tokens_total");
        if time == "off" {
            assert_eq!((deferred, metric("pinion_predicted_steps_total")), (0.0, 0.0));
        } else {
            assert!(deferred > 100.0, "{time}: {deferred} tokens deferred");
            assert!(metric("pinion_predicted_steps_total") > 100.0, "{time}");
            assert!(metric("pinion_predicted_step_seconds_total") > 0.1, "{time}");
        }
        server.stop();
        texts
    };
    let off = run("off");
    for time in ["auto", "4.5"] {
        assert_eq!(run(time), off, "{time}");
    }
}

#[test]
fn the_demo_model_gives_the_same_texts_with_and_without_a_budget() {
    let Some(folder) = demo_model() else {
        println!("skipped: deploy/demo-model has no weights");
        return;
    };
    let requests = requests("Full fathom five. ", 12, 5);
    let run = |time: &str| {
        let server = Server::start(&folder, &["--dtype", "fp32", "--step-time-ms", time]);
        let texts = texts(&server, &requests);
        server.wait_idle();
        let deferred = server.metric("pinion_deferred_prompt_tokens_total");
        // No step is as short as 0.1 ms, so every prompt beside the stream has the floor.
        assert_eq!(deferred > 0.0, time == "0.1", "{time}: {deferred} tokens deferred");
        server.stop();
        texts
    };
    assert_eq!(run("0.1"), run("off"));
}
