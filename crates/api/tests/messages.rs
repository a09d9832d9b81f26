//! `/v1/messages` as a chat, and a chat's answer as a message.

#![allow(clippy::unwrap_used, reason = "a test")]

mod pieces;

use bytes::BytesMut;
use pieces::{Piece, pieces, say};
use pinion_api::messages::{Head, chat, count, error_body, renamed};
use pinion_api::{AnswerWriter, Ending, Failure, Said, Usage, messages};
use pinion_protocol::Fault;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const HELLO: &str = "hello";

fn translated(extra: Value) -> Result<Value, Fault> {
    chat(body(extra)).map(|translated| Value::Object(translated.chat))
}

fn body(extra: Value) -> Map<String, Value> {
    let mut body = json!({"max_tokens": 9, "messages": [{"role": "user", "content": HELLO}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body.as_object().unwrap().clone()
}

#[test]
fn a_conversation_becomes_a_chat() {
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "Let me "}, {"type": "text", "text": "see."},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}}, {"type": "tool_use", "id": "t2", "name": "look", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
            {"type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": [{"type": "text", "text": "two"}]},
            {"type": "text", "text": "and now?"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t3", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3"}]},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "go"}]);
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}});
    let expected = json!({"max_tokens": 9, "messages": [
        {"role": "system", "content": "You are a poet."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call("t1", "{\"at\":1}"), call("t2", "{}")], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "t1", "content": "one"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: two"},
        {"role": "user", "content": "and now?"},
        {"role": "assistant", "content": null, "tool_calls": [call("t3", "{}")]},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "go"}]});
    let system = json!([{"type": "text", "text": "You are a poet."}]);
    assert_eq!(translated(json!({"system": system, "messages": messages})).unwrap(), expected);
}

