//! Reasoning from the model's tokens to the client's members, through the real processes: marks in the text, marks that
//! are tokens, a grammar that begins behind them, and the death of roles in the middle. The templates are our own.

use pinion_testkit::{Folder, Oracle, PATIENCE, Server, Signal, fake_model, kill, wait_until};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
/// Ids of the marks in [`marked_model`].
const OPEN: u32 = 257;
const CLOSE: u32 = 258;

/// A template whose prompts end inside the reasoning, unless the client wants none.
const OPENS: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";
/// One that leaves it to the model to begin.
const LEAVES: &str =
    "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% endfor %}[assistant]";

/// The byte tokenizer with both marks as tokens.
fn marked_model(template: &str) -> Folder {
    let folder = fake_model(4096);
    let json = pinion_text::byte_tokenizer_json_with(&["<think>", "</think>"]);
    folder.write("tokenizer.json", json);
    let config = json!({"model_type": "gpt2", "vocab_size": 259, "eos_token_id": 256, "n_positions": 4096,
        "n_embd": 64, "n_head": 4, "n_layer": 2});
    folder.write("config.json", config.to_string());
    folder.write("chat_template.jinja", template);
    folder
}

/// What a client gets.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
    reason: String,
    reasoning_tokens: Option<u64>,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn reasoning_tokens(usage: &Value) -> Option<u64> {
    usage["completion_tokens_details"]["reasoning_tokens"].as_u64()
}

/// The answer to a body, whole and then streamed: both say the same.
fn asked(server: &Server, body: &Value) -> Said {
    let whole = whole(&server.post(CHAT, body).json());
    let mut streaming = body.clone();
    streaming["stream"] = true.into();
    streaming["stream_options"] = json!({"include_usage": true});
    assert_eq!(streamed(&server.post(CHAT, &streaming).text()), whole, "{body}");
    whole
}

fn whole(answer: &Value) -> Said {
    let choice = &answer["choices"][0];
    let call = |call: &Value| {
        let function = &call["function"];
        (text(&function["name"]).to_owned(), text(&function["arguments"]).to_owned())
    };
    Said {
        reasoning: text(&choice["message"]["reasoning_content"]).to_owned(),
        content: text(&choice["message"]["content"]).to_owned(),
        calls: choice["message"]["tool_calls"].as_array().into_iter().flatten().map(call).collect(),
        reason: text(&choice["finish_reason"]).to_owned(),
        reasoning_tokens: reasoning_tokens(&answer["usage"]),
    }
}

fn streamed(answer: &str) -> Said {
    assert!(answer.ends_with("data: [DONE]\n\n"), "{answer}");
    let mut said = Said::default();
    for data in answer.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]")
    {
        let chunk: Value = serde_json::from_str(data).expect("JSON");
        said.reasoning_tokens = said.reasoning_tokens.or(reasoning_tokens(&chunk["usage"]));
        let Some(choice) = chunk["choices"].get(0) else { continue };
        said.reasoning.push_str(text(&choice["delta"]["reasoning_content"]));
        said.content.push_str(text(&choice["delta"]["content"]));
        for part in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            if let Some(name) = part["function"]["name"].as_str() {
                said.calls.push((name.to_owned(), String::new()));
            }
            said.calls.last_mut().expect("a call").1.push_str(text(&part["function"]["arguments"]));
        }
        said.reason.push_str(text(&choice["finish_reason"]));
    }
    said
}

