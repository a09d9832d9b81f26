//! A role dies and comes back: its requests resume from their last token, and each answer comes exactly once.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::deaths::{
    DETOKENIZER, ENGINE, STREAM, TOKENIZER, be_killed, begin, die, error_of, look_again, nothing_sent,
    resumed, return_to_life, stamp, text_of,
};
use crate::harness::{Options, Reply, run, wait_for};
use pinion_os::clock;
use pinion_protocol::frontend_inbox::{DELTA_LAST, DELTA_STOPPED, Decoded, Encoded, FinishReason, kind};
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::tokenizer_inbox::TokenizerRecord;
use pinion_protocol::{Fault, FaultCode};
use serde_json::json;
use std::time::Duration;

#[test]
fn a_stream_goes_on_from_its_last_token() {
    for peer in [ENGINE, DETOKENIZER] {
        run(Options::default(), |h| async move {
            let (stream, first) = begin(&h, STREAM).await;
            h.delta(first.id, 0, &[11, 12], "one ", 0);
            die(&h, peer);
            // Words of the first life are too late.
            h.delta(first.id, 2, &[13], "lost", DELTA_LAST);
            h.finish(first.id, FinishReason::Length, 3);
            nothing_sent(&h);
            return_to_life(&h, peer);
            let (_, second) = resumed(&h).await;
            assert_eq!(second.resume, [11, 12]);
            assert_eq!((&second.prompt, &second.sampling), (&first.prompt, &first.sampling), "the seed too");
            assert_eq!(second.id.slot, first.id.slot);
            assert_ne!(second.id.generation, first.id.generation);
            h.delta(second.id, 2, &[13], "two", DELTA_LAST);
            h.finish(second.id, FinishReason::Length, 3);
            let reply = Reply::read(stream).await;
            assert_eq!((reply.status, text_of(&reply).as_str()), (200, "one two"), "{peer}");
            assert_eq!(reply.events().last().map(String::as_str), Some("[DONE]"));
            assert_eq!(h.slots_used(), 0);
        });
    }
}

/// A template that writes the date gives the same prompt again.
#[test]
fn a_request_that_goes_on_keeps_the_time_at_which_it_was_asked_for() {
    run(Options::default(), |h| async move {
        let before_s = clock::unix_s();
        let (stream, first) = begin(&h, STREAM).await;
        assert!((before_s..=clock::unix_s()).contains(&first.asked_unix_s), "{}", first.asked_unix_s);
        h.delta(first.id, 0, &[11], "one", 0);
        die(&h, ENGINE);
        tokio::time::sleep(Duration::from_millis(1001)).await;
        return_to_life(&h, ENGINE);
        let (_, second) = resumed(&h).await;
        assert_eq!(second.asked_unix_s, first.asked_unix_s);
        h.delta(second.id, 1, &[12], "two", DELTA_LAST);
        h.finish(second.id, FinishReason::Length, 2);
        assert_eq!(text_of(&Reply::read(stream).await), "onetwo");
    });
}

