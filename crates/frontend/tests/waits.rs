//! What requests wait for after a death, for how long, and which are suspected as its cause.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::deaths::{
    DETOKENIZER, ENGINE, STREAM, TOKENIZER, begin, die, error_of, look_again, nothing_sent, pass, resumed,
    return_to_life, stamp, stand_still, text_of,
};
use crate::harness::{Options, PATIENCE_WITH_ROLES, Reply, run, wait_for};
use pinion_frontend::limits::{LAST_TEXT_GRACE, PROBATION_MAX};
use pinion_protocol::frontend_inbox::{DELTA_LAST, Encoded, FinishReason, kind};
use pinion_protocol::names::Stage;
use pinion_protocol::tokenizer_inbox::TokenizerRecord;
use serde_json::json;
use std::time::Duration;

/// Of those that wait a drain ends the ones that need a role that is gone, or goes meanwhile.
#[test]
fn a_drain_serves_who_waits_and_can_be_served() {
    for dies in [false, true] {
        run(Options::default(), |h| async move {
            h.sent.borrow_mut().hides_openings = true;
            let stream = h.post_raw("/v1/completions", STREAM).await;
            wait_for("the opening", || h.sent.borrow_mut().opens.pop_front()).await;
            h.app.ledger.borrow_mut().drain();
            if dies {
                die(&h, ENGINE);
                assert_eq!(error_of(&Reply::read(stream).await), "role_restarted");
            } else {
                h.sent.borrow_mut().hides_openings = false;
                look_again(&h);
                let submit = h.submit().await;
                h.delta(submit.id, 0, &[1], "a", DELTA_LAST);
                h.finish(submit.id, FinishReason::Stop, 1);
                assert_eq!(text_of(&Reply::read(stream).await), "a");
            }
            let ledger = h.app.ledger.borrow();
            assert_eq!((ledger.any_open(), ledger.cut()), (false, dies), "the exit code says so");
        });
    }
}

/// It dies before it is ready, again and again, and too slowly for the launcher to give up.
#[test]
fn no_request_waits_for_ever_for_a_role_that_does_not_come_back() {
    run(Options::default(), |h| async move {
        let (held, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1], "a", 0);
        die(&h, DETOKENIZER);
        let encode = h.post_raw("/tokenize", r#"{"prompt":"hi"}"#).await;
        let TokenizerRecord::Encode(job) = h.job().await else { panic!("it asked for ids") };
        let comes = h.post_raw("/v1/completions", STREAM).await;
        wait_for("the slots", || (h.slots_used() == 3).then_some(())).await;
        pass(&h, PATIENCE_WITH_ROLES.role - Duration::from_secs(10));
        die(&h, DETOKENIZER);
        assert_eq!(h.slots_used(), 3, "it may still come back");
        pass(&h, PATIENCE_WITH_ROLES.role);
        for stream in [held, comes] {
            assert_eq!(error_of(&Reply::read(stream).await), "role_restarted");
        }
        let mut record = Vec::new();
        Encoded { id: job.id, ids: vec![7] }.encode(&mut record);
        h.take(kind::ENCODED, &record);
        assert_eq!(Reply::read(encode).await.json()["tokens"], json!([7]), "it did not need that role");

        // A wait is for one absence, and the next one is another.
        return_to_life(&h, DETOKENIZER);
        die(&h, DETOKENIZER);
        let stream = h.post_raw("/v1/completions", STREAM).await;
        wait_for("the slot", || (h.slots_used() == 1).then_some(())).await;
        pass(&h, Duration::ZERO);
        return_to_life(&h, DETOKENIZER);
        let (_, late) = resumed(&h).await;
        h.delta(late.id, 0, &[1], "late", DELTA_LAST);
        h.finish(late.id, FinishReason::Stop, 1);
        assert_eq!(text_of(&Reply::read(stream).await), "late");
    });
}

/// The account had left the engine, and the text still waited in it behind a full ring.
#[test]
fn text_that_died_with_the_engine_is_made_again() {
    run(Options::default(), |h| async move {
        let (stream, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1], "a", 0);
        h.finish(first.id, FinishReason::Length, 3);
        die(&h, ENGINE);
        return_to_life(&h, ENGINE);
        pass(&h, Duration::ZERO);
        nothing_sent(&h);
        pass(&h, LAST_TEXT_GRACE);
        let (_, again) = resumed(&h).await;
        assert_eq!(again.resume, [1]);
        h.delta(again.id, 1, &[2, 3], "bc", DELTA_LAST);
        h.finish(again.id, FinishReason::Length, 3);
        assert_eq!(text_of(&Reply::read(stream).await), "abc");
    });
}

/// With `--no-resume`, and in a drain, it is not made again, and that is no fault inside the service.
#[test]
fn the_death_of_the_engine_is_the_reason_for_text_that_died_with_it() {
    for drains in [false, true] {
        run(Options { resume: drains, ..Options::default() }, |h| async move {
            let (stream, first) = begin(&h, STREAM).await;
            h.delta(first.id, 0, &[1], "a", 0);
            h.finish(first.id, FinishReason::Length, 3);
            die(&h, ENGINE);
            if drains {
                h.app.ledger.borrow_mut().drain();
            }
            pass(&h, LAST_TEXT_GRACE);
            assert_eq!(error_of(&Reply::read(stream).await), "role_restarted");
            let ledger = h.app.ledger.borrow();
            assert_eq!((ledger.any_open(), ledger.cut()), (false, drains));
        });
    }
}

