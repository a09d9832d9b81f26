//! Reasoning as clients see it: in a member of its own, counted, told from the answer and its tool calls, however the
//! text comes.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::{Harness, Options, run};
use pinion_config::SamplingDefaults;
use pinion_protocol::frontend_inbox::{DELTA_LAST, DELTA_MARK, FinishReason};
use pinion_protocol::names::Counter;
use pinion_protocol::reasoning::ReasoningFound;
use pinion_protocol::tokenizer_inbox::Prompt;
use pinion_protocol::{Reasoning, RequestId};
use serde_json::{Value, json};

fn options() -> Options {
    Options { reasons: true, ..Options::default() }
}

fn body(extra: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
}

/// What a client gets of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
struct Fields {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
    ending: String,
    reasoning_tokens: u64,
}

/// What the tokenizer says in the slot.
fn found(h: &Harness, id: RequestId, reasoning: Reasoning, marks_are_tokens: bool) {
    let word = ReasoningFound { reasoning, marks_are_tokens }.to_word();
    let slot = h.table.slot(usize::from(id.slot)).unwrap();
    slot.set_counter(id.generation, Counter::Reasoning as usize, word);
}

/// One delta a piece; a piece that begins with a null is a mark.
fn say(h: &Harness, id: RequestId, pieces: &[&str]) {
    for (at, piece) in (0..).zip(pieces) {
        let last = if at as usize + 1 == pieces.len() { DELTA_LAST } else { 0 };
        match piece.strip_prefix('\0') {
            Some(mark) => h.delta(id, at, &[at], mark, DELTA_MARK | last),
            None => h.delta(id, at, &[at], piece, last),
        }
    }
}

async fn answered(
    h: &Harness,
    extra: &Value,
    begins: (Reasoning, bool),
    pieces: &[&str],
    reason: FinishReason,
) -> Fields {
    let body = body(extra);
    let roles = async {
        let submit = h.submit().await;
        assert_eq!(submit.sampling.reasoning, Reasoning::Possible);
        found(h, submit.id, begins.0, begins.1);
        say(h, submit.id, pieces);
        h.finish(submit.id, reason, pieces.len() as u32);
    };
    let sent = body.to_string();
    let reply = tokio::join!(h.post("/v1/chat/completions", &sent), roles).0;
    if body["stream"] == true { streamed(&reply.events()) } else { whole(&reply.json()) }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn whole(answer: &Value) -> Fields {
    let choice = &answer["choices"][0];
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let call = |call: &Value| {
        let function = &call["function"];
        (text(&function["name"]).to_owned(), text(&function["arguments"]).to_owned())
    };
    Fields {
        reasoning: text(&choice["message"]["reasoning_content"]).to_owned(),
        content: text(&choice["message"]["content"]).to_owned(),
        calls: calls.iter().map(call).collect(),
        ending: text(&choice["finish_reason"]).to_owned(),
        reasoning_tokens: answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap(),
    }
}

fn streamed(events: &[String]) -> Fields {
    let mut fields = Fields::default();
    assert_eq!(events.last().unwrap(), "[DONE]");
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).unwrap();
        if let Some(tokens) = chunk["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64() {
            fields.reasoning_tokens = tokens;
        }
        let Some(choice) = chunk["choices"].get(0) else { continue };
        let delta = &choice["delta"];
        fields.reasoning += text(&delta["reasoning_content"]);
        if delta.get("reasoning_content").is_some() {
            assert!(fields.content.is_empty() && delta.get("content").is_none(), "{event}");
        }
        fields.content += text(&delta["content"]);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            match function["name"].as_str() {
                Some(name) => fields.calls.push((name.to_owned(), text(&function["arguments"]).to_owned())),
                None => fields.calls.last_mut().unwrap().1 += text(&function["arguments"]),
            }
        }
        fields.ending += text(&choice["finish_reason"]);
    }
    fields
}

fn fields(reasoning: &str, content: &str, reasoning_tokens: u64, ending: &str) -> Fields {
    Fields {
        reasoning: reasoning.to_owned(),
        content: content.to_owned(),
        ending: ending.to_owned(),
        reasoning_tokens,
        ..Fields::default()
    }
}