#[test]
fn what_makes_the_answer_becomes_the_chat_s_fields() {
    let tool = json!({"name": "look", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}});
    let function = json!({"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}});
    for (extra, expected) in [
        (
            json!({"system": "s"}),
            json!({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": HELLO}]}),
        ),
        (json!({"system": []}), json!({"messages": [{"role": "user", "content": HELLO}]})),
        (json!({"system": ""}), json!({"messages": [{"role": "user", "content": HELLO}]})),
        (json!({"max_tokens": 9.0}), json!({"max_tokens": 9.0})),
        (
            json!({"stop_sequences": ["a", "b"], "top_k": 3, "temperature": 0.5, "top_p": 0.9, "stream": true, "model": "m",
                "metadata": {"user_id": "u"}, "service_tier": "auto", "guided_choice": ["x"]}),
            json!({"stop": ["a", "b"], "top_k": 3, "temperature": 0.5, "top_p": 0.9, "stream": true, "model": "m", "guided_choice": ["x"]}),
        ),
        (json!({"tools": [tool]}), json!({"tools": [function]})),
        (
            json!({"tools": [tool], "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}}),
            json!({"tools": [function], "tool_choice": "auto", "parallel_tool_calls": false}),
        ),
        (
            json!({"tools": [tool], "tool_choice": {"type": "any"}}),
            json!({"tools": [function], "tool_choice": "required"}),
        ),
        (
            json!({"tools": [tool], "tool_choice": {"type": "none"}}),
            json!({"tools": [function], "tool_choice": "none"}),
        ),
        (
            json!({"tools": [tool], "tool_choice": {"type": "tool", "name": "look"}}),
            json!({"tools": [function], "tool_choice": {"type": "function", "function": {"name": "look"}}}),
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            json!({"chat_template_kwargs": {"enable_thinking": true}}),
        ),
        (
            json!({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"a": 1}}),
            json!({"chat_template_kwargs": {"a": 1, "enable_thinking": false}, "include_reasoning": false}),
        ),
        (
            json!({"thinking": {"type": "adaptive", "display": "omitted"}}),
            json!({"include_reasoning": false}),
        ),
        (
            json!({"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}}),
            json!({"reasoning_effort": "low",
                "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}}}),
        ),
        (
            json!({"messages": [{"role": "user", "content": HELLO}, {"role": "assistant", "content": "He"}]}),
            json!({"messages": [{"role": "user", "content": HELLO}, {"role": "assistant", "content": "He"}], "continue_final_message": true}),
        ),
        (
            json!({"mcp_servers": [], "container": null, "thread": {"type": "create"}, "context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}),
            json!({}),
        ),
    ] {
        let mut whole = json!({"max_tokens": 9, "messages": [{"role": "user", "content": HELLO}]});
        whole.as_object_mut().unwrap().extend(expected.as_object().unwrap().clone());
        let got = translated(extra.clone()).unwrap();
        assert_eq!(got, whole, "{extra}");
    }
    let counted = count(body(json!({"tools": [tool], "stream": true, "max_tokens": null}))).unwrap();
    assert_eq!(
        Value::Object(counted),
        json!({"messages": [{"role": "user", "content": HELLO}], "tools": [function]})
    );
}

fn check_fault(extra: &Value, param: &str) {
    let fault = translated(extra.clone()).expect_err(&extra.to_string());
    assert_eq!(fault.param.as_deref(), Some(param), "{extra}: {fault}");
    assert!(fault.message.contains(param), "{extra}: {fault}");
}

#[test]
fn what_is_wrong_is_named_by_its_place() {
    let with = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let said = |content: Value| json!({"messages": [{"role": "assistant", "content": content}]});
    let text = json!({"type": "text", "text": "a"});
    for (extra, param) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": "9"}), "max_tokens"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": {}}), "messages"),
        (json!({"messages": [3]}), "messages.0"),
        (json!({"messages": [{"content": "a"}]}), "messages.0.role"),
        (json!({"messages": [{"role": "tool", "content": "a"}]}), "messages.0.role"),
        (json!({"messages": [{"role": 3, "content": "a"}]}), "messages.0.role"),
        (json!({"messages": [{"role": "user"}]}), "messages.0.content"),
        (with(json!(3)), "messages.0.content"),
        (with(json!(["a"])), "messages.0.content.0"),
        (with(json!([text, {"text": "a"}])), "messages.0.content.1.type"),
        (with(json!([text, {"type": "image", "source": {}}])), "messages.0.content.1.type"),
        (with(json!([{"type": "document"}])), "messages.0.content.0.type"),
        (with(json!([{"type": "thinking", "thinking": "a"}])), "messages.0.content.0.type"),
        (with(json!([{"type": "text", "text": 3}])), "messages.0.content.0.text"),
        (with(json!([{"type": "text"}])), "messages.0.content.0.text"),
        (with(json!([{"type": "tool_result"}])), "messages.0.content.0.tool_use_id"),
        (
            with(json!([{"type": "tool_result", "tool_use_id": "t", "is_error": 1}])),
            "messages.0.content.0.is_error",
        ),
        (
            with(json!([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}])),
            "messages.0.content.0.content.0.type",
        ),
        (said(json!([{"type": "tool_result", "tool_use_id": "t"}])), "messages.0.content.0.type"),
        (said(json!([{"type": "tool_use", "name": "f"}])), "messages.0.content.0.id"),
        (said(json!([{"type": "tool_use", "id": "t", "name": "not good"}])), "messages.0.content.0.name"),
        (
            said(json!([{"type": "tool_use", "id": "t", "name": "f", "input": "{}"}])),
            "messages.0.content.0.input",
        ),
    ] {
        check_fault(&extra, param);
    }
}

#[test]
fn what_is_wrong_beside_the_messages_is_named_too() {
    for (extra, param) in [
        (json!({"system": 3}), "system"),
        (json!({"system": [{"type": "image"}]}), "system.0.type"),
        (json!({"stop_sequences": "a"}), "stop_sequences"),
        (json!({"stop_sequences": ["a", ""]}), "stop_sequences.1"),
        (json!({"stop_sequences": [3]}), "stop_sequences.0"),
        (json!({"stop_sequences": vec!["a"; 17]}), "stop_sequences"),
        (json!({"metadata": "u"}), "metadata"),
        (json!({"tools": {}}), "tools"),
        (json!({"tools": [3]}), "tools.0"),
        (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools.0.type"),
        (json!({"tools": [{"input_schema": {}}]}), "tools.0.name"),
        (json!({"tools": [{"name": "f"}]}), "tools.0.input_schema"),
        (json!({"tools": [{"name": "f", "input_schema": []}]}), "tools.0.input_schema"),
        (json!({"tool_choice": "auto"}), "tool_choice"),
        (json!({"tool_choice": {}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "maybe"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "tool"}}), "tool_choice.name"),
        (json!({"thinking": {"type": "much"}}), "thinking.type"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": "1"}}), "thinking.budget_tokens"),
        (json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format.type"),
        (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema"),
        (json!({"container": "c"}), "container"),
        (json!({"thread": "new"}), "thread"),
        (json!({"thread": {"type": "fork"}}), "thread.type"),
        (
            json!({"thread": {"type": "continue", "previous_message_id": "msg_1"}}),
            "thread.previous_message_id",
        ),
        (json!({"mcp_servers": [{}]}), "mcp_servers"),
        (
            json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
            "context_management.edits.0.type",
        ),
    ] {
        check_fault(&extra, param);
    }
}

#[test]
fn what_the_chat_finds_wrong_has_the_names_of_this_api() {
    for (param, message, expected) in [
        (
            "tools[1].function.name",
            "tools[1].function.name: there is another",
            ("tools.1.name", "tools.1.name: there is another"),
        ),
        ("tools[0].function.parameters.type", "x", ("tools.0.input_schema.type", "x")),
        ("stop", "stop is bad", ("stop_sequences", "stop_sequences is bad")),
        ("top_p", "top_p must be less", ("top_p", "top_p must be less")),
        ("response_format", "response_format: no", ("output_config.format", "output_config.format: no")),
    ] {
        let (param, message) = renamed(Some(param), message);
        assert_eq!((param.as_deref().unwrap(), message.as_str()), expected);
    }
    let failure =
        Failure { status: 400, param: Some("tools[1].function.name"), code: None, message: "is taken" };
    let body: Value = serde_json::from_slice(&error_body(&failure, Some("r1"))).unwrap();
    assert_eq!(
        body,
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": "tools.1.name: is taken"}, "request_id": "r1"})
    );
}

/// Anthropic's SDK replays the conversation under a new thread when it reads this code.
#[test]
fn a_thread_that_would_be_continued_is_not_found() {
    let body = json!({"max_tokens": 9, "messages": [{"role": "user", "content": HELLO}],
        "thread": {"type": "continue", "previous_message_id": "msg_1"}});
    let Value::Object(body) = body else { unreachable!("it is an object") };
    let fault = chat(body).unwrap_err();
    let failure = Failure { status: 400, param: fault.param.as_deref(), code: None, message: &fault.message };
    let told: Value = serde_json::from_slice(&error_body(&failure, None)).unwrap();
    assert_eq!(told["error"]["details"], json!({"error_code": "thread_not_found"}));
}

fn head(streams: bool) -> Head {
    let stop_sequences = vec!["END".to_owned(), "\n".to_owned()];
    Head { id: "msg_1".to_owned(), model: "tiny".to_owned(), stop_sequences, streams }
}

fn usage(counted: bool) -> Usage {
    Usage { prompt_tokens: 7, cached_tokens: 3, completion_tokens: 5, reasoning_tokens: counted.then_some(2) }
}

fn told(pieces: &[Piece], ending: Ending, stop: Option<usize>, streams: bool) -> BytesMut {
    let (mut writer, mut out) =
        (AnswerWriter::Messages(messages::MessageWriter::new(head(streams))), BytesMut::new());
    writer.count_prompt(7, 3);
    say(pieces, &mut writer, &mut out);
    writer.finish(ending, stop, &mut out);
    writer.end(usage(true), &mut out);
    out
}

/// Puts a stream together as Anthropic's client does, and checks the order of its events.
fn assembled(stream: &[u8]) -> Value {
    let text = std::str::from_utf8(stream).unwrap();
    assert!(text.ends_with("\n\n"));
    let (mut message, mut open, mut over) = (Value::Null, None, false);
    for event in text.trim_end().split("\n\n") {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        assert!(!over, "nothing follows the end: {event}");
        match data["type"].as_str().unwrap() {
            "ping" => {}
            "message_start" => {
                assert!(message.is_null());
                message = data["message"].clone();
                assert_eq!(message["usage"]["input_tokens"], 4);
            }
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!((open, data["index"].as_u64()), (None, Some(content.len() as u64)));
                open = data["index"].as_u64();
                content.push(data["content_block"].clone());
                if data["content_block"]["type"] == "tool_use" {
                    content.last_mut().unwrap()["input"] = "".into();
                }
            }
            "content_block_delta" => {
                assert_eq!(data["index"].as_u64(), open);
                let block = message["content"].as_array_mut().unwrap().last_mut().unwrap();
                let (member, of) = match data["delta"]["type"].as_str().unwrap() {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("signature", "signature"),
                    "input_json_delta" => ("input", "partial_json"),
                    other => panic!("{other}"),
                };
                let more = data["delta"][of].as_str().unwrap();
                assert!(!more.is_empty());
                block[member] = format!("{}{more}", block[member].as_str().unwrap()).into();
            }
            "content_block_stop" => {
                assert_eq!(data["index"].as_u64(), open.take());
                let block = message["content"].as_array_mut().unwrap().last_mut().unwrap();
                if block["type"] == "tool_use" {
                    block["input"] =
                        serde_json::from_str(block["input"].as_str().unwrap()).unwrap_or(json!({}));
                }
            }
            "message_delta" => {
                for (name, value) in data["delta"].as_object().unwrap() {
                    message[name] = value.clone();
                }
                message["usage"] = data["usage"].clone();
            }
            "message_stop" => over = true,
            other => panic!("{other}"),
        }
    }
    assert!(over && open.is_none());
    message
}

fn calls() -> impl Strategy<Value = Vec<Piece>> {
    ("[a-z]{1,4}", prop::collection::vec("[0-9]{1,3}", 0..3)).prop_map(|(name, parts)| {
        let mut said = vec![Piece::Call(name)];
        let digits = parts.concat();
        let number = if digits.is_empty() { "0" } else { digits.trim_start_matches('0') };
        let arguments = format!("{{\"a\": {}}}", if number.is_empty() { "0" } else { number });
        let (first, second) = arguments.split_at(arguments.len() / 2);
        said.extend([Piece::Arguments(first.to_owned()), Piece::Arguments(second.to_owned())]);
        said
    })
}

proptest! {
    #[test]
    fn a_stream_put_together_is_the_whole_answer(pieces in pieces(calls()), stop in prop::option::of(0_usize..2), long in any::<bool>()) {
        let ending = if long { Ending::Length } else { Ending::Stop };
        let whole: Value = serde_json::from_slice(&told(&pieces, ending, stop, false)).unwrap();
        prop_assert_eq!(assembled(&told(&pieces, ending, stop, true)), whole.clone());
        let has_call = pieces.iter().any(|piece| matches!(piece, Piece::Call(_)));
        let (reason, sequence) = match (ending, stop) {
            (Ending::Length, _) => ("max_tokens", Value::Null),
            (_, Some(place)) => ("stop_sequence", head(false).stop_sequences[place].clone().into()),
            (_, None) if has_call => ("tool_use", Value::Null),
            (_, None) => ("end_turn", Value::Null),
        };
        prop_assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!(reason), &sequence));
        let usage = json!({"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3, "output_tokens": 5,
            "output_tokens_details": {"thinking_tokens": 2}});
        prop_assert_eq!(&whole["usage"], &usage);
    }
}

#[test]
fn an_error_in_a_stream_is_an_event_and_in_a_whole_answer_nothing() {
    for streams in [true, false] {
        let (mut writer, mut out) =
            (AnswerWriter::Messages(messages::MessageWriter::new(head(streams))), BytesMut::new());
        writer.say(Said::Text("a"), &mut out);
        out.clear();
        writer.fail(&Failure { status: 503, param: None, code: None, message: "a role died" }, &mut out);
        let expected = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"a role died\"}}\n\n";
        assert_eq!(std::str::from_utf8(&out).unwrap(), if streams { expected } else { "" });
    }
}
