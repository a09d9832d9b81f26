//! `/v1/embeddings`, `/v1/score` and `/v1/rerank` for a model that pools: what becomes of the other roles' vectors.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::deaths::{DETOKENIZER, ENGINE, die, error_of, pass, return_to_life, stamp};
use crate::harness::{Harness, Options, PATIENCE_WITH_ROLES, Reply, run, wait_for};
use pinion_config::{Pooling, PoolingKind, Shorter};
use pinion_protocol::frontend_inbox::{DELTA_LAST, FinishReason, encode_pooled, kind};
use pinion_protocol::names::Stage;
use pinion_protocol::tokenizer_inbox::{Prompt, TokenizerRecord, Truncation};
use pinion_protocol::{Fault, RequestId};
use serde_json::{Value, json};

fn pooling(shorter: Shorter) -> Options {
    let pooling = Pooling { kind: PoolingKind::Last, width: 4, normalize: true, shorter };
    Options { pooling: Some(pooling), ..Options::default() }
}

/// The page at `/` goes by it, and shows no chat.
#[test]
fn a_model_that_pools_says_so() {
    let said = |options: Options, expected: Value| {
        run(options, |h| async move {
            assert_eq!(h.get("/version").await.json()["pooling"], expected);
            assert_eq!(h.get("/v1/models").await.json()["data"][0]["pooling"], expected);
        });
    };
    said(pooling(Shorter::None), json!("last"));
    said(Options::default(), Value::Null);
}

fn vector(h: &Harness, id: RequestId, values: &[f32]) {
    let mut record = Vec::new();
    encode_pooled(&mut record, id, values);
    h.take(kind::POOLED, &record);
}

fn end(h: &Harness, id: RequestId) {
    h.delta(id, 0, &[], "", DELTA_LAST);
    h.finish(id, FinishReason::Length, 0);
}

/// Plays the other roles for one text: gives its prompt and answers with this vector.
async fn give(h: &Harness, values: &[f32]) -> Prompt {
    let submit = h.submit().await;
    assert_eq!((submit.sampling.max_tokens, submit.resume.len()), (Some(0), 0));
    vector(h, submit.id, values);
    end(h, submit.id);
    submit.prompt
}

/// Posts a body, gives the texts these vectors, and reads the answer.
async fn ask(h: &Harness, path: &str, body: Value, vectors: &[&[f32]]) -> (Reply, Vec<Prompt>) {
    let stream = h.post_raw(path, &body.to_string()).await;
    let mut prompts = Vec::new();
    for values in vectors {
        prompts.push(give(h, values).await);
    }
    (Reply::read(stream).await, prompts)
}

fn texts(texts: &[&str]) -> Vec<Prompt> {
    texts.iter().map(|text| Prompt::Text((*text).to_owned())).collect()
}

#[test]
fn vectors_leave_normalised_as_numbers_or_bytes_in_the_order_of_the_texts() {
    run(pooling(Shorter::None), |h| async move {
        let given: [&[f32]; 2] = [&[3.0, 0.0, 4.0, 0.0], &[0.0, 0.0, 0.0, -2.0]];
        let body = json!({"model": "tiny", "input": ["a", "bc"], "user": "u"});
        let (reply, prompts) = ask(&h, "/v1/embeddings", body, &given).await;
        assert_eq!((reply.status, prompts), (200, texts(&["a", "bc"])));
        let answer = reply.json();
        assert_eq!(answer["data"][0]["embedding"].to_string(), "[0.6,0.0,0.8,0.0]");
        assert_eq!(answer["data"][1]["embedding"].to_string(), "[0.0,0.0,0.0,-1.0]");
        assert_eq!(answer["usage"], json!({"prompt_tokens": 6, "total_tokens": 6}));

        let body = json!({"input": [[1, 2], [3]], "encoding_format": "base64"});
        let (reply, prompts) = ask(&h, "/v1/embeddings", body, &given).await;
        assert_eq!(prompts, [Prompt::Ids(vec![1, 2]), Prompt::Ids(vec![3])]);
        // -1.0 is 00 00 80 bf behind twelve bytes of zeros.
        assert_eq!(reply.json()["data"][1]["embedding"], "AAAAAAAAAAAAAAAAAACAvw==");
        assert_eq!(h.slots_used(), 0);
        assert_eq!(h.malformed.get(), 0);
    });
}