/// The model writes one byte a token, so a stream is cut at every byte, and in every way with `--stream-interval`.
#[test]
fn marks_in_the_text_of_a_model_without_tokens_for_them() {
    let folder = fake_model(4096);
    folder.write("chat_template.jinja", LEAVES);
    let written = "<think>\nWas ist é?\n</think>\n\nSo: \n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"é\"}}\n\
        </tool_call>";
    let said = Said {
        reasoning: "Was ist é?".to_owned(),
        content: "So: \n".to_owned(),
        calls: vec![("f".to_owned(), "{\"x\": \"é\"}".to_owned())],
        reason: "tool_calls".to_owned(),
        reasoning_tokens: None,
    };
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let body = json!({"messages": [{"role": "user", "content": "Was?"}], "tools": [tool],
        "guided_choice": [written], "max_tokens": 400});
    for interval in ["1", "7"] {
        let flags = ["--backend", "fake", "--tool-call-parser", "hermes", "--stream-interval", interval];
        let server = Server::start(folder.path(), &flags);
        let got = asked(&server, &body);
        assert!(got.reasoning_tokens.is_some_and(|tokens| (1..40).contains(&tokens)), "{got:?}");
        assert_eq!(Said { reasoning_tokens: None, ..got }, said);
        let mut hidden = body.clone();
        hidden["include_reasoning"] = false.into();
        let expected = Said { reasoning: String::new(), ..said.clone() };
        assert_eq!(Said { reasoning_tokens: None, ..asked(&server, &hidden) }, expected);
        // A stop string fires inside the reasoning, too.
        let mut stopped = body.clone();
        stopped["stop"] = json!(["ist"]);
        let got = asked(&server, &stopped);
        assert_eq!((got.reasoning.as_str(), got.content.as_str(), got.reason.as_str()), ("Was ", "", "stop"));
        server.stop();
    }
    let flags = ["--backend", "fake", "--tool-call-parser", "hermes", "--reasoning-parser", "none"];
    let server = Server::start(folder.path(), &flags);
    let got = asked(&server, &body);
    assert_eq!((got.reasoning.as_str(), got.reasoning_tokens), ("", None));
    assert!(got.content.starts_with("<think>\nWas ist é?\n</think>"), "{got:?}");
    server.stop();
}

/// A question after which the fake model closes its reasoning by itself, and the reasoning's tokens.
fn question(oracle: &Oracle, from: usize) -> (Value, Vec<u32>) {
    for index in from.. {
        let messages = json!([{"role": "user", "content": format!("question {index}")}]);
        let ids = oracle.ids(&oracle.encode_chat(&messages), 300);
        let end = ids.iter().position(|id| *id == CLOSE).unwrap_or(0);
        if end >= 20 && !ids[..end].contains(&OPEN) {
            return (messages, ids[..end].to_vec());
        }
    }
    unreachable!("one in a few questions will do")
}

/// The grammar holds for the answer and not for the reasoning, which the model ends by a token of its own.
#[test]
fn marks_that_are_tokens_and_a_grammar_behind_them() {
    let folder = marked_model(OPENS);
    let server = Server::start(folder.path(), &["--backend", "fake"]);
    let oracle = server.oracle();
    for from in [0, 1000, 2000] {
        let (messages, thoughts) = question(&oracle, from);
        let reasoning = oracle.decode(&thoughts).trim_matches('\n').to_owned();
        let body = json!({"messages": messages, "guided_choice": ["yes, </think>"], "max_tokens": 400});
        let expected = Said {
            reasoning,
            content: "yes, </think>".to_owned(),
            reason: "stop".to_owned(),
            reasoning_tokens: Some(thoughts.len() as u64),
            ..Said::default()
        };
        assert_eq!(asked(&server, &body), expected);
        // Cut off inside the reasoning there is no content.
        let mut short = body.clone();
        short["max_tokens"] = 10.into();
        let got = server.post(CHAT, &short).json();
        assert_eq!(got["choices"][0]["message"]["content"], Value::Null);
        assert_eq!(
            (reasoning_tokens(&got["usage"]), text(&got["choices"][0]["finish_reason"])),
            (Some(10), "length")
        );
        // A call that is forced follows the reasoning.
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object",
            "properties": {"a": {"enum": ["b"]}}, "required": ["a"], "additionalProperties": false}}});
        let named = json!({"type": "function", "function": {"name": "f"}});
        let forced = json!({"messages": messages, "tools": [tool], "tool_choice": named, "max_tokens": 400});
        let got = asked(&server, &forced);
        assert_eq!(got.calls, [("f".to_owned(), "{\"a\": \"b\"}".to_owned())], "{got:?}");
        // Without thinking the grammar holds from the first token on.
        for none in
            [json!({"reasoning_effort": "none"}), json!({"chat_template_kwargs": {"enable_thinking": false}})]
        {
            let mut body = body.clone();
            body.as_object_mut().expect("an object").extend(none.as_object().expect("an object").clone());
            let content = "yes, </think>".to_owned();
            let expected =
                Said { content, reason: "stop".to_owned(), reasoning_tokens: Some(0), ..Said::default() };
            assert_eq!(asked(&server, &body), expected);
        }
    }
    server.stop();
}

