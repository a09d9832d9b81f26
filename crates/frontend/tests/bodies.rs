//! Large bodies on their way to a request: what they share, and what becomes of one whose client leaves.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::{Harness, Options, Reply, post_bytes, run, wait_for};
use pinion_frontend::route::Route;
use pinion_protocol::frontend_inbox::{DELTA_LAST, Encoded, FinishReason, kind};
use pinion_protocol::tokenizer_inbox::TokenizerRecord;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const PATH: &str = "/v1/completions";

/// A body that is not read on the thread of the streams.
fn large() -> String {
    json!({"prompt": "x".repeat(40 << 10)}).to_string()
}

async fn check_served(h: &Harness, client: TcpStream) {
    let id = h.submit().await.id;
    h.delta(id, 0, &[1], "a", DELTA_LAST);
    h.finish(id, FinishReason::Stop, 1);
    assert_eq!(Reply::read(client).await.status, 200);
}

#[test]
fn a_large_body_that_waits_to_be_read_goes_with_its_client() {
    run(Options::default(), |h| async move {
        let (taken, length) = (|| h.app.intake.bytes.taken(), large().len());
        let thread = h.app.intake.threads.clone().acquire_owned().await.unwrap();
        let leaves = h.post_raw(PATH, &large()).await;
        let stays = h.post_raw(PATH, &large()).await;
        wait_for("both bodies", || (taken() == 2 * length).then_some(())).await;
        drop(leaves);
        wait_for("one to go", || (taken() == length).then_some(())).await;
        assert!(h.sent.borrow().jobs.is_empty(), "neither was read");
        drop(thread);
        check_served(&h, stays).await;
        assert_eq!((taken(), h.slots_used(), h.sent.borrow().jobs.len()), (0, 0, 0));
    });
}

#[test]
fn large_bodies_share_a_memory_and_small_ones_need_none_of_it() {
    run(Options { bodies_bytes: 60 << 10, ..Options::default() }, |h| async move {
        let taken = || h.app.intake.bytes.taken();
        let text = post_bytes(PATH, &large());
        let (most, last) = text.as_bytes().split_at(text.len() - 1);
        let mut slow = h.connect().await;
        slow.write_all(most).await.unwrap();
        wait_for("most of a body", || (taken() == large().len() - 1).then_some(())).await;

        let refused = h.post(PATH, &large()).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
        assert!(refused.head.contains("retry-after: 1"), "{refused:?}");
        assert_eq!(taken(), large().len() - 1, "a refused body gives back what it took");
        check_served(&h, h.post_raw(PATH, r#"{"prompt":"small"}"#).await).await;

        slow.write_all(last).await.unwrap();
        check_served(&h, slow).await;
        check_served(&h, h.post_raw(PATH, &large()).await).await;
        assert_eq!(taken(), 0);
    });
}

/// Each was written on the thread of the streams, which stood still meanwhile.
#[test]
fn large_lists_are_written_beside_the_thread_of_the_streams() {
    run(Options::default(), |h| async move {
        let asked = json!({"input": "x".repeat(40 << 10)}).to_string();
        let (response, ()) = tokio::join!(h.post("/v1/responses", &asked), async {
            let id = h.submit().await.id;
            h.delta(id, 0, &[1], "a", DELTA_LAST);
            h.finish(id, FinishReason::Stop, 1);
        });
        let id = response.json()["id"].as_str().unwrap().to_owned();
        let thread = h.app.intake.writers.clone().acquire_owned().await.unwrap();
        let items =
            format!("GET /v1/responses/{id}/input_items HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let mut items_of = h.connect().await;
        items_of.write_all(items.as_bytes()).await.unwrap();
        let tokens_of = h.post_raw("/tokenize", r#"{"prompt":"a"}"#).await;
        let TokenizerRecord::Encode(encode) = h.job().await else { panic!("not a text to encode") };
        let mut record = Vec::new();
        Encoded { id: encode.id, ids: vec![7; 9000] }.encode(&mut record);
        h.take(kind::ENCODED, &record);
        assert_eq!(h.get("/live").await.status, 200);
        let answers =
            |route| h.app.metrics.responses().filter(|one| one.0 == route).map(|one| one.2).sum::<u64>();
        assert_eq!(
            (answers(Route::InputItems), answers(Route::Tokenize)),
            (0, 0),
            "they wait for the thread"
        );
        drop(thread);
        let items = Reply::read(items_of).await.json();
        assert_eq!(items["data"][0]["content"][0]["text"].as_str().map(str::len), Some(40 << 10));
        let tokens = Reply::read(tokens_of).await.json();
        assert_eq!((tokens["count"].as_u64(), &tokens["tokens"][8999]), (Some(9000), &json!(7)));
        assert_eq!(tokens["max_model_len"], 4096);
    });
}
