//! The loop against its whole surroundings: every request gets its own tokens and one end, whatever happens around it.

use crate::rig;
use crate::rig::{DETOKENIZERS, EOS, FRONTENDS, Random, Rig, SLOTS, VOCABULARY, small};
use pinion_engine::{Broken, Engine, Sizes, Turn};
use pinion_model::{Model, ModelInfo, RowOutcome, StepBatch, StepError, StepOutput, WarmUp, fake_token};
use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::names::Stage;
use pinion_protocol::status::Gauge;
use pinion_protocol::{FaultCode, Peer, RequestId, Role, Sampling};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const TURNS_MAX: u32 = 100_000;

fn asks(max_tokens: u32) -> Sampling {
    Sampling { max_tokens: Some(max_tokens), ..Sampling::default() }
}

fn oracle(prompt: &[u32], from: u32, to: u32) -> Vec<u32> {
    (from..to).map(|index| fake_token(prompt, u64::from(index), VOCABULARY, Some(EOS))).collect()
}

/// Turns until nothing is left, and checks that nothing is.
fn settle(engine: &mut Engine, rig: &mut Rig) {
    for _ in 0..TURNS_MAX {
        let turn = engine.turn(rig).expect("the model works");
        rig.read();
        if turn == Turn::Idle {
            assert!(engine.is_empty(), "idle with requests");
            for gauge in [Gauge::KvBlocksUsed, Gauge::RequestsRunning, Gauge::RequestsWaiting] {
                assert_eq!(rig.gauge(gauge), 0, "{gauge:?}");
            }
            return;
        }
    }
    panic!("still busy after {TURNS_MAX} turns");
}

#[test]
fn sixty_four_requests_get_the_oracles_tokens() {
    for overlap in [false, true] {
        check_oracle(overlap);
    }
}

fn check_oracle(overlap: bool) {
    let (mut engine, mut rig, mut random) = (rig::engine(small(), overlap), Rig::new(), Random::new(11));
    let mut expected = HashMap::new();
    for n in 0..FRONTENDS * SLOTS {
        let id = rig.open(n % FRONTENDS, n / FRONTENDS);
        let (prompt_len, max_tokens) = (1 + random.below(50), 1 + random.below(40));
        let prompt = random.prompt(prompt_len);
        let resumed = random.below(max_tokens);
        let mut ids = prompt.clone();
        ids.extend(oracle(&prompt, 0, resumed));
        rig.admit(id, &ids, prompt.len(), asks(max_tokens));
        expected.insert(id, oracle(&prompt, resumed, max_tokens));
        engine.turn(&mut rig).expect("the fake model works");
    }
    settle(&mut engine, &mut rig);
    for (id, tokens) in &expected {
        let (story, finished) = rig.ended(*id);
        assert_eq!((&story.tokens, finished.reason), (tokens, FinishReason::Length), "{id}");
        let stages = [Stage::EngineReceived, Stage::FirstScheduled, Stage::FirstToken, Stage::LastToken];
        let stamps = stages.map(|stage| rig.stamped(*id, stage));
        assert!(stamps[0] > 0 && stamps.is_sorted(), "{id}: {stamps:?}");
    }
    assert!(
        rig.gauge(Gauge::Preemptions) > 0,
        "the pool is too small for the sizes of this test to be any good"
    );
    assert_eq!(rig.gauge(Gauge::RequestsFinished), expected.len() as u64);
}

/// Cancels, stop strings and closed slots at every phase, over and over on the same slots.
#[test]
fn leaving_at_any_moment_leaves_nothing_behind() {
    for overlap in [false, true] {
        check_leaving(overlap);
    }
}