#[test]
fn reasoning_has_a_member_of_its_own_and_is_counted() {
    run(options(), |h| async move {
        use FinishReason::{Length, Stop};
        use Reasoning::{Begun, None, Possible};
        const TOKENS: bool = true;
        let pieces = ["\0<think>", "\nI may", " write </think>\n", "\0</think>", "\n\nHéllo", ".\n"];
        type Case<'a> = ((Reasoning, bool), &'a [&'a str], FinishReason, Fields);
        let cases: [Case<'_>; 8] = [
            ((Possible, TOKENS), &pieces, Stop, fields("I may write </think>", "Héllo.\n", 2, "stop")),
            ((Begun, TOKENS), &pieces[1..], Stop, fields("I may write </think>", "Héllo.\n", 2, "stop")),
            ((Begun, TOKENS), &pieces[1..3], Length, fields("I may write </think>", "", 2, "length")),
            ((None, TOKENS), &pieces[3..], Stop, fields("", "Héllo.\n", 0, "stop")),
            ((Possible, TOKENS), &["a", "<think>b"], Stop, fields("", "a<think>b", 0, "stop")),
            ((Possible, !TOKENS), &["<th", "ink>", "a", "</think>b"], Stop, fields("a", "b", 2, "stop")),
            ((Begun, !TOKENS), &["a</", "think", ">b"], Stop, fields("a", "b", 3, "stop")),
            ((None, !TOKENS), &["<think>"], Stop, fields("", "<think>", 0, "stop")),
        ];
        for (begins, pieces, reason, expected) in cases {
            for stream in [false, true] {
                let mut extra = json!({ "stream": stream });
                if stream {
                    extra["stream_options"] = json!({"include_usage": true});
                }
                let got = answered(&h, &extra, begins, pieces, reason).await;
                assert_eq!(got, expected, "{begins:?} {pieces:?} {stream}");
                extra["include_reasoning"] = json!(false);
                let got = answered(&h, &extra, begins, pieces, reason).await;
                let hidden = Fields { reasoning: String::new(), ..expected.clone() };
                assert_eq!(got, hidden, "not shown, but counted");
            }
        }
    });
}

/// Each cut of the text gives what the whole gives, with and without marks that are tokens.
#[test]
fn a_stream_cut_anywhere_has_the_fields_of_the_whole() {
    const THOUGHT: &str = "\nWas ist é?\n<tool";
    const ANSWER: &str =
        "\n\nSo: \n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"é\"}}\n</tool_call>\n";
    run(options(), |h| async move {
        let extra = json!({"tools": tools(), "stream": true, "stream_options": {"include_usage": true}});
        let in_text = format!("<think>{THOUGHT}</think>{ANSWER}");
        let expected = Fields {
            reasoning: "Was ist é?\n<tool".to_owned(),
            content: "So: \n".to_owned(),
            calls: vec![("f".to_owned(), "{\"x\": \"é\"}".to_owned())],
            ending: "tool_calls".to_owned(),
            reasoning_tokens: 0,
        };
        let same = |got: Fields| assert_eq!(Fields { reasoning_tokens: 0, ..got }, expected);
        for (cut, _) in in_text.char_indices() {
            let pieces = [&in_text[..cut], &in_text[cut..]];
            same(answered(&h, &extra, (Reasoning::Possible, false), &pieces, FinishReason::Stop).await);
        }
        for (cut, _) in THOUGHT.char_indices() {
            let (mark, begun) = ("\0</think>", (Reasoning::Begun, true));
            let pieces = [&THOUGHT[..cut], &THOUGHT[cut..], mark, ANSWER];
            same(answered(&h, &extra, begun, &pieces, FinishReason::Stop).await);
        }
        for (cut, _) in ANSWER.char_indices() {
            let pieces = ["\0<think>", THOUGHT, "\0</think>", &ANSWER[..cut], &ANSWER[cut..]];
            same(answered(&h, &extra, (Reasoning::Possible, true), &pieces, FinishReason::Stop).await);
        }
        let whole = json!({ "tools": tools() });
        same(answered(&h, &whole, (Reasoning::Possible, false), &[&in_text], FinishReason::Stop).await);
    });
}

#[test]
fn a_tool_call_ends_the_reasoning() {
    run(options(), |h| async move {
        let pieces = ["I will call", "\n<tool_call>{\"name\": \"f\", ", "\"arguments\": {}}</tool_call>"];
        let begins = (Reasoning::Begun, true);
        let got = answered(&h, &json!({ "tools": tools() }), begins, &pieces, FinishReason::Stop).await;
        let calls = vec![("f".to_owned(), "{}".to_owned())];
        assert_eq!(got, Fields { calls, ..fields("I will call", "", 2, "tool_calls") });
        // Without tools the mark is part of the reasoning.
        let got = answered(&h, &json!({}), begins, &pieces[..2], FinishReason::Length).await;
        assert_eq!(got.reasoning, "I will call\n<tool_call>{\"name\": \"f\", ");
        // A forced call follows the reasoning.
        let forced = json!({"tools": tools(), "tool_choice": "required"});
        let pieces = ["hm", "\0</think>", "[{\"name\": \"f\", \"parameters\": {\"a\": 1}}]"];
        let got = answered(&h, &forced, begins, &pieces, FinishReason::Stop).await;
        let calls = vec![("f".to_owned(), "{\"a\": 1}".to_owned())];
        assert_eq!(got, Fields { calls, ..fields("hm", "", 1, "tool_calls") });
    });
}

#[test]
fn what_asks_for_reasoning_and_what_does_not() {
    run(options(), |h| async move {
        let asked = |extra: Value| {
            let h = &h;
            async move {
                let reply = h.post_raw("/v1/chat/completions", &body(&extra).to_string()).await;
                let submit = h.submit().await;
                let open = h.sent.borrow_mut().opens.pop_back().unwrap();
                drop(reply);
                (submit, open)
            }
        };
        let (submit, open) = asked(json!({"stop": ["x"]})).await;
        assert!(open.form.marks && submit.sampling.reasoning == Reasoning::Possible);
        // A stop string that has a mark may reach across it.
        let (submit, open) = asked(json!({"stop": ["</think>\n"]})).await;
        assert!(!open.form.marks && submit.sampling.reasoning == Reasoning::Possible);
        let kwargs = |prompt: &Prompt| {
            let Prompt::Chat(chat) = prompt else { panic!("not a chat: {prompt:?}") };
            serde_json::from_str::<Value>(chat).unwrap()["chat_template_kwargs"].clone()
        };
        for (extra, expected) in [
            (json!({}), Value::Null),
            (
                json!({"reasoning_effort": "none"}),
                json!({"enable_thinking": false, "reasoning_effort": "none"}),
            ),
            (json!({"reasoning_effort": "high"}), json!({"reasoning_effort": "high"})),
            (
                json!({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true, "x": 1}}),
                json!({"enable_thinking": true, "x": 1, "reasoning_effort": "none"}),
            ),
            (json!({"chat_template_kwargs": {"enable_thinking": false}}), json!({"enable_thinking": false})),
        ] {
            let (submit, _) = asked(extra.clone()).await;
            assert_eq!(kwargs(&submit.prompt), expected, "{extra}");
        }
        for (extra, field) in [
            (json!({"reasoning_effort": "much"}), "reasoning_effort"),
            (json!({"include_reasoning": 1}), "include_reasoning"),
        ] {
            let reply = h.post("/v1/chat/completions", &body(&extra).to_string()).await;
            assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(field)));
        }
    });
    run(Options::default(), |h| async move {
        let _reply = h.post_raw("/v1/chat/completions", &body(&json!({})).to_string()).await;
        assert_eq!(h.submit().await.sampling.reasoning, Reasoning::None);
        assert!(!h.sent.borrow().opens[0].form.marks);
    });
}