/// Roles die while the model reasons and while it answers: the stream goes on, and its members are the same.
#[test]
fn reasoning_goes_on_after_the_death_of_a_role() {
    let folder = marked_model(OPENS);
    let flags = ["--backend", "fake", "--fake-step-us", "8000", "--restart-backoff", "20ms"];
    let server = Server::start(folder.path(), &flags);
    let oracle = server.oracle();
    let answer = "the answer is a text of some length, so that it takes its time";
    for (round, role) in ["engine-0", "detokenizer-0", "tokenizer-0", "engine-0"].into_iter().enumerate() {
        let (messages, thoughts) = question(&oracle, 100 * round);
        let body = json!({"messages": messages, "guided_choice": [answer], "max_tokens": 400, "stream": true,
            "stream_options": {"include_usage": true}});
        let victim = server.role(role).expect("the role runs");
        let said = std::thread::scope(|scope| {
            let asking = scope.spawn(|| streamed(&server.post(CHAT, &body).text()));
            // The answer may have come before the look.
            wait_until("it runs", PATIENCE, || {
                (server.metric("pinion_requests_running") > 0.0 || asking.is_finished()).then_some(())
            });
            std::thread::sleep(std::time::Duration::from_millis(60 + 150 * round as u64));
            kill(victim.pid, Signal::SIGKILL);
            asking.join().expect("the client's thread")
        });
        let expected = Said {
            reasoning: oracle.decode(&thoughts).trim_matches('\n').to_owned(),
            content: answer.to_owned(),
            reason: "stop".to_owned(),
            reasoning_tokens: Some(thoughts.len() as u64),
            ..Said::default()
        };
        assert_eq!(said, expected, "{role}, round {round}");
        wait_until("the role is back", PATIENCE, || {
            server.role(role).filter(|role| role.pid != victim.pid).map(drop)
        });
    }
    server.stop();
}

/// A text ends at any of the model's ends, whichever file names it.
#[test]
fn every_end_that_a_file_names_ends_a_text() {
    let folder = fake_model(512);
    let oracle = Oracle::of(folder.path());
    let ids = oracle.ids(&oracle.encode("to its end"), 60);
    let (first, third) = (ids[20], ids[33]);
    let end = ids.iter().position(|id| [first, third].contains(id)).expect("they are there");
    let file = json!({"eos_token_id": [256, first, third], "temperature": 0.25});
    folder.write("generation_config.json", file.to_string());
    let server = Server::start(folder.path(), &["--backend", "fake"]);
    let ask = |extra: Value| {
        let mut body = json!({"prompt": "to its end", "max_tokens": 60});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let answer = server.post("/v1/completions", &body).json();
        let tokens = answer["usage"]["completion_tokens"].as_u64().expect("a count") as usize;
        (tokens, text(&answer["choices"][0]["finish_reason"]).to_owned())
    };
    assert_eq!(ask(json!({})), (end + 1, "stop".to_owned()));
    assert_eq!(ask(json!({"ignore_eos": true})), (60, "length".to_owned()));
    let (tokens, _) = ask(json!({ "min_tokens": end + 5 }));
    assert!(tokens > end + 5, "{tokens} tokens");
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["default_sampling_params"], json!({"temperature": 0.25}));
    server.stop();
}