fn check_leaving(overlap: bool) {
    for seed in 0..40 {
        let (mut engine, mut rig, mut random) =
            (rig::engine(small(), overlap), Rig::new(), Random::new(seed));
        let mut open: Vec<(RequestId, Vec<u32>, u32)> = Vec::new();
        let mut closed = Vec::new();
        let mut asked: Vec<(RequestId, FinishReason)> = Vec::new();
        let mut free: Vec<(u16, u16)> = (0..SLOTS).flat_map(|s| [(0, s), (1, s)]).collect();
        for _ in 0..400 {
            if !free.is_empty() && random.below(2) == 0 {
                let (frontend, slot) = free.swap_remove(random.below(free.len() as u32) as usize);
                let id = rig.open(frontend, slot);
                let (len, max_tokens) = (1 + random.below(60), 1 + random.below(60));
                let prompt = random.prompt(len);
                rig.admit(id, &prompt, prompt.len(), asks(max_tokens));
                open.push((id, prompt, max_tokens));
            }
            if !open.is_empty() {
                let (id, ..) = open[random.below(open.len() as u32) as usize];
                match random.below(12) {
                    0 if rig.cancel(id) => asked.push((id, FinishReason::Cancelled)),
                    1 if rig.stop(id) => asked.push((id, FinishReason::Stop)),
                    2 => {
                        // Its frontend was told of a death elsewhere; late events of the old generation may come.
                        rig.close(id);
                        open.retain(|(other, ..)| *other != id);
                        closed.push(id);
                        free.push((id.frontend, id.slot));
                    }
                    _ => {}
                }
            }
            engine.turn(&mut rig).expect("the fake model works");
            rig.read();
            for (id, ..) in
                open.extract_if(.., |(id, ..)| rig.stories.get(id).is_some_and(|s| !s.finished.is_empty()))
            {
                rig.close(id);
                free.push((id.frontend, id.slot));
                check_story(&rig, id, seed, &asked);
            }
        }
        settle(&mut engine, &mut rig);
        for (id, prompt, max_tokens) in open {
            let (story, finished) = rig.ended(id);
            assert_eq!(story.tokens, oracle(&prompt, 0, finished.generated_tokens), "seed {seed}, {id}");
            assert!(finished.generated_tokens <= max_tokens);
        }
        for id in closed {
            let story = rig.stories.get(&id).cloned().unwrap_or_default();
            assert!(story.last_events <= 1 && story.finished.len() <= 1, "seed {seed}, {id}");
        }
    }
}

/// Slots are looked at before each step, so a request whose end was asked for does not see another.
fn check_story(rig: &Rig, id: RequestId, seed: u64, asked: &[(RequestId, FinishReason)]) {
    let (story, finished) = rig.ended(id);
    assert!(!story.eos && story.rejected.is_empty(), "seed {seed}, {id}: {story:?}");
    let mut reasons = asked.iter().filter(|(other, _)| *other == id).map(|(_, reason)| *reason).peekable();
    let fits = match reasons.peek() {
        Some(_) => reasons.any(|reason| reason == finished.reason),
        None => finished.reason == FinishReason::Length,
    };
    assert!(fits, "seed {seed}, {id}: {:?} of {asked:?}", finished.reason);
}

#[test]
fn what_cannot_run_is_rejected_and_the_rest_goes_on() {
    for overlap in [false, true] {
        check_refusals(overlap);
    }
}

fn check_refusals(overlap: bool) {
    let (mut engine, mut rig) = (rig::engine(small(), overlap), Rig::new());
    let fine = rig.open(0, 0);
    rig.admit(fine, &[1, 2], 2, asks(5));
    let foreign = rig.open(0, 1);
    rig.admit(foreign, &[1, VOCABULARY], 2, asks(5));
    let long = rig.open(1, 2);
    rig.admit(long, &[1; 100], 100, asks(29));
    rig.post(0, 1, &[0; 11]);
    rig.post(1, 77, &[]);
    let stale = rig.open(0, 4);
    rig.admit(stale, &[1, 2], 2, asks(5));
    rig.close(stale);
    rig.admit(RequestId { frontend: 9, slot: 0, generation: 1 }, &[1], 1, asks(5));
    rig.admit(RequestId { generation: fine.generation + 1, ..fine }, &[1], 1, asks(5));
    rig.admit(fine, &[3, 4], 2, asks(5));

    settle(&mut engine, &mut rig);
    for (id, code) in [(foreign, FaultCode::InvalidValue), (long, FaultCode::ContextLengthExceeded)] {
        assert_eq!(rig.stories[&id].rejected[0].fault.code, code, "{id}");
    }
    assert_eq!(rig.ended(fine).0.tokens, oracle(&[1, 2], 0, 5));
    assert!(!rig.stories.contains_key(&stale));
    assert_eq!((rig.gauge(Gauge::StaleRecords), rig.gauge(Gauge::MalformedRecords)), (1, 1));
    let mut condemned: Vec<&str> = rig.condemned.iter().map(|(_, what)| *what).collect();
    condemned.sort_unstable();
    let impossible = "request of an admission";
    assert_eq!(condemned, ["admit header", "engine record kind", impossible, impossible]);
}

