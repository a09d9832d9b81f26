//! Tool calls as clients see them: in streams and whole answers, and what is refused of tools.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::asked::limits_of;
use crate::harness::{Harness, Options, Reply, run};
use pinion_frontend::admission::tools::CallReading;
use pinion_frontend::admission::{Api, admit};
use pinion_frontend::limits::{TOOLS_BYTES_MAX, TOOLS_MAX};
use pinion_protocol::frontend_inbox::{DELTA_LAST, FinishReason};
use pinion_protocol::limits::GRAMMAR_BYTES_MAX;
use pinion_protocol::tokenizer_inbox::Prompt;
use pinion_protocol::{GrammarField, GrammarKind};
use pinion_text::tools::CallFormat;
use serde_json::{Value, json};

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "d",
        "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}})
}

fn body(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// The pieces that the model says, one delta each, and the reply to them.
async fn answered(h: &Harness, extra: Value, pieces: &[&str], reason: FinishReason) -> Reply {
    let body = body(extra).to_string();
    let roles = async {
        let id = h.submit().await.id;
        for (at, piece) in (0..).zip(pieces) {
            let flags = if at as usize + 1 == pieces.len() { DELTA_LAST } else { 0 };
            h.delta(id, at, &[at], piece, flags);
        }
        h.finish(id, reason, pieces.len() as u32);
    };
    tokio::join!(h.post("/v1/chat/completions", &body), roles).0
}

const PIECES: [&str; 9] = [
    "Let me",
    " look.\n<tool",
    "_call>\n{\"name\": \"f\"",
    ", \"arguments\": {\"z\": ",
    "1,  \"a\"",
    ": \"é\"}}\n</tool_call>",
    "\n<tool_call>{\"name\": \"g\", \"arguments\": ",
    "{}}</tool_c",
    "all>\n",
];

#[test]
fn a_whole_answer_has_its_calls_and_the_text_around_them() {
    run(Options::default(), |h| async move {
        let reply = answered(&h, json!({"tools": [tool("f")]}), &PIECES, FinishReason::Stop).await;
        let choice = reply.json()["choices"][0].clone();
        let ids = [0, 1].map(|at| choice["message"]["tool_calls"][at]["id"].as_str().unwrap().to_owned());
        assert!(
            ids[0] != ids[1] && ids.iter().all(|id| id.starts_with("call_") && id.len() == 29),
            "{ids:?}"
        );
        let call = |at: usize, name: &str, arguments: &str| json!({"id": ids[at], "type": "function", "function": {"name": name, "arguments": arguments}});
        let message = json!({"role": "assistant", "content": "Let me look.\n", "refusal": null,
            "tool_calls": [call(0, "f", "{\"z\": 1,  \"a\": \"é\"}"), call(1, "g", "{}")]});
        assert_eq!((&choice["message"], &choice["finish_reason"]), (&message, &json!("tool_calls")));
        // Without text there is no content; cut off it is no end by a call.
        let reply = answered(&h, json!({"tools": [tool("f")]}), &PIECES[1..5], FinishReason::Length).await;
        let choice = reply.json()["choices"][0].clone();
        assert_eq!(choice["message"]["content"], " look.\n");
        assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"z\": 1,  \"a\"");
        assert_eq!(choice["finish_reason"], "length");
        let alone = ["<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"];
        let one = json!({"tools": [tool("f")], "parallel_tool_calls": false});
        let message =
            answered(&h, one, &alone, FinishReason::Stop).await.json()["choices"][0]["message"].clone();
        assert_eq!((&message["content"], message["tool_calls"].as_array().unwrap().len()), (&Value::Null, 1));
    });
}

#[test]
fn a_stream_has_text_then_calls_in_pieces_and_never_a_mark() {
    for fast in [true, false] {
        let mut options = Options::default();
        options.settings.fast_sse = fast;
        run(options, |h| async move {
            let extra = json!({"tools": [tool("f"), tool("g")], "stream": true});
            let reply = answered(&h, extra, &PIECES, FinishReason::Stop).await;
            let events = reply.events();
            assert_eq!(events.last().unwrap(), "[DONE]");
            let chunks: Vec<Value> =
                events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
            let deltas: Vec<Value> =
                chunks.iter().map(|chunk| chunk["choices"][0]["delta"].clone()).collect();
            let id = |at: usize| deltas[at]["tool_calls"][0]["id"].clone();
            let call = |index: u32, id: Value, name: &str| {
                json!({"tool_calls": [{"index": index, "id": id, "type": "function",
                    "function": {"name": name, "arguments": ""}}]})
            };
            let arguments = |index: u32, text: &str| json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]});
            let expected = [
                json!({"role": "assistant", "content": ""}),
                json!({"content": "Let me"}),
                json!({"content": " look.\n"}),
                call(0, id(3), "f"),
                arguments(0, "{\"z\": "),
                arguments(0, "1,  \"a\""),
                arguments(0, ": \"é\"}"),
                call(1, id(7), "g"),
                arguments(1, "{}"),
                json!({}),
            ];
            assert_eq!(deltas, expected);
            let reasons: Vec<&Value> = chunks
                .iter()
                .map(|chunk| &chunk["choices"][0]["finish_reason"])
                .filter(|r| !r.is_null())
                .collect();
            assert_eq!(reasons, ["tool_calls"]);
            assert!(!reply.body.contains("tool_call>") && id(3).is_string() && id(3) != id(7));
        });
    }
}

