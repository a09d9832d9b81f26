//! `/v1/responses` as a chat, and a chat's answer as a response.

#![allow(clippy::unwrap_used, reason = "a test")]

mod pieces;

use bytes::BytesMut;
use pieces::{Piece, TEXT, pieces, say};
use pinion_api::responses::{self, Asked, Head, Store, renamed};
use pinion_api::{AnswerWriter, Ending, Failure, Said, Translated, Usage};
use pinion_protocol::{Fault, FaultCode};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::rc::Rc;

fn body(extra: Value) -> Map<String, Value> {
    let mut body = json!({"input": "hello"});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body.as_object().unwrap().clone()
}

fn translated(extra: Value) -> Result<Value, Fault> {
    Asked::parse(body(extra))
        .and_then(|asked| asked.chat(None))
        .map(|(translated, _)| Value::Object(translated.chat))
}

#[test]
fn items_become_messages() {
    let input = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "no"}], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{\"at\": 1}", "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {"type": "message", "role": "assistant", "content": "It is here."},
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "go"}]);
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}});
    let expected = json!([
        {"role": "system", "content": "You are a poet."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call("c1", "{\"at\": 1}"), call("c2", "{}")], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "assistant", "content": "It is here.", "reasoning_content": "so"},
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "go"}]);
    let chat = translated(json!({"instructions": "You are a poet.", "input": input})).unwrap();
    assert_eq!(chat, json!({"messages": expected}));
}

#[test]
fn what_makes_the_answer_becomes_the_chat_s_fields() {
    let parameters = json!({"type": "object"});
    let tool = json!({"type": "function", "name": "look", "description": "d", "parameters": parameters});
    let function = json!({"type": "function", "function": {"name": "look", "description": "d", "parameters": parameters}});
    let schema = json!({"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true});
    for (extra, expected) in [
        (
            json!({"temperature": 0.5, "top_p": 0.9, "stream": true, "model": "m", "max_output_tokens": 7, "user": "u",
                "service_tier": "auto", "metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"], "truncation": "disabled"}),
            json!({"temperature": 0.5, "top_p": 0.9, "stream": true, "model": "m", "max_completion_tokens": 7, "user": "u"}),
        ),
        (json!({"tools": [tool]}), json!({"tools": [function], "tool_choice": "auto"})),
        (
            json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false}),
            json!({"tools": [function], "tool_choice": "required", "parallel_tool_calls": false}),
        ),
        (
            json!({"tools": [tool], "tool_choice": {"type": "function", "name": "look"}}),
            json!({"tools": [function], "tool_choice": {"type": "function", "function": {"name": "look"}}}),
        ),
        (json!({"tools": [], "tool_choice": "auto"}), json!({})),
        (json!({"text": {"format": {"type": "text"}, "verbosity": "low"}}), json!({})),
        (
            json!({"text": {"format": {"type": "json_object"}}}),
            json!({"response_format": {"type": "json_object"}}),
        ),
        (
            json!({"text": {"format": {"type": "json_object", "schema": {"type": "object"}}}}),
            json!({"response_format": {"type": "json_object", "schema": {"type": "object"}}}),
        ),
        (
            json!({"text": {"format": schema}}),
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": true}}}),
        ),
        (json!({"reasoning": {"effort": "low", "summary": "auto"}}), json!({"reasoning_effort": "low"})),
        (json!({"reasoning": null, "background": false, "store": false, "conversation": null}), json!({})),
        (json!({"instructions": "", "max_output_tokens": 7.0}), json!({"max_completion_tokens": 7.0})),
    ] {
        let mut whole = json!({"messages": [{"role": "user", "content": "hello"}]});
        whole.as_object_mut().unwrap().extend(expected.as_object().unwrap().clone());
        assert_eq!(translated(extra.clone()).unwrap(), whole, "{extra}");
    }
}

