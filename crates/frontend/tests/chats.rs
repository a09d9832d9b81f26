//! Chats by tables: what crosses to the tokenizer, and what is refused, naming which member.
#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::asked::limits;
use pinion_frontend::admission::{Api, admit, admit_tokenize};
use pinion_frontend::limits::{
    CONTENT_PARTS_MAX, DOCUMENTS_MAX, TEMPLATE_KWARGS_BYTES_MAX, TEMPLATE_KWARGS_MAX, TOOL_CALLS_MAX,
};
use pinion_protocol::limits::{JSON_DEPTH_MAX, MESSAGES_MAX};
use pinion_protocol::tokenizer_inbox::Prompt;
use serde_json::{Value, json};

/// The chat that crosses to the tokenizer; both routes that take one agree on it.
fn crosses(body: &Value) -> Result<String, String> {
    let text = body.to_string();
    let param = |fault: pinion_protocol::Fault| fault.param.unwrap_or_default();
    let chat =
        admit(Api::Chat, text.as_bytes(), &limits(), 1).map(|admitted| admitted.prompts).map_err(param);
    let tokenize = admit_tokenize(text.as_bytes(), &limits()).map(|(prompt, _)| vec![prompt]).map_err(param);
    if chat != Err("messages".to_owned()) {
        assert_eq!(chat, tokenize, "{text}");
    }
    match chat?.as_slice() {
        [Prompt::Chat(json)] => Ok(json.clone()),
        other => panic!("not one chat: {other:?}"),
    }
}

fn message(message: Value) -> Value {
    json!({"messages": [message]})
}