#[test]
fn what_is_no_call_is_text_and_so_is_every_call_without_tools() {
    run(Options::default(), |h| async move {
        let malformed = ["<tool_call>{\"name\"", ": 3}</tool_call>"];
        let whole = malformed.concat();
        let call = ["<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"];
        let tools = json!([tool("f")]);
        for (extra, pieces, text) in [
            (json!({"tools": tools}), &malformed[..], whole.as_str()),
            (json!({"tools": tools, "tool_choice": "none"}), &call[..], call[0]),
            (json!({"tools": []}), &call[..], call[0]),
        ] {
            let choice =
                answered(&h, extra.clone(), pieces, FinishReason::Stop).await.json()["choices"][0].clone();
            assert_eq!(
                (&choice["message"]["content"], &choice["finish_reason"]),
                (&json!(text), &json!("stop"))
            );
            assert!(choice["message"].get("tool_calls").is_none());
            let mut extra = extra;
            extra["stream"] = true.into();
            let reply = answered(&h, extra, pieces, FinishReason::Stop).await;
            let said: String = reply
                .events()
                .iter()
                .filter_map(|event| serde_json::from_str::<Value>(event).ok())
                .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
                .collect();
            assert_eq!(said, text);
        }
    });
}

#[test]
fn a_forced_call_is_what_the_grammar_lets_through() {
    run(Options::default(), |h| async move {
        let tools = json!([tool("f"), tool("g")]);
        let list = [
            "[{\"name\": \"g\", \"param",
            "eters\": {\"a\"",
            ": 1}}, {\"name\": \"f\", \"parameters\": {}}]",
        ];
        let required = json!({"tools": tools, "tool_choice": "required"});
        let choice =
            answered(&h, required.clone(), &list, FinishReason::Stop).await.json()["choices"][0].clone();
        let functions: Vec<&Value> = choice["message"]["tool_calls"]
            .as_array()
            .unwrap()
            .iter()
            .map(|call| &call["function"])
            .collect();
        let expected =
            [json!({"name": "g", "arguments": "{\"a\": 1}"}), json!({"name": "f", "arguments": "{}"})];
        assert_eq!(functions, expected.iter().collect::<Vec<_>>());
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&Value::Null, &json!("tool_calls"))
        );
        let named = json!({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "g"}}});
        let pieces = ["{\"a\"", ": [1]", "}"];
        let choice =
            answered(&h, named.clone(), &pieces, FinishReason::Stop).await.json()["choices"][0].clone();
        let function = json!({"name": "g", "arguments": "{\"a\": [1]}"});
        assert_eq!(choice["message"]["tool_calls"][0]["function"], function);
        assert_eq!(choice["finish_reason"], "stop", "as OpenAI has it for a function by name");
        let mut stream = named;
        stream["stream"] = true.into();
        let reply = answered(&h, stream, &pieces, FinishReason::Length).await;
        let arguments: Vec<String> = reply
            .events()
            .iter()
            .filter_map(|event| serde_json::from_str::<Value>(event).ok())
            .filter_map(|chunk| {
                let call = &chunk["choices"][0]["delta"]["tool_calls"][0];
                call["function"]["arguments"].as_str().map(str::to_owned)
            })
            .collect();
        assert_eq!(arguments, ["", "{\"a\"", ": [1]", "}"]);
    });
}

#[test]
fn a_forced_call_brings_its_grammar_and_suffers_no_other() {
    let extra = json!({"tools": [tool("f")], "tool_choice": "required"});
    let admitted =
        admit(Api::Chat, body(extra.clone()).to_string().as_bytes(), &limits_of(CallReading::Unknown), 1)
            .unwrap();
    let grammar = admitted.sampling.grammar.unwrap();
    assert_eq!((grammar.kind, grammar.field), (GrammarKind::JsonSchema, GrammarField::Tools));
    assert!(grammar.text.starts_with("{\"type\":\"array\",\"minItems\":1,"), "{}", grammar.text);
    let with = |field: &str, value: Value| {
        let mut both = extra.clone();
        both[field] = value;
        admit(Api::Chat, body(both).to_string().as_bytes(), &limits_of(CallReading::AsText), 1)
    };
    let fault = with("guided_regex", json!("a")).unwrap_err();
    assert_eq!(fault.param.as_deref(), Some("tool_choice"));
    // It is about what is said, and a call says nothing.
    let formatted = with("response_format", json!({"type": "json_object"})).unwrap();
    assert_eq!(formatted.sampling.grammar, Some(grammar));
    let large = json!({"type": "function", "function": {"name": "f",
        "parameters": {"type": "object", "description": "x".repeat(GRAMMAR_BYTES_MAX)}}});
    let large = json!({"tools": [large], "tool_choice": "required"});
    let fault =
        admit(Api::Chat, body(large).to_string().as_bytes(), &limits_of(CallReading::AsText), 1).unwrap_err();
    assert_eq!(fault.param.as_deref(), Some("tools"));
}

