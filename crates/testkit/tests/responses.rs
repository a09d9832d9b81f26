//! `/v1/responses` through the real processes: the fake model writes what the only choice of a grammar leaves it, and
//! the answer is the same whole, streamed, kept, and with roles that die under it.

use crate::deaths;
use pinion_testkit::{Folder, PATIENCE, Response, Server, fake_model, wait_until};
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";
const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if tools %}{{ tools }}{% endif %}[assistant]";
const WRITTEN: &str = "<think>\nWhere is é?\n</think>\n\nLet me see.\n<tool_call>\n\
    {\"name\": \"look\", \"arguments\": {\"at\": [1, \"é\"]}}\n</tool_call>";

fn model() -> Folder {
    let folder = fake_model(4096);
    folder.write(
        "chat_template.jinja",
        TEMPLATE.replace("m.content", "(m.content or '').split('</think>')[-1]"),
    );
    folder
}

fn body(written: &str, extra: Value) -> Value {
    let tool =
        json!({"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}});
    let mut body =
        json!({"max_output_tokens": 400, "input": "Where?", "tools": [tool], "guided_choice": [written]});
    let members = extra.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(members);
    body
}

/// Puts a stream together from its deltas. Numbers without a gap say that nothing is missing, and nothing said twice.
fn assembled(text: &str) -> Value {
    let (mut output, mut last): (Vec<Value>, Value) = (Vec::new(), Value::Null);
    for (number, data) in text.lines().filter_map(|line| line.strip_prefix("data: ")).enumerate() {
        let event: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(event["sequence_number"], number, "{text}");
        assert!(last.is_null(), "nothing comes after the end: {text}");
        let more = |place: &mut Value| {
            let said = place.as_str().expect("a text");
            *place = format!("{said}{}", event["delta"].as_str().expect("a delta")).into();
        };
        let item = event["output_index"].as_u64().map_or(0, |index| index as usize);
        match event["type"].as_str().and_then(|name| name.strip_prefix("response.")).expect("a type") {
            "output_item.added" => output.push(event["item"].clone()),
            "content_part.added" => output[item]["content"] = json!([event["part"]]),
            "output_text.delta" | "reasoning_text.delta" => more(&mut output[item]["content"][0]["text"]),
            "function_call_arguments.delta" => more(&mut output[item]["arguments"]),
            "output_item.done" => output[item]["status"] = event["item"]["status"].clone(),
            "completed" | "incomplete" => last = event["response"].clone(),
            "created"
            | "in_progress"
            | "output_text.done"
            | "reasoning_text.done"
            | "function_call_arguments.done"
            | "content_part.done" => {}
            other => panic!("{other}: {text}"),
        }
    }
    assert_eq!(last["output"], json!(output), "{text}");
    last
}

/// Without what differs between two answers.
fn plain(mut response: Value) -> Value {
    for name in ["id", "created_at"] {
        assert!(!response[name].take().is_null());
    }
    for name in ["input_tokens", "input_tokens_details", "total_tokens"] {
        response["usage"][name].take();
    }
    for item in response["output"].as_array_mut().expect("items") {
        for name in ["id", "call_id"] {
            if let Some(value) = item.get_mut(name) {
                assert_ne!(value.take().as_str().expect("text"), "");
            }
        }
    }
    response
}

fn streamed(server: &Server, body: &Value) -> String {
    let mut body = body.clone();
    body["stream"] = true.into();
    server.post(PATH, &body).text()
}

fn kept(server: &Server, method: &str, id: &Value) -> Response {
    let path = format!("{PATH}/{}", id.as_str().expect("an id"));
    server.request(method, &path, &[], b"").unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

#[test]
fn a_model_that_thinks_and_calls_says_the_same_whole_streamed_and_kept() {
    let folder = model();
    for interval in ["1", "7"] {
        let flags = ["--backend", "fake", "--tool-call-parser", "hermes", "--stream-interval", interval];
        let server = Server::start(folder.path(), &flags);
        let body = body(WRITTEN, json!({}));
        let first = server.post(PATH, &body).json();
        let whole = plain(first.clone());
        let text = |kind: &str, text: &str| match kind {
            "reasoning_text" => json!([{"type": kind, "text": text}]),
            _ => json!([{"type": kind, "text": text, "annotations": [], "logprobs": []}]),
        };
        let output = json!([
            {"id": null, "type": "reasoning", "summary": [], "content": text("reasoning_text", "Where is é?"), "status": "completed"},
            {"id": null, "type": "message", "status": "completed", "role": "assistant", "content": text("output_text", "Let me see.\n")},
            {"id": null, "type": "function_call", "status": "completed", "call_id": null, "name": "look", "arguments": "{\"at\": [1, \"é\"]}"}]);
        assert_eq!((&whole["output"], &whole["status"]), (&output, &json!("completed")), "{whole}");
        let stream = assembled(&streamed(&server, &body));
        for response in [&first, &stream] {
            assert_eq!(kept(&server, "GET", &response["id"]).json(), *response);
        }
        assert_eq!(plain(stream), whole);
        server.stop();
    }
}

#[test]
fn a_conversation_goes_on_as_if_its_items_were_sent_again() {
    let folder = model();
    let flags =
        ["--backend", "fake", "--tool-call-parser", "hermes", "--responses-ttl", "10s", "--strict-fields"];
    let server = Server::start(folder.path(), &flags);
    let first = server.post(PATH, &body(WRITTEN, json!({}))).json();
    let result =
        json!({"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "here"});
    let mut items = vec![json!({"role": "user", "content": "Where?"})];
    items.extend(first["output"].as_array().expect("items").clone());
    items.push(result.clone());
    let again = server.post(PATH, &body("There.", json!({"input": items, "store": false}))).json();
    let next = json!({"previous_response_id": first["id"], "input": [result]});
    let next = server.post(PATH, &body("There.", next)).json();
    assert_eq!(next["output"][0]["content"][0]["text"], "There.", "{next}");
    assert_eq!(next["usage"]["input_tokens"], again["usage"]["input_tokens"]);
    assert_eq!(kept(&server, "GET", &again["id"]).status(), 404, "store: false");
    assert_eq!(kept(&server, "DELETE", &next["id"]).status(), 200);
    assert_eq!(kept(&server, "GET", &next["id"]).status(), 404);
    wait_until("its time is over", PATIENCE, || {
        (kept(&server, "GET", &first["id"]).status() == 404).then_some(())
    });
    let late = server.post(PATH, &body("There.", json!({"previous_response_id": first["id"]})));
    let error = late.json()["error"].clone();
    assert_eq!((late.status(), &error["param"]), (400, &json!("previous_response_id")));
    assert_eq!(error["code"], "previous_response_not_found");
    let unknown = server.post(PATH, &body("There.", json!({"temprature": 0})));
    assert_eq!((unknown.status(), &unknown.json()["error"]["param"]), (400, &json!("temprature")));
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
        |answer| {
            let response = assembled(answer);
            assert_eq!(kept(&server, "GET", &response["id"]).json(), response);
            assert_eq!(plain(response), whole, "{answer}");
        },
    );
    server.stop();
}
