//! `timings`: only on request, and the same facts in every place where they are shown.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::harness;
use crate::harness::{Harness, Options, run};
use pinion_config::ApiKeys;
use pinion_frontend::http::app::Settings;
use pinion_os::clock;
use pinion_protocol::RequestId;
use pinion_protocol::frontend_inbox::{DELTA_LAST, FinishReason};
use pinion_protocol::names::{Counter, Part};
use serde_json::{Value, json};

const MS: u64 = 1_000_000;

/// The other roles' stamps and counters, from one millisecond ago to now.
fn play(h: &Harness, id: RequestId) {
    let slot = h.table.slot(usize::from(id.slot)).unwrap();
    let now_ns = clock::now_ns();
    for (back, part) in Part::ALL.into_iter().rev().skip(1).enumerate() {
        slot.stamp(id.generation, part.ends_at() as usize, now_ns - back as u64 * MS / 10);
    }
    for (counter, value) in [
        (Counter::PromptTokens, 3),
        (Counter::CachedTokens, 1),
        (Counter::GeneratedTokens, 2),
        (Counter::Steps, 4),
        (Counter::BatchRowsSum, 10),
        (Counter::BatchRowsMax, 6),
        (Counter::BatchPrefillSum, 8),
        (Counter::BatchPrefillMax, 7),
        (Counter::Drafts, 9),
        (Counter::AcceptedDrafts, 5),
    ] {
        slot.set_counter(id.generation, counter as usize, value);
    }
    h.delta(id, 0, &[1, 2], "ab", DELTA_LAST);
    h.finish(id, FinishReason::Length, 2);
}

fn check(timings: &Value) {
    let stages = timings["stages_ms"].as_object().unwrap();
    let sum: f64 = stages.values().map(|ms| ms.as_f64().unwrap()).sum();
    let e2e = timings["e2e_ms"].as_f64().unwrap();
    assert!((sum - e2e).abs() < 1e-6 && e2e > 0.0, "{sum} {e2e}");
    assert_eq!(
        (&timings["prompt_n"], &timings["cache_n"], &timings["predicted_n"]),
        (&json!(2), &json!(1), &json!(2))
    );
    assert_eq!((&timings["draft_n"], &timings["draft_n_accepted"]), (&json!(9), &json!(5)));
    let batch = json!({"steps": 4, "rows_mean": 2.5, "rows_max": 6, "prefill_tokens_mean": 2.0, "prefill_tokens_max": 7});
    assert_eq!(timings["batch"], batch);
}

#[test]
fn a_whole_answer_carries_them_in_body_and_head() {
    for (path, wanted) in [
        ("/v1/completions", r#"{"prompt":"hi","timings":true}"#),
        ("/generate", r#"{"prompt":"hi","timings":true}"#),
        ("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"hi"}],"timings":true}"#),
    ] {
        run(Options::default(), |h| async move {
            let client = h.post_raw(path, wanted).await;
            play(&h, h.submit().await.id);
            let reply = harness::Reply::read(client).await;
            check(&reply.json()["timings"]);
            let field = reply.head.lines().find_map(|line| line.strip_prefix("server-timing: ")).unwrap();
            for part in Part::ALL {
                assert!(field.contains(&format!("{};dur=", part.name())), "{field}");
            }
            assert!(field.contains("total;dur="), "{field}");

            let client = h.post_raw(path, &wanted.replace("true", "false")).await;
            play(&h, h.submit().await.id);
            let reply = harness::Reply::read(client).await;
            assert!(reply.json().get("timings").is_none() && !reply.head.contains("server-timing"), "{path}");
        });
    }
}

#[test]
fn a_stream_carries_them_in_one_event_before_its_end() {
    for fast_sse in [true, false] {
        for usage in [true, false] {
            let settings = Settings { fast_sse, ..Options::default().settings };
            run(Options { settings, ..Options::default() }, |h| async move {
                let body = json!({"prompt": "hi", "stream": true, "timings": true,
                    "stream_options": {"include_usage": usage}});
                let client = h.post_raw("/v1/completions", &body.to_string()).await;
                play(&h, h.submit().await.id);
                let events = harness::Reply::read(client).await.events();
                assert_eq!(events.last().unwrap(), "[DONE]");
                let with: Vec<&String> =
                    events.iter().filter(|event| event.contains("\"timings\"")).collect();
                assert_eq!((with.len(), with[0]), (1, &events[events.len() - 2]));
                let event: Value = serde_json::from_str(with[0]).unwrap();
                assert_eq!(event["choices"], json!([]));
                assert_eq!(event.get("usage"), usage.then_some(&Value::Null));
                check(&event["timings"]);
            });
        }
    }
}

#[test]
fn several_choices_show_the_one_that_ended_last() {
    for stream in [false, true] {
        run(Options::default(), |h| async move {
            let body = json!({"prompt": "hi", "n": 2, "stream": stream, "timings": true});
            let client = h.post_raw("/v1/completions", &body.to_string()).await;
            let (first, second) = (h.submit().await.id, h.submit().await.id);
            play(&h, first);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            play(&h, second);
            let reply = harness::Reply::read(client).await;
            let timings = if stream {
                let events = reply.events();
                serde_json::from_str::<Value>(&events[events.len() - 2]).unwrap()["timings"].clone()
            } else {
                reply.json()["timings"].clone()
            };
            check(&timings);
            assert!(timings["e2e_ms"].as_f64().unwrap() > 5.0, "{timings}");
        });
    }
}

#[test]
fn bare_text_has_no_place_for_them() {
    run(Options::default(), |h| async move {
        let reply = h.post("/generate", r#"{"prompt":"hi","stream":true,"timings":true}"#).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("timings")));
    });
}

#[test]
fn the_slowest_are_on_a_page_of_their_own_and_in_the_histograms() {
    let settings = Settings { api_keys: ApiKeys::new(vec!["k".into()]), ..Options::default().settings };
    run(Options { settings, ..Options::default() }, |h| async move {
        let ask = |line: &str, body: &str| {
            let length = body.len();
            format!(
                "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: mine\r\n\
                     authorization: Bearer k\r\ncontent-length: {length}\r\n\r\n{body}"
            )
        };
        let (post, get) = (ask("POST /v1/completions", r#"{"prompt":"hi"}"#), ask("GET /debug/slow", ""));
        let answer = async { h.request(&post).await };
        let roles = async { play(&h, h.submit().await.id) };
        assert_eq!(tokio::join!(answer, roles).0.status, 200);
        assert_eq!(h.get("/debug/slow").await.status, 401);
        let page = h.request(&get).await.json();
        for measure in ["by_e2e", "by_ttft"] {
            assert_eq!(page[measure].as_array().unwrap().len(), 1, "{page}");
            assert_eq!(
                (&page[measure][0]["request_id"], &page[measure][0]["reason"]),
                (&json!("mine"), &json!("length"))
            );
            check(&page[measure][0]["timings"]);
        }
        let metrics = h.get("/metrics").await.body;
        for part in Part::ALL {
            let line = format!("pinion_stage_seconds_count{{stage=\"{}\"}} 1\n", part.name());
            assert!(metrics.contains(&line), "{line}");
        }
    });
}
