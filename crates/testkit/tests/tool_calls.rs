//! Tool calls that the model is free to make (`tool_choice: auto`), from its tokens to the client's events, in each
//! format. The fake model writes what the only choice of a grammar leaves it, one byte a token.

use pinion_testkit::{PATIENCE, Server, fake_model, wait_until};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// A format, what the model writes, the text that is left beside the calls, and their names and arguments.
type Case = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const CASES: [Case; 6] = [
    (
        "hermes",
        "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Malmö\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>",
        "Let me see.\n",
        &[("weather", "{\"city\": \"Malmö\"}"), ("time", "{}")],
    ),
    (
        "llama3_json",
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"Lund\"}}",
        "",
        &[("weather", "{\"city\": \"Lund\"}")],
    ),
    (
        "mistral",
        "[TOOL_CALLS][{\"name\": \"time\", \"arguments\": {\"zone\": [1, 2]}}]",
        "",
        &[("time", "{\"zone\": [1, 2]}")],
    ),
    (
        "qwen3_coder",
        "Let me see.\n<tool_call>\n<function=weather>\n<parameter=city>\nMalmö\n</parameter>\n</function>\n</tool_call>\n\
         <tool_call>\n<function=time>\n</function>\n</tool_call>",
        "Let me see.\n",
        &[("weather", "{\"city\": \"Malmö\"}"), ("time", "{}")],
    ),
    (
        "pythonic",
        "[weather(city='Malmö', days=[1, True]), time()]",
        "",
        &[("weather", "{\"city\": \"Malmö\", \"days\": [1, true]}"), ("time", "{}")],
    ),
    ("none", "<tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>", "", &[]),
];

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}})
}

/// What a message says: its text, its calls and why it ended.
#[derive(Debug, Default, PartialEq)]
struct Said {
    content: String,
    calls: Vec<(String, String)>,
    ids: Vec<String>,
    reason: String,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn whole(server: &Server, body: &Value) -> Said {
    let answer = server.post(CHAT, body).json();
    let choice = &answer["choices"][0];
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let function = |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
    Said {
        content: text(&choice["message"]["content"]),
        calls: calls.iter().map(function).collect(),
        ids: calls.iter().map(|call| text(&call["id"])).collect(),
        reason: text(&choice["finish_reason"]),
    }
}

/// Puts the deltas together as clients do.
fn streamed(server: &Server, body: &Value) -> Said {
    let answer = server.post(CHAT, body).text();
    assert!(answer.ends_with("data: [DONE]\n\n"), "{answer}");
    let mut said = Said::default();
    for data in answer.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]")
    {
        let chunk: Value = serde_json::from_str(data).expect("JSON");
        let choice = &chunk["choices"][0];
        said.content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        for part in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = part["index"].as_u64().expect("an index") as usize;
            if let Some(id) = part["id"].as_str() {
                assert_eq!(index, said.calls.len(), "calls come one after the other: {data}");
                said.ids.push(id.to_owned());
                said.calls.push((text(&part["function"]["name"]), String::new()));
            }
            let arguments = part["function"]["arguments"].as_str().expect("a piece of the arguments");
            said.calls[index].1.push_str(arguments);
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            assert_eq!(said.reason, "", "one finish reason: {answer}");
            said.reason = reason.to_owned();
        }
    }
    said
}

#[test]
fn calls_that_the_model_is_free_to_make_reach_the_client_in_every_format() {
    let folder = fake_model(4096);
    for (format, written, content, calls) in CASES {
        let logged = ["--access-log", "--log-format", "json"];
        let flags = [&["--backend", "fake", "--tool-call-parser", format], &logged[..]].concat();
        let server = Server::start(folder.path(), &flags);
        let body = |stream: bool| {
            json!({"messages": [{"role": "user", "content": "How is it there?"}], "tools": [tool("weather"), tool("time")],
                "tool_choice": "auto", "guided_choice": [written], "max_tokens": 400, "stream": stream})
        };
        let (content, reason) = if calls.is_empty() { (written, "stop") } else { (content, "tool_calls") };
        for said in [whole(&server, &body(false)), streamed(&server, &body(true))] {
            let names: Vec<(&str, &str)> =
                said.calls.iter().map(|(name, arguments)| (name.as_str(), arguments.as_str())).collect();
            assert_eq!(
                (said.content.as_str(), &names[..], said.reason.as_str()),
                (content, calls, reason),
                "{format}"
            );
            let distinct = said.ids.iter().collect::<std::collections::BTreeSet<_>>().len();
            assert_eq!(distinct, calls.len(), "{:?}", said.ids);
        }
        server.wait_idle();
        let endings = wait_until("both requests are logged", PATIENCE, || {
            Some(logged_endings(&server)).filter(|endings| endings.len() == 2)
        });
        assert_eq!(endings, [reason, reason], "{format}: the access log says what the clients got");
        server.stop();
    }
}

