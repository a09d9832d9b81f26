//! `/v1/responses` over HTTP: whole and streamed answers, tools, reasoning, errors, and responses that are kept.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::{Harness, Options, Reply, run};
use pinion_config::ApiKeys;
use pinion_protocol::frontend_inbox::{DELTA_LAST, FinishReason};
use pinion_protocol::names::Counter;
use pinion_protocol::reasoning::ReasoningFound;
use pinion_protocol::tokenizer_inbox::Prompt;
use pinion_protocol::{Fault, FaultCode, Reasoning};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

const PATH: &str = "/v1/responses";
const NOTHING: FinishReason = FinishReason::Stop;

fn body(extra: Value) -> String {
    let mut body = json!({"input": "hi", "max_output_tokens": 40});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body.to_string()
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "name": name, "description": "d", "parameters": {"type": "object", "properties": {"a": {}}}})
}

/// Says `pieces`, one delta each, to the next request. Gives the messages that its chat template sees.
async fn say(h: &Harness, pieces: &[&str], reason: FinishReason) -> Value {
    let submit = h.submit().await;
    let begins = ReasoningFound { reasoning: Reasoning::Possible, marks_are_tokens: false };
    let slot = h.table.slot(usize::from(submit.id.slot)).unwrap();
    slot.set_counter(submit.id.generation, Counter::Reasoning as usize, begins.to_word());
    for (at, piece) in (0..).zip(pieces) {
        let flags = if at as usize + 1 == pieces.len() { DELTA_LAST } else { 0 };
        h.delta(submit.id, at, &[at], piece, flags);
    }
    h.finish(submit.id, reason, pieces.len() as u32);
    let Prompt::Chat(chat) = &submit.prompt else { panic!("{submit:?}") };
    let chat: Value = serde_json::from_str(chat).unwrap();
    chat["messages"].clone()
}

async fn answered(h: &Harness, extra: Value, pieces: &[&str], reason: FinishReason) -> (Reply, Value) {
    let body = body(extra);
    tokio::join!(h.post(PATH, &body), say(h, pieces, reason))
}

async fn ask(h: &Harness, method: &str, path: &str, key: &str) -> Reply {
    let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n");
    h.request(&format!("{head}authorization: Bearer {key}\r\n\r\n")).await
}

/// The data of each event, whose name and number are checked.
fn events(reply: &Reply) -> Vec<Value> {
    let split = |(number, event): (usize, &str)| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        assert_eq!(data["sequence_number"], number);
        data
    };
    reply.body.split_terminator("\n\n").enumerate().map(split).collect()
}

const PIECES: [&str; 4] =
    ["Let me", " look.\n<tool", "_call>\n{\"name\": \"f\", \"arguments\": {\"a\": ", "1}}\n</tool_call>"];

