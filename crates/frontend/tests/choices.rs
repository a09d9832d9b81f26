//! One HTTP request with several choices: lists of prompts, and `n`.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::{Harness, Options, Reply, run, wait_for};
use pinion_frontend::observe::metrics::EndReason;
use pinion_protocol::frontend_inbox::{DELTA_LAST, DELTA_STOPPED, FinishReason, kind, put_scored_delta};
use pinion_protocol::scores::{LogprobEntry, begin_scores, put_score};
use pinion_protocol::tokenizer_inbox::{Prompt, Submit};
use pinion_protocol::{Fault, FaultCode, RequestId};
use serde_json::{Value, json};

async fn submits(h: &Harness, count: usize) -> Vec<Submit> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(h.submit().await);
    }
    all
}

/// Says a whole text of two tokens.
fn answer(h: &Harness, id: RequestId, text: &str) {
    h.delta(id, 0, &[1, 2], text, DELTA_LAST);
    h.finish(id, FinishReason::Length, 2);
}

#[test]
fn prompts_times_n_are_choices_in_order_with_seeds_of_their_own_and_counts_summed() {
    run(Options::default(), |h| async move {
        let body = r#"{"prompt":["a",[5,6]],"n":2,"seed":9,"max_tokens":2}"#;
        let (reply, seeds) = tokio::join!(h.post("/v1/completions", body), async {
            let all = submits(&h, 4).await;
            let text = |text: &str| Prompt::Text(text.to_owned());
            let prompts: Vec<&Prompt> = all.iter().map(|submit| &submit.prompt).collect();
            let ids = Prompt::Ids(vec![5, 6]);
            assert_eq!(prompts, [&text("a"), &text("a"), &ids, &ids]);
            for (submit, text) in all.iter().zip(["w", "x", "y", "z"]).rev() {
                answer(&h, submit.id, text);
            }
            all.iter().map(|submit| submit.sampling.seed).collect::<Vec<_>>()
        });
        assert_eq!(
            (seeds[0], seeds[2], seeds[1]),
            (9, 9, seeds[3]),
            "a prompt's first choice has the seed itself"
        );
        assert_ne!(seeds[1], 9);
        let value = reply.json();
        let choices = value["choices"].as_array().unwrap();
        let told: Vec<(u64, &str)> = (choices.iter())
            .map(|choice| (choice["index"].as_u64().unwrap(), choice["text"].as_str().unwrap()))
            .collect();
        assert_eq!(told, [(0, "w"), (1, "x"), (2, "y"), (3, "z")]);
        let usage = json!({"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 2}});
        assert_eq!(value["usage"], usage);
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_chat_with_n_has_messages_by_index() {
    run(Options::default(), |h| async move {
        let body = r#"{"messages":[{"role":"user","content":"hi"}],"n":3}"#;
        let (reply, ()) = tokio::join!(h.post("/v1/chat/completions", body), async {
            for (submit, text) in submits(&h, 3).await.iter().zip(["a", "b", "c"]) {
                answer(&h, submit.id, text);
            }
        });
        let texts: Vec<Value> = (reply.json()["choices"].as_array().unwrap().iter())
            .map(|choice| choice["message"]["content"].clone())
            .collect();
        assert_eq!(texts, ["a", "b", "c"]);
    });
}

/// The texts by choice, after checks of what every stream has to hold.
fn told(reply: &Reply, count: usize) -> Vec<String> {
    let events = reply.events();
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!((done.as_str(), reply.complete), ("[DONE]", true), "{events:?}");
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 2 * count);
    assert_eq!(usage["usage"]["prompt_tokens"], 3);
    let (mut texts, mut endings) = (vec![String::new(); count], vec![0; count]);
    for chunk in chunks {
        assert_eq!((&chunk["usage"], &chunk["id"]), (&Value::Null, &usage["id"]));
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        assert_eq!(endings[index], 0, "text after the end of choice {index}");
        endings[index] += usize::from(!choice["finish_reason"].is_null());
        let text = choice["text"].as_str().or(choice["delta"]["content"].as_str());
        texts[index].push_str(text.unwrap_or(""));
    }
    assert_eq!(endings, vec![1; count]);
    texts
}

#[test]
fn a_stream_interleaves_choices_and_has_one_account_and_one_end_on_both_paths() {
    for (fast, account_late) in [(true, false), (true, true), (false, false)] {
        for (path, prompt) in [
            ("/v1/completions", r#""prompt":"hi""#),
            ("/v1/chat/completions", r#""messages":[{"role":"user","content":"hi"}]"#),
        ] {
            let mut options = Options::default();
            options.settings.fast_sse = fast;
            run(options, |h| async move {
                let body = format!(
                    "{{{prompt},\"n\":3,\"stream\":true,\"stream_options\":{{\"include_usage\":true}}}}"
                );
                let (reply, ()) = tokio::join!(h.post(path, &body), async {
                    let ids: Vec<RequestId> = submits(&h, 3).await.iter().map(|submit| submit.id).collect();
                    for (at, id) in ids.iter().enumerate().rev() {
                        h.delta(*id, 0, &[1], &format!("{at}a"), 0);
                        tokio::task::yield_now().await;
                    }
                    for (at, id) in ids.iter().enumerate() {
                        h.delta(*id, 1, &[2], &format!("{at}b"), DELTA_LAST | DELTA_STOPPED);
                        if !account_late {
                            h.finish(*id, FinishReason::Stop, 2);
                        }
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                    if account_late {
                        ids.iter().for_each(|id| h.finish(*id, FinishReason::Stop, 2));
                    }
                });
                assert_eq!(told(&reply, 3), ["0a0b", "1a1b", "2a2b"], "{path} fast {fast}");
                assert_eq!(h.slots_used(), 0);
            });
        }
    }
}

#[test]
fn one_failure_ends_the_whole_with_one_error_and_cancels_the_others() {
    for (stream, begun) in [(false, false), (true, false), (true, true)] {
        run(Options::default(), |h| async move {
            let body = json!({"prompt": ["a", "b", "c"], "stream": stream}).to_string();
            let client = h.post_raw("/v1/completions", &body).await;
            let ids: Vec<RequestId> = submits(&h, 3).await.iter().map(|submit| submit.id).collect();
            if begun {
                h.delta(ids[0], 0, &[1], "seen", 0);
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            h.reject(ids[1], Fault::field("prompt", "too long"));
            h.reject(ids[2], Fault::new(FaultCode::RoleRestarted, "gone"));
            let reply = Reply::read(client).await;
            assert_eq!(reply.status, if begun { 200 } else { 400 }, "{reply:?}");
            assert_eq!(reply.body.matches("\"error\"").count(), 1, "{reply:?}");
            assert!(reply.body.contains("too long") && !reply.body.contains("[DONE]"), "{reply:?}");
            wait_for("the cancellation", || h.cancelled(ids[0]).then_some(())).await;
            h.finish(ids[0], FinishReason::Cancelled, 1);
            h.delta(ids[0], 1, &[], "", DELTA_LAST);
            wait_for("the slots", || (h.slots_used() == 0).then_some(())).await;
            let ends = |reason| h.app.metrics.engine_requests(&[reason]);
            assert_eq!((ends(EndReason::Withdrawn), ends(EndReason::Disconnected)), (1, 0), "no client left");
        });
    }
}

#[test]
fn a_client_that_leaves_cancels_every_choice() {
    run(Options::default(), |h| async move {
        let body = r#"{"prompt":"a","n":4,"stream":true}"#;
        let client = h.post_raw("/v1/completions", body).await;
        let all = submits(&h, 4).await;
        h.delta(all[0].id, 0, &[1], "seen", 0);
        drop(client);
        for submit in &all {
            wait_for("the cancellation", || h.cancelled(submit.id).then_some(())).await;
        }
    });
}

#[test]
fn too_many_choices_are_refused_before_any_begins() {
    run(Options::default(), |h| async move {
        let many = |count: usize, n: u32| json!({"prompt": vec!["x"; count], "n": n}).to_string();
        for (body, status, param) in [
            (many(1, 129), 400, "n"),
            (many(1, 1_000_000), 400, "n"),
            (many(129, 1), 400, "prompt"),
            (many(65, 2), 400, "n"),
            (many(3, 3), 400, "n"),
            (json!({"prompt": ["a", [1]], "n": 0}).to_string(), 400, "n"),
            (json!({"prompt": ["a", 1]}).to_string(), 400, "prompt"),
            (json!({"prompt": [[1], []]}).to_string(), 400, "prompt"),
            (json!({"prompt": "a", "n": 3, "best_of": 2}).to_string(), 400, "best_of"),
            (json!({"prompt": "a", "best_of": 129}).to_string(), 400, "best_of"),
            (json!({"prompt": vec!["a"; 65], "best_of": 2}).to_string(), 400, "best_of"),
            (json!({"prompt": "a", "best_of": 2, "stream": true}).to_string(), 400, "best_of"),
        ] {
            let reply = h.post("/v1/completions", &body).await;
            let got = (reply.status, reply.json()["error"]["param"].clone());
            assert_eq!(got, (status, json!(param)), "{}", &body[..body.len().min(80)]);
        }
        let held = h.post_raw("/v1/completions", &many(5, 1)).await;
        submits(&h, 5).await;
        let reply = h.post("/v1/completions", &many(2, 2)).await;
        assert_eq!(reply.status, 429, "{reply:?}");
        assert!(reply.head.contains("retry-after: 1") && h.slots_used() == 5);
        drop(held);
    });
}

/// One token with this logprob.
fn scored(h: &Harness, id: RequestId, text: &str, logprob: f32) {
    let (mut scores, mut record) = (Vec::new(), Vec::new());
    begin_scores(&mut scores, 1);
    put_score(&mut scores, LogprobEntry { token: 1, logprob }, text.as_bytes(), false);
    put_scored_delta(&mut record, id, 0, &[1], text, DELTA_LAST, &scores);
    h.take(kind::DELTAS, &record);
    h.finish(id, FinishReason::Length, 1);
}

#[test]
fn best_of_shows_the_likeliest_and_counts_all() {
    for logprobs in [None, Some(1)] {
        run(Options::default(), move |h| async move {
            let body = json!({"prompt": ["a", "b"], "n": 2, "best_of": 4, "logprobs": logprobs}).to_string();
            let roles = async {
                let all = submits(&h, 8).await;
                assert!(all.iter().all(|submit| submit.sampling.logprobs == logprobs.or(Some(0))));
                let texts = ["w", "x", "y", "z", "W", "X", "Y", "Z"];
                let likely = [-1.0, -0.5, -3.0, -0.25, -0.1, -5.0, -0.1, -0.2];
                for ((submit, text), logprob) in all.iter().zip(texts).zip(likely) {
                    scored(&h, submit.id, text, logprob);
                }
            };
            let (reply, ()) = tokio::join!(h.post("/v1/completions", &body), roles);
            let value = reply.json();
            let choices = value["choices"].as_array().unwrap();
            let told: Vec<(u64, &str)> = (choices.iter())
                .map(|choice| (choice["index"].as_u64().unwrap(), choice["text"].as_str().unwrap()))
                .collect();
            assert_eq!(told, [(0, "z"), (1, "x"), (2, "W"), (3, "Y")]);
            let has_logprobs = choices.iter().map(|choice| !choice["logprobs"].is_null());
            assert!(has_logprobs.eq([logprobs.is_some(); 4]));
            let usage = json!({"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14,
                "prompt_tokens_details": {"cached_tokens": 2}});
            assert_eq!((&value["usage"], h.slots_used()), (&usage, 0));
        });
    }
}