/// A detokenizer that hangs is killed in the end, and until then its text is not lost.
#[test]
fn text_is_waited_for_until_a_detokenizer_that_hangs_is_replaced() {
    run(Options::default(), |h| async move {
        let (stream, first) = begin(&h, STREAM).await;
        h.finish(first.id, FinishReason::Length, 1);
        pass(&h, PATIENCE_WITH_ROLES.text - Duration::from_secs(5));
        die(&h, DETOKENIZER);
        return_to_life(&h, DETOKENIZER);
        look_again(&h);
        let (_, again) = resumed(&h).await;
        h.delta(again.id, 0, &[1], "a", DELTA_LAST);
        h.finish(again.id, FinishReason::Length, 1);
        assert_eq!(text_of(&Reply::read(stream).await), "a");

        let (stream, first) = begin(&h, STREAM).await;
        h.finish(first.id, FinishReason::Length, 1);
        pass(&h, PATIENCE_WITH_ROLES.text);
        assert_eq!(error_of(&Reply::read(stream).await), "internal");
    });
}

/// The machine slept. The launcher does not call the roles stuck then; a frontend gave their requests up as soon as it
/// woke, before another role had moved.
#[test]
fn a_pause_of_the_whole_service_counts_for_no_wait() {
    run(Options::default(), |h| async move {
        let (waits, first) = begin(&h, STREAM).await;
        h.finish(first.id, FinishReason::Length, 1);
        stand_still(&h, Duration::from_secs(3600));
        h.delta(first.id, 0, &[1], "a", DELTA_LAST);
        assert_eq!(text_of(&Reply::read(waits).await), "a");

        let (held, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1], "a", 0);
        die(&h, ENGINE);
        stand_still(&h, Duration::from_secs(3600));
        return_to_life(&h, ENGINE);
        let (_, again) = resumed(&h).await;
        h.delta(again.id, 1, &[2], "b", DELTA_LAST);
        h.finish(again.id, FinishReason::Length, 2);
        assert_eq!(text_of(&Reply::read(held).await), "ab");
    });
}

/// They are with the tokenizer only because the engine is in the middle of a step.
#[test]
fn what_a_tokenizer_has_done_with_is_not_suspected_of_its_death() {
    run(Options::default(), |h| async move {
        let done = [Stage::TokenizeBegin, Stage::TokenizeEnd];
        let (one, another) =
            (h.post_raw("/v1/completions", STREAM).await, h.post_raw("/v1/completions", STREAM).await);
        for _ in 0..2 {
            stamp(&h, h.submit().await.id, &done);
        }
        h.sent.borrow_mut().opens.clear();
        die(&h, TOKENIZER);
        return_to_life(&h, TOKENIZER);
        for _ in 0..2 {
            stamp(&h, resumed(&h).await.1.id, &done);
        }
        // At the second death without a token it is one at a time.
        die(&h, TOKENIZER);
        return_to_life(&h, TOKENIZER);
        let first = resumed(&h).await.1.id;
        nothing_sent(&h);
        h.delta(first, 0, &[1], "a", 0);
        look_again(&h);
        for id in [first, resumed(&h).await.1.id] {
            h.delta(id, u32::from(id == first), &[2], "b", DELTA_LAST);
            h.finish(id, FinishReason::Length, 1);
        }
        assert_eq!(text_of(&Reply::read(one).await), "ab");
        assert_eq!(text_of(&Reply::read(another).await), "b");
    });
}

/// One that went on waits in the engine's queue; a suspect does not wait for it for ever.
#[test]
fn a_suspect_waits_so_long_and_no_longer() {
    run(Options::default(), |h| async move {
        let (suspect, _) = begin(&h, r#"{"prompt":"suspect","stream":true}"#).await;
        let queued = h.post_raw("/v1/completions", r#"{"prompt":"queued","stream":true}"#).await;
        stamp(&h, h.submit().await.id, &[Stage::EngineReceived]);
        h.sent.borrow_mut().opens.clear();
        die(&h, ENGINE);
        return_to_life(&h, ENGINE);
        let (_, queued_again) = resumed(&h).await;
        pass(&h, Duration::ZERO);
        nothing_sent(&h);
        // The engine may not have moved either, or has what it said on its way.
        stand_still(&h, PROBATION_MAX * 2);
        nothing_sent(&h);
        pass(&h, PROBATION_MAX * 3);
        let (_, suspect_again) = resumed(&h).await;
        for (again, stream) in [(suspect_again, suspect), (queued_again, queued)] {
            h.delta(again.id, 0, &[1], "x", DELTA_LAST);
            h.finish(again.id, FinishReason::Stop, 1);
            assert_eq!(text_of(&Reply::read(stream).await), "x");
        }
    });
}

#[test]
fn a_token_that_is_drawn_again_is_counted_once() {
    run(Options::default(), |h| async move {
        let (stream, first) = begin(&h, STREAM).await;
        h.delta(first.id, 0, &[1, 2], "ab", DELTA_LAST);
        die(&h, ENGINE);
        return_to_life(&h, ENGINE);
        let (_, again) = resumed(&h).await;
        h.delta(again.id, 1, &[2], "b", DELTA_LAST);
        assert_eq!(h.app.metrics.live_generated_tokens.get(), 2);
        h.finish(again.id, FinishReason::Length, 2);
        assert_eq!(text_of(&Reply::read(stream).await), "ab");
    });
}