#[test]
fn a_whole_answer_has_its_items_its_status_and_its_counts() {
    run(Options::default(), |h| async move {
        let extra = json!({"tools": [tool("f")], "metadata": {"a": "b"}, "temperature": 0.5});
        let (reply, _) = answered(&h, extra, &PIECES, FinishReason::Stop).await;
        let mut response = reply.json();
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(response["id"].take().as_str().unwrap().starts_with("resp_"));
        assert!(response["created_at"].take().as_u64().unwrap() > 1_700_000_000);
        assert!(response["output"][0]["id"].take().as_str().unwrap().starts_with("msg_"));
        assert!(response["output"][1]["id"].take().as_str().unwrap().starts_with("fc_"));
        assert!(response["output"][1]["call_id"].take().as_str().unwrap().starts_with("call_"));
        let mut shown = tool("f");
        shown["strict"] = true.into();
        let expected = json!({"id": null, "object": "response", "created_at": null, "status": "completed", "background": false,
            "error": null, "incomplete_details": null, "instructions": null, "max_output_tokens": 40, "model": "tiny",
            "output": [
                {"id": null, "type": "message", "status": "completed", "role": "assistant",
                    "content": [{"type": "output_text", "text": "Let me look.\n", "annotations": [], "logprobs": []}]},
                {"id": null, "type": "function_call", "status": "completed", "call_id": null, "name": "f", "arguments": "{\"a\": 1}"}],
            "parallel_tool_calls": true, "previous_response_id": null, "reasoning": {"effort": null, "summary": null}, "store": true,
            "temperature": 0.5, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [shown], "top_logprobs": 0,
            "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "truncation": "disabled", "metadata": {"a": "b"},
            "usage": {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0}, "output_tokens": 4,
                "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 7}});
        assert_eq!(response, expected);
        let (reply, _) = answered(&h, json!({}), &["a", "b"], FinishReason::Length).await;
        let response = reply.json();
        assert_eq!(
            (&response["status"], &response["incomplete_details"], &response["output"][0]["status"]),
            (&json!("incomplete"), &json!({"reason": "max_output_tokens"}), &json!("incomplete"))
        );
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_stream_is_the_numbered_events_of_its_items() {
    run(Options::default(), |h| async move {
        let extra = json!({"tools": [tool("f")], "stream": true});
        let (reply, _) = answered(&h, extra, &PIECES, FinishReason::Stop).await;
        assert!(reply.complete && reply.head.contains("content-type: text/event-stream"), "{reply:?}");
        let events = events(&reply);
        let names: Vec<&str> = events
            .iter()
            .map(|data| data["type"].as_str().unwrap().strip_prefix("response.").unwrap())
            .collect();
        let expected = [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ];
        assert_eq!(names, expected);
        assert_eq!((&events[10]["delta"], &events[10]["output_index"]), (&json!("{\"a\": "), &json!(1)));
        let last = &events[14]["response"];
        assert_eq!(last["output"][1], events[13]["item"]);
        // What was streamed is kept as it was told.
        let kept = h.get(&format!("{PATH}/{}", last["id"].as_str().unwrap())).await;
        assert_eq!((kept.status, &kept.json()), (200, last));
    });
}

/// The request and the texts of items are written several times over, at once: a client cannot have read them by then.
#[test]
fn what_a_stream_repeats_is_not_taken_for_unread() {
    let small = Options { buffer_bytes_max: 4 << 10, reasons: true, ..Options::default() };
    run(small, |h| async move {
        let thought = "x".repeat(1500);
        for extra in [
            json!({"instructions": "i".repeat(3000)}),
            json!({"tools": [tool(&"f".repeat(60)), tool("g"), tool("h")], "instructions": "i".repeat(30 << 10)}),
        ] {
            let mut asked = extra;
            asked["stream"] = true.into();
            let pieces = ["<think>\n", &thought, "\n</think>\n\n", "so"];
            let (reply, _) = answered(&h, asked, &pieces, NOTHING).await;
            assert_eq!(reply.status, 200, "{reply:?}");
            let last = events(&reply).pop().unwrap();
            assert_eq!(last["type"], "response.completed", "{last}");
            assert_eq!(last["response"]["output"][0]["content"][0]["text"], json!(thought));
        }
    });
}

#[test]
fn a_forced_call_and_reasoning_are_items_of_their_own() {
    run(Options { reasons: true, ..Options::default() }, |h| async move {
        for stream in [false, true] {
            let choice = json!({"tools": [tool("f")], "tool_choice": {"type": "function", "name": "f"}, "stream": stream});
            let pieces = ["<think>\nhm\n</think>\n\n", "{\"a\": ", "2}"];
            let (reply, _) = answered(&h, choice, &pieces, FinishReason::Stop).await;
            let response =
                if stream { events(&reply).pop().unwrap()["response"].clone() } else { reply.json() };
            let kinds: Vec<&Value> =
                response["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
            assert_eq!(kinds, ["reasoning", "function_call"], "{response}");
            assert_eq!(response["output"][0]["content"][0]["text"], "hm", "{response}");
            assert_eq!(response["output"][1]["arguments"], "{\"a\": 2}", "{response}");
        }
    });
}

#[test]
fn a_conversation_goes_on_and_its_parts_can_be_read_and_deleted() {
    run(Options::default(), |h| async move {
        let asked = json!({"tools": [tool("f")], "instructions": "s"});
        let (reply, messages) = answered(&h, asked, &PIECES, NOTHING).await;
        assert_eq!(messages, json!([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]));
        let first = reply.json();
        let (id, call) = (first["id"].as_str().unwrap(), &first["output"][1]["call_id"]);
        let output = json!([{"type": "function_call_output", "call_id": call, "output": "r"}]);
        let next = json!({"previous_response_id": id, "input": output, "stream": true});
        let (reply, messages) = answered(&h, next, &["so"], NOTHING).await;
        let roles: Vec<&Value> = messages.as_array().unwrap().iter().map(|m| &m["role"]).collect();
        assert_eq!(roles, ["user", "assistant", "tool"], "instructions are not carried on: {messages}");
        assert_eq!(messages[1]["tool_calls"][0]["id"], *call);
        let second = events(&reply).pop().unwrap()["response"].clone();
        assert_eq!(second["previous_response_id"], id);
        let second = format!("{PATH}/{}", second["id"].as_str().unwrap());

        let list = h.get(&format!("{second}/input_items?order=asc&limit=2")).await.json();
        assert_eq!(
            (list["has_more"].as_bool(), list["data"].as_array().map(Vec::len)),
            (Some(true), Some(2))
        );
        assert_eq!(list["data"][0]["content"], json!([{"type": "input_text", "text": "hi"}]));
        let after = list["last_id"].as_str().unwrap();
        let list = h.get(&format!("{second}/input_items?order=asc&after={after}")).await.json();
        let kinds: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
        assert_eq!(
            (list["has_more"].as_bool(), kinds),
            (Some(false), vec![&json!("function_call"), &json!("function_call_output")])
        );
        for (query, param) in
            [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=x", "after")]
        {
            let reply = h.get(&format!("{second}/input_items?{query}")).await;
            assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)));
        }
        let reply = h.get(&format!("{second}?stream=true")).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("stream")));
        assert_eq!(ask(&h, "POST", &format!("{second}/cancel"), "").await.status, 400);

        let first = format!("{PATH}/{id}");
        let deleted = ask(&h, "DELETE", &first, "").await;
        assert_eq!(
            (deleted.status, deleted.json()),
            (200, json!({"id": id, "object": "response", "deleted": true}))
        );
        for (method, path) in [
            ("GET", first.clone()),
            ("DELETE", first.clone()),
            ("GET", format!("{first}/input_items")),
            ("POST", format!("{first}/cancel")),
        ] {
            let reply = ask(&h, method, &path, "").await;
            assert_eq!(
                (reply.status, &reply.json()["error"]["code"]),
                (404, &json!("response_not_found")),
                "{method}"
            );
        }
        assert_eq!(h.get(&second).await.status, 200, "it stands for itself");
        let gone = h.post(PATH, &body(json!({"previous_response_id": id}))).await;
        let error = gone.json()["error"].take();
        assert_eq!((gone.status, &error["param"]), (400, &json!("previous_response_id")));
        assert_eq!(error["code"], "previous_response_not_found");
        assert_eq!((ask(&h, "PUT", &second, "").await.status, h.get(PATH).await.status), (405, 405));
    });
}

#[test]
fn a_conversation_is_no_longer_than_a_body_may_be() {
    run(Options::default(), |h| async move {
        let (reply, _) = answered(&h, json!({"input": "x".repeat(40 << 10)}), &["a"], NOTHING).await;
        let id = reply.json()["id"].clone();
        let next = |count: usize| json!({"previous_response_id": id, "input": "y".repeat(count)});
        let refused = h.post(PATH, &body(next(30 << 10))).await;
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
        assert_eq!(error["param"], "previous_response_id");
        let (reply, messages) = answered(&h, next(10 << 10), &["b"], NOTHING).await;
        assert_eq!((reply.status, messages.as_array().map(Vec::len)), (200, Some(3)));
    });
}

#[test]
fn only_what_is_to_be_kept_is_kept_and_only_for_its_key() {
    let mut options = Options::default();
    options.settings.api_keys = ApiKeys::new(vec!["sk-one".into(), "sk-two".into()]);
    run(options, |h| async move {
        let answered = async |extra: Value| {
            let text = body(extra);
            let head = format!(
                "POST {PATH} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer sk-one\r\n"
            );
            let request = format!("{head}content-length: {}\r\n\r\n{text}", text.len());
            let response = tokio::join!(h.request(&request), say(&h, &["a"], NOTHING)).0.json();
            format!("{PATH}/{}", response["id"].as_str().unwrap())
        };
        let (kept, not_kept) = (answered(json!({})).await, answered(json!({"store": false})).await);
        assert_eq!(ask(&h, "GET", &not_kept, "sk-one").await.status, 404);
        for method in ["DELETE", "GET"] {
            assert_eq!(ask(&h, method, &kept, "sk-two").await.status, 404, "{method}");
        }
        assert_eq!(ask(&h, "GET", &kept, "sk-one").await.status, 200);
    });
    run(Options { responses_store_bytes: 0, ..Options::default() }, |h| async move {
        let id = answered(&h, json!({}), &["a"], NOTHING).await.0.json()["id"].clone();
        assert_eq!(h.get(&format!("{PATH}/{}", id.as_str().unwrap())).await.status, 404);
    });
}

#[test]
fn errors_name_the_fields_of_this_api_before_and_within_a_stream() {
    run(Options { slots: 1, ..Options::default() }, |h| async move {
        for (extra, status, param) in [
            (
                json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
                400,
                json!("input[0].content[0].type"),
            ),
            (json!({"background": true}), 400, json!("background")),
            (json!({"tools": [{"type": "web_search"}]}), 400, json!("tools[0].type")),
            (json!({"tools": [tool("f"), tool("f")]}), 400, json!("tools[1].name")),
            (
                json!({"text": {"format": {"type": "json_schema", "name": "n n", "schema": {}}}}),
                400,
                json!("text.format.name"),
            ),
            (json!({"max_output_tokens": 1u64 << 40}), 400, json!("max_output_tokens")),
            (json!({"reasoning": {"effort": "much"}}), 400, json!("reasoning.effort")),
            (json!({"top_p": 7}), 400, json!("top_p")),
            (json!({"tool_choice": "required"}), 400, json!("tool_choice")),
            (json!({"model": "other"}), 404, json!("model")),
            (json!({"instructions": "x".repeat(70 << 10)}), 413, Value::Null),
        ] {
            let reply = h.post(PATH, &body(extra)).await;
            let error = reply.json()["error"].clone();
            assert_eq!((reply.status, &error["param"]), (status, &param), "{error}");
            let member = param.as_str().unwrap_or_default().rsplit('.').next().unwrap();
            assert!(error["message"].as_str().unwrap().contains(member), "{error}");
        }
        let nested = format!("{{\"input\":{}", "[".repeat(1000));
        assert_eq!(h.post(PATH, &nested).await.status, 400);
        let text = body(json!({"stream": true}));
        let mut stream = h.post_raw(PATH, &text).await;
        let id = h.submit().await.id;
        assert_eq!(h.post(PATH, &text).await.status, 429);
        h.delta(id, 0, &[1], "a", 0);
        let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&read).contains("output_text.delta") {
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "{}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&buffer[..count]);
        }
        h.reject(id, Fault::new(FaultCode::RoleRestarted, "the engine restarted"));
        stream.read_to_end(&mut read).await.unwrap();
        let last = events(&Reply::parse(&String::from_utf8(read).unwrap())).pop().unwrap();
        let error = json!({"code": "server_error", "message": "the engine restarted"});
        assert_eq!((&last["type"], &last["response"]["error"]), (&json!("response.failed"), &error));
        assert_eq!(
            (&last["response"]["status"], &last["response"]["output"][0]["status"]),
            (&json!("failed"), &json!("incomplete"))
        );
        let kept = h.get(&format!("{PATH}/{}", last["response"]["id"].as_str().unwrap())).await;
        assert_eq!(kept.status, 404, "what failed is not kept");
    });
}

#[test]
fn unknown_fields_are_named_here_too() {
    run(Options::default(), |h| async move {
        let messages =
            json!({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "metadata": {}})
                .to_string();
        for (path, text) in
            [(PATH, body(json!({"store": false, "service_tier": "auto"}))), ("/v1/messages", messages)]
        {
            for stream in [false, true] {
                let mut asked: Value = serde_json::from_str(&text).unwrap();
                asked["stream"] = stream.into();
                let text = asked.to_string();
                let known = tokio::join!(h.post(path, &text), say(&h, &["a"], NOTHING)).0;
                assert!(known.status == 200 && !known.head.contains("ignored-fields"), "{known:?}");
                asked["temprature"] = 0.into();
                let (text, before) = (asked.to_string(), h.app.metrics.ignored_fields.get());
                let unknown = tokio::join!(h.post(path, &text), say(&h, &["a"], NOTHING)).0;
                assert!(unknown.head.contains("x-pinion-ignored-fields: temprature\r\n"), "{unknown:?}");
                assert_eq!(h.app.metrics.ignored_fields.get() - before, 1);
                asked["num_beams"] = 4.into();
                let refused = h.post(path, &asked.to_string()).await;
                assert!(refused.status == 400 && refused.body.contains("num_beams"), "{refused:?}");
            }
        }
    });
    run(Options { strict_fields: true, ..Options::default() }, |h| async move {
        let messages =
            json!({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "temprature": 0})
                .to_string();
        for (path, text) in [(PATH, body(json!({"temprature": 0}))), ("/v1/messages", messages)] {
            let refused = h.post(path, &text).await;
            assert!(
                refused.status == 400 && refused.body.contains("there is no field temprature"),
                "{refused:?}"
            );
        }
    });
}