/// The answer counts what the first engine found; the second one finds less, or more.
#[test]
fn metrics_and_answer_count_the_same_cached_tokens_after_a_death() {
    run(Options::default(), |h| async move {
        let (stream, first) = begin(&h, r#"{"prompt":"hi","max_tokens":2}"#).await;
        let slot = h.table.slot(usize::from(first.id.slot)).unwrap();
        slot.set_counter(first.id.generation, Counter::CachedTokens as usize, 2);
        h.delta(first.id, 0, &[1], "a", 0);
        die(&h, ENGINE);
        return_to_life(&h, ENGINE);
        let (_, second) = resumed(&h).await;
        h.delta(second.id, 1, &[2], "b", DELTA_LAST);
        h.finish(second.id, FinishReason::Length, 2);
        let reply = Reply::read(stream).await.json();
        let counted = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        let count = || Some(h.app.metrics.cached_tokens.get()).filter(|count| *count > 0);
        assert_eq!((counted, wait_for("the account of the request", count).await), (Some(2), 2));
    });
}

#[test]
fn every_choice_of_a_request_goes_on() {
    run(Options::default(), |h| async move {
        let body = r#"{"prompt":"hi","max_tokens":2,"n":2}"#;
        let ((stream, first), second) = (begin(&h, body).await, h.submit().await);
        h.sent.borrow_mut().opens.clear();
        h.delta(first.id, 0, &[1], "a", 0);
        h.delta(second.id, 0, &[5], "e", 0);
        die(&h, ENGINE);
        return_to_life(&h, ENGINE);
        for (seed, resume, token, text) in
            [(first.sampling.seed, 1, 2, "b"), (second.sampling.seed, 5, 6, "f")]
        {
            let (_, again) = resumed(&h).await;
            assert_eq!((again.sampling.seed, &again.resume[..]), (seed, &[resume][..]));
            h.delta(again.id, 1, &[token], text, DELTA_LAST);
            h.finish(again.id, FinishReason::Length, 2);
        }
        let reply = Reply::read(stream).await.json();
        assert_eq!(
            (&reply["choices"][0]["text"], &reply["choices"][1]["text"]),
            (&json!("ab"), &json!("ef"))
        );
        assert_eq!(reply["usage"]["completion_tokens"], 4);
    });
}

#[test]
fn an_end_of_which_one_half_is_missing_is_made_whole() {
    run(Options::default(), |h| async move {
        // The engine was done, and the text of its last tokens never came.
        let (stream, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1], "a", 0);
        h.finish(first.id, FinishReason::Stop, 3);
        die(&h, DETOKENIZER);
        return_to_life(&h, DETOKENIZER);
        let (_, again) = resumed(&h).await;
        assert_eq!(again.resume, [1]);
        h.delta(again.id, 1, &[2, 3], "bc", DELTA_LAST);
        h.finish(again.id, FinishReason::Stop, 3);
        assert_eq!(text_of(&Reply::read(stream).await), "abc");

        // All text came, and the engine's account did not: it comes to the same end again, and no text is said twice.
        let (stream, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1, 2], "ab", 0);
        h.delta(first.id, 2, &[3], "c", DELTA_LAST);
        die(&h, ENGINE);
        return_to_life(&h, ENGINE);
        let (_, again) = resumed(&h).await;
        assert_eq!(again.resume, [1, 2], "the last token is drawn again");
        h.delta(again.id, 2, &[3], "c", DELTA_LAST);
        h.finish(again.id, FinishReason::Length, 3);
        let reply = Reply::read(stream).await;
        assert_eq!(text_of(&reply), "abc");
        assert!(reply.body.contains(r#""finish_reason":"length""#), "{}", reply.body);

        // A stop string had ended the text: nothing is missing but counts, which are known here.
        let (stream, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1, 2], "ab", DELTA_LAST | DELTA_STOPPED);
        die(&h, ENGINE);
        let reply = Reply::read(stream).await;
        assert_eq!(text_of(&reply), "ab");
        assert!(reply.body.contains(r#""finish_reason":"stop""#), "{}", reply.body);
        return_to_life(&h, ENGINE);
        nothing_sent(&h);
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_tokenizer_s_death_touches_only_what_it_has() {
    run(Options::default(), |h| async move {
        let (with_engine, first) = begin(&h, STREAM).await;
        let queued = h.post_raw("/v1/completions", STREAM).await;
        let second = h.submit().await;
        let encode = h.post_raw("/tokenize", r#"{"prompt":"hi"}"#).await;
        h.job().await;
        let decode = h.post_raw("/detokenize", r#"{"tokens":[1,2]}"#).await;
        h.job().await;
        h.sent.borrow_mut().opens.clear();
        die(&h, TOKENIZER);
        return_to_life(&h, TOKENIZER);
        assert_eq!(resumed(&h).await.1.prompt, second.prompt);
        let mut record = Vec::new();
        let TokenizerRecord::Encode(again) = h.job().await else { panic!("it asked for ids") };
        Encoded { id: again.id, ids: vec![7] }.encode(&mut record);
        h.take(kind::ENCODED, &record);
        let TokenizerRecord::Decode(again) = h.job().await else { panic!("it asked for text") };
        assert_eq!(again.ids, [1, 2]);
        Decoded { id: again.id, text: "xy".to_owned() }.encode(&mut record);
        h.take(kind::DECODED, &record);
        assert_eq!(Reply::read(encode).await.json()["tokens"], json!([7]));
        assert_eq!(Reply::read(decode).await.json()["prompt"], "xy");
        h.delta(first.id, 0, &[1], "ok", DELTA_LAST);
        h.finish(first.id, FinishReason::Stop, 1);
        assert_eq!(text_of(&Reply::read(with_engine).await), "ok");
        drop(queued);
        wait_for("the slots", || (h.slots_used() <= 1).then_some(())).await;
    });
}

#[test]
fn who_comes_while_a_role_is_down_waits() {
    run(Options::default(), |h| async move {
        for peer in [ENGINE, DETOKENIZER, TOKENIZER] {
            die(&h, peer);
            let stream = h.post_raw("/v1/completions", STREAM).await;
            wait_for("the slot", || (h.slots_used() == 1).then_some(())).await;
            nothing_sent(&h);
            return_to_life(&h, peer);
            let (_, first) = resumed(&h).await;
            h.delta(first.id, 0, &[1], "late", DELTA_LAST);
            h.finish(first.id, FinishReason::Stop, 1);
            let reply = Reply::read(stream).await;
            assert_eq!((text_of(&reply).as_str(), h.slots_used()), ("late", 0), "{peer}");
        }
        let page = h.get("/metrics").await.body;
        assert!(page.lines().any(|line| line == "pinion_resumed_requests_total 0"), "no request had begun");
    });
}

#[test]
fn a_client_that_leaves_meanwhile_is_forgotten() {
    run(Options::default(), |h| async move {
        let (stream, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1], "a", 0);
        die(&h, ENGINE);
        drop(stream);
        wait_for("the slot", || (h.slots_used() == 0).then_some(())).await;
        return_to_life(&h, ENGINE);
        nothing_sent(&h);
    });
}

#[test]
fn a_drain_waits_for_no_role_that_is_gone() {
    run(Options::default(), |h| async move {
        let (waits, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1], "a", 0);
        die(&h, ENGINE);
        h.app.ledger.borrow_mut().drain();
        assert_eq!(error_of(&Reply::read(waits).await), "role_restarted");
        let ledger = h.app.ledger.borrow();
        assert_eq!((ledger.any_open(), ledger.cut()), (false, true));
    });
    run(Options::default(), |h| async move {
        let (stream, _) = begin(&h, STREAM).await;
        h.app.ledger.borrow_mut().drain();
        die(&h, ENGINE);
        assert_eq!(error_of(&Reply::read(stream).await), "role_restarted");
    });
}

#[test]
fn a_full_ring_delays_and_does_not_end() {
    run(Options::default(), |h| async move {
        let (stream, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1], "a", 0);
        die(&h, ENGINE);
        h.sent.borrow_mut().full = true;
        return_to_life(&h, ENGINE);
        nothing_sent(&h);
        for _ in 0..100 {
            look_again(&h);
        }
        // The prompts of all waiting requests were copied in each turn of the loop.
        assert_eq!(h.sent.borrow().refused, 0, "no record is made before there is room for it");
        h.sent.borrow_mut().full = false;
        look_again(&h);
        let (_, again) = resumed(&h).await;
        h.delta(again.id, 1, &[2], "b", DELTA_LAST);
        h.finish(again.id, FinishReason::Stop, 2);
        assert_eq!(text_of(&Reply::read(stream).await), "ab");
    });
}

/// The detokenizer's ring has no room: the engine may not hear of a request whose stream is not open.
#[test]
fn nothing_is_submitted_before_its_opening_can_be_seen() {
    run(Options::default(), |h| async move {
        let (stream, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1], "a", 0);
        die(&h, ENGINE);
        h.sent.borrow_mut().hides_openings = true;
        return_to_life(&h, ENGINE);
        for _ in 0..3 {
            look_again(&h);
        }
        assert_eq!((h.sent.borrow().opens.len(), h.sent.borrow().jobs.len()), (1, 0), "opened once");
        // Its stream is lost with the detokenizer, and opened again.
        die(&h, DETOKENIZER);
        h.sent.borrow_mut().opens.clear();
        return_to_life(&h, DETOKENIZER);
        assert_eq!((h.sent.borrow().opens.len(), h.sent.borrow().jobs.len()), (1, 0));
        h.sent.borrow_mut().hides_openings = false;
        look_again(&h);
        let (_, again) = resumed(&h).await;
        assert_eq!(again.resume, [1]);
        h.delta(again.id, 1, &[2], "b", DELTA_LAST);
        h.finish(again.id, FinishReason::Stop, 2);
        assert_eq!(text_of(&Reply::read(stream).await), "ab");
    });
}

/// A request that kills the engine in its first step each time, beside others that do not.
#[test]
fn who_is_suspected_goes_alone_and_is_given_up_at_the_second_death() {
    run(Options::default(), |h| async move {
        let (steady, moved) = begin(&h, STREAM).await;
        h.delta(moved.id, 0, &[1], "a", 0);
        let (poison, _) = begin(&h, r#"{"prompt":"poison","stream":true}"#).await;
        let (innocent, _) = begin(&h, r#"{"prompt":"innocent","stream":true}"#).await;
        let waiting = h.post_raw("/v1/completions", r#"{"prompt":"waiting","stream":true}"#).await;
        stamp(&h, h.submit().await.id, &[Stage::EngineReceived]);
        h.sent.borrow_mut().opens.clear();

        die(&h, ENGINE);
        return_to_life(&h, ENGINE);
        // Requests that had made progress, and those that were in no step, go at once.
        let (_, steady_again) = resumed(&h).await;
        let (_, waiting_again) = resumed(&h).await;
        assert_eq!((&steady_again.resume[..], waiting_again.resume.len()), (&[1][..], 0));
        nothing_sent(&h);
        h.delta(steady_again.id, 1, &[2], "b", 0);
        nothing_sent(&h);
        h.delta(waiting_again.id, 0, &[9], "w", 0);
        look_again(&h);
        let (_, alone) = resumed(&h).await;
        assert!(format!("{:?}", alone.prompt).contains("poison"));
        stamp(&h, alone.id, &[Stage::EngineReceived, Stage::FirstScheduled]);
        nothing_sent(&h);

        die(&h, ENGINE);
        assert_eq!(error_of(&Reply::read(poison).await), "role_restarted");
        return_to_life(&h, ENGINE);
        let (_, steady_again) = resumed(&h).await;
        let (_, waiting_again) = resumed(&h).await;
        assert_eq!((&steady_again.resume[..], &waiting_again.resume[..]), (&[1, 2][..], &[9][..]));
        h.delta(steady_again.id, 2, &[3], "c", DELTA_LAST);
        h.finish(steady_again.id, FinishReason::Stop, 3);
        h.delta(waiting_again.id, 1, &[9], "x", DELTA_LAST);
        h.finish(waiting_again.id, FinishReason::Stop, 2);
        look_again(&h);
        let (_, alone) = resumed(&h).await;
        h.delta(alone.id, 0, &[4], "i", DELTA_LAST);
        h.finish(alone.id, FinishReason::Stop, 1);
        for (stream, text) in [(steady, "abc"), (waiting, "wx"), (innocent, "i")] {
            assert_eq!(text_of(&Reply::read(stream).await), text);
        }
        assert_eq!(h.slots_used(), 0);
        let page = h.get("/metrics").await.body;
        for line in ["pinion_quarantined_requests_total 1", "pinion_resumed_requests_total 6"] {
            assert!(page.lines().any(|found| found == line), "{line} is not in {page}");
        }
    });
}

#[test]
fn a_role_that_is_killed_for_a_corrupt_edge_makes_no_request_suspect() {
    for peer in [ENGINE, DETOKENIZER, TOKENIZER] {
        run(Options::default(), |h| async move {
            let stream = h.post_raw("/v1/completions", STREAM).await;
            let mut submit = h.submit().await;
            for _ in 0..10 {
                h.sent.borrow_mut().opens.clear();
                stamp(&h, submit.id, &[Stage::TokenizeBegin]);
                if peer != TOKENIZER {
                    stamp(&h, submit.id, &[Stage::EngineReceived, Stage::FirstScheduled]);
                }
                be_killed(&h, peer);
                return_to_life(&h, peer);
                (_, submit) = resumed(&h).await;
            }
            h.delta(submit.id, 0, &[1], "whole", DELTA_LAST);
            h.finish(submit.id, FinishReason::Stop, 1);
            assert_eq!(text_of(&Reply::read(stream).await), "whole", "{peer}");
            let page = h.get("/metrics").await.body;
            assert!(page.lines().any(|line| line == "pinion_quarantined_requests_total 0"), "{page}");
        });
    }
}

#[test]
fn the_time_of_the_interruption_has_its_place_in_the_timeline() {
    run(Options::default(), |h| async move {
        let (stream, first) = begin(&h, r#"{"prompt":"hi","max_tokens":2,"timings":true}"#).await;
        stamp(&h, first.id, &[Stage::FirstToken]);
        h.delta(first.id, 0, &[1], "a", 0);
        die(&h, ENGINE);
        tokio::time::sleep(Duration::from_millis(30)).await;
        return_to_life(&h, ENGINE);
        let (_, again) = resumed(&h).await;
        let stages = [Stage::TokenizeBegin, Stage::EngineReceived, Stage::FirstScheduled, Stage::FirstToken];
        stamp(&h, again.id, &stages);
        stamp(&h, again.id, &[Stage::LastToken]);
        h.delta(again.id, 1, &[2], "b", DELTA_LAST);
        h.finish(again.id, FinishReason::Length, 2);
        let timings = &Reply::read(stream).await.json()["timings"];
        let stages = timings["stages_ms"].as_object().unwrap();
        let sum: f64 = stages.values().map(|ms| ms.as_f64().unwrap()).sum();
        assert!((sum - timings["e2e_ms"].as_f64().unwrap()).abs() < 1e-6, "{timings}");
        assert!(
            stages["decode"].as_f64().unwrap() >= 30.0,
            "it fell between the first token and the last: {timings}"
        );
        assert_eq!(timings["resumptions"], 1);
    });
}

#[test]
fn without_the_switch_requests_end_with_the_role() {
    run(Options { resume: false, ..Options::default() }, |h| async move {
        let (stream, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1], "a", 0);
        tokio::task::yield_now().await;
        die(&h, ENGINE);
        let reply = Reply::read(stream).await;
        assert_eq!(error_of(&reply), "role_restarted");
        assert_eq!(h.slots_used(), 0);
    });
}

#[test]
fn a_refusal_after_a_restart_is_the_end() {
    run(Options::default(), |h| async move {
        let (stream, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1], "a", 0);
        die(&h, ENGINE);
        return_to_life(&h, ENGINE);
        let (_, again) = resumed(&h).await;
        h.reject(first.id, Fault::new(FaultCode::Internal, "of the first life"));
        h.reject(again.id, Fault::new(FaultCode::TooManyRequests, "no room"));
        assert_eq!(error_of(&Reply::read(stream).await), "rate_limit_exceeded");
    });
}

/// A look whether a request can be served took a turn, and the request the next one.
#[test]
fn every_tokenizer_has_its_turn_without_resumption() {
    for resume in [false, true] {
        run(Options { tokenizers: 2, resume, ..Options::default() }, |h| async move {
            for _ in 0..4 {
                let stream = h.post_raw("/v1/completions", r#"{"prompt":"hi","max_tokens":1}"#).await;
                let id = h.submit().await.id;
                h.delta(id, 0, &[1], "a", DELTA_LAST);
                h.finish(id, FinishReason::Length, 1);
                assert_eq!(Reply::read(stream).await.status, 200);
            }
            assert_eq!(h.sent.borrow().turns, [0, 1, 0, 1], "resume {resume}");
        });
    }
}
