//! `/v1/messages` over HTTP: whole and streamed answers, tools, stop sequences, reasoning, errors in their own shape,
//! and `/v1/messages/count_tokens`.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::{Harness, Options, Reply, run};
use pinion_protocol::frontend_inbox::{DELTA_LAST, Encoded, FinishReason, kind, stopped_by};
use pinion_protocol::names::Counter;
use pinion_protocol::tokenizer_inbox::{Prompt, TokenizerRecord};
use pinion_protocol::{Fault, FaultCode};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

const PATH: &str = "/v1/messages";

fn body(extra: Value) -> String {
    let mut body = json!({"max_tokens": 40, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body.to_string()
}

fn tool(name: &str) -> Value {
    json!({"name": name, "description": "d", "input_schema": {"type": "object", "properties": {"a": {}}}})
}

/// The pieces that the model says, one delta each, and the reply to them.
async fn answered(h: &Harness, extra: Value, pieces: &[&str], last: u32, reason: FinishReason) -> Reply {
    let body = body(extra);
    let roles = async {
        let id = h.submit().await.id;
        let slot = h.table.slot(usize::from(id.slot)).unwrap();
        slot.set_counter(id.generation, Counter::PromptTokens as usize, 3);
        slot.set_counter(id.generation, Counter::CachedTokens as usize, 1);
        for (at, piece) in (0..).zip(pieces) {
            let flags = if at as usize + 1 == pieces.len() { DELTA_LAST | last } else { 0 };
            h.delta(id, at, &[at], piece, flags);
        }
        h.finish(id, reason, pieces.len() as u32);
    };
    tokio::join!(h.post(PATH, &body), roles).0
}

/// Name and data of each event.
fn events(reply: &Reply) -> Vec<(String, Value)> {
    let split = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let name = name.strip_prefix("event: ").unwrap().to_owned();
        (name, serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap())
    };
    reply.body.split_terminator("\n\n").map(split).collect()
}

const PIECES: [&str; 4] =
    ["Let me", " look.\n<tool", "_call>\n{\"name\": \"f\", \"arguments\": {\"a\": ", "1}}\n</tool_call>"];

#[test]
fn a_whole_answer_has_its_blocks_its_reason_and_its_counts() {
    run(Options::default(), |h| async move {
        let reply = answered(&h, json!({"tools": [tool("f")]}), &PIECES, 0, FinishReason::Stop).await;
        let mut message = reply.json();
        assert_eq!((reply.status, reply.head.contains("request-id: req-")), (200, true), "{reply:?}");
        assert!(message["id"].take().as_str().unwrap().starts_with("msg_"));
        assert!(message["content"][1]["id"].take().as_str().unwrap().starts_with("call_"));
        let expected = json!({"id": null, "type": "message", "role": "assistant", "model": "tiny",
            "content": [{"type": "text", "text": "Let me look.\n"}, {"type": "tool_use", "id": null, "name": "f", "input": {"a": 1}}],
            "stop_reason": "tool_use", "stop_sequence": null,
            "usage": {"input_tokens": 2, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1, "output_tokens": 4}});
        assert_eq!(message, expected);
        for (reason, name) in [(FinishReason::Stop, "end_turn"), (FinishReason::Length, "max_tokens")] {
            let message = answered(&h, json!({}), &["a", "b"], 0, reason).await.json();
            assert_eq!(message["content"], json!([{"type": "text", "text": "ab"}]));
            assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!(name), &Value::Null));
        }
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_forced_call_ends_as_a_call() {
    run(Options::default(), |h| async move {
        let choice = json!({"tools": [tool("f")], "tool_choice": {"type": "tool", "name": "f"}});
        for stream in [false, true] {
            let mut extra = choice.clone();
            extra["stream"] = stream.into();
            let reply = answered(&h, extra, &["{\"a\": ", "2}"], 0, FinishReason::Stop).await;
            assert!(reply.body.contains("\"stop_reason\":\"tool_use\""), "{}", reply.body);
        }
    });
}

#[test]
fn a_stream_is_the_events_of_its_blocks() {
    run(Options::default(), |h| async move {
        let reply =
            answered(&h, json!({"tools": [tool("f")], "stream": true}), &PIECES, 0, FinishReason::Stop).await;
        assert!(reply.complete && reply.head.contains("content-type: text/event-stream"), "{reply:?}");
        let events = events(&reply);
        assert!(events.iter().all(|(name, data)| data["type"] == **name));
        let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
        let (start, delta, stop) = ("content_block_start", "content_block_delta", "content_block_stop");
        let expected = [
            "message_start",
            "ping",
            start,
            delta,
            delta,
            stop,
            start,
            delta,
            delta,
            stop,
            "message_delta",
            "message_stop",
        ];
        assert_eq!(names, expected);
        let usage = json!({"input_tokens": 2, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1, "output_tokens": 0});
        assert_eq!(events[0].1["message"]["usage"], usage);
        assert_eq!(events[7].1["delta"], json!({"type": "input_json_delta", "partial_json": "{\"a\": "}));
        assert_eq!(events[10].1["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
    });
}

#[test]
fn the_stop_sequence_that_ended_the_text_is_named() {
    run(Options::default(), |h| async move {
        for stream in [false, true] {
            let extra = json!({"stop_sequences": ["END", "\n\n"], "stream": stream});
            let reply = answered(&h, extra, &["ab"], stopped_by(1), FinishReason::Stop).await;
            assert!(
                reply.body.contains("\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"\\n\\n\""),
                "{}",
                reply.body
            );
        }
    });
}

#[test]
fn what_a_chat_template_sees_is_the_conversation() {
    run(Options::default(), |h| async move {
        let extra = json!({"system": "s", "stop_sequences": ["x"], "temperature": 0, "tools": [tool("f")],
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]}]});
        let text = body(extra);
        let roles = async {
            let submit = h.submit().await;
            let Prompt::Chat(chat) = &submit.prompt else { panic!("{submit:?}") };
            let chat: Value = serde_json::from_str(chat).unwrap();
            let roles: Vec<&str> =
                chat["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
            assert_eq!(roles, ["system", "user", "assistant", "tool"]);
            assert_eq!(chat["tools"][0]["function"]["name"], "f");
            assert_eq!((submit.sampling.max_tokens, submit.sampling.temperature), (Some(40), 0.0));
            h.delta(submit.id, 0, &[1], "a", DELTA_LAST);
            h.finish(submit.id, FinishReason::Stop, 1);
        };
        assert_eq!(tokio::join!(h.post(PATH, &text), roles).0.status, 200);
    });
}

#[test]
fn errors_have_this_api_s_shape_before_and_within_a_stream() {
    run(Options { slots: 1, ..Options::default() }, |h| async move {
        let large = json!({"system": "x".repeat(70 << 10)});
        for (extra, status, kind, said) in [
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
                400,
                "invalid_request_error",
                "messages.0.content.0.type",
            ),
            (json!({"top_p": 7}), 400, "invalid_request_error", "top_p"),
            (json!({"tools": [tool("f"), tool("f")]}), 400, "invalid_request_error", "tools.1.name"),
            (json!({"tool_choice": {"type": "any"}}), 400, "invalid_request_error", "tool_choice"),
            (json!({"model": "other"}), 404, "not_found_error", "other"),
            (large, 413, "request_too_large", "bytes"),
        ] {
            let reply = h.post(PATH, &body(extra)).await;
            let error = reply.json();
            assert_eq!((reply.status, &error["type"]), (status, &json!("error")), "{error}");
            assert_eq!(error["error"]["type"], kind, "{error}");
            assert!(error["error"]["message"].as_str().unwrap().contains(said), "{error}");
            assert!(error["request_id"].as_str().unwrap().starts_with("req-"), "{error}");
        }
        for (path, method, status, kind) in [
            ("/v1/messages/batches", "POST", 404, "not_found_error"),
            (PATH, "GET", 405, "invalid_request_error"),
        ] {
            let text = format!(
                "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            let reply = h.request(&text).await;
            assert_eq!((reply.status, &reply.json()["error"]["type"]), (status, &json!(kind)), "{reply:?}");
        }
        let nested = format!("{{\"messages\":{}", "[".repeat(1000));
        assert_eq!(h.post(PATH, &nested).await.json()["error"]["type"], "invalid_request_error");
        let text = body(json!({"stream": true}));
        let mut stream = h.post_raw(PATH, &text).await;
        let id = h.submit().await.id;
        let busy = h.post(PATH, &text).await;
        assert_eq!((busy.status, &busy.json()["error"]["type"]), (429, &json!("rate_limit_error")));
        h.delta(id, 0, &[1], "a", 0);
        let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&read).contains("text_delta") {
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "{}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&buffer[..count]);
        }
        h.reject(id, Fault::new(FaultCode::RoleRestarted, "the engine restarted"));
        stream.read_to_end(&mut read).await.unwrap();
        let reply = Reply::parse(&String::from_utf8(read).unwrap());
        let (name, data) = events(&reply).pop().unwrap();
        let expected = json!({"type": "error", "error": {"type": "overloaded_error", "message": "the engine restarted"}});
        assert_eq!((name.as_str(), data), ("error", expected));
    });
}

#[test]
fn tokens_are_counted_as_the_chat_has_them() {
    run(Options::default(), |h| async move {
        let text =
            json!({"messages": [{"role": "user", "content": "hi"}], "system": "s", "tools": [tool("f")]})
                .to_string();
        let roles = async {
            let TokenizerRecord::Encode(encode) = h.job().await else { panic!("not an encode") };
            assert!(matches!(&encode.prompt, Prompt::Chat(chat) if chat.contains("\"tools\"")));
            let mut record = Vec::new();
            Encoded { id: encode.id, ids: vec![1, 2, 3] }.encode(&mut record);
            h.take(kind::ENCODED, &record);
        };
        let reply = tokio::join!(h.post("/v1/messages/count_tokens", &text), roles).0;
        assert_eq!((reply.status, reply.json()), (200, json!({"input_tokens": 3})));
        let reply = h.post("/v1/messages/count_tokens", "{}").await;
        assert_eq!(reply.json()["error"]["message"], "messages is required");
    });
}