#[test]
fn messages_cross_whole_and_in_one_spelling() {
    let call = |arguments: Value| {
        json!({"role": "assistant", "content": null, "refusal": null, "audio": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get.the-weather_2", "arguments": arguments}}]})
    };
    let called = |arguments: &str| {
        let arguments = Value::from(arguments);
        format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"call_1","type":"function","function":{{"name":"get.the-weather_2","arguments":{arguments}}}}}]}}"#
        )
    };
    let table = [
        (
            json!({"role": "developer", "content": "s", "name": "x", "unknown": 3}),
            r#"{"role":"developer","content":"s","name":"x"}"#.to_owned(),
        ),
        (
            json!({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}, {"text": "b\"c", "type": "text"}]}),
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b\"c"}]}"#
                .to_owned(),
        ),
        (json!({"role": "assistant"}), r#"{"role":"assistant","content":null}"#.to_owned()),
        (
            json!({"role": "assistant", "content": "a", "tool_calls": [], "function_call": null, "reasoning_content": "r"}),
            r#"{"role":"assistant","content":"a","reasoning_content":"r"}"#.to_owned(),
        ),
        (
            json!({"role": "assistant", "content": null, "refusal": "I will not."}),
            r#"{"role":"assistant","content":"I will not."}"#.to_owned(),
        ),
        (
            json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}),
            r#"{"role":"assistant","content":[{"type":"text","text":"No."}]}"#.to_owned(),
        ),
        (call(json!("{\"z\":  1, \"a\": {}}")), called("{\"z\":  1, \"a\": {}}")),
        (call(json!({"z": 1, "a": [null]})), called("{\"z\":1,\"a\":[null]}")),
        (call(json!("")), called("{}")),
        (call(Value::Null), called("{}")),
        (
            json!({"role": "tool", "tool_call_id": "call_1", "content": "21"}),
            r#"{"role":"tool","content":"21","tool_call_id":"call_1"}"#.to_owned(),
        ),
    ];
    for (sent, expected) in table {
        assert_eq!(crosses(&message(sent)), Ok(format!(r#"{{"messages":[{expected}]}}"#)));
    }
}

#[test]
fn a_member_at_fault_is_named() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(JSON_DEPTH_MAX), "]".repeat(JSON_DEPTH_MAX));
    let call = |call: Value| json!([{"role": "assistant", "tool_calls": [call]}]);
    let arguments =
        |arguments: Value| call(json!({"id": "a", "function": {"name": "f", "arguments": arguments}}));
    let name = |name: Value| call(json!({"id": "a", "function": {"name": name, "arguments": "{}"}}));
    let table = [
        (json!(null), "messages"),
        (json!([]), "messages"),
        (json!("hi"), "messages"),
        (json!(vec![json!({"role": "user", "content": "x"}); MESSAGES_MAX + 1]), "messages"),
        (json!(["hi"]), "messages[0]"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": "king", "content": "x"}]), "messages[0].role"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (json!([{"role": "user", "content": null}]), "messages[0].content"),
        (json!([{"role": "user", "content": 3}]), "messages[0].content"),
        (json!([{"role": "tool", "tool_call_id": "x"}]), "messages[0].content"),
        (json!([{"role": "user", "content": "x", "name": 3}]), "messages[0].name"),
        (json!([{"role": "tool", "content": "x", "tool_call_id": 3}]), "messages[0].tool_call_id"),
        (json!([{"role": "assistant", "refusal": 3}]), "messages[0].refusal"),
        (json!([{"role": "assistant", "function_call": {}}]), "messages[0].function_call"),
        (json!([{"role": "assistant", "audio": {"id": "x"}}]), "messages[0].audio"),
        (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content[0].type"),
        (json!([{"role": "user", "content": ["x"]}]), "messages[0].content[0].type"),
        (
            json!([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text"}]}]),
            "messages[0].content[1].text",
        ),
        (
            json!([{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]),
            "messages[0].content[0].type",
        ),
        (
            json!([{"role": "user", "content": vec![json!({"type": "text", "text": ""}); CONTENT_PARTS_MAX + 1]}]),
            "messages[0].content",
        ),
        (json!([{"role": "assistant", "tool_calls": {}}]), "messages[0].tool_calls"),
        (
            json!([{"role": "user", "content": "x", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}]),
            "messages[0].tool_calls",
        ),
        (
            json!([{"role": "assistant", "tool_calls": vec![json!({"id": "a", "function": {"name": "f"}}); TOOL_CALLS_MAX + 1]}]),
            "messages[0].tool_calls",
        ),
        (call(json!({})), "messages[0].tool_calls[0].id"),
        (call(json!("x")), "messages[0].tool_calls[0].id"),
        (call(json!({"id": "a", "type": "custom"})), "messages[0].tool_calls[0].type"),
        (name(json!("")), "messages[0].tool_calls[0].function.name"),
        (name(json!("a b")), "messages[0].tool_calls[0].function.name"),
        (name(json!("a".repeat(129))), "messages[0].tool_calls[0].function.name"),
        (name(json!(null)), "messages[0].tool_calls[0].function.name"),
        (arguments(json!("{")), "messages[0].tool_calls[0].function.arguments"),
        (arguments(json!("[]")), "messages[0].tool_calls[0].function.arguments"),
        (arguments(json!(3)), "messages[0].tool_calls[0].function.arguments"),
        (arguments(json!(deep)), "messages[0].tool_calls[0].function.arguments"),
    ];
    for (messages, param) in table {
        assert_eq!(crosses(&json!({"messages": messages})), Err(param.to_owned()), "{messages}");
    }
}

#[test]
fn what_the_template_gets_beside_the_messages() {
    let hi = json!([{"role": "user", "content": "hi"}]);
    let with = |extra: Value| {
        let mut body = json!({"messages": hi});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        crosses(&body)
    };
    let many: Value = (0..=TEMPLATE_KWARGS_MAX).map(|i| (i.to_string(), Value::Null)).collect();
    let large = "x".repeat(TEMPLATE_KWARGS_BYTES_MAX);
    let table = [
        (json!({"documents": [], "chat_template_kwargs": null}), Ok("")),
        (json!({"documents": [{"title": "t"}]}), Ok(r#","documents":[{"title":"t"}]"#)),
        (
            json!({"chat_template_kwargs": {"z": {"b": 1, "a": 2}, "enable_thinking": false}}),
            Ok(r#","chat_template_kwargs":{"z":{"b":1,"a":2},"enable_thinking":false}"#),
        ),
        (json!({"add_generation_prompt": true}), Ok(r#","add_generation_prompt":true"#)),
        (json!({"add_generation_prompt": false}), Ok(r#","add_generation_prompt":false"#)),
        (
            json!({"continue_final_message": true}),
            Ok(r#","add_generation_prompt":false,"continue_final_message":true"#),
        ),
        (
            json!({"continue_final_message": true, "add_generation_prompt": true}),
            Err("continue_final_message"),
        ),
        (json!({"continue_final_message": 1}), Err("continue_final_message")),
        (json!({"add_generation_prompt": 1}), Err("add_generation_prompt")),
        (json!({"documents": {}}), Err("documents")),
        (json!({"documents": [{}, "x"]}), Err("documents[1]")),
        (json!({"documents": vec![json!({}); DOCUMENTS_MAX + 1]}), Err("documents")),
        (json!({"chat_template_kwargs": []}), Err("chat_template_kwargs")),
        (json!({"chat_template_kwargs": {"tools": []}}), Err("chat_template_kwargs.tools")),
        (json!({"chat_template_kwargs": many}), Err("chat_template_kwargs")),
        (json!({"chat_template_kwargs": {"x": large}}), Err("chat_template_kwargs")),
    ];
    for (extra, expected) in table {
        let expected = expected
            .map(|rest| format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{rest}}}"#))
            .map_err(str::to_owned);
        assert_eq!(with(extra.clone()), expected, "{extra}");
    }
}