#[test]
fn texts_that_are_more_than_the_slots_follow() {
    run(pooling(Shorter::None), |h| async move {
        let input: Vec<String> = (0..20).map(|index| format!("text {index}")).collect();
        let vectors: Vec<Vec<f32>> = (0..20).map(|index| vec![1.0, 0.0, 0.0, index as f32]).collect();
        let vectors: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
        let body = json!({"input": input, "truncate_prompt_tokens": 5});
        let (reply, prompts) = ask(&h, "/v1/embeddings", body, &vectors).await;
        assert_eq!(prompts, input.into_iter().map(Prompt::Text).collect::<Vec<_>>());
        let data = reply.json()["data"].take();
        assert_eq!(data.as_array().unwrap().len(), 20);
        for (index, one) in data.as_array().unwrap().iter().enumerate() {
            let values = one["embedding"].as_array().unwrap();
            let ratio = values[3].as_f64().unwrap() / values[0].as_f64().unwrap();
            assert!((ratio - index as f64).abs() < 1e-5, "text {index}: {one}");
        }
    });
}

/// Texts of which each vector tells the index.
fn many(count: usize) -> String {
    json!({"input": (0..count).map(|index| format!("text {index}")).collect::<Vec<_>>()}).to_string()
}

/// The ids of the next texts that were sent to the tokenizer.
async fn submits(h: &Harness, count: usize) -> Vec<RequestId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(h.submit().await.id);
    }
    ids
}

fn first_numbers(reply: &Reply) -> Vec<f64> {
    let answer = reply.json();
    let data = answer["data"].as_array().unwrap();
    data.iter().map(|one| one["embedding"][0].as_f64().unwrap()).collect()
}