#[test]
fn a_detokenizer_that_does_not_read_costs_only_its_own_requests() {
    for overlap in [false, true] {
        check_stuck_detokenizer(overlap);
    }
}

/// Twelve requests, some turns after the first of them began.
fn twelve_streams(overlap: bool) -> (Engine, Rig, Vec<RequestId>) {
    let (mut engine, mut rig) = (rig::engine(small(), overlap), Rig::new());
    let ids: Vec<_> = (0..12).map(|slot| rig.open(slot % FRONTENDS, slot)).collect();
    for id in &ids {
        rig.admit(*id, &[u32::from(id.slot) + 1, 5], 2, asks(30));
    }
    for _ in 0..6 {
        engine.turn(&mut rig).expect("the fake model works");
    }
    (engine, rig, ids)
}

fn check_stuck_detokenizer(overlap: bool) {
    let (mut engine, mut rig, ids) = twelve_streams(overlap);
    let stuck = Peer::new(Role::Detokenizer, 1);
    rig.stuck.insert(stuck);
    engine.turn(&mut rig).expect("the fake model works");
    let late = rig.open(0, 13);
    rig.admit(late, &[1], 1, asks(3));
    while engine.turn(&mut rig) == Ok(Turn::Worked) {}
    assert!(engine.owes());
    rig.stuck.clear();
    settle(&mut engine, &mut rig);
    assert!(!engine.owes());

    assert_eq!(rig.stories[&late].rejected[0].fault.code, FaultCode::Unavailable);
    for id in ids {
        let (story, finished) = rig.ended(id);
        let prompt = [u32::from(id.slot) + 1, 5];
        assert_eq!(story.tokens, oracle(&prompt, 0, finished.generated_tokens), "{id}: late, but whole");
        let theirs = id.detokenizer(DETOKENIZERS) == stuck.index;
        let reason = if theirs { FinishReason::Failed(FaultCode::Unavailable) } else { FinishReason::Length };
        assert_eq!(finished.reason, reason, "{id}");
    }
}

/// A detokenizer that has stopped reading dies: what it left unread is not for its successor, which knows none of these
/// requests.
#[test]
fn a_successor_gets_nothing_that_was_meant_for_a_dead_detokenizer() {
    for overlap in [false, true] {
        let (mut engine, mut rig, ids) = twelve_streams(overlap);
        let dead = Peer::new(Role::Detokenizer, 1);
        rig.stuck.insert(dead);
        while engine.turn(&mut rig) == Ok(Turn::Worked) {}
        rig.read();
        assert!(engine.owes(), "nothing was left unread: the test shows nothing");
        let (theirs, others): (Vec<_>, Vec<_>) =
            ids.into_iter().partition(|id| id.detokenizer(DETOKENIZERS) == dead.index);
        let told = |rig: &Rig, id: &RequestId| {
            rig.stories.get(id).map(|story| (story.tokens.len(), story.last_events)).unwrap_or_default()
        };
        let before: Vec<_> = theirs.iter().map(|id| told(&rig, id)).collect();

        theirs.iter().for_each(|id| rig.close(*id));
        engine.lose_detokenizer(dead.index);
        assert!(!engine.owes());
        rig.stuck.clear();
        settle(&mut engine, &mut rig);
        let after: Vec<_> = theirs.iter().map(|id| told(&rig, id)).collect();
        assert_eq!(before, after, "overlap {overlap}");
        others.iter().for_each(|id| assert_eq!(rig.ended(*id).1.reason, FinishReason::Length, "{id}"));
    }
}

