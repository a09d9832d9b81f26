//! What a request may ask of its logits and its ending, from the HTTP field to the text, each beside requests that ask
//! for something else.

use pinion_testkit::{Answer, Api, End, Server, fixture_model};
use serde_json::{Value, json};

const PROMPT: &str = "Full fathom five";
const TOKENS: usize = 40;

fn ask(server: &Server, extra: &Value, stream: bool) -> Answer {
    let mut body = json!({"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": true, "stream": stream});
    for (key, value) in extra.as_object().expect("an object") {
        body[key] = value.clone();
    }
    let answer = server.ask(Api::Completions, &body);
    assert_eq!((answer.status, &answer.end), (200, &End::Complete), "{body}");
    answer
}

/// All requests at once, streamed; gives their answers in order.
fn ask_together(server: &Server, extras: &[Value]) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            extras.iter().map(|extra| scope.spawn(move || ask(server, extra, true))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a stream's thread")).collect()
    })
}

#[test]
fn a_text_ends_where_the_request_says() {
    let server = Server::fake(&[]);
    let oracle = server.oracle();
    let ids = oracle.ids(&oracle.encode(PROMPT), TOKENS);
    let at =
        (10..TOKENS).find(|&at| !ids[..at].contains(&ids[at])).expect("a token that was not there before");
    let stop_id = ids[at];
    let text = |ids: &[u32]| oracle.decode(ids);
    // The fake's other logits are all the same: the lowest id takes the place of one that must wait.
    let waiting: Vec<u32> = ids.iter().map(|&id| if id == stop_id { 0 } else { id }).collect();
    let (begin, end) = (text(&ids[..at]), text(&ids[..=at]));
    let cases = [
        (json!({"stop_token_ids": [stop_id]}), begin, "stop"),
        (json!({"stop_token_ids": [stop_id], "include_stop_str_in_output": true}), end, "stop"),
        (json!({"stop_token_ids": [stop_id], "min_tokens": TOKENS}), text(&waiting), "length"),
        (json!({"logit_bias": {"65": 100}}), "A".repeat(TOKENS), "length"),
        (json!({"logit_bias": {"65": 100}, "stop": "AAA"}), String::new(), "stop"),
        (
            json!({"logit_bias": {"65": 100}, "stop": "AAA", "include_stop_str_in_output": true}),
            "AAA".into(),
            "stop",
        ),
        (json!({"logit_bias": {"65": 0.5}}), text(&ids), "length"),
    ];
    let extras: Vec<Value> = cases.iter().map(|(extra, ..)| extra.clone()).collect();
    let together = ask_together(&server, &extras);
    for ((extra, expected, reason), streamed) in cases.iter().zip(together) {
        let whole = ask(&server, extra, false);
        for answer in [&streamed, &whole] {
            assert_eq!((&answer.text, answer.finish_reason.as_deref()), (expected, Some(*reason)), "{extra}");
        }
    }
    server.wait_idle();
    server.stop();
}

#[test]
fn the_model_answers_the_same_alone_and_beside_others_who_ask_for_something_else() {
    let folder = fixture_model();
    let server = Server::start(folder.path(), &["--dtype", "fp32"]);
    let extras = [
        json!({"temperature": 0}),
        json!({"temperature": 0, "repetition_penalty": 3.0}),
        json!({"temperature": 0, "frequency_penalty": 2, "presence_penalty": 1}),
        json!({"temperature": 0, "logit_bias": {"65": 100}}),
        json!({"temperature": 0, "logit_bias": {"65": 100, "66": 99}, "presence_penalty": 2}),
        json!({"temperature": 0.9, "min_p": 0.2, "seed": 5}),
        json!({"temperature": 0, "min_p": 1.0}),
        json!({"temperature": 1.5, "top_k": 9, "top_p": 0.7, "min_p": 0.05, "frequency_penalty": 0.5, "seed": 6}),
    ];
    let alone: Vec<Answer> = extras.iter().map(|extra| ask(&server, extra, false)).collect();
    let together = ask_together(&server, &extras);
    for ((extra, alone), together) in extras.iter().zip(&alone).zip(&together) {
        assert_eq!(alone.text, together.text, "{extra}");
    }
    let different = alone[1..].iter().filter(|answer| answer.text != alone[0].text).count();
    assert!(different >= 4, "the parameters change nothing: {alone:?}");
    assert_eq!(alone[0].text, alone[6].text, "min_p 1 leaves the likeliest token");
    server.stop();
}

