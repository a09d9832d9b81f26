//! The fast SSE writer against serde_json: the same bytes for any text and every kind of chunk.
#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use bytes::BytesMut;
use pinion_frontend::answers::openai::{Ending, Event, Head, Shape, Usage};
use pinion_frontend::answers::sse::{Writer, escape};
use proptest::prelude::*;

fn head(shape: Shape, id: &str, model: &str, include_usage: bool) -> Head {
    Head { shape, id: id.to_owned(), created: 1_790_000_000, model: model.to_owned(), include_usage }
}

fn rendered(head: &Head, fast: bool, event: &Event<'_>) -> String {
    let mut out = BytesMut::new();
    Writer::new(head.clone(), fast).write(event, &mut out);
    String::from_utf8(out.to_vec()).unwrap()
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        ".{0,40}",
        prop::collection::vec(any::<char>(), 0..60).prop_map(String::from_iter),
        "[\\x00-\\x20\"\\\\/\\x7f<>&'é終\u{2028}\u{2029}\u{1f600}]{0,60}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn escaping_equals_serde_json(text in any_text()) {
        let mut out = BytesMut::new();
        escape(&text, &mut out);
        let expected = serde_json::to_string(&text).unwrap();
        prop_assert_eq!(format!("\"{}\"", String::from_utf8(out.to_vec()).unwrap()), expected);
    }

    #[test]
    fn every_chunk_kind_equals_serde_json(
        text in any_text(), model in any_text(), id in "[a-z0-9-]{1,20}", include_usage in any::<bool>(),
        counts in any::<[u32; 3]>(),
    ) {
        let [prompt_tokens, cached_tokens, completion_tokens] = counts;
        let events = [
            Event::Role,
            Event::Text(&text),
            Event::Finish { text: &text, ending: Ending::Stop },
            Event::Finish { text: "", ending: Ending::Length },
            Event::Usage(Usage { prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens: None }),
        ];
        let calls = [
            Event::Call { index: counts[0], id: &id, name: &text },
            Event::Arguments { index: counts[0], text: &text },
            Event::Reasoning(&text),
            Event::Usage(Usage { prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens: Some(counts[0]) }),
            Event::Finish { text: "", ending: Ending::ToolCalls },
        ];
        for shape in [Shape::Completions, Shape::Chat] {
            let head = head(shape, &id, &model, include_usage);
            let calls = calls.iter().filter(|_| shape == Shape::Chat);
            for event in events.iter().chain(calls) {
                prop_assert_eq!(rendered(&head, true, event), rendered(&head, false, event));
            }
        }
    }
}

#[test]
fn chunks_are_openai_s() {
    let with_usage = head(Shape::Chat, "chatcmpl-1", "m", true);
    let chat = head(Shape::Chat, "chatcmpl-1", "m", false);
    let completion = head(Shape::Completions, "cmpl-1", "m", false);
    let chat_start = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1790000000,"model":"m","choices":["#;
    let completion_start =
        r#"data: {"id":"cmpl-1","object":"text_completion","created":1790000000,"model":"m","choices":["#;
    let usage = Usage { prompt_tokens: 3, cached_tokens: 1, completion_tokens: 4, reasoning_tokens: Some(2) };
    let table = [
        (
            &chat,
            Event::Role,
            r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#,
        ),
        (
            &chat,
            Event::Text("a\n"),
            r#"{"index":0,"delta":{"content":"a\n"},"logprobs":null,"finish_reason":null}]}"#,
        ),
        (
            &chat,
            Event::Finish { text: "", ending: Ending::Stop },
            r#"{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}"#,
        ),
        (
            &chat,
            Event::Call { index: 1, id: "call_1", name: "f" },
            r#"{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]},"logprobs":null,"finish_reason":null}]}"#,
        ),
        (
            &chat,
            Event::Arguments { index: 1, text: "{\"a" },
            r#"{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\"a"}}]},"logprobs":null,"finish_reason":null}]}"#,
        ),
        (
            &chat,
            Event::Finish { text: "", ending: Ending::ToolCalls },
            r#"{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]}"#,
        ),
        (
            &with_usage,
            Event::Text("a"),
            r#"{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
        ),
        (
            &with_usage,
            Event::Usage(usage),
            r#"],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":2}}}"#,
        ),
        (&completion, Event::Text("a"), r#"{"index":0,"text":"a","logprobs":null,"finish_reason":null}]}"#),
        (
            &completion,
            Event::Finish { text: "b", ending: Ending::Length },
            r#"{"index":0,"text":"b","logprobs":null,"finish_reason":"length"}]}"#,
        ),
    ];
    for (head, event, rest) in table {
        let start = if head.shape == Shape::Chat { chat_start } else { completion_start };
        for fast in [true, false] {
            assert_eq!(rendered(head, fast, &event), format!("{start}{rest}\n\n"), "fast: {fast}");
        }
    }
}