#[test]
fn tools_reach_the_template_unless_none_is_wanted() {
    let hermes = limits_of(CallReading::Format(CallFormat::Hermes));
    let tools = json!([tool("f"), {"type": "function", "function": {"strict": false, "name": "g"}}]);
    let table = [
        (json!({"tools": tools}), true, true),
        (json!({"tools": tools, "tool_choice": "auto", "parallel_tool_calls": true}), true, true),
        (json!({"tools": tools, "tool_choice": "none"}), false, false),
        (json!({"tools": [], "tool_choice": "none", "parallel_tool_calls": false}), false, false),
        (json!({"tools": null, "tool_choice": null}), false, false),
        (json!({"tools": [], "tool_choice": "auto"}), false, false),
        (json!({"tool_choice": "auto"}), false, false),
    ];
    for (extra, offered, read) in table {
        let admitted = admit(Api::Chat, body(extra.clone()).to_string().as_bytes(), &hermes, 1).unwrap();
        let [Prompt::Chat(chat)] = admitted.prompts.as_slice() else { panic!("not a chat") };
        let expected = if offered { format!(",\"tools\":{tools}}}") } else { "}]}".to_owned() };
        assert!(chat.ends_with(&expected), "{extra}: {chat}");
        assert_eq!(admitted.calls.is_some(), read, "{extra}");
    }
    // Where the operator wants calls left in the text the model still sees the tools.
    let as_text = admit(
        Api::Chat,
        body(json!({"tools": tools})).to_string().as_bytes(),
        &limits_of(CallReading::AsText),
        1,
    );
    assert_eq!(as_text.unwrap().calls, None);
}

#[test]
fn a_fault_of_a_tool_is_named() {
    let function =
        |function: Value| json!({"tools": [tool("a"), {"type": "function", "function": function}]});
    let choice = |choice: Value| json!({"tools": [tool("f")], "tool_choice": choice});
    let large = "x".repeat(TOOLS_BYTES_MAX);
    let many: Vec<Value> = (0..=TOOLS_MAX).map(|at| tool(&format!("f{at}"))).collect();
    let table = [
        (json!({"tools": {}}), "tools"),
        (json!({"tools": many}), "tools"),
        (json!({"tools": [{"type": "function", "function": {"name": "f", "description": large}}]}), "tools"),
        (json!({"tools": ["f"]}), "tools[0].type"),
        (json!({"tools": [{"function": {"name": "f"}}]}), "tools[0].type"),
        (json!({"tools": [{"type": "custom", "custom": {"name": "f"}}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function", "name": "f"}]}), "tools[0].function"),
        (function(json!({})), "tools[1].function.name"),
        (function(json!({"name": ""})), "tools[1].function.name"),
        (function(json!({"name": "a b"})), "tools[1].function.name"),
        (function(json!({"name": "é"})), "tools[1].function.name"),
        (function(json!({"name": "f".repeat(129)})), "tools[1].function.name"),
        (function(json!({"name": "a"})), "tools[1].function.name"),
        (function(json!({"name": "f", "description": 3})), "tools[1].function.description"),
        (function(json!({"name": "f", "parameters": []})), "tools[1].function.parameters"),
        (function(json!({"name": "f", "parameters": "{}"})), "tools[1].function.parameters"),
        (function(json!({"name": "f", "strict": "yes"})), "tools[1].function.strict"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (choice(json!("maybe")), "tool_choice"),
        (choice(json!(3)), "tool_choice"),
        (choice(json!({"type": "allowed_tools"})), "tool_choice"),
        (choice(json!({"type": "function"})), "tool_choice.function.name"),
        (choice(json!({"type": "function", "function": {"name": "g"}})), "tool_choice.function.name"),
        (json!({"tools": [tool("f")], "parallel_tool_calls": 1}), "parallel_tool_calls"),
    ];
    for (extra, param) in table {
        let text = body(extra).to_string();
        let fault = admit(Api::Chat, text.as_bytes(), &limits_of(CallReading::AsText), 1).unwrap_err();
        assert_eq!(fault.param.as_deref(), Some(param), "{text}: {fault}");
    }
    let unknown = limits_of(CallReading::Unknown);
    let text = body(json!({"tools": [tool("f")]})).to_string();
    let fault = admit(Api::Chat, text.as_bytes(), &unknown, 1).unwrap_err();
    assert_eq!(fault.param.as_deref(), Some("tool_choice"));
    let text = body(json!({"tools": [tool("f")], "tool_choice": "none"})).to_string();
    assert!(admit(Api::Chat, text.as_bytes(), &unknown, 1).is_ok());
}
