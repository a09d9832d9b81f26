//! Roles that die and come back, and what a frontend sends and says because of it.

use super::{Harness, Reply};
use pinion_frontend::requests::ledger::Ledger;
use pinion_os::clock;
use pinion_protocol::control::DeathCause;
use pinion_protocol::detokenizer_inbox::Open;
use pinion_protocol::names::Stage;
use pinion_protocol::tokenizer_inbox::Submit;
use pinion_protocol::{Peer, RequestId, Role};
use serde_json::Value;
use std::time::Duration;
use tokio::net::TcpStream;

pub(crate) const STREAM: &str = r#"{"prompt":"hi","max_tokens":9,"stream":true,"temperature":0.5}"#;
pub(crate) const ENGINE: Peer = Peer { role: Role::Engine, index: 0 };
pub(crate) const DETOKENIZER: Peer = Peer { role: Role::Detokenizer, index: 0 };
pub(crate) const TOKENIZER: Peer = Peer { role: Role::Tokenizer, index: 0 };

pub(crate) fn die(h: &Harness, peer: Peer) {
    h.app.ledger.borrow_mut().peer_lost(peer, DeathCause::Unknown);
}

/// It was killed to replace a corrupt edge.
pub(crate) fn be_killed(h: &Harness, peer: Peer) {
    h.app.ledger.borrow_mut().peer_lost(peer, DeathCause::CorruptEdge);
}

pub(crate) fn return_to_life(h: &Harness, peer: Peer) {
    h.app.ledger.borrow_mut().peer_ready(peer);
}

/// So much later, in the steps of a process that runs.
pub(crate) fn pass(h: &Harness, time: Duration) {
    let ledger = &mut h.app.ledger.borrow_mut();
    let begin_ns = clock::now_ns();
    let end_ns = begin_ns + u64::try_from(time.as_nanos()).unwrap() + 1_000_000_000;
    (begin_ns..end_ns).step_by(500_000_000).chain([end_ns]).for_each(|now_ns| turn(ledger, now_ns));
}

/// What a turn of the frontend's loop does by the clock.
fn turn(ledger: &mut Ledger, now_ns: u64) {
    ledger.excuse_pause(now_ns);
    ledger.resume_parked(now_ns);
    ledger.tick(now_ns);
}

/// So much later, in which this process stood still.
pub(crate) fn stand_still(h: &Harness, time: Duration) {
    let ledger = &mut h.app.ledger.borrow_mut();
    let begin_ns = clock::now_ns();
    turn(ledger, begin_ns);
    turn(ledger, begin_ns + u64::try_from(time.as_nanos()).unwrap());
}

/// What waits is looked at once more.
pub(crate) fn look_again(h: &Harness) {
    h.app.ledger.borrow_mut().resume_parked(clock::now_ns());
}

pub(crate) fn stamp(h: &Harness, id: RequestId, stages: &[Stage]) {
    let slot = h.table.slot(usize::from(id.slot)).unwrap();
    stages.iter().for_each(|stage| slot.stamp(id.generation, *stage as usize, clock::now_ns()));
}

/// Begins a stream that the engine has and is at work on.
pub(crate) async fn begin(h: &Harness, body: &str) -> (TcpStream, Submit) {
    let stream = h.post_raw("/v1/completions", body).await;
    let submit = h.submit().await;
    h.sent.borrow_mut().opens.clear();
    stamp(h, submit.id, &[Stage::TokenizeBegin, Stage::EngineReceived, Stage::FirstScheduled]);
    (stream, submit)
}

/// What was sent to the detokenizer and the tokenizer for a request that goes on.
pub(crate) async fn resumed(h: &Harness) -> (Open, Submit) {
    let submit = h.submit().await;
    let open = h.sent.borrow_mut().opens.pop_front().unwrap();
    assert_eq!((open.id, &open.resume), (submit.id, &submit.resume));
    (open, submit)
}

pub(crate) fn nothing_sent(h: &Harness) {
    look_again(h);
    assert_eq!((h.sent.borrow().jobs.len(), h.sent.borrow().opens.len()), (0, 0));
}

pub(crate) fn text_of(reply: &Reply) -> String {
    let events = reply.events();
    let values = events.iter().filter(|event| *event != "[DONE]");
    values
        .map(|event| {
            serde_json::from_str::<Value>(event).unwrap()["choices"][0]["text"].as_str().unwrap().to_owned()
        })
        .collect()
}

pub(crate) fn error_of(reply: &Reply) -> String {
    let last = if reply.status == 200 { reply.events().pop().unwrap() } else { reply.body.clone() };
    let value: Value = serde_json::from_str(&last).unwrap();
    value["error"]["code"].as_str().unwrap().to_owned()
}