/// Of a logprobs object, the parts that have one member for each token.
fn lists(choice: &Value) -> (Vec<String>, Vec<f64>, Vec<Value>) {
    let list = |key: &str| choice["logprobs"][key].as_array().expect("a list").clone();
    let tokens = list("tokens").iter().map(|token| token.as_str().expect("a token").to_owned()).collect();
    let logprobs = list("token_logprobs").iter().map(|logprob| logprob.as_f64().expect("a number")).collect();
    (tokens, logprobs, list("top_logprobs"))
}

#[test]
fn logprobs_are_the_model_s_own() {
    let server = Server::fake(&[]);
    // The fake has 1 for its token and 0 for the other 256; what the request adds is not in it.
    let (hot, cold) = (1.0 - (1f64.exp() + 256.0).ln(), -(1f64.exp() + 256.0).ln());
    for (extra, own) in [(json!({}), hot), (json!({"logit_bias": {"65": 100}}), cold)] {
        let mut body = json!({"prompt": PROMPT, "max_tokens": 12, "logprobs": 3});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let (tokens, logprobs, top) = lists(&server.post("/v1/completions", &body).json()["choices"][0]);
        assert_eq!((tokens.len(), top.len()), (12, 12));
        assert!(logprobs.iter().all(|logprob| (logprob - own).abs() < 1e-4), "{logprobs:?} instead of {own}");
        let best = |top: &Value| {
            top.as_object().expect("an object").values().filter_map(Value::as_f64).fold(f64::MIN, f64::max)
        };
        assert!(top.iter().all(|top| (best(top) - hot).abs() < 1e-4), "{top:?}");
    }
    let message = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"messages": message, "max_tokens": 5, "logprobs": true, "top_logprobs": 20});
    let answer = server.post("/v1/chat/completions", &body).json();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    assert_eq!(content.len(), 5);
    for entry in &content {
        assert_eq!(entry["top_logprobs"].as_array().map(Vec::len), Some(20), "{entry}");
        assert_eq!(
            (&entry["bytes"], &entry["token"]),
            (&entry["top_logprobs"][0]["bytes"], &entry["top_logprobs"][0]["token"])
        );
    }
    server.stop();
}

#[test]
fn a_greedy_token_is_the_likeliest_of_the_model() {
    let folder = fixture_model();
    let server = Server::start(folder.path(), &["--dtype", "fp32"]);
    let body =
        json!({"prompt": PROMPT, "max_tokens": 16, "temperature": 0, "logprobs": 20, "ignore_eos": true});
    let (tokens, logprobs, top) = lists(&server.post("/v1/completions", &body).json()["choices"][0]);
    for ((token, logprob), top) in tokens.iter().zip(&logprobs).zip(&top) {
        assert!(*logprob <= 0.0, "{logprob}");
        assert_eq!(top[token.as_str()].as_f64(), Some(*logprob), "{token:?} in {top}");
        let all: Vec<f64> = top.as_object().expect("an object").values().filter_map(Value::as_f64).collect();
        assert!((6..=20).contains(&all.len()) && all.iter().all(|other| other <= logprob), "{top}");
        assert!(all.iter().map(|logprob| logprob.exp()).sum::<f64>() <= 1.0 + 1e-5, "{top}");
    }
    server.stop();
}
