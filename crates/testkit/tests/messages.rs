//! `/v1/messages` through the real processes: the fake model writes what the only choice of a grammar leaves it, and
//! the answer is the same whole, streamed, and with roles that die under it.

use crate::deaths;
use pinion_testkit::{Folder, Server, fake_model};
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";
const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if tools %}{{ tools }}{% endif %}[assistant]";
const WRITTEN: &str = "<think>\nWhere is é?\n</think>\n\nLet me see.\n<tool_call>\n\
    {\"name\": \"look\", \"arguments\": {\"at\": [1, \"é\"]}}\n</tool_call>";

fn model() -> Folder {
    let folder = fake_model(4096);
    folder.write("chat_template.jinja", TEMPLATE.replace("m.content", "m.content.split('</think>')[-1]"));
    folder
}

fn body(written: &str, extra: Value) -> Value {
    let tool = json!({"name": "look", "input_schema": {"type": "object", "properties": {}}});
    let mut body = json!({"max_tokens": 400, "messages": [{"role": "user", "content": "Where?"}], "tools": [tool],
        "guided_choice": [written]});
    let members = extra.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(members);
    body
}

/// Puts a stream together, without its ids.
fn assembled(text: &str) -> Value {
    let mut message = Value::Null;
    for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let event: Value = serde_json::from_str(data).expect("JSON");
        let block = |message: &mut Value| message["content"].as_array().map_or(0, Vec::len).saturating_sub(1);
        match event["type"].as_str().expect("a type") {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                message["content"].as_array_mut().expect("blocks").push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let at = block(&mut message);
                let (_, more) =
                    event["delta"].as_object().and_then(|delta| delta.iter().nth(1)).expect("a delta");
                let block = &mut message["content"][at];
                let member = match event["delta"]["type"].as_str().expect("a type") {
                    "input_json_delta" => "input",
                    "thinking_delta" => "thinking",
                    "signature_delta" => "signature",
                    _ => "text",
                };
                let said = block[member].as_str().unwrap_or_default();
                block[member] = format!("{said}{}", more.as_str().expect("text")).into();
            }
            "content_block_stop" => {
                let at = block(&mut message);
                if let Some(input) = message["content"][at]["input"].as_str().map(str::to_owned) {
                    message["content"][at]["input"] = serde_json::from_str(&input).expect("arguments");
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" | "ping" => {}
            other => panic!("{other}: {text}"),
        }
    }
    message
}

/// Without what differs between two answers.
fn plain(mut message: Value) -> Value {
    message["id"].take();
    for name in ["input_tokens", "cache_read_input_tokens"] {
        message["usage"][name].take();
    }
    for block in message["content"].as_array_mut().expect("blocks") {
        for name in ["id", "signature"] {
            if let Some(value) = block.get_mut(name) {
                assert_ne!(value.take().as_str().expect("text"), "");
            }
        }
    }
    message
}

fn streamed(server: &Server, body: &Value) -> String {
    let mut body = body.clone();
    body["stream"] = true.into();
    server.post(PATH, &body).text()
}

#[test]
fn a_model_that_thinks_and_calls_says_the_same_whole_and_streamed() {
    let folder = model();
    for interval in ["1", "7"] {
        let flags = ["--backend", "fake", "--tool-call-parser", "hermes", "--stream-interval", interval];
        let server = Server::start(folder.path(), &flags);
        let body = body(WRITTEN, json!({}));
        let whole = plain(server.post(PATH, &body).json());
        let content = json!([
            {"type": "thinking", "thinking": "Where is é?", "signature": null},
            {"type": "text", "text": "Let me see.\n"},
            {"type": "tool_use", "id": null, "name": "look", "input": {"at": [1, "é"]}}]);
        assert_eq!((&whole["content"], &whole["stop_reason"]), (&content, &json!("tool_use")), "{whole}");
        assert_eq!(plain(assembled(&streamed(&server, &body))), whole);
        server.stop();
    }
}

#[test]
fn a_stop_sequence_is_named_and_the_counts_are_those_of_the_prompt() {
    let folder = model();
    let server = Server::start(folder.path(), &["--backend", "fake", "--tool-call-parser", "hermes"]);
    let text = body("Here it is. END of it.", json!({"stop_sequences": ["never", "END"]}));
    let counted = server.post("/v1/messages/count_tokens", &text).json()["input_tokens"].clone();
    for message in [server.post(PATH, &text).json(), assembled(&streamed(&server, &text))] {
        assert_eq!(message["content"], json!([{"type": "text", "text": "Here it is. "}]), "{message}");
        assert_eq!(
            (&message["stop_reason"], &message["stop_sequence"]),
            (&json!("stop_sequence"), &json!("END"))
        );
        let usage = &message["usage"];
        let tokens = |name: &str| usage[name].as_u64().expect("a count");
        assert_eq!(Some(tokens("input_tokens") + tokens("cache_read_input_tokens")), counted.as_u64());
    }
    server.stop();
}

#[test]
fn a_stream_goes_on_when_a_role_dies_under_it() {
    let folder = model();
    let server = Server::start(folder.path(), &deaths::FLAGS);
    let body = body(WRITTEN, json!({}));
    let whole = plain(server.post(PATH, &body).json());
    deaths::under_streams(
        &server,
        || streamed(&server, &body),
        |answer| assert_eq!(plain(assembled(answer)), whole, "{answer}"),
    );
    server.stop();
}
