//! Clients that leave, crawl, flood and lie: slots come back, memory is bounded, others are served.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::deaths::pass;
use crate::harness::{Harness, Options, Reply, post_bytes, run, wait_for};
use pinion_protocol::frontend_inbox::{DELTA_LAST, FinishReason};
use pinion_protocol::tokenizer_inbox::TokenizerRecord;
use pinion_protocol::{Fault, FaultCode, RequestId};
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const STREAM: &str = r#"{"prompt":"hi","stream":true}"#;
const WHOLE: &str = r#"{"prompt":"hi"}"#;

/// The other roles, seen from a cancelled request: the engine's account and the last text, in some order.
fn end_cancelled(h: &Harness, id: RequestId, text_first: bool) {
    assert!(h.cancelled(id), "a client that left cancels its request");
    if text_first {
        h.delta(id, 0, &[], "", DELTA_LAST);
        h.finish(id, FinishReason::Cancelled, 0);
    } else {
        h.finish(id, FinishReason::Cancelled, 0);
        h.delta(id, 0, &[], "", DELTA_LAST);
    }
}

/// One disconnect in phase `phase`. Whatever the phase, the slot comes back.
async fn leave(h: &Harness, phase: usize) {
    let body = if phase.is_multiple_of(2) { STREAM } else { WHOLE };
    let text = post_bytes("/v1/completions", body);
    let mut client = h.connect().await;
    match phase % 5 {
        0 => client.write_all(&text.as_bytes()[..20]).await.unwrap(),
        1 => client.write_all(&text.as_bytes()[..text.len() - 2]).await.unwrap(),
        _ => client.write_all(text.as_bytes()).await.unwrap(),
    }
    if phase % 5 < 2 {
        return;
    }
    let id = h.submit().await.id;
    if phase % 5 >= 3 {
        h.delta(id, 0, &[7], "text", 0);
        tokio::task::yield_now().await;
    }
    if phase % 5 == 4 {
        h.delta(id, 1, &[8], "more", DELTA_LAST);
        drop(client);
        tokio::time::sleep(Duration::from_millis(1)).await;
        h.finish(id, FinishReason::Stop, 2);
        return;
    }
    drop(client);
    wait_for("the cancel", || h.cancelled(id).then_some(())).await;
    assert_eq!(h.slots_used(), 1, "the slot stays taken until no role works on it");
    if phase.is_multiple_of(3) {
        h.reject(id, Fault::new(FaultCode::Unavailable, "cancelled"));
    } else {
        end_cancelled(h, id, phase.is_multiple_of(2));
    }
}

#[test]
fn a_thousand_disconnects_at_any_phase_give_every_slot_back() {
    run(Options { slots: 4, ..Options::default() }, |h| async move {
        for phase in 0..1000 {
            leave(&h, phase).await;
            wait_for("the slot", || (h.slots_used() == 0).then_some(())).await;
        }
        assert!(h.sent.borrow().jobs.is_empty());
        let page = h.get("/metrics").await.body;
        assert!(page.contains("pinion_request_slots_used 0"), "{page}");
    });
}

#[test]
fn records_of_an_older_generation_are_dropped() {
    run(Options { slots: 1, ..Options::default() }, |h| async move {
        let client = h.post_raw("/v1/completions", WHOLE).await;
        let old = h.submit().await.id;
        drop(client);
        wait_for("the cancel", || h.cancelled(old).then_some(())).await;
        end_cancelled(&h, old, true);
        let client = h.post_raw("/v1/completions", WHOLE).await;
        let new = h.submit().await.id;
        assert_eq!((new.slot, new.generation), (old.slot, old.generation + 1));
        h.delta(old, 0, &[1], "stolen", DELTA_LAST);
        h.finish(old, FinishReason::Stop, 1);
        h.delta(new, 0, &[1], "mine", DELTA_LAST);
        h.finish(new, FinishReason::Stop, 1);
        assert_eq!(Reply::read(client).await.json()["choices"][0]["text"], "mine");
    });
}

