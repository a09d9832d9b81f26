//! What clients get: whole answers, streams, errors before and after the first byte, the small routes.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::{Harness, Options, Reply, post_bytes, run, wait_for};
use pinion_protocol::control::DeathCause;
use pinion_protocol::frontend_inbox::{DELTA_LAST, DELTA_STOPPED, Decoded, Encoded, FinishReason, kind};
use pinion_protocol::tokenizer_inbox::{Prompt, TokenizerRecord};
use pinion_protocol::{Fault, FaultCode, Peer, RequestId, Role};
use serde_json::{Value, json};

const COMPLETION: &str = r#"{"prompt":"hi","max_tokens":4}"#;
const COMPLETION_STREAM: &str = r#"{"prompt":"hi","stream":true}"#;
const CHAT_STREAM: &str =
    r#"{"messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}"#;

fn options(fast_sse: bool) -> Options {
    let mut options = Options::default();
    options.settings.fast_sse = fast_sse;
    options
}

/// Sends `body`, lets `roles` play the other roles, and returns the reply.
async fn exchange(h: &Harness, path: &str, body: &str, roles: impl AsyncFnOnce(&Harness)) -> Reply {
    let (reply, ()) = tokio::join!(h.post(path, body), roles(h));
    reply
}

fn generated(event: &str) -> Value {
    let mut value: Value = serde_json::from_str(event).unwrap();
    let id = value.as_object_mut().unwrap().remove("id").unwrap();
    assert!(id.as_str().unwrap().contains("cmpl-"));
    assert!(value.as_object_mut().unwrap().remove("created").unwrap().is_u64());
    value
}

