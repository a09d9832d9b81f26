//! Logprobs in the answers: both shapes, whole and streamed, also when a token's text waits for the next one.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::{Harness, Options, Reply, run, wait_for};
use pinion_protocol::RequestId;
use pinion_protocol::frontend_inbox::{DELTA_LAST, FinishReason, kind, put_scored_delta};
use pinion_protocol::limits::SCORE_TEXT_BYTES_MAX;
use pinion_protocol::scores::{ENTRIES_MAX, LogprobEntry, begin_scores, put_score};
use serde_json::{Value, json};

/// One token with its text and scores: its own first, then the alternatives.
fn scored(h: &Harness, id: RequestId, sequence: u32, text: &str, flags: u32, scores: &[(&[u8], f32)]) {
    let (mut bytes, mut record) = (Vec::new(), Vec::new());
    begin_scores(&mut bytes, scores.len());
    for (text, logprob) in scores {
        put_score(&mut bytes, LogprobEntry { token: 1, logprob: *logprob }, text, false);
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

/// A special token has its name beside its logprob, and counts as text where the text shows it.
#[test]
fn special_tokens_have_names_and_tokens_can_be_ids() {
    let body = json!({"prompt": "hi", "logprobs": 1, "max_tokens": 2});
    for (more, tokens, offsets) in [
        (json!({}), ["</s>", "a"], [0, 0]),
        (json!({"skip_special_tokens": false}), ["</s>", "a"], [0, 4]),
        (json!({"return_tokens_as_token_ids": true}), ["token_id:2", "token_id:7"], [0, 0]),
    ] {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        run(Options::default(), move |h| async move {
            let tell = async {
                let id = h.submit().await.id;
                for (sequence, (token, text, special)) in
                    (0..).zip([(2, &b"</s>"[..], true), (7, b"a", false)])
                {
                    let (mut bytes, mut record) = (Vec::new(), Vec::new());
                    begin_scores(&mut bytes, 2);
                    put_score(&mut bytes, LogprobEntry { token, logprob: -1.0 }, text, special);
                    put_score(&mut bytes, LogprobEntry { token: 1, logprob: -2.0 }, b"<s>", true);
                    let (shown, flags) = if special { ("", 0) } else { ("a", DELTA_LAST) };
                    put_scored_delta(&mut record, id, sequence, &[token], shown, flags, &bytes);
                    h.take(kind::DELTAS, &record);
                }
                h.finish(id, FinishReason::Length, 2);
            };
            let text = body.to_string();
            let (reply, ()) = tokio::join!(h.post("/v1/completions", &text), tell);
            let logprobs = &reply.json()["choices"][0]["logprobs"];
            assert_eq!((&logprobs["tokens"], &logprobs["text_offset"]), (&json!(tokens), &json!(offsets)));
            let other = if tokens[0] == "</s>" { "<s>" } else { "token_id:1" };
            assert_eq!(logprobs["top_logprobs"][0], json!({other: -2.0, tokens[0]: -1.0}));
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
            put_score(&mut scores, LogprobEntry { token: 1, logprob: -1.0 }, b"a", false);
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

/// Tokens from `first` on, each with as many bytes of scores as can be, and text only with the last.
fn long(h: &Harness, id: RequestId, first: u32, count: u32, text: &str, flags: u32) {
    let (mut bytes, mut record) = (Vec::new(), Vec::new());
    for _ in 0..count {
        begin_scores(&mut bytes, ENTRIES_MAX);
        for _ in 0..ENTRIES_MAX {
            put_score(
                &mut bytes,
                LogprobEntry { token: 1, logprob: -1.0 },
                &[b'x'; SCORE_TEXT_BYTES_MAX],
                false,
            );
        }
    }
    put_scored_delta(&mut record, id, first, &vec![7; count as usize], text, flags, &bytes);
    h.take(kind::DELTAS, &record);
}

const SCORED: &str =
    r#"{"messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":20,"n":2}"#;

/// Each choice had the bound for itself. The field at fault is the one that wants them.
#[test]
fn the_scores_of_all_choices_of_a_whole_answer_have_a_bound() {
    let candidates = json!({"prompt": "hi", "best_of": 2, "n": 1}).to_string();
    let shown = json!({"prompt": "hi", "best_of": 2, "n": 1, "logprobs": 1}).to_string();
    for (path, body, field) in [
        ("/v1/chat/completions", SCORED.to_owned(), "logprobs"),
        ("/v1/completions", candidates, "best_of"),
        ("/v1/completions", shown, "logprobs"),
    ] {
        run(Options::default(), move |h| async move {
            let (reply, ()) = tokio::join!(h.post(path, &body), async {
                let (first, second) = (h.submit().await.id, h.submit().await.id);
                for at in 0..6 {
                    for id in [first, second] {
                        long(&h, id, at * 540, 540, "", 0);
                    }
                }
                assert!(h.cancelled(first) || h.cancelled(second), "together they have more than 32 MiB");
            });
            assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(field)), "{reply:?}");
        });
    }
}

#[test]
fn a_large_answer_is_written_beside_the_thread_of_the_streams() {
    run(Options::default(), |h| async move {
        let thread = h.app.intake.writers.clone().acquire_owned().await.unwrap();
        let client = h.post_raw("/v1/chat/completions", SCORED).await;
        for _ in 0..2 {
            let id = h.submit().await.id;
            long(&h, id, 0, 4, "a", DELTA_LAST);
            h.finish(id, FinishReason::Stop, 4);
        }
        let small = json!({"prompt": "hi", "logprobs": 2});
        let small = choices(&h, "/v1/completions", small, false).await;
        assert_eq!(small[0]["finish_reason"], "stop", "one that is small is written at once");
        assert_eq!(h.slots_used(), 2, "the large one waits for the thread");
        drop(thread);
        let reply = Reply::read(client).await;
        let answer = reply.json();
        for choice in answer["choices"].as_array().unwrap() {
            assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 4);
            assert_eq!(choice["message"]["content"], "a");
        }
        assert_eq!((reply.status, answer["usage"]["completion_tokens"].as_u64()), (200, Some(8)));
        wait_for("the answer's memory", || (h.app.whole_answers.taken() == 0).then_some(())).await;
    });
}

#[test]
fn large_answers_that_are_not_read_yet_share_a_memory() {
    run(Options { answers_bytes: 40 << 10, ..Options::default() }, |h| async move {
        let (reply, ()) = tokio::join!(h.post("/v1/chat/completions", SCORED), async {
            for _ in 0..2 {
                let id = h.submit().await.id;
                long(&h, id, 0, 4, "a", DELTA_LAST);
                h.finish(id, FinishReason::Stop, 4);
            }
        });
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
        assert_eq!((h.slots_used(), h.app.whole_answers.taken()), (0, 0));
    });
}

/// As where reasoning is not shown: all of them left with the first text.
#[test]
fn scores_of_a_stream_do_not_wait_long_for_their_text() {
    run(Options::default(), |h| async move {
        let message = json!([{"role": "user", "content": "hi"}]);
        let body =
            json!({"messages": message, "logprobs": true, "top_logprobs": 20, "stream": true}).to_string();
        let (reply, ()) = tokio::join!(h.post("/v1/chat/completions", &body), async {
            let id = h.submit().await.id;
            (0..20).for_each(|at| long(&h, id, at, 1, "", 0));
            long(&h, id, 20, 1, "a", DELTA_LAST);
            h.finish(id, FinishReason::Stop, 21);
        });
        let mut events = reply.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        let scores = |event: &String| {
            let event: Value = serde_json::from_str(event).unwrap();
            event["choices"][0]["logprobs"]["content"].as_array().map_or(0, Vec::len)
        };
        let counts: Vec<usize> = events.iter().map(scores).filter(|count| *count > 0).collect();
        assert_eq!(counts.iter().sum::<usize>(), 21);
        assert!(counts.len() > 1 && counts.iter().all(|count| *count < 10), "{counts:?}");
    });
}