#[test]
fn when_all_slots_are_taken_the_next_gets_429_and_later_ones_are_served() {
    run(Options { slots: 2, ..Options::default() }, |h| async move {
        let clients =
            [h.post_raw("/v1/completions", WHOLE).await, h.post_raw("/v1/completions", STREAM).await];
        let ids = [h.submit().await.id, h.submit().await.id];
        let refused = h.post("/v1/completions", WHOLE).await;
        assert_eq!((refused.status, &refused.json()["error"]["type"]), (429, &json!("rate_limit_error")));
        assert!(refused.head.contains("retry-after: 1"));
        for (client, id) in clients.into_iter().zip(ids) {
            h.delta(id, 0, &[1], "x", DELTA_LAST);
            h.finish(id, FinishReason::Stop, 1);
            assert_eq!(Reply::read(client).await.status, 200);
        }
        h.sent.borrow_mut().full = true;
        assert_eq!(h.post("/v1/completions", WHOLE).await.status, 429, "a full ring is overload, too");
        h.sent.borrow_mut().full = false;
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn an_unread_stream_is_cancelled_and_its_connection_dropped() {
    let mut options = Options { buffer_bytes_max: 64 << 10, ..Options::default() };
    options.settings.write_timeout = Duration::from_millis(200);
    run(options, |h| async move {
        let client = h.post_raw("/v1/completions", STREAM).await;
        let id = h.submit().await.id;
        let text = "x".repeat(32 << 10);
        let mut sequence = 0;
        while !h.cancelled(id) {
            h.delta(id, sequence, &[1], &text, 0);
            sequence += 1;
            assert!(sequence < 4000, "the stream is not bounded");
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        end_cancelled(&h, id, true);
        wait_for("the slot", || (h.slots_used() == 0).then_some(())).await;
        wait_for("its end", || (h.app.metrics.connections_closed.get() == 1).then_some(())).await;
        drop(client);
        let page = h.get("/metrics").await.body;
        assert!(
            page.contains("pinion_requests_finished_total{reason=\"slow_reader\"} 1")
                || page.contains("pinion_requests_finished_total{reason=\"disconnected\"} 1"),
            "{page}"
        );
    });
}

#[test]
fn a_stream_read_too_slowly_ends_with_an_error_event() {
    run(Options { buffer_bytes_max: 8 << 10, ..Options::default() }, |h| async move {
        let client = h.post_raw("/v1/completions", STREAM).await;
        let id = h.submit().await.id;
        h.delta(id, 0, &[1], "a", 0);
        tokio::time::sleep(Duration::from_millis(20)).await;
        // The socket's task does not run in between: more than the bound waits.
        h.delta(id, 1, &[1], &"x".repeat(9 << 10), 0);
        assert!(h.cancelled(id));
        end_cancelled(&h, id, false);
        let reply = Reply::read(client).await;
        let last = reply.events().pop().unwrap();
        assert!(last.contains("\"code\":\"slow_reader\""), "{last}");
        assert!(!reply.body.contains("[DONE]"));
    });
}

/// Each has a frame, so memory would grow with them.
#[test]
fn tiny_pieces_that_are_not_read_count_as_more_than_their_text() {
    run(Options { buffer_bytes_max: 4 << 10, ..Options::default() }, |h| async move {
        let client = h.post_raw("/v1/completions", STREAM).await;
        let id = h.submit().await.id;
        h.delta(id, 0, &[1], "a", 0);
        tokio::time::sleep(Duration::from_millis(20)).await;
        // As many as a turn of the loop takes, while the socket's task does not run.
        for sequence in 1..=256 {
            h.delta(id, sequence, &[1], "a", 0);
        }
        assert!(!h.cancelled(id), "the client could not read any of it");
        h.delta(id, 257, &[1], "a", 0);
        assert!(h.cancelled(id));
        end_cancelled(&h, id, false);
        assert!(Reply::read(client).await.events().pop().unwrap().contains("slow_reader"));
    });
}

/// Longer than the test runs.
const NEVER: Duration = Duration::from_secs(3600);

/// The server closes a client that sends `bytes` and then nothing, no earlier than after `limit`.
async fn check_closed(h: &Harness, bytes: &[u8], limit: Duration) -> String {
    let begin = Instant::now();
    let mut client = h.connect().await;
    client.write_all(bytes).await.unwrap();
    let mut rest = String::new();
    let closed = tokio::time::timeout(Duration::from_secs(20), client.read_to_string(&mut rest)).await;
    assert!(closed.is_ok(), "still open long after {limit:?}");
    let took = begin.elapsed();
    assert!(took >= limit / 2, "closed after {took:?}, the limit is {limit:?}");
    rest
}

#[test]
fn idle_connections_are_closed() {
    // The timer of heads does not run while nothing has begun, whichever of the two is shorter.
    for (idle_ms, head) in [(1000, Duration::from_millis(100)), (200, NEVER)] {
        let mut options = Options::default();
        let idle = Duration::from_millis(idle_ms);
        options.settings.header_timeout = head;
        options.settings.idle_timeout = idle;
        run(options, |h| async move {
            let kept = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n";
            let (_, kept) = tokio::join!(check_closed(&h, b"", idle), check_closed(&h, kept, idle));
            assert!(kept.starts_with("HTTP/1.1 200"), "{kept}");
        });
    }
}

/// Its request has ended by then, and a drain waits for the answer all the same. It waits for no idle connection and
/// for no head.
#[test]
fn an_answer_that_is_not_read_yet_is_one_that_a_drain_waits_for() {
    const PIECES: u32 = 600;
    run(Options::default(), |h| async move {
        let answers = || h.app.connections.any_answers();
        let mut kept = h.connect().await;
        kept.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut seen = vec![0; 4096];
        assert!(kept.read(&mut seen).await.unwrap() > 0);
        wait_for("the connection to be idle", || (!answers()).then_some(())).await;
        let (_idle, mut head) = (h.connect().await, h.connect().await);
        head.write_all(b"GET /live HTT").await.unwrap();

        let mut client = h.connect().await;
        let keep = post_bytes("/v1/completions", WHOLE).replace("connection: close\r\n", "");
        client.write_all(keep.as_bytes()).await.unwrap();
        let id = h.submit().await.id;
        let piece = "x".repeat(0x4000);
        for n in 0..PIECES {
            h.delta(id, n, &[7], &piece, if n + 1 == PIECES { DELTA_LAST } else { 0 });
        }
        h.finish(id, FinishReason::Stop, PIECES);
        wait_for("the slot", || (h.slots_used() == 0).then_some(())).await;
        h.app.ledger.borrow_mut().drain();
        h.closing.send_replace(true);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!h.app.ledger.borrow().any_open() && answers(), "most of it is in hyper's buffer");
        let mut seen = Vec::new();
        client.read_to_end(&mut seen).await.unwrap();
        let text = String::from_utf8(seen).unwrap();
        assert_eq!(text.matches(&piece).count(), PIECES as usize);
        wait_for("the end of the answer", || (!answers()).then_some(())).await;
    });
}

/// hyper is done with an answer when it has the last of it in its buffer. The connection is not idle then.
#[test]
fn an_answer_that_is_still_being_read_is_not_cut_by_the_idle_timeout() {
    const PIECES: u32 = 600;
    let idle = Duration::from_millis(100);
    let mut options = Options::default();
    options.settings.idle_timeout = idle;
    run(options, |h| async move {
        let mut client = h.connect().await;
        client.write_all(post_bytes("/v1/completions", WHOLE).as_bytes()).await.unwrap();
        let id = h.submit().await.id;
        let piece = "x".repeat(0x4000);
        for n in 0..PIECES {
            h.delta(id, n, &[7], &piece, if n + 1 == PIECES { DELTA_LAST } else { 0 });
            tokio::task::yield_now().await;
        }
        h.finish(id, FinishReason::Stop, PIECES);
        wait_for("the slot", || (h.slots_used() == 0).then_some(())).await;
        tokio::time::sleep(5 * idle).await;
        let mut seen = Vec::new();
        client.read_to_end(&mut seen).await.unwrap();
        let text = String::from_utf8(seen).unwrap();
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(body.matches(&piece).count(), PIECES as usize, "{} bytes came", body.len());
    });
}

#[test]
fn half_heads_and_half_bodies_are_closed() {
    let mut options = Options::default();
    options.settings.header_timeout = Duration::from_millis(150);
    options.settings.body_timeout = Duration::from_millis(200);
    options.settings.idle_timeout = NEVER;
    run(options, |h| async move {
        check_closed(&h, b"GET /live HTT", Duration::from_millis(150)).await;
        let text = post_bytes("/v1/completions", WHOLE);
        let answer = check_closed(&h, &text.as_bytes()[..text.len() - 3], Duration::from_millis(200)).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        let dripping = async {
            let mut client = h.connect().await;
            for byte in text.bytes() {
                if client.write_all(&[byte]).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(8)).await;
            }
            let mut seen = Vec::new();
            let _ = client.read_to_end(&mut seen).await;
            assert!(seen.is_empty(), "a dripped head was served: {}", String::from_utf8_lossy(&seen));
        };
        let fine = async { assert_eq!(h.get("/live").await.status, 200) };
        tokio::join!(dripping, fine);
    });
}

#[test]
fn a_body_over_the_limit_is_refused_unread_declared_or_chunked() {
    run(Options::default(), |h| async move {
        let mut client = h.connect().await;
        let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 104857600\r\n\r\n";
        client.write_all(head.as_bytes()).await.unwrap();
        let mut seen = vec![0; 4096];
        let count = client.read(&mut seen).await.unwrap();
        assert!(seen.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&seen[..count]));
        drop(client);

        let mut client = h.connect().await;
        let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
        client.write_all(head.as_bytes()).await.unwrap();
        let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
        for _ in 0..8 {
            let _ = client.write_all(chunk.as_bytes()).await;
        }
        let count = client.read(&mut seen).await.unwrap();
        assert!(seen.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&seen[..count]));
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn smuggling_and_malformed_framing_are_refused_and_the_connection_closed() {
    run(Options::default(), |h| async move {
        let attacks = [
            "POST /live HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
            "GET /live HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
            "GET /live HTTP/1.1\r\nhost : x\r\n\r\n",
            "GET /live HTTP/9.9\r\nhost: x\r\n\r\n",
            "\0\0\0\0\r\n\r\n",
            "GET  /live HTTP/1.1\r\n\r\n",
        ];
        for attack in attacks {
            let reply = h.request(attack).await;
            assert_eq!(reply.status, 400, "{attack:?}: {}", reply.head);
        }
        let mut many = "GET /live HTTP/1.1\r\n".to_owned();
        for i in 0..100 {
            many.push_str(&format!("x-{i}: y\r\n"));
        }
        assert!(h.request(&format!("{many}\r\n")).await.status >= 400);
        assert_eq!(h.get("/live").await.status, 200);
    });
}

#[test]
fn a_drain_lets_streams_end_and_refuses_new_ones_then_cuts_what_is_left() {
    run(Options::default(), |h| async move {
        let finishing = h.post_raw("/v1/completions", STREAM).await;
        let finishing_id = h.submit().await.id;
        h.delta(finishing_id, 0, &[1], "a", 0);
        let cut = h.post_raw("/v1/completions", STREAM).await;
        let cut_id = h.submit().await.id;
        h.delta(cut_id, 0, &[1], "a", 0);
        tokio::time::sleep(Duration::from_millis(20)).await;
        h.app.ledger.borrow_mut().drain();
        h.closing.send_replace(true);
        let refused = h.post("/v1/completions", WHOLE).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("unavailable")));
        let ready = h.get("/ready").await;
        assert_eq!((ready.status, &ready.json()["status"]), (503, &json!("draining")));
        h.delta(finishing_id, 1, &[2], "b", DELTA_LAST);
        h.finish(finishing_id, FinishReason::Stop, 2);
        assert!(Reply::read(finishing).await.body.ends_with("data: [DONE]\n\n"));
        assert!(h.app.ledger.borrow().any_open());
        h.app.ledger.borrow_mut().fail_all(&Fault::new(FaultCode::Unavailable, "the service stopped"));
        let last = Reply::read(cut).await.events().pop().unwrap();
        assert!(last.contains("\"code\":\"unavailable\""), "{last}");
        assert!(h.cancelled(cut_id) && !h.app.ledger.borrow().any_open());
    });
}

#[test]
fn an_abandoned_encode_gives_its_slot_back() {
    run(Options { slots: 1, ..Options::default() }, |h| async move {
        let client = h.post_raw("/tokenize", r#"{"prompt":"hi"}"#).await;
        let TokenizerRecord::Encode(job) = h.job().await else { panic!("not an encode") };
        drop(client);
        wait_for("the cancel", || h.cancelled(job.id).then_some(())).await;
        let mut record = Vec::new();
        pinion_protocol::frontend_inbox::Encoded { id: job.id, ids: vec![1] }.encode(&mut record);
        h.take(pinion_protocol::frontend_inbox::kind::ENCODED, &record);
        assert_eq!(h.slots_used(), 0);
    });
}

/// Such a record is malformed: its ring is replaced, and the request resumes from the tokens before it.
#[test]
fn text_that_skips_a_token_is_not_taken() {
    run(Options::default(), |h| async move {
        let client = h.post_raw("/v1/completions", WHOLE).await;
        let id = h.submit().await.id;
        h.delta(id, 0, &[1], "a", 0);
        h.delta(id, 2, &[3], "c", DELTA_LAST);
        assert_eq!(h.malformed.get(), 1);
        assert!(!h.cancelled(id) && h.slots_used() == 1, "the request waits for its resumption");
        h.delta(id, 1, &[2], "b", DELTA_LAST);
        h.finish(id, FinishReason::Length, 2);
        let reply = Reply::read(client).await;
        assert_eq!((reply.status, &reply.json()["choices"][0]["text"]), (200, &serde_json::json!("ab")));
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_text_that_never_ends_is_given_up_after_its_grace() {
    run(Options::default(), |h| async move {
        let client = h.post_raw("/v1/completions", WHOLE).await;
        let id = h.submit().await.id;
        h.finish(id, FinishReason::Stop, 1);
        pass(&h, Duration::ZERO);
        assert_eq!(h.slots_used(), 1);
        pass(&h, Duration::from_secs(60));
        assert_eq!(Reply::read(client).await.status, 500);
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_panic_in_one_request_ends_its_connection_and_no_other() {
    run(Options { slots: 2, ..Options::default() }, |h| async move {
        let other = h.post_raw("/v1/completions", STREAM).await;
        let id = h.submit().await.id;
        h.delta(id, 0, &[1], "a", 0);
        h.sent.borrow_mut().panics = true;
        for _ in 0..3 {
            let mut seen = Vec::new();
            let mut client = h.post_raw("/v1/completions", WHOLE).await;
            let _ = client.read_to_end(&mut seen).await;
            assert!(seen.is_empty(), "{}", String::from_utf8_lossy(&seen));
        }
        h.sent.borrow_mut().panics = false;
        h.delta(id, 1, &[2], "b", DELTA_LAST);
        h.finish(id, FinishReason::Stop, 2);
        assert!(Reply::read(other).await.body.ends_with("data: [DONE]\n\n"));
        assert_eq!(h.slots_used(), 0);
        let after = h.post_raw("/v1/completions", WHOLE).await;
        let id = h.submit().await.id;
        h.delta(id, 0, &[1], "fine", DELTA_LAST);
        h.finish(id, FinishReason::Stop, 1);
        assert_eq!(Reply::read(after).await.status, 200);
    });
}