#[test]
fn defaults_of_the_model_hold_where_a_request_says_nothing() {
    let defaults = SamplingDefaults {
        temperature: Some(0.5),
        top_p: Some(0.25),
        top_k: Some(7),
        min_p: Some(0.125),
        repetition_penalty: Some(1.5),
        max_new_tokens: Some(99),
    };
    run(Options { defaults, ..Options::default() }, |h| async move {
        let cases = [
            (json!({}), (0.5, 0.25, Some(7), 0.125, 1.5)),
            (
                json!({"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}),
                (1.0, 1.0, None, 0.0, 1.0),
            ),
            (json!({"temperature": 0, "top_k": -1}), (0.0, 0.25, None, 0.125, 1.5)),
        ];
        for (extra, expected) in cases {
            let _reply = h.post_raw("/v1/chat/completions", &body(&extra).to_string()).await;
            let s = h.submit().await.sampling;
            assert_eq!((s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty), expected, "{extra}");
            assert_eq!(s.max_tokens, None, "the tokenizer knows how much room there is");
        }
        let models = h.get("/v1/models").await.json();
        let shown = json!({"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125,
            "repetition_penalty": 1.5, "max_tokens": 99});
        assert_eq!(models["data"][0]["default_sampling_params"], shown);
    });
}
