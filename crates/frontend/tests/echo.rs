//! The prompt in the answer: `echo` with and without logprobs, whole and streamed, `prompt_logprobs` in both shapes,
//! and what happens when scores are missing.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::deaths::{DETOKENIZER, be_killed, resumed, return_to_life};
use crate::harness::{Harness, Options, run};
use pinion_protocol::RequestId;
use pinion_protocol::frontend_inbox::{
    DELTA_LAST, DELTA_PROMPT, Decoded, FinishReason, kind, put_scored_delta,
};
use pinion_protocol::names::Counter;
use pinion_protocol::prompt_scores::begin_prompt_score;
use pinion_protocol::scores::{LogprobEntry, begin_scores, put_score};
use pinion_protocol::tokenizer_inbox::{Prompt, TokenizerRecord};
use serde_json::{Value, json};

type Entry<'a> = (u32, &'a [u8], f32);

/// One token of the prompt: its rank, then itself and the likeliest at its place.
fn prompt_score(h: &Harness, id: RequestId, index: u32, rank: Option<u32>, entries: &[Entry<'_>]) {
    let (mut scores, mut record) = (Vec::new(), Vec::new());
    begin_prompt_score(&mut scores, rank);
    begin_scores(&mut scores, entries.len());
    for (token, text, logprob) in entries {
        put_score(&mut scores, LogprobEntry { token: *token, logprob: *logprob }, text, false);
    }
    put_scored_delta(&mut record, id, index, &[], "", DELTA_PROMPT, &scores);
    h.take(kind::DELTAS, &record);
}

/// A generated token with its own logprob.
fn token(h: &Harness, id: RequestId, sequence: u32, text: &str, flags: u32, scored: bool) {
    let (mut scores, mut record) = (Vec::new(), Vec::new());
    if scored {
        begin_scores(&mut scores, 1);
        put_score(&mut scores, LogprobEntry { token: 9, logprob: -0.5 }, text.as_bytes(), false);
    }
    put_scored_delta(&mut record, id, sequence, &[9], text, flags, &scores);
    h.take(kind::DELTAS, &record);
}

/// The prompt "hé": "h", then "é" in two tokens; three tokens as the harness counts them.
fn prompt_scores(h: &Harness, id: RequestId) {
    prompt_score(h, id, 0, None, &[(1, b"h", 0.0)]);
    prompt_score(h, id, 1, Some(3), &[(2, b"\xc3", -1.5), (7, b"x", -0.25), (8, b"y", -1.0)]);
    prompt_score(h, id, 2, Some(1), &[(3, b"\xa9", -0.125), (3, b"\xa9", -0.125), (7, b"x", -4.0)]);
}

async fn choice(h: &Harness, body: &Value, tell: impl Future<Output = ()>) -> Value {
    let text = body.to_string();
    let (reply, ()) = tokio::join!(h.post("/v1/completions", &text), tell);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["choices"][0].clone()
}

#[test]
fn a_completion_begins_with_its_prompt() {
    run(Options::default(), |h| async move {
        let body = json!({"prompt": "hé", "echo": true, "logprobs": 2, "max_tokens": 1});
        let got = choice(&h, &body, async {
            let submit = h.submit().await;
            assert_eq!((submit.sampling.logprobs, submit.sampling.prompt_logprobs), (Some(2), Some(2)));
            prompt_scores(&h, submit.id);
            token(&h, submit.id, 0, "!", DELTA_LAST, true);
            h.finish(submit.id, FinishReason::Length, 1);
        })
        .await;
        assert_eq!((&got["text"], got.get("prompt_logprobs")), (&json!("hé!"), None));
        let expected = json!({
            "tokens": ["h", "\u{fffd}", "\u{fffd}", "!"],
            "token_logprobs": [null, -1.5, -0.125, -0.5],
            "top_logprobs": [null, {"x": -0.25, "y": -1.0, "\u{fffd}": -1.5}, {"\u{fffd}": -0.125, "x": -4.0}, {"!": -0.5}],
            "text_offset": [0, 1, 2, 2],
        });
        assert_eq!(got["logprobs"], expected);
    });
}

#[test]
fn nothing_but_the_prompt_ends_by_length() {
    run(Options::default(), |h| async move {
        let body = json!({"prompt": "hé", "echo": true, "logprobs": 0, "max_tokens": 0});
        let got = choice(&h, &body, async {
            let id = h.submit().await.id;
            prompt_scores(&h, id);
            h.delta(id, 0, &[], "", DELTA_LAST);
            h.finish(id, FinishReason::Length, 0);
        })
        .await;
        assert_eq!((&got["text"], &got["finish_reason"]), (&json!("hé"), &json!("length")));
        assert_eq!(got["logprobs"]["token_logprobs"], json!([null, -1.5, -0.125]));
        assert_eq!(got["logprobs"]["top_logprobs"][1], json!({"\u{fffd}": -1.5}), "none was asked for");
    });
}

#[test]
fn an_echo_of_ids_is_decoded_first_and_not_scored_without_logprobs() {
    run(Options::default(), |h| async move {
        let body = json!({"prompt": [[5, 6], "b"], "echo": true, "max_tokens": 1}).to_string();
        let roles = async {
            let TokenizerRecord::Decode(decode) = h.job().await else { panic!("not a decode") };
            assert_eq!(decode.ids, [5, 6]);
            let mut record = Vec::new();
            Decoded { id: decode.id, text: "five six".into() }.encode(&mut record);
            h.take(kind::DECODED, &record);
            for (prompt, text) in [(Prompt::Ids(vec![5, 6]), "."), (Prompt::Text("b".into()), "!")] {
                let submit = h.submit().await;
                assert_eq!((&submit.prompt, submit.sampling.prompt_logprobs), (&prompt, None));
                token(&h, submit.id, 0, text, DELTA_LAST, false);
                h.finish(submit.id, FinishReason::Length, 1);
            }
        };
        let (reply, ()) = tokio::join!(h.post("/v1/completions", &body), roles);
        let texts: Vec<Value> =
            reply.json()["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect();
        assert_eq!(texts, ["five six.", "b!"]);
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_stream_says_the_prompt_first() {
    for logprobs in [None, Some(1)] {
        run(Options::default(), move |h| async move {
            let mut body = json!({"prompt": "hé", "echo": true, "max_tokens": 2, "stream": true});
            if let Some(logprobs) = logprobs {
                body["logprobs"] = json!(logprobs);
            }
            let text = body.to_string();
            let roles = async {
                let id = h.submit().await.id;
                if logprobs.is_some() {
                    prompt_scores(&h, id);
                }
                token(&h, id, 0, "a", 0, logprobs.is_some());
                token(&h, id, 1, "b", DELTA_LAST, logprobs.is_some());
                h.finish(id, FinishReason::Length, 2);
            };
            let (reply, ()) = tokio::join!(h.post("/v1/completions", &text), roles);
            let mut events = reply.events();
            assert_eq!(events.pop().as_deref(), Some("[DONE]"));
            let choice = |event: &String| serde_json::from_str::<Value>(event).unwrap()["choices"][0].clone();
            let choices: Vec<Value> = events.iter().map(choice).collect();
            let texts: Vec<&str> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
            assert_eq!(texts, ["hé", "a", "b"]);
            let offsets: Vec<&Value> = choices.iter().map(|c| &c["logprobs"]["text_offset"]).collect();
            match logprobs {
                Some(_) => assert_eq!(offsets, [&json!([0, 1, 2]), &json!([2]), &json!([3])]),
                None => assert!(offsets.iter().all(|offset| offset.is_null())),
            }
        });
    }
}

#[test]
fn a_long_prompt_is_streamed_in_pieces_that_add_up() {
    run(Options::default(), |h| async move {
        let prompt: String = (0..150).map(|at| if at % 7 == 0 { 'é' } else { 'a' }).collect();
        let body = json!({"prompt": prompt, "echo": true, "logprobs": 0, "max_tokens": 0, "stream": true});
        let text = body.to_string();
        let tell = prompt.clone();
        let roles = async {
            let id = h.submit().await.id;
            for (index, character) in (0..).zip(tell.chars()) {
                let rank = (index > 0).then_some(1);
                prompt_score(&h, id, index, rank, &[(1, character.to_string().as_bytes(), -1.0)]);
            }
            h.delta(id, 0, &[], "", DELTA_LAST);
            let finished = pinion_protocol::frontend_inbox::Finished {
                id,
                reason: FinishReason::Length,
                prompt_tokens: 150,
                cached_tokens: 0,
                generated_tokens: 0,
            };
            let mut record = Vec::new();
            finished.encode(&mut record);
            h.take(kind::FINISHED, &record);
        };
        let (reply, ()) = tokio::join!(h.post("/v1/completions", &text), roles);
        let mut events = reply.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        let (mut said, mut offsets) = (String::new(), Vec::new());
        for event in &events {
            let choice = &serde_json::from_str::<Value>(event).unwrap()["choices"][0];
            let logprobs = choice["logprobs"]["text_offset"].as_array().cloned().unwrap_or_default();
            offsets.extend(logprobs.iter().map(|offset| offset.as_u64().unwrap()));
            said.push_str(choice["text"].as_str().unwrap());
        }
        assert_eq!((said, events.len()), (prompt, 4), "64, 64, 22, and the finish");
        assert_eq!(offsets, (0..150).collect::<Vec<u64>>());
    });
}

/// It is there before the client can read any of it.
#[test]
fn a_prompt_longer_than_the_bound_on_unread_bytes_is_streamed() {
    run(Options { buffer_bytes_max: 4 << 10, ..Options::default() }, |h| async move {
        let prompt = "p".repeat(9 << 10);
        let body = json!({"prompt": prompt, "echo": true, "stream": true, "max_tokens": 2}).to_string();
        let roles = async {
            let id = h.submit().await.id;
            token(&h, id, 0, "a", 0, false);
            token(&h, id, 1, "b", DELTA_LAST, false);
            h.finish(id, FinishReason::Length, 2);
        };
        let (reply, ()) = tokio::join!(h.post("/v1/completions", &body), roles);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let events = reply.events();
        let (done, chunks) = events.split_last().unwrap();
        let text = |chunk: &String| {
            let chunk: Value = serde_json::from_str(chunk).unwrap();
            chunk["choices"][0]["text"].as_str().unwrap().to_owned()
        };
        assert_eq!((done.as_str(), chunks.iter().map(text).collect::<String>()), ("[DONE]", prompt + "ab"));
    });
}

#[test]
fn prompt_logprobs_stand_in_the_choice_or_beside_it() {
    let expected = json!([
        null,
        {"2": {"logprob": -1.5, "rank": 3, "decoded_token": "\u{fffd}"}, "7": {"logprob": -0.25, "rank": 1, "decoded_token": "x"}},
        {"3": {"logprob": -0.125, "rank": 1, "decoded_token": "\u{fffd}"}},
    ]);
    for (path, mut body) in [
        ("/v1/completions", json!({"prompt": "hé"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "hé"}]})),
    ] {
        let expected = expected.clone();
        run(Options::default(), move |h| async move {
            body["prompt_logprobs"] = json!(1);
            let text = body.to_string();
            let roles = async {
                let submit = h.submit().await;
                assert_eq!((submit.sampling.logprobs, submit.sampling.prompt_logprobs), (None, Some(1)));
                prompt_scores(&h, submit.id);
                token(&h, submit.id, 0, "!", DELTA_LAST, false);
                h.finish(submit.id, FinishReason::Length, 1);
            };
            let (reply, ()) = tokio::join!(h.post(path, &text), roles);
            let answer = reply.json();
            let chat = path.contains("chat");
            let got =
                if chat { &answer["prompt_logprobs"] } else { &answer["choices"][0]["prompt_logprobs"] };
            assert_eq!(got, &expected, "{answer}");
            assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
            let text = if chat {
                &answer["choices"][0]["message"]["content"]
            } else {
                &answer["choices"][0]["text"]
            };
            assert_eq!(text, "!", "the prompt itself is not shown");
        });
    }
}

/// A gap condemns the edge. When it has been replaced the request gets all scores once more.
#[test]
fn missing_scores_are_computed_anew_and_repeated_ones_change_nothing() {
    for (indices, tokens, gaps) in [
        (vec![0, 1, 1, 0, 2], 0, 0),
        (vec![0, 2], 0, 1),
        (vec![0, 1], 0, 1),
        (vec![0, 1], 1, 1),
        (vec![], 1, 1),
        (vec![1], 1, 1),
    ] {
        run(Options::default(), move |h| async move {
            let body = json!({"prompt": "hé", "echo": true, "logprobs": 1, "max_tokens": tokens}).to_string();
            let score = |id, index: u32| {
                prompt_score(&h, id, index, (index > 0).then_some(1), &[(1, b"a", -1.0)]);
            };
            let end = |id| {
                if tokens > 0 {
                    token(&h, id, 0, "!", DELTA_LAST, true);
                } else {
                    h.delta(id, 0, &[], "", DELTA_LAST);
                }
                h.finish(id, FinishReason::Length, tokens);
            };
            let roles = async {
                let id = h.submit().await.id;
                let slot = h.table.slot(usize::from(id.slot)).unwrap();
                slot.set_counter(id.generation, Counter::PromptTokens as usize, 3);
                h.sent.borrow_mut().opens.clear();
                for index in indices {
                    if h.malformed.get() == 0 {
                        score(id, index);
                    }
                }
                if h.malformed.get() == 0 {
                    end(id);
                }
                if gaps > 0 {
                    be_killed(&h, DETOKENIZER);
                    return_to_life(&h, DETOKENIZER);
                    let (_, again) = resumed(&h).await;
                    assert_eq!(again.resume, [0_u32; 0]);
                    (0..3).for_each(|index| score(again.id, index));
                    end(again.id);
                }
            };
            let (reply, ()) = tokio::join!(h.post("/v1/completions", &body), roles);
            assert_eq!(reply.status, 200, "{}", reply.body);
            let logprobs = &reply.json()["choices"][0]["logprobs"]["token_logprobs"];
            assert_eq!(logprobs.as_array().unwrap()[..3], [json!(null), json!(-1.0), json!(-1.0)]);
            assert_eq!((h.malformed.get(), h.slots_used()), (gaps, 0));
        });
    }
}