#[test]
fn what_is_wrong_is_named_by_its_place() {
    let with = |item: Value| json!({"input": [{"role": "user", "content": "a"}, item]});
    let content = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    for (extra, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": 3}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [3]}), "input[0]"),
        (with(json!({"role": "tool", "content": "a"})), "input[1].role"),
        (with(json!({"content": "a"})), "input[1].role"),
        (with(json!({"role": "user"})), "input[1].content"),
        (with(json!({"role": "user", "content": 3})), "input[1].content"),
        (with(json!({"type": "item_reference", "id": "x"})), "input[1].type"),
        (with(json!({"type": "computer_call"})), "input[1].type"),
        (with(json!({"type": 3})), "input[1].type"),
        (with(json!({"type": "function_call", "name": "f", "arguments": "{}"})), "input[1].call_id"),
        (with(json!({"type": "function_call", "call_id": "c", "name": "not good"})), "input[1].name"),
        (
            with(json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"})),
            "input[1].arguments",
        ),
        (
            with(json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}})),
            "input[1].arguments",
        ),
        (
            with(
                json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "[".repeat(1000)}),
            ),
            "input[1].arguments",
        ),
        (with(json!({"type": "function_call_output", "output": "a"})), "input[1].call_id"),
        (with(json!({"type": "function_call_output", "call_id": "c"})), "input[1].output"),
        (with(json!({"type": "reasoning", "summary": "a b", "content": [3]})), "input[1].content[0]"),
        (content(json!({"type": "input_image", "image_url": "x"})), "input[0].content[0].type"),
        (content(json!({"type": "input_file"})), "input[0].content[0].type"),
        (content(json!({"type": "input_text"})), "input[0].content[0].text"),
        (content(json!({"text": "a"})), "input[0].content[0].type"),
    ] {
        check_fault(&extra, param);
    }
}

#[test]
fn what_is_wrong_beside_the_items_is_named_too() {
    for (extra, param) in [
        (json!({"instructions": 3}), "instructions"),
        (json!({"background": true}), "background"),
        (json!({"background": "no"}), "background"),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"truncation": 3}), "truncation"),
        (json!({"include": ["message.output_text.logprobs"]}), "include[0]"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "custom", "name": "x"}]}), "tools[0].type"),
        (json!({"tools": [{"name": "x"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
        (json!({"tools": [{"type": "function", "name": "f", "parameters": 3}]}), "tools[0].parameters"),
        (json!({"tool_choice": "maybe"}), "tool_choice"),
        (json!({"tool_choice": {"type": "allowed_tools"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "function"}}), "tool_choice.name"),
        (json!({"text": "a"}), "text"),
        (json!({"text": {"verbosity": "loud"}}), "text.verbosity"),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"text": {"format": {"type": "json_schema", "name": "n"}}}), "text.format.schema"),
        (json!({"text": {"format": {"type": "json_schema", "schema": {}}}}), "text.format.name"),
        (json!({"reasoning": "much"}), "reasoning"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"max_output_tokens": "7"}), "max_output_tokens"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"metadata": {"a": 3}}), "metadata"),
        (json!({"metadata": {"a": "b".repeat(513)}}), "metadata"),
        (json!({"moderation": {"model": "m"}}), "moderation"),
        (json!({"context_management": [{"type": "compaction"}]}), "context_management"),
        (json!({"store": "yes"}), "store"),
        (json!({"previous_response_id": 3}), "previous_response_id"),
    ] {
        check_fault(&extra, param);
    }
}

fn check_fault(extra: &Value, param: &str) {
    let fault = translated(extra.clone()).expect_err(&extra.to_string());
    assert_eq!(fault.param.as_deref(), Some(param), "{extra}: {fault}");
    assert!(
        fault.message.contains(param) || fault.code != FaultCode::InvalidValue || param.contains("arguments"),
        "{extra}: {fault}"
    );
}