#[test]
fn a_whole_completion_has_text_reason_and_counts() {
    run(Options::default(), |h| async move {
        let reply = exchange(&h, "/v1/completions", COMPLETION, async |h| {
            let id = h.submit().await.id;
            h.delta(id, 0, &[1], "he\"", 0);
            h.delta(id, 1, &[2, 3], "llo\n", DELTA_LAST);
            h.finish(id, FinishReason::Length, 3);
        })
        .await;
        assert_eq!((reply.status, reply.complete), (200, true));
        let expected = json!({"object": "text_completion", "model": "tiny",
            "choices": [{"index": 0, "text": "he\"llo\n", "logprobs": null, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6,
                "prompt_tokens_details": {"cached_tokens": 1}}});
        assert_eq!(generated(&reply.body), expected);
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_whole_chat_answer_has_a_message() {
    run(Options::default(), |h| async move {
        let body = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
        let reply = exchange(&h, "/v1/chat/completions", body, async |h| {
            let submit = h.submit().await;
            assert_eq!(
                submit.prompt,
                Prompt::Chat(r#"{"messages":[{"role":"user","content":"hi"}]}"#.into())
            );
            h.finish(submit.id, FinishReason::Stop, 1);
            h.delta(submit.id, 0, &[1], "yes", DELTA_LAST);
        })
        .await;
        let choice = &reply.json()["choices"][0];
        let message = json!({"role": "assistant", "content": "yes", "refusal": null});
        assert_eq!((&choice["message"], &choice["finish_reason"]), (&message, &json!("stop")));
        assert!(choice.as_object().unwrap().contains_key("logprobs"));
    });
}

#[test]
fn a_completion_stream_ends_with_text_reason_and_done_on_both_paths() {
    for fast in [true, false] {
        run(options(fast), |h| async move {
            let reply = exchange(&h, "/v1/completions", COMPLETION_STREAM, async |h| {
                let id = h.submit().await.id;
                h.delta(id, 0, &[1], "a", 0);
                h.delta(id, 1, &[2], "", 0);
                h.delta(id, 2, &[3], "b", DELTA_LAST);
                h.finish(id, FinishReason::Length, 3);
            })
            .await;
            let events = reply.events();
            assert_eq!(events.len(), 3, "{events:?}");
            let choice = |text, reason: Value| json!([{"index": 0, "text": text, "logprobs": null, "finish_reason": reason}]);
            assert_eq!(generated(&events[0])["choices"], choice("a", Value::Null));
            assert_eq!(generated(&events[1])["choices"], choice("b", json!("length")));
            assert_eq!(events[2], "[DONE]");
            assert!(reply.complete && reply.head.contains("content-type: text/event-stream"));
            assert!(
                reply.head.contains("cache-control: no-cache")
                    && reply.head.contains("x-accel-buffering: no")
            );
        });
    }
}

#[test]
fn a_chat_stream_has_role_text_finish_usage_and_done_in_either_order_of_the_two_ends() {
    for finished_first in [true, false] {
        run(Options::default(), |h| async move {
            let reply = exchange(&h, "/v1/chat/completions", CHAT_STREAM, async |h| {
                let id = h.submit().await.id;
                h.delta(id, 0, &[1], "a", 0);
                if finished_first {
                    h.finish(id, FinishReason::Stop, 2);
                    h.delta(id, 1, &[2], "b", DELTA_LAST);
                } else {
                    h.delta(id, 1, &[2], "b", DELTA_LAST);
                    h.finish(id, FinishReason::Stop, 2);
                }
            })
            .await;
            let events = reply.events();
            let deltas: Vec<_> =
                events[..4].iter().map(|e| generated(e)["choices"][0]["delta"].clone()).collect();
            let expected = [
                json!({"role": "assistant", "content": ""}),
                json!({"content": "a"}),
                json!({"content": "b"}),
                json!({}),
            ];
            assert_eq!(deltas, expected);
            for (index, event) in events[..4].iter().enumerate() {
                let chunk = generated(event);
                let reason = if index == 3 { json!("stop") } else { Value::Null };
                assert_eq!(chunk["choices"][0]["finish_reason"], reason);
                assert_eq!(chunk.get("usage"), Some(&Value::Null), "usage is null until the last chunk");
            }
            let usage = generated(&events[4]);
            assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(5)));
            assert_eq!(events[5..], ["[DONE]"]);
            assert_eq!(h.slots_used(), 0);
        });
    }
}

#[test]
fn several_ready_tokens_leave_in_one_write() {
    run(Options::default(), |h| async move {
        let reply = exchange(&h, "/v1/completions", COMPLETION_STREAM, async |h| {
            let id = h.submit().await.id;
            for (sequence, text) in ["a", "b", "c"].iter().enumerate() {
                h.delta(id, sequence as u32, &[9], text, 0);
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            h.delta(id, 3, &[9], "d", DELTA_LAST);
            h.finish(id, FinishReason::Stop, 4);
        })
        .await;
        assert_eq!(reply.chunks.len(), 2, "{:?}", reply.chunks);
        assert_eq!(reply.chunks[0].matches("data: ").count(), 3);
    });
}

#[test]
fn a_stop_string_ends_the_text_at_once_and_the_counts_follow() {
    run(Options::default(), |h| async move {
        let body = r#"{"prompt":"hi","stream":true,"stop":"X"}"#;
        let mut stream = h.post_raw("/v1/completions", body).await;
        let id = h.submit().await.id;
        assert_eq!(h.sent.borrow().opens.front().unwrap().stop, ["X"]);
        h.delta(id, 0, &[1], "a", DELTA_LAST | DELTA_STOPPED);
        let mut seen = vec![0; 4096];
        let count = tokio::io::AsyncReadExt::read(&mut stream, &mut seen).await.unwrap();
        let early = String::from_utf8_lossy(&seen[..count]).into_owned();
        assert!(early.contains(r#""text":"a""#) && early.contains(r#""finish_reason":"stop""#), "{early}");
        assert_eq!(h.slots_used(), 1, "the slot waits for the engine");
        h.delta(id, 1, &[2], "late", DELTA_LAST);
        h.finish(id, FinishReason::Length, 2);
        let rest = Reply::parse(&format!("{early}{}", read_rest(stream).await));
        assert_eq!((rest.events().len(), rest.events()[1].as_str()), (2, "[DONE]"));
        assert_eq!(h.slots_used(), 0);
    });
}

/// The engine runs ahead of the detokenizer, by one token or to the end.
#[test]
fn what_was_drawn_beyond_a_stop_string_is_not_counted() {
    for (reason, drawn) in [(FinishReason::Stop, 3), (FinishReason::Length, 255)] {
        run(Options::default(), |h| async move {
            let stream = h.post_raw("/v1/completions", r#"{"prompt":"hi","stop":"X"}"#).await;
            let id = h.submit().await.id;
            h.delta(id, 0, &[1, 2], "a", DELTA_LAST | DELTA_STOPPED);
            h.finish(id, reason, drawn);
            let reply = Reply::read(stream).await.json();
            assert_eq!(
                (&reply["usage"]["completion_tokens"], &reply["choices"][0]["finish_reason"]),
                (&json!(2), &json!("stop"))
            );
            wait_for("the slot", || (h.slots_used() == 0).then_some(())).await;
            assert_eq!(h.app.metrics.generated_tokens.get(), 2);
            assert_eq!(h.app.metrics.live_generated_tokens.get(), 2);
        });
    }
}

#[test]
fn a_record_that_cannot_be_condemns_its_edge_and_touches_no_request() {
    run(Options::default(), |h| async move {
        let stream = h.post_raw("/v1/completions", r#"{"prompt":"hi"}"#).await;
        let id = h.submit().await.id;
        h.delta(id, 0, &[1], "a", 0);
        assert_eq!(h.malformed.get(), 0);
        h.delta(id, 2, &[3], "c", 0);
        h.delta(RequestId { frontend: 1, ..id }, 1, &[2], "b", 0);
        h.delta(RequestId { slot: 999, ..id }, 1, &[2], "b", 0);
        h.delta(RequestId { generation: id.generation + 1, ..id }, 1, &[2], "b", 0);
        h.finish(RequestId { generation: id.generation + 1, ..id }, FinishReason::Stop, 1);
        h.delta(id, 1, &[2], "b", 1 << 20);
        assert_eq!(h.malformed.get(), 6);
        h.delta(RequestId { generation: id.generation - 1, ..id }, 1, &[2], "b", 0);
        assert_eq!(h.malformed.get(), 6, "a late record is no corrupt one");
        h.delta(id, 1, &[2], "b", DELTA_LAST);
        h.finish(id, FinishReason::Stop, 2);
        assert_eq!(Reply::read(stream).await.json()["choices"][0]["text"], "ab");
    });
}

async fn read_rest(mut stream: tokio::net::TcpStream) -> String {
    let mut text = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text).await.unwrap();
    text
}

#[test]
fn a_rejection_is_a_plain_error_even_for_a_stream() {
    run(Options::default(), |h| async move {
        for body in [COMPLETION, COMPLETION_STREAM] {
            let reply = exchange(&h, "/v1/completions", body, async |h| {
                let id = h.submit().await.id;
                let fault = Fault::new(FaultCode::ContextLengthExceeded, "too long");
                h.reject(id, Fault { param: Some("prompt".into()), ..fault });
            })
            .await;
            let expected = json!({"message": "too long", "type": "invalid_request_error", "param": "prompt",
                "code": "context_length_exceeded"});
            assert_eq!((reply.status, &reply.json()["error"]), (400, &expected));
            assert_eq!(h.slots_used(), 0);
        }
    });
}

#[test]
fn without_resuming_a_dead_role_gives_503_before_the_first_byte_and_one_error_event_after() {
    run(Options { resume: false, ..Options::default() }, |h| async move {
        let engine = Peer::new(Role::Engine, 0);
        let reply = exchange(&h, "/v1/completions", COMPLETION_STREAM, async |h| {
            h.submit().await;
            h.app.ledger.borrow_mut().peer_lost(engine, DeathCause::Unknown);
        })
        .await;
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!("role_restarted")));
        assert!(reply.head.contains("retry-after: 1"));

        let refused = h.post("/v1/completions", COMPLETION).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("unavailable")));
        assert_eq!(h.get("/health").await.status, 503);
        assert_eq!(h.get("/ready").await.status, 503);
        h.app.ledger.borrow_mut().peer_ready(engine);
        assert_eq!(h.get("/health").await.status, 200);

        let reply = exchange(&h, "/v1/completions", COMPLETION_STREAM, async |h| {
            let id = h.submit().await.id;
            h.delta(id, 0, &[1], "a", 0);
            tokio::time::sleep(std::time::Duration::from_millis(30)).await;
            h.app.ledger.borrow_mut().peer_lost(engine, DeathCause::Unknown);
            h.delta(id, 1, &[2], "late", DELTA_LAST);
            h.finish(id, FinishReason::Stop, 2);
        })
        .await;
        let events = reply.events();
        assert_eq!(events.len(), 2, "one text and one terminal event: {events:?}");
        let error: Value = serde_json::from_str(&events[1]).unwrap();
        assert_eq!(
            (&error["error"]["type"], &error["error"]["code"]),
            (&json!("engine_error"), &json!("role_restarted"))
        );
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_failure_in_the_engine_ends_only_its_own_request() {
    run(Options::default(), |h| async move {
        let bad = h.post_raw("/v1/completions", COMPLETION).await;
        let bad_id = h.submit().await.id;
        let good = h.post_raw("/v1/completions", COMPLETION).await;
        let good_id = h.submit().await.id;
        h.finish(bad_id, FinishReason::Failed(FaultCode::NonFinite), 1);
        h.delta(good_id, 0, &[1], "fine", DELTA_LAST);
        h.finish(good_id, FinishReason::Stop, 1);
        let (bad, good) = (Reply::read(bad).await, Reply::read(good).await);
        assert_eq!((bad.status, &bad.json()["error"]["code"]), (500, &json!("non_finite")));
        assert_eq!((good.status, &good.json()["choices"][0]["text"]), (200, &json!("fine")));
        assert_eq!(h.slots_used(), 1, "the failed one waits for its last text");
        h.delta(bad_id, 0, &[], "", DELTA_LAST);
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn generate_streams_bare_text_and_breaks_off_on_an_error() {
    run(Options::default(), |h| async move {
        let body = r#"{"prompt":"hi","stream":true}"#;
        for fails in [false, true] {
            let reply = exchange(&h, "/generate", body, async |h| {
                let submit = h.submit().await;
                assert_eq!((submit.sampling.temperature, submit.sampling.max_tokens), (0.0, Some(64)));
                h.delta(submit.id, 0, &[1], "a\n", 0);
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                let reason =
                    if fails { FinishReason::Failed(FaultCode::Internal) } else { FinishReason::Stop };
                h.finish(submit.id, reason, 2);
                h.delta(submit.id, 1, &[2], "b", DELTA_LAST);
            })
            .await;
            assert!(reply.head.contains("content-type: text/plain"));
            let expected = if fails { ("a\n", false) } else { ("a\nb", true) };
            assert_eq!((reply.body.as_str(), reply.complete), expected);
        }
        let reply = exchange(&h, "/generate", r#"{"prompt":"hi"}"#, async |h| {
            let id = h.submit().await.id;
            h.delta(id, 0, &[1], "text", DELTA_LAST);
            h.finish(id, FinishReason::Stop, 1);
        })
        .await;
        assert_eq!((&reply.json()["text"], &reply.json()["finish_reason"]), (&json!("text"), &json!("stop")));
    });
}

#[test]
fn tokenize_and_detokenize_answer() {
    run(Options::default(), |h| async move {
        let mut record = Vec::new();
        let reply = exchange(&h, "/tokenize", r#"{"prompt":"hi"}"#, async |h| {
            let TokenizerRecord::Encode(job) = h.job().await else { panic!("not an encode") };
            Encoded { id: job.id, ids: vec![4, 5] }.encode(&mut record);
            h.take(kind::ENCODED, &record);
        })
        .await;
        assert_eq!(reply.json(), json!({"tokens": [4, 5], "count": 2, "max_model_len": 4096}));
        let reply = exchange(&h, "/detokenize", r#"{"tokens":[4,5]}"#, async |h| {
            let TokenizerRecord::Decode(job) = h.job().await else { panic!("not a decode") };
            assert_eq!(job.ids, [4, 5]);
            Decoded { id: job.id, text: "hé".into() }.encode(&mut record);
            h.take(kind::DECODED, &record);
        })
        .await;
        assert_eq!(reply.json(), json!({"prompt": "hé"}));
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn the_small_routes() {
    run(Options::default(), |h| async move {
        let models = h.get("/v1/models").await.json();
        assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("tiny")));
        assert_eq!(h.get("/v1/models/tiny").await.json()["object"], "model");
        let table = [
            ("/v1/models/other", 404),
            ("/nothing", 404),
            ("/v1/completions", 405),
            ("/health", 200),
            ("/ready", 200),
            ("/live", 200),
            ("/version", 200),
            ("/metrics", 200),
        ];
        for (path, status) in table {
            let reply = h.get(path).await;
            assert_eq!(reply.status, status, "{path}");
            if status >= 400 {
                let error = &reply.json()["error"];
                assert!(
                    ["message", "type", "param", "code"].iter().all(|k| error.get(k).is_some()),
                    "{error}"
                );
            }
        }
        for (method, path, allow) in
            [("PUT", "/health", "get"), ("DELETE", "/v1/models", "get"), ("GET", "/generate", "post")]
        {
            let reply =
                h.request(&format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await;
            assert!(
                reply.status == 405 && reply.head.contains(&format!("allow: {allow}")),
                "{method} {path}: {}",
                reply.head
            );
        }
        h.engine_page.set(pinion_protocol::status::Gauge::HeartbeatNs as usize, 1);
        let sick = h.get("/health").await;
        assert_eq!(sick.status, 503);
        assert!(sick.body.contains("engine-0 has not moved"), "{}", sick.body);
    });
}

#[test]
fn a_harmless_request_id_is_echoed_and_another_is_replaced() {
    run(Options::default(), |h| async move {
        let long = "a".repeat(129);
        for (sent, echoed) in
            [("abc-1.2_3:4", true), ("a b", false), ("é", false), ("\"x\"", false), (long.as_str(), false)]
        {
            let reply = h
                .request(&format!("GET /live HTTP/1.1\r\nx-request-id: {sent}\r\nconnection: close\r\n\r\n"))
                .await;
            assert_eq!(reply.head.contains(&format!("x-request-id: {sent}")), echoed, "{sent}");
            assert!(echoed || reply.head.contains("x-request-id: req-"), "{}", reply.head);
        }
    });
}

#[test]
fn bad_bodies_get_one_clear_message_and_the_connection_lives_on() {
    run(Options::default(), |h| async move {
        let table = [
            ("", 400, Value::Null),
            ("{", 400, Value::Null),
            ("[]", 400, Value::Null),
            (r#"{"prompt":"x","temperature":1e999}"#, 400, Value::Null),
            (r#"{"prompt":"x","temperature":-1}"#, 400, json!("temperature")),
            (r#"{"prompt":"x","model":"gpt-4"}"#, 404, json!("model")),
            (r#"{"prompt":[1000]}"#, 400, json!("prompt")),
        ];
        for (body, status, param) in table {
            let reply = h.post("/v1/completions", body).await;
            assert_eq!((reply.status, &reply.json()["error"]["param"]), (status, &param), "{body}");
        }
        let two = post_bytes("/v1/completions", "{").replace("connection: close\r\n", "");
        let reply = h.request(&format!("{two}{}", post_bytes("/tokenize", "[]"))).await;
        assert_eq!(
            reply.body.matches("not valid json").count() + reply.body.matches("HTTP/1.1 400").count(),
            1
        );
        assert_eq!(h.slots_used(), 0);
    });
}
