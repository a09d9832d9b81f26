//! Orders of operators at the HTTP side: done, refused, not answered, too many.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness::{Options, run, wait_for};
use pinion_frontend::limits::ORDERS_MAX;
use pinion_protocol::control::Admin;

const PATH: &str = "/reset_prefix_cache";

#[test]
fn the_launcher_s_word_is_the_answer_and_silence_is_a_503() {
    run(Options::default(), |h| async move {
        for (outcome, status, said) in [
            (Some(Ok(())), 200, ""),
            (Some(Err("engine-0 died before it was done".to_owned())), 503, "engine-0 died"),
            (None, 503, "not done within"),
            (Some(Ok(())), 200, ""),
        ] {
            let asked = async {
                let (number, admin) = wait_for("an order", || h.sent.borrow_mut().orders.pop_front()).await;
                assert_eq!(admin, Admin::ClearPrefixCache);
                h.app.orders.done(number + 1, Err("of another order".to_owned()));
                if let Some(outcome) = outcome {
                    h.app.orders.done(number, outcome);
                }
                number
            };
            let (number, reply) = tokio::join!(asked, h.post(PATH, ""));
            assert_eq!(reply.status, status, "{reply:?}");
            assert!(reply.body.contains(said), "{reply:?}");
            if status == 503 {
                assert_eq!(reply.json()["error"]["code"], "unavailable", "{reply:?}");
            } else {
                assert_eq!(reply.body, "");
            }
            h.app.orders.done(number, Ok(())); // too late, or twice: no route waits
        }
    });
}

#[test]
fn past_the_bound_a_client_is_told_to_come_back_and_one_that_left_makes_room() {
    run(Options::default(), |h| async move {
        let mut waiting = Vec::new();
        for _ in 0..ORDERS_MAX {
            waiting.push(h.post_raw(PATH, "").await);
            wait_for("the order", || h.sent.borrow_mut().orders.pop_front()).await;
        }
        assert_eq!(h.post(PATH, "").await.status, 429);
        drop(waiting);
        while h.post(PATH, "").await.status == 429 {}
    });
}
