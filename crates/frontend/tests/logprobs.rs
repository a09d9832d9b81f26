//! Logprobs in the answers: both shapes, whole and streamed, also when a token's text waits for the next one.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

mod harness;

use harness::{Harness, Options, run};
use pinion_protocol::RequestId;
use pinion_protocol::frontend_inbox::{DELTA_LAST, FinishReason, kind, put_scored_delta};
use pinion_protocol::scores::{LogprobEntry, begin_scores, put_score};
use serde_json::{Value, json};

/// One token with its text and scores: its own first, then the alternatives.
fn scored(h: &Harness, id: RequestId, sequence: u32, text: &str, flags: u32, scores: &[(&[u8], f32)]) {
    let (mut bytes, mut record) = (Vec::new(), Vec::new());
    begin_scores(&mut bytes, scores.len());
    for (text, logprob) in scores {
        put_score(&mut bytes, LogprobEntry { token: 1, logprob: *logprob }, text);
    }
    put_scored_delta(&mut record, id, sequence, &[7], text, flags, &bytes);
    h.take(kind::DELTAS, &record);
}

/// "h", then "é" in two tokens, then the end of sequence.
async fn tell(h: &Harness) {
    let id = h.submit().await.id;
    scored(h, id, 0, "h", 0, &[(b"h", -0.5), (b"x", -0.25), (b"h", -0.5)]);
    scored(h, id, 1, "", 0, &[(b"\xc3", -1.0), (b"\xc3", -1.0), (b"\xff", -2.0)]);
    scored(h, id, 2, "é", 0, &[(b"\xa9", -0.125), (b"y", -1.5), (b"z", -2.5)]);
    scored(h, id, 3, "", DELTA_LAST, &[(b"", -3.0), (b"q", -0.75), (b"", -3.0)]);
    h.finish(id, FinishReason::Stop, 4);
}

async fn choices(h: &Harness, path: &str, mut body: Value, stream: bool) -> Vec<Value> {
    body["stream"] = json!(stream);
    let text = body.to_string();
    let (reply, ()) = tokio::join!(h.post(path, &text), tell(h));
    assert_eq!(reply.status, 200, "{}", reply.body);
    if !stream {
        return vec![reply.json()["choices"][0].clone()];
    }
    let mut events = reply.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let choice = |event: &String| serde_json::from_str::<Value>(event).unwrap()["choices"][0].clone();
    events.iter().map(choice).filter(|choice| !choice["logprobs"].is_null()).collect()
}

#[test]
fn completions_have_lists_side_by_side() {
    let expected = json!({
        "tokens": ["h", "\u{fffd}", "\u{fffd}", ""],
        "token_logprobs": [-0.5, -1.0, -0.125, -3.0],
        "top_logprobs": [
            {"x": -0.25, "h": -0.5},
            {"\u{fffd}": -1.0},
            {"y": -1.5, "z": -2.5, "\u{fffd}": -0.125},
            {"q": -0.75, "": -3.0},
        ],
        "text_offset": [0, 1, 2, 2],
    });
    for stream in [false, true] {
        let expected = expected.clone();
        run(Options::default(), move |h| async move {
            let body = json!({"prompt": "hi", "logprobs": 2});
            let choices = choices(&h, "/v1/completions", body, stream).await;
            // The second token's text comes with the third.
            let counts: Vec<_> =
                choices.iter().map(|c| c["logprobs"]["tokens"].as_array().unwrap().len()).collect();
            assert_eq!(counts, if stream { vec![1, 2, 1] } else { vec![4] });
            for (key, want) in expected.as_object().unwrap() {
                let have: Vec<Value> =
                    choices.iter().flat_map(|c| c["logprobs"][key].as_array().unwrap().clone()).collect();
                assert_eq!(&json!(have), want, "{key}");
            }
            assert_eq!(choices.last().unwrap()["finish_reason"], "stop");
        });
    }
}

#[test]
fn chats_have_an_entry_for_each_token() {
    let entry = |token: &str, bytes: Value, logprob: f64, top: Value| json!({"token": token, "logprob": logprob, "bytes": bytes, "top_logprobs": top});
    let top =
        |token: &str, bytes: Value, logprob: f64| json!({"token": token, "logprob": logprob, "bytes": bytes});
    let expected = json!([
        entry("h", json!([104]), -0.5, json!([top("x", json!([120]), -0.25), top("h", json!([104]), -0.5)])),
        entry(
            "\u{fffd}",
            json!([195]),
            -1.0,
            json!([top("\u{fffd}", json!([195]), -1.0), top("\u{fffd}", json!([255]), -2.0)])
        ),
        entry(
            "\u{fffd}",
            json!([169]),
            -0.125,
            json!([top("y", json!([121]), -1.5), top("z", json!([122]), -2.5)])
        ),
        entry("", json!([]), -3.0, json!([top("q", json!([113]), -0.75), top("", json!([]), -3.0)])),
    ]);
    for stream in [false, true] {
        let expected = expected.clone();
        run(Options::default(), move |h| async move {
            let message = json!([{"role": "user", "content": "hi"}]);
            let body = json!({"messages": message, "logprobs": true, "top_logprobs": 2});
            let choices = choices(&h, "/v1/chat/completions", body, stream).await;
            assert!(choices.iter().all(|c| c["logprobs"]["refusal"].is_null()));
            let have: Vec<Value> =
                choices.iter().flat_map(|c| c["logprobs"]["content"].as_array().unwrap().clone()).collect();
            assert_eq!(json!(have), expected);
        });
    }
}

#[test]
fn scores_that_do_not_fit_their_tokens_end_the_request() {
    run(Options::default(), |h| async move {
        let body = json!({"prompt": "hi", "logprobs": 0}).to_string();
        let roles = async {
            let id = h.submit().await.id;
            let (mut record, mut scores) = (Vec::new(), Vec::new());
            begin_scores(&mut scores, 1);
            put_score(&mut scores, LogprobEntry { token: 1, logprob: -1.0 }, b"a");
            put_scored_delta(&mut record, id, 0, &[7, 8], "ab", 0, &scores);
            h.take(kind::DELTAS, &record);
            assert!(h.cancelled(id));
            h.delta(id, 2, &[], "", DELTA_LAST);
            h.finish(id, FinishReason::Cancelled, 2);
        };
        let (reply, ()) = tokio::join!(h.post("/v1/completions", &body), roles);
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (500, &json!("internal")));
    });
}