#[test]
fn what_the_chat_finds_wrong_has_the_names_of_this_api() {
    for (param, expected) in [
        ("tools[1].function.name", "tools[1].name"),
        ("response_format.json_schema.name", "text.format.name"),
        ("max_completion_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("messages", "input"),
        ("top_p", "top_p"),
    ] {
        let (param, message) = renamed(Some(param), &format!("{param} is bad"));
        assert_eq!((param.as_deref(), message), (Some(expected), format!("{expected} is bad")));
    }
}

fn head(streams: bool, store: &Rc<RefCell<Store>>) -> Head {
    let echo = json!({"tools": [], "metadata": {"a": "b"}}).as_object().unwrap().clone();
    let keep = Some((store.clone(), "[{\"role\":\"user\",\"content\":\"hello\"}]".into()));
    Head { letters: "00".to_owned(), created_s: 5, model: "tiny".to_owned(), key: None, echo, streams, keep }
}

const USAGE: Usage =
    Usage { prompt_tokens: 7, cached_tokens: 3, completion_tokens: 5, reasoning_tokens: Some(2) };

fn told(pieces: &[Piece], ending: Ending, streams: bool, store: &Rc<RefCell<Store>>) -> BytesMut {
    let mut writer = AnswerWriter::Responses(responses::ResponseWriter::new(head(streams, store)));
    let mut out = BytesMut::new();
    say(pieces, &mut writer, &mut out);
    writer.finish(ending, None, &mut out);
    writer.end(USAGE, &mut out);
    out
}

/// Puts a stream together from its deltas as OpenAI's client does, and checks the order of its events.
fn assembled(stream: &[u8]) -> Value {
    let text = std::str::from_utf8(stream).unwrap();
    let (mut response, mut output): (Value, Vec<Value>) = (Value::Null, Vec::new());
    let (mut open, mut parts, mut last) = (false, 0, Value::Null);
    for (number, event) in text.trim_end().split("\n\n").enumerate() {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        assert_eq!(data["sequence_number"].as_u64(), Some(number as u64));
        let at = data["output_index"].as_u64().map(|index| index as usize);
        assert!(at.is_none_or(
            |at| at + usize::from(name.ends_with("item.added")) <= output.len() + usize::from(!open)
        ));
        match data["type"].as_str().unwrap().strip_prefix("response.").unwrap() {
            "created" => assert_eq!((number, &data["response"]["status"]), (0, &json!("in_progress"))),
            "in_progress" => {
                assert_eq!(number, 1);
                response = data["response"].clone();
            }
            "output_item.added" => {
                assert!(!open);
                (open, parts) = (true, 0);
                assert_eq!(data["item"]["status"], "in_progress");
                output.push(data["item"].clone());
            }
            "content_part.added" => {
                parts += 1;
                output[at.unwrap()]["content"].as_array_mut().unwrap().push(data["part"].clone());
            }
            "output_text.delta" | "reasoning_text.delta" => {
                assert!(open && parts == 1 && data["content_index"] == 0);
                let part = &mut output[at.unwrap()]["content"][0]["text"];
                *part = format!("{}{}", part.as_str().unwrap(), data["delta"].as_str().unwrap()).into();
            }
            "function_call_arguments.delta" => {
                let arguments = &mut output[at.unwrap()]["arguments"];
                *arguments =
                    format!("{}{}", arguments.as_str().unwrap(), data["delta"].as_str().unwrap()).into();
            }
            "output_text.done" | "reasoning_text.done" => {
                assert_eq!(output[at.unwrap()]["content"][0]["text"], data["text"])
            }
            "function_call_arguments.done" => {
                assert_eq!(output[at.unwrap()]["arguments"], data["arguments"]);
                assert_eq!(output[at.unwrap()]["name"], data["name"]);
            }
            "content_part.done" => assert_eq!(output[at.unwrap()]["content"][0], data["part"]),
            "output_item.done" => {
                open = false;
                output[at.unwrap()]["status"] = data["item"]["status"].clone();
                assert_eq!(output[at.unwrap()], data["item"]);
            }
            "completed" | "incomplete" => last = data["response"].clone(),
            other => panic!("{other}"),
        }
    }
    assert_eq!(last["output"], json!(output));
    for name in ["status", "usage", "incomplete_details", "output"] {
        response[name] = last[name].clone();
    }
    assert_eq!(response, last);
    response
}

fn calls() -> impl Strategy<Value = Vec<Piece>> {
    ("[a-z]{1,4}", prop::collection::vec(TEXT, 0..3)).prop_map(|(name, parts)| {
        let mut said = vec![Piece::Call(name)];
        said.extend(parts.into_iter().map(Piece::Arguments));
        said
    })
}

proptest! {
    #[test]
    fn a_stream_put_together_is_the_whole_answer(pieces in pieces(calls()), long in any::<bool>()) {
        let ending = if long { Ending::Length } else { Ending::Stop };
        let store = Rc::new(RefCell::new(Store::new(1 << 20, 60)));
        let whole: Value = serde_json::from_slice(&told(&pieces, ending, false, &store)).unwrap();
        prop_assert_eq!(assembled(&told(&pieces, ending, true, &store)), whole.clone());
        let (status, details) = if long { ("incomplete", json!({"reason": "max_output_tokens"})) } else { ("completed", Value::Null) };
        prop_assert_eq!((&whole["status"], &whole["incomplete_details"]), (&json!(status), &details));
        let usage = json!({"input_tokens": 7, "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0}, "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 12});
        prop_assert_eq!(&whole["usage"], &usage);
        let mut store = store.borrow_mut();
        let kept = store.get("resp_00", None, 5).unwrap();
        prop_assert_eq!(serde_json::from_slice::<Value>(&kept.response).unwrap(), whole.clone());
        let mut conversation = vec![json!({"role": "user", "content": "hello"})];
        conversation.extend(whole["output"].as_array().unwrap().clone());
        prop_assert_eq!(serde_json::from_str::<Vec<Value>>(&kept.conversation()).unwrap(), conversation);
    }
}

#[test]
fn a_conversation_goes_on_from_a_kept_response() {
    let store = Rc::new(RefCell::new(Store::new(1 << 20, 60)));
    let said = [
        Piece::Reasoning("hm".into()),
        Piece::Text("hi".into()),
        Piece::Call("f".into()),
        Piece::Arguments("{}".into()),
    ];
    told(&said, Ending::ToolCalls, false, &store);
    let earlier = store.borrow_mut().get("resp_00", None, 5).unwrap().conversation();
    let asked = json!({"previous_response_id": "resp_00", "instructions": "s", "input": [{"type": "function_call_output", "call_id": "call_2", "output": "r"}]});
    let asked = Asked::parse(asked.as_object().unwrap().clone()).unwrap();
    assert_eq!(asked.previous.as_deref(), Some("resp_00"));
    let (Translated { chat, .. }, items) = asked.chat(Some(&earlier)).unwrap();
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi", "tool_calls": [{"id": "call_2", "type": "function", "function": {"name": "f", "arguments": "{}"}}], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "call_2", "content": "r"}]);
    assert_eq!((&chat["messages"], items.len()), (&messages, 5));
}

#[test]
fn a_failure_in_a_stream_is_an_event_and_is_not_kept() {
    for (streams, begun) in [(true, true), (true, false), (false, true)] {
        let store = Rc::new(RefCell::new(Store::new(1 << 20, 60)));
        let (mut writer, mut out) =
            (AnswerWriter::Responses(responses::ResponseWriter::new(head(streams, &store))), BytesMut::new());
        if begun {
            writer.say(Said::Text("a"), &mut out);
        }
        writer.fail(&Failure { status: 503, param: None, code: None, message: "a role died" }, &mut out);
        let text = String::from_utf8(out.to_vec()).unwrap();
        assert_eq!(text.contains("event: response.failed\n"), streams, "{text}");
        assert_eq!(text.starts_with("event: response.created\n"), streams, "{text}");
        assert_eq!(
            text.contains("\"error\":{\"code\":\"server_error\",\"message\":\"a role died\"}"),
            streams,
            "{text}"
        );
        assert!(store.borrow_mut().get("resp_00", None, 5).is_none());
    }
}