#[test]
fn a_model_that_is_faster_than_its_reader_waits_for_it() {
    for overlap in [false, true] {
        let (mut engine, mut rig) = (rig::engine(small(), overlap), Rig::new());
        let id = rig.open(0, 0);
        rig.admit(id, &[3, 1], 2, asks(20));
        let mut turns = 0;
        while rig.stories.get(&id).is_none_or(|story| story.finished.is_empty()) {
            // Every other turn finds the reader behind: what was launched comes out, and nothing new begins.
            rig.lag_bytes = 1 << 20;
            while engine.turn(&mut rig) == Ok(Turn::Worked) {}
            let steps = rig.gauge(Gauge::Steps);
            assert_eq!(engine.turn(&mut rig), Ok(Turn::Idle));
            assert_eq!(rig.gauge(Gauge::Steps), steps);
            rig.lag_bytes = 0;
            engine.turn(&mut rig).expect("the fake model works");
            rig.read();
            turns += 1;
            assert!(turns < 100, "no progress");
        }
        assert!(turns >= 20, "{turns} turns for 20 tokens");
        assert_eq!(rig.ended(id).0.tokens, oracle(&[3, 1], 0, 20));
    }
}

#[test]
fn a_lost_peer_takes_its_requests_along_in_silence() {
    for overlap in [false, true] {
        check_lost_peer(overlap);
    }
}

fn check_lost_peer(overlap: bool) {
    let (mut engine, mut rig) = (rig::engine(small(), overlap), Rig::new());
    let ids: Vec<_> = (0..16).map(|slot| rig.open(slot / 8, slot)).collect();
    for id in &ids {
        rig.admit(*id, &[u32::from(id.slot) + 1, 5], 2, asks(30));
    }
    for _ in 0..8 {
        engine.turn(&mut rig).expect("the fake model works");
    }
    engine.discard_where(|id| id.frontend == 0);
    engine.lose_detokenizer(0);
    // Frontends take the requests of a lost detokenizer back by their slots.
    ids.iter().filter(|id| id.detokenizer(DETOKENIZERS) == 0).for_each(|id| rig.close(*id));
    settle(&mut engine, &mut rig);
    for id in ids {
        let survives = id.frontend == 1 && id.detokenizer(DETOKENIZERS) == 1;
        let story = rig.stories.get(&id).cloned().unwrap_or_default();
        assert_eq!((story.finished.len(), story.last_events), (survives.into(), survives.into()), "{id}");
    }
}

/// Every slot has a new request before the engine has looked at all the old ones: they have no claim on its room.
#[test]
fn requests_whose_slots_moved_on_make_room_for_their_successors() {
    let sizes = Sizes { command_budget: 0, ..small() };
    let (mut engine, mut rig) = (rig::engine(sizes, true), Rig::new());
    let slots: Vec<_> =
        (0..FRONTENDS).flat_map(|frontend| (0..SLOTS).map(move |slot| (frontend, slot))).collect();
    let admit_all = |rig: &mut Rig| -> Vec<_> {
        let open = |&(frontend, slot): &(u16, u16)| {
            let id = rig.open(frontend, slot);
            rig.admit(id, &[u32::from(slot) + 1, 7], 2, asks(3));
            id
        };
        slots.iter().map(open).collect()
    };
    let old = admit_all(&mut rig);
    engine.turn(&mut rig).expect("the fake model works");
    old.iter().for_each(|id| rig.close(*id));
    let new = admit_all(&mut rig);
    settle(&mut engine, &mut rig);
    for id in new {
        assert_eq!(rig.ended(id).0.tokens, oracle(&[u32::from(id.slot) + 1, 7], 0, 3), "{id}");
    }
}

/// A fake whose next steps can be made to fail, and whose lane 1 can be made to give no number.
struct Flaky {
    inner: Box<dyn Model>,
    failures: Arc<AtomicU32>,
    poison: Arc<AtomicU32>,
}

impl Model for Flaky {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        if self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
            return Err(StepError::Backend { operation: "test", message: "as asked".into() });
        }
        self.inner.step(batch, out)?;
        let poisoned = self.poison.swap(u32::MAX, Ordering::Relaxed);
        for (row, outcome) in batch.rows.iter().zip(&mut out.rows) {
            if row.slot == poisoned {
                *outcome = RowOutcome::NonFinite;
            }
        }
        Ok(())
    }

    fn logits(&mut self, batch: &StepBatch<'_>, out: &mut Vec<f32>) -> Result<(), StepError> {
        self.inner.logits(batch, out)
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        self.inner.warm_up(shapes)
    }
}