#[test]
fn a_text_begins_when_another_ends_and_half_of_the_slots_stay_free() {
    run(pooling(Shorter::None), |h| async move {
        let stream = h.post_raw("/v1/embeddings", &many(9)).await;
        let under_way = submits(&h, 4).await;
        assert_eq!((h.sent.borrow().jobs.len(), h.slots_used()), (0, 4), "of 8");
        // Another such request takes half of what is left.
        let other = h.post_raw("/v1/embeddings", &many(9)).await;
        let others = submits(&h, 2).await;
        assert_eq!((h.sent.borrow().jobs.len(), h.slots_used()), (0, 6));
        drop(other);
        wait_for("cancellation", || others.iter().all(|&id| h.cancelled(id)).then_some(())).await;
        others.iter().for_each(|&id| end(&h, id));
        assert_eq!(h.slots_used(), 4);

        // The first text is slow, and the others come in another order than they were sent in.
        let (minus, plus): (&[f32], &[f32]) = (&[-1.0, 0.0, 0.0, 0.0], &[1.0, 0.0, 0.0, 0.0]);
        for &id in under_way[1..].iter().rev() {
            vector(&h, id, plus);
            end(&h, id);
        }
        for _ in 4..9 {
            give(&h, plus).await;
        }
        wait_for("the slots", || (h.slots_used() == 1).then_some(())).await;
        assert!(h.sent.borrow().jobs.is_empty());
        vector(&h, under_way[0], minus);
        end(&h, under_way[0]);
        let mut expected = vec![1.0; 9];
        expected[0] = -1.0;
        assert_eq!(first_numbers(&Reply::read(stream).await), expected);
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_drain_lets_the_rest_of_the_texts_begin() {
    run(pooling(Shorter::None), |h| async move {
        let stream = h.post_raw("/v1/embeddings", &many(9)).await;
        let under_way = submits(&h, 4).await;
        h.app.ledger.borrow_mut().drain();
        assert_eq!(h.post("/v1/embeddings", &many(1)).await.status, 503);
        for id in under_way {
            vector(&h, id, &[1.0, 0.0, 0.0, 0.0]);
            end(&h, id);
        }
        for _ in 4..9 {
            let submit = h.submit().await;
            assert!(h.app.ledger.borrow().any_open(), "the drain waits");
            vector(&h, submit.id, &[1.0, 0.0, 0.0, 0.0]);
            end(&h, submit.id);
        }
        assert_eq!(first_numbers(&Reply::read(stream).await), vec![1.0; 9]);
        assert!(!h.app.ledger.borrow().any_open());
    });
}

#[test]
fn a_text_waits_while_the_ring_is_full() {
    run(pooling(Shorter::None), |h| async move {
        let stream = h.post_raw("/v1/embeddings", &many(6)).await;
        let ids = submits(&h, 4).await;
        let answer = |id: RequestId| {
            vector(&h, id, &[1.0, 0.0, 0.0, 0.0]);
            end(&h, id);
        };
        h.sent.borrow_mut().full = true;
        ids[..2].iter().for_each(|&id| answer(id));
        wait_for("the slots", || (h.slots_used() == 2).then_some(())).await;
        h.sent.borrow_mut().full = false;
        answer(ids[2]);
        for id in submits(&h, 2).await {
            answer(id);
        }
        answer(ids[3]);
        assert_eq!(first_numbers(&Reply::read(stream).await), vec![1.0; 6]);
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_fault_of_one_text_ends_the_others_and_names_it() {
    run(pooling(Shorter::None), |h| async move {
        for (path, body, index, param) in [
            ("/v1/embeddings", json!({"input": ["a", "b", "c"]}), 1, "input[1]"),
            ("/v1/embeddings", json!({"input": ["a"]}), 0, "input"),
            ("/v1/score", json!({"text_1": "a", "text_2": ["b", "c"]}), 0, "text_1"),
            ("/v1/score", json!({"text_1": "a", "text_2": ["b", "c"]}), 2, "text_2[1]"),
            ("/v1/score", json!({"text_1": "a", "text_2": "b"}), 1, "text_2"),
            ("/v1/score", json!({"text_1": ["a", "b"], "text_2": ["c", "d"]}), 2, "text_1[1]"),
            ("/v1/score", json!({"text_1": ["a", "b"], "text_2": ["c", "d"]}), 1, "text_2[0]"),
            ("/v1/rerank", json!({"query": "a", "documents": ["b"]}), 0, "query"),
            ("/v1/rerank", json!({"query": "a", "documents": ["b", "c"]}), 2, "documents[1]"),
        ] {
            let stream = h.post_raw(path, &body.to_string()).await;
            let mut ids = vec![h.submit().await.id];
            while let Some(TokenizerRecord::Submit(submit)) = h.sent.borrow_mut().jobs.pop_front() {
                ids.push(submit.id);
            }
            let failed = ids.remove(index);
            h.reject(failed, Fault::field("prompt", "the prompt is too long"));
            let error = Reply::read(stream).await.json()["error"].take();
            let message = format!("the {param} is too long");
            assert_eq!((&error["param"], &error["message"]), (&json!(param), &json!(message)), "{path}");
            for id in ids {
                assert!(h.cancelled(id), "{path}");
                end(&h, id);
            }
            assert_eq!(h.slots_used(), 0, "{path}");
        }
    });
}

#[test]
fn the_memory_of_vectors_is_bounded() {
    // Four numbers, each with its decimals.
    let text_bytes = 4 * (4 + 18);
    let options = Options { vectors_bytes: 3 * text_bytes, ..pooling(Shorter::None) };
    run(options, |h| async move {
        let error = h.post("/v1/embeddings", &many(4)).await.json()["error"].take();
        assert_eq!((&error["param"], &error["code"]), (&json!("input"), &Value::Null), "{error}");
        let stream = h.post_raw("/v1/embeddings", &many(3)).await;
        let ids = submits(&h, 3).await;
        assert_eq!(h.post("/v1/embeddings", &many(1)).await.status, 429);
        for id in ids {
            vector(&h, id, &[1.0, 0.0, 0.0, 0.0]);
            end(&h, id);
        }
        assert_eq!(first_numbers(&Reply::read(stream).await), vec![1.0; 3]);
        // It is given back, also by a client that leaves.
        let stream = h.post_raw("/v1/embeddings", &many(3)).await;
        let ids = submits(&h, 3).await;
        drop(stream);
        wait_for("cancellation", || ids.iter().all(|&id| h.cancelled(id)).then_some(())).await;
        let (one, body): (&[f32], Value) = (&[1.0, 0.0, 0.0, 0.0], json!({"input": ["a", "b", "c"]}));
        let (reply, _) = ask(&h, "/v1/embeddings", body, &[one; 3]).await;
        assert_eq!(first_numbers(&reply), vec![1.0; 3]);
    });
}

#[test]
fn only_models_that_were_trained_for_it_give_shorter_vectors() {
    let cases = [
        (Shorter::None, 2, Some("matryoshka")),
        (Shorter::None, 4, None),
        (Shorter::Any, 2, None),
        (Shorter::Any, 5, Some("an integer from 1 to 4")),
        (Shorter::Of(vec![2, 3]), 2, None),
        (Shorter::Of(vec![2, 3]), 1, Some("[2, 3]")),
    ];
    for (shorter, dimensions, refused) in cases {
        run(pooling(shorter), move |h| async move {
            let body = json!({"input": "a", "dimensions": dimensions});
            let Some(words) = refused else {
                let (reply, _) = ask(&h, "/v1/embeddings", body, &[&[3.0, 4.0, 12.0, 0.0]]).await;
                let values = reply.json()["data"][0]["embedding"].take();
                let whole = dimensions == 4;
                assert_eq!(values.as_array().unwrap().len(), dimensions);
                assert!(whole || values == json!([0.6, 0.8]), "{values}");
                return;
            };
            let reply = h.post("/v1/embeddings", &body.to_string()).await;
            let error = reply.json()["error"].take();
            assert_eq!((reply.status, &error["param"]), (400, &json!("dimensions")));
            assert!(error["message"].as_str().unwrap().contains(words), "{error}");
        });
    }
}

#[test]
fn faults_name_the_field_and_generation_is_refused_for_good() {
    run(pooling(Shorter::None), |h| async move {
        let long: Vec<&str> = vec!["x"; 2049];
        for (path, body, param) in [
            ("/v1/embeddings", json!({}), "input"),
            ("/v1/embeddings", json!({"input": []}), "input"),
            ("/v1/embeddings", json!({"input": [7.5]}), "input"),
            ("/v1/embeddings", json!({"input": [1000]}), "input"),
            ("/v1/embeddings", json!({"input": long}), "input"),
            ("/v1/embeddings", json!({"input": "a", "encoding_format": "int8"}), "encoding_format"),
            ("/v1/embeddings", json!({"input": "a", "truncate_prompt_tokens": 0}), "truncate_prompt_tokens"),
            ("/v1/embeddings", json!({"input": "a", "user": 7}), "user"),
            ("/v1/embeddings", json!({"input": "a", "model": "other"}), "model"),
            ("/v1/score", json!({"text_1": "a"}), "text_2"),
            ("/v1/score", json!({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}), "text_2"),
            ("/v1/score", json!({"text_1": 1, "text_2": "c"}), "text_1"),
            ("/v1/rerank", json!({"documents": ["a"]}), "query"),
            ("/rerank", json!({"query": "a", "documents": []}), "documents"),
            ("/v2/rerank", json!({"query": "a", "documents": [{"title": "b"}]}), "documents"),
            ("/v1/rerank", json!({"query": "a", "documents": ["b"], "top_n": -1}), "top_n"),
        ] {
            let reply = h.post(path, &body.to_string()).await;
            let error = reply.json()["error"].take();
            assert_eq!(&error["param"], param, "{path}: {error}");
            assert!(error["message"].as_str().unwrap().contains(param), "{path}: {error}");
        }
        // What the tokenizer says of a prompt is said of the input.
        let stream = h.post_raw("/v1/embeddings", r#"{"input": "a"}"#).await;
        let submit = h.submit().await;
        h.reject(submit.id, Fault::field("prompt", "the prompt is too long"));
        let error = Reply::read(stream).await.json()["error"].take();
        assert_eq!((&error["param"], &error["message"]), (&json!("input"), &json!("the input is too long")));

        for path in ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate"]
        {
            let reply = h.post(path, r#"{"prompt": "a"}"#).await;
            assert_eq!(reply.status, 400, "{path}");
            assert!(reply.head.contains("x-should-retry: false"), "{path}: {}", reply.head);
            assert!(reply.body.contains("generates no text"), "{path}: {}", reply.body);
        }
        for path in ["/classify", "/pooling"] {
            let error = h.post(path, r#"{"input": "a"}"#).await.json()["error"].take();
            assert!(error["message"].as_str().unwrap().contains("/v1/embeddings"), "{path}: {error}");
        }
    });
}

#[test]
fn a_text_is_cut_at_its_end_unless_a_client_says_otherwise() {
    run(pooling(Shorter::None), |h| async move {
        for (fields, expected, ids) in [
            (json!({}), Truncation::Never, vec![1, 2, 3]),
            (json!({"truncate_prompt_tokens": 2}), Truncation::First(2), vec![1, 2]),
            (json!({"truncate_prompt_tokens": -1}), Truncation::FitFirst, vec![1, 2, 3]),
            (
                json!({"truncate_prompt_tokens": 2, "truncation_side": "right"}),
                Truncation::First(2),
                vec![1, 2],
            ),
            (
                json!({"truncate_prompt_tokens": 2, "truncation_side": "left"}),
                Truncation::Last(2),
                vec![2, 3],
            ),
            (
                json!({"truncate_prompt_tokens": -1, "truncation_side": "left"}),
                Truncation::Fit,
                vec![1, 2, 3],
            ),
        ] {
            let mut body = fields;
            body["input"] = json!([1, 2, 3]);
            let stream = h.post_raw("/v1/embeddings", &body.to_string()).await;
            let submit = h.submit().await;
            assert_eq!((submit.truncation, submit.prompt), (expected, Prompt::Ids(ids)), "{body}");
            vector(&h, submit.id, &[1.0; 4]);
            end(&h, submit.id);
            assert_eq!(Reply::read(stream).await.status, 200);
        }
        for (path, body) in [
            ("/v1/embeddings", json!({"input": "a", "truncation_side": "middle"})),
            ("/v1/score", json!({"text_1": "a", "text_2": "b", "truncation_side": "middle"})),
            ("/v1/rerank", json!({"query": "a", "documents": ["b"], "truncation_side": 1})),
        ] {
            let error = h.post(path, &body.to_string()).await.json()["error"].take();
            assert_eq!(error["param"], "truncation_side", "{error}");
        }
    });
}

#[test]
fn scores_are_cosines_and_a_ranking_has_the_best_first() {
    run(pooling(Shorter::None), |h| async move {
        let (a, b, c): (&[f32], &[f32], &[f32]) =
            (&[1.0, 0.0, 0.0, 0.0], &[0.0, 5.0, 0.0, 0.0], &[3.0, 4.0, 0.0, 0.0]);
        let body = json!({"text_1": "q", "text_2": ["b", "c"]});
        let (reply, prompts) = ask(&h, "/score", body, &[a, b, c]).await;
        assert_eq!(prompts, texts(&["q", "b", "c"]));
        let answer = reply.json();
        let scores: Vec<&Value> =
            answer["data"].as_array().unwrap().iter().map(|one| &one["score"]).collect();
        assert_eq!(scores.iter().map(|score| score.to_string()).collect::<Vec<_>>(), ["0.0", "0.6"]);
        assert_eq!(answer["usage"]["prompt_tokens"], 9);
        let body = json!({"text_1": ["q", "r"], "text_2": ["b", "c"]});
        let (reply, prompts) = ask(&h, "/v1/score", body, &[a, a, b, b]).await;
        assert_eq!(prompts, texts(&["q", "b", "r", "c"]));
        let pairs = reply.json()["data"].take();
        assert_eq!((&pairs[0]["score"], &pairs[1]["score"]), (&json!(1.0), &json!(1.0)));

        let documents = json!(["b", {"text": "c"}, "a"]);
        let body = json!({"query": "q", "documents": documents, "top_n": 2, "max_chunks_per_doc": 3});
        let (reply, prompts) = ask(&h, "/v2/rerank", body, &[a, b, c, a]).await;
        assert_eq!(prompts, texts(&["q", "b", "c", "a"]));
        assert!(reply.head.contains("x-pinion-ignored-fields: max_chunks_per_doc"), "{}", reply.head);
        let results = reply.json()["results"].take();
        assert_eq!(
            results,
            json!([
                {"index": 2, "document": {"text": "a"}, "relevance_score": 1.0},
                {"index": 1, "document": {"text": "c"}, "relevance_score": 0.6}
            ])
        );
        let body = json!({"query": "q", "documents": ["b"], "return_documents": false});
        let (reply, _) = ask(&h, "/rerank", body, &[a, a]).await;
        assert_eq!(reply.json()["results"], json!([{"index": 0, "relevance_score": 1.0}]));
    });
}

#[test]
fn a_text_whose_engine_or_detokenizer_dies_is_asked_for_again() {
    for peer in [ENGINE, DETOKENIZER] {
        run(pooling(Shorter::None), |h| async move {
            let body = r#"{"input": "a", "truncate_prompt_tokens": -1}"#;
            let stream = h.post_raw("/v1/embeddings", body).await;
            let first = h.submit().await;
            stamp(&h, first.id, &[Stage::TokenizeBegin, Stage::EngineReceived, Stage::FirstScheduled]);
            // Its vector is here already, its end is not.
            vector(&h, first.id, &[9.0, 9.0, 9.0, 9.0]);
            die(&h, peer);
            // The rest of the first life is too late.
            end(&h, first.id);
            assert!(h.sent.borrow().jobs.is_empty(), "it waits for the successor");
            return_to_life(&h, peer);
            let again = h.submit().await;
            assert_eq!(
                (&again.prompt, again.truncation, again.claim),
                (&first.prompt, first.truncation, first.claim)
            );
            assert!(again.resume.is_empty() && again.id.generation != first.id.generation);
            vector(&h, again.id, &[0.0, 2.0, 0.0, 0.0]);
            end(&h, again.id);
            let reply = Reply::read(stream).await;
            assert_eq!(reply.json()["data"][0]["embedding"].to_string(), "[0.0,1.0,0.0,0.0]");
            assert_eq!((h.slots_used(), h.malformed.get()), (0, 0));
        });
    }
}

#[test]
fn a_text_does_not_wait_for_ever_for_a_role_that_stays_away() {
    run(pooling(Shorter::None), |h| async move {
        for peer in [ENGINE, DETOKENIZER] {
            let held = h.post_raw("/v1/embeddings", r#"{"input": "a"}"#).await;
            h.submit().await;
            die(&h, peer);
            let comes = h.post_raw("/v1/embeddings", r#"{"input": "b"}"#).await;
            wait_for("the slots", || (h.slots_used() == 2).then_some(())).await;
            pass(&h, PATIENCE_WITH_ROLES.role);
            for stream in [held, comes] {
                assert_eq!(error_of(&Reply::read(stream).await), "role_restarted", "{peer:?}");
            }
            assert_eq!(h.slots_used(), 0);
            return_to_life(&h, peer);
        }
    });
}

#[test]
fn a_client_that_leaves_cancels_its_texts_and_a_vector_for_a_completion_is_a_fault() {
    run(pooling(Shorter::None), |h| async move {
        let stream = h.post_raw("/v1/embeddings", r#"{"input": ["a", "b"]}"#).await;
        let ids = [h.submit().await.id, h.submit().await.id];
        drop(stream);
        wait_for("cancellation", || ids.iter().all(|&id| h.cancelled(id)).then_some(())).await;
    });
    run(Options::default(), |h| async move {
        let _stream = h.post_raw("/v1/completions", r#"{"prompt": "a"}"#).await;
        let id = h.submit().await.id;
        vector(&h, id, &[1.0]);
        assert_eq!(h.malformed.get(), 1);
    });
    run(pooling(Shorter::None), |h| async move {
        let _stream = h.post_raw("/v1/embeddings", r#"{"input": "a"}"#).await;
        let id = h.submit().await.id;
        for values in [&[1.0; 3][..], &[1.0; 5]] {
            vector(&h, id, values);
        }
        assert_eq!(h.malformed.get(), 2, "vectors of another width");
    });
}