/// `finish` of the lines of the access log.
fn logged_endings(server: &Server) -> Vec<String> {
    let log = server.stderr_text();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let answers = lines.filter(|line| line["message"] == "access" && line["path"] == CHAT);
    answers.map(|line| text(&line["finish"])).collect()
}

/// The fake model takes either way, as its draw falls; along each there is one text.
#[test]
fn a_model_that_must_write_json_may_call_a_tool_instead() {
    let folder = fake_model(4096);
    let only = |name: &str, value: &str| json!({"type": "object", "properties": {name: {"const": value}}, "required": [name]});
    let offered = json!({"type": "function", "function": {"name": "weather", "strict": true, "parameters": only("city", "Malmö")}});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "said", "schema": only("!", "It rains.")}});
    let server = Server::start(folder.path(), &["--backend", "fake", "--tool-call-parser", "hermes"]);
    let body = |turn: usize| {
        json!({"messages": [{"role": "user", "content": format!("Turn {turn}")}], "tools": [offered], "max_tokens": 400,
            "response_format": format, "parallel_tool_calls": false, "stream": turn % 2 == 1})
    };
    let (mut calls, mut answers) = (0, 0);
    for turn in 0..48 {
        let said = if turn % 2 == 1 { streamed(&server, &body(turn)) } else { whole(&server, &body(turn)) };
        if said.reason == "tool_calls" {
            calls += 1;
            assert_eq!(said.content, "", "turn {turn}");
            assert_eq!(said.calls, [("weather".to_owned(), "{\"city\": \"Malmö\"}".to_owned())]);
        } else {
            answers += 1;
            assert_eq!(
                (said.content.as_str(), said.reason.as_str()),
                ("{\"!\": \"It rains.\"}", "stop"),
                "turn {turn}"
            );
        }
    }
    assert!(calls > 0 && answers > 0, "{calls} calls, {answers} answers");
    // What must be a call says nothing, so the format has nothing to say either.
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for (choice, reason) in [(json!("required"), "tool_calls"), (named, "stop")] {
        let mut forced = body(0);
        forced["tool_choice"] = choice;
        let said = whole(&server, &forced);
        assert_eq!((said.calls.len(), said.reason.as_str()), (1, reason), "{said:?}");
    }
    server.wait_idle();
    server.stop();
}

/// Arguments that a schema leaves open come to an end, or to the end of `max_tokens`.
#[test]
fn a_forced_call_ends_whatever_its_schema() {
    const TOKENS_MAX: u64 = 48;
    let folder = fake_model(4096);
    let server = Server::start(folder.path(), &["--backend", "fake"]);
    let answer = |parameters: &Value, turn: usize| {
        let mut tool = json!({"type": "function", "function": {"name": "f"}});
        if !parameters.is_null() {
            tool["function"]["parameters"] = parameters.clone();
        }
        let choice = json!({"type": "function", "function": {"name": "f"}});
        let body = json!({"messages": [{"role": "user", "content": format!("Turn {turn}")}], "tools": [tool],
            "tool_choice": choice, "max_tokens": TOKENS_MAX});
        let response = server.post(CHAT, &body);
        assert_eq!(response.status(), 200, "{parameters}: {}", response.text());
        let answer = response.json();
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        (text(&answer["choices"][0]["finish_reason"]), text(&call["arguments"]), answer["usage"].clone())
    };
    for none in [
        Value::Null,
        json!({"type": "object", "properties": {}}),
        json!({"type": "object", "additionalProperties": false}),
    ] {
        let (reason, arguments, _) = answer(&none, 0);
        assert_eq!((reason.as_str(), arguments.as_str()), ("stop", "{}"), "{none}");
    }
    let needs = |schema: Value| json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
    let (mut ended, mut cut, mut free) = (0, 0, 0);
    for open in [
        json!({"type": "object"}),
        needs(json!({})),
        needs(json!({"type": "string"})),
        needs(json!({"type": "integer"})),
        needs(json!({"type": "array"})),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
    ] {
        for turn in 0..8 {
            let (reason, arguments, usage) = answer(&open, turn);
            if reason == "length" {
                assert_eq!(usage["completion_tokens"], TOKENS_MAX, "{open}");
                cut += 1;
                continue;
            }
            assert_eq!(reason, "stop", "{open}");
            let whole: Value =
                serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{arguments}: {error}"));
            ended += 1;
            free += usize::from(open.get("properties").is_none() && whole != json!({}));
        }
    }
    println!("{ended} ended, {cut} cut, {free} with members of their own");
    assert!(ended > 0 && cut > 0);
    server.wait_idle();
    server.stop();
}