fn flaky(sizes: Sizes, overlap: bool) -> (Engine, Arc<AtomicU32>, Arc<AtomicU32>) {
    let (failures, poison) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(u32::MAX)));
    let inner = rig::fake(&sizes.limits);
    let model = Flaky { inner, failures: failures.clone(), poison: poison.clone() };
    (Engine::new(rig::pipeline(Box::new(model), overlap), sizes), failures, poison)
}

#[test]
fn a_failed_step_fails_its_requests_and_a_failed_row_its_own() {
    for overlap in [false, true] {
        check_failed_step(overlap);
    }
}

fn check_failed_step(overlap: bool) {
    let (mut engine, failures, poison) = flaky(small(), overlap);
    let mut rig = Rig::new();
    let ids: Vec<_> = (0..12).map(|slot| rig.open(0, slot)).collect();
    for id in &ids {
        rig.admit(*id, &[u32::from(id.slot) + 1, 5], 2, asks(9));
    }
    for _ in 0..3 {
        engine.turn(&mut rig).expect("the fake model works");
    }
    poison.store(1, Ordering::Relaxed);
    engine.turn(&mut rig).expect("one row is no step");
    // With overlap the step that takes it may still run.
    let deadline = Instant::now() + Duration::from_secs(60);
    while poison.load(Ordering::Relaxed) != u32::MAX {
        assert!(Instant::now() < deadline, "no step takes the poison");
        std::thread::yield_now();
    }
    failures.store(1, Ordering::Relaxed);
    engine.turn(&mut rig).expect("one failure is not many");
    settle(&mut engine, &mut rig);
    let mut counts = HashMap::new();
    for id in ids {
        let (story, finished) = rig.ended(id);
        assert_eq!(story.tokens, oracle(&[u32::from(id.slot) + 1, 5], 0, finished.generated_tokens));
        *counts.entry(format!("{:?}", finished.reason)).or_insert(0) += 1;
    }
    assert_eq!(counts["Failed(NonFinite)"], 1, "{counts:?}");
    assert!(counts["Failed(Internal)"] >= 7 && counts["Length"] >= 1, "{counts:?}");
}

/// Only failures in a row count: one good step between them and the engine goes on. Which step is the good one is only
/// known without overlap.
#[test]
fn a_good_step_forgives_the_failures_before_it() {
    let (mut engine, failures, _) = flaky(small(), false);
    let mut rig = Rig::new();
    for slot in 0..SLOTS {
        failures.store(u32::from(slot % 6 != 5), Ordering::Relaxed);
        let id = rig.open(0, slot);
        rig.admit(id, &[1, 2], 2, asks(1));
        engine.turn(&mut rig).expect("five failures in a row are not eight");
    }
    settle(&mut engine, &mut rig);
}

#[test]
fn a_model_that_only_fails_ends_the_engine_with_a_reason() {
    for overlap in [false, true] {
        check_broken(overlap);
    }
}

fn check_broken(overlap: bool) {
    let (mut engine, failures, _) = flaky(small(), overlap);
    let mut rig = Rig::new();
    failures.store(u32::MAX, Ordering::Relaxed);
    let mut broken: Option<Broken> = None;
    let mut ids = Vec::new();
    for slot in 0..SLOTS {
        let id = rig.open(0, slot);
        rig.admit(id, &[1, 2], 2, asks(5));
        ids.push(id);
        if let Err(error) = engine.turn(&mut rig) {
            broken = Some(error);
            break;
        }
    }
    rig.read();
    let reason = broken.expect("it fails for good").reason;
    // With overlap the ninth step was launched before the eighth was known to have failed.
    let launched = if overlap { 9 } else { 8 };
    assert!(reason.contains("as asked") && ids.len() == launched, "{reason} after {}", ids.len());
    for id in ids.drain(..8) {
        assert_eq!(rig.ended(id).1.reason, FinishReason::Failed(FaultCode::Internal));
    }
}
