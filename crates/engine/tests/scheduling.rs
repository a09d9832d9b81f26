//! The scheduler's switches as the loop sees them: the prefix cache, the policies, how much is taken in at once.

use crate::rig;
use crate::rig::{EOS, FRONTENDS, Random, Rig, SLOTS, VOCABULARY, small};
use pinion_engine::{Ports, Sizes, Turn};
use pinion_model::fake_token;
use pinion_protocol::Sampling;
use pinion_protocol::names::Counter;
use pinion_protocol::status::{Gauge, STEP_SIZES};
use pinion_scheduler::{Admission, Limits, Policy, StepTime};

/// Runs requests that begin alike, two of three of them, through a small pool. Gives the rig and how many turns it
/// took.
fn run(policy: Policy) -> (Rig, u32) {
    let (mut engine, mut rig, mut random) =
        (rig::engine(Sizes { policy, ..small() }, false), Rig::new(), Random::new(3));
    let common = random.prompt(40);
    let mut expected = Vec::new();
    for n in 0..FRONTENDS * SLOTS {
        let id = rig.open(n % FRONTENDS, n / FRONTENDS);
        let own = 1 + random.below(20);
        let mut prompt = if n % 3 == 0 { Vec::new() } else { common.clone() };
        prompt.extend(random.prompt(own));
        let max_tokens = 1 + random.below(30);
        let sampling = Sampling { max_tokens: Some(max_tokens), ..Sampling::default() };
        rig.admit(id, &prompt, prompt.len(), sampling);
        expected.push((id, prompt, max_tokens));
    }
    let turns = (1..100_000)
        .find(|_| {
            let turn = engine.turn(&mut rig).expect("the fake model works");
            rig.read();
            turn == Turn::Idle
        })
        .expect("it comes to an end");
    let mut cached = 0;
    for (id, prompt, max_tokens) in expected {
        let (story, finished) = rig.ended(id);
        let token = |index| fake_token(&prompt, u64::from(index), VOCABULARY, Some(EOS));
        assert_eq!(story.tokens, (0..max_tokens).map(token).collect::<Vec<_>>(), "{policy:?}, {id}");
        assert_eq!(rig.counted(id, Counter::CachedTokens), u64::from(finished.cached_tokens));
        cached += u64::from(finished.cached_tokens);
    }
    assert_eq!(rig.gauge(Gauge::KvBlocksUsed), 0, "no request holds the cached blocks");
    let sizes = STEP_SIZES.map(|(bound, gauge)| (u64::from(bound), rig.gauge(gauge)));
    assert_eq!(sizes.iter().map(|(_, steps)| steps).sum::<u64>(), rig.gauge(Gauge::Steps));
    let (tokens, most) =
        (rig.gauge(Gauge::StepTokens), sizes.iter().map(|(bound, steps)| bound * steps).sum());
    assert!(rig.gauge(Gauge::PromptTokens) < tokens && tokens <= most, "{sizes:?} {tokens}");
    assert_eq!(cached, rig.gauge(Gauge::PrefixHitTokens));
    (rig, turns)
}

/// The page of a dead engine is its successor's.
#[test]
fn step_sizes_are_those_of_the_engine_that_lives() {
    let (mut engine, mut rig) = (rig::engine(small(), false), Rig::new());
    STEP_SIZES.iter().for_each(|(_, gauge)| rig.set_gauge(*gauge, 1000));
    rig.set_gauge(Gauge::StepTokens, 9000);
    let id = rig.open(0, 1);
    rig.admit(id, &[1, 2, 3], 3, Sampling { max_tokens: Some(2), ..Sampling::default() });
    while engine.turn(&mut rig) == Ok(Turn::Worked) {}
    rig.read();
    let steps: u64 = STEP_SIZES.iter().map(|(_, gauge)| rig.gauge(*gauge)).sum();
    assert_eq!((steps, rig.gauge(Gauge::StepTokens)), (2, 4));
}

#[test]
fn the_prefix_cache_saves_work_and_changes_nothing() {
    let (on, turns_on) = run(Policy::default());
    let (off, turns_off) = run(Policy { prefix_cache: false, ..Policy::default() });
    let (hits, queries) = (on.gauge(Gauge::PrefixHitTokens), on.gauge(Gauge::PrefixQueryTokens));
    assert!(hits * 3 > queries, "{hits} of {queries} tokens found");
    assert!(on.gauge(Gauge::KvBlocksCached) > 0);
    assert_eq!((off.gauge(Gauge::PrefixHitTokens), off.gauge(Gauge::KvBlocksCached)), (0, 0));
    let computed = [&on, &off].map(|rig| rig.gauge(Gauge::PromptTokens));
    assert!(computed[0] * 4 < computed[1] * 3, "{computed:?} prompt tokens computed");
    assert!(turns_on < turns_off);
}

#[test]
fn every_policy_gives_the_same_tokens() {
    let target_ns = 50_000;
    for admission in [Admission::Pack, Admission::Shortest, Admission::Deadline { target_ns }] {
        run(Policy {
            admission,
            prefill_chunk_tokens_max: Some(7),
            prefill_rows_max: Some(2),
            prefill_first_from: Some(3),
            step_time: StepTime::Target { ns: 4000 },
            ..Policy::default()
        });
    }
}

/// (fill to target, requests that are there after each turn): the step takes 8, the budget is 5.
#[test]
fn an_engine_with_room_takes_in_more_than_its_budget() {
    for (fill_to_target, here) in [(false, [5, 10, 15]), (true, [8, 13, 18])] {
        let limits = Limits { block_count: 1000, ..small().limits };
        let mut engine = rig::engine(Sizes { limits, fill_to_target, ..small() }, false);
        let mut rig = Rig::new();
        for slot in 0..SLOTS {
            let id = rig.open(0, slot);
            rig.admit(id, &[1, 2], 2, Sampling { max_tokens: Some(50), ..Sampling::default() });
        }
        let counts = here.map(|_| {
            engine.turn(&mut rig).expect("the fake model works");
            rig.gauge(Gauge::RequestsRunning) + rig.gauge(Gauge::RequestsWaiting)
        });
        assert_eq!(counts, here, "fill to target: {fill_to_target}");
    }
}

/// Without a budget everything that is there is taken in at once, whatever a step takes.
#[test]
fn without_a_command_budget_all_that_is_there_is_taken_in() {
    for (command_budget, fill_to_target, expected) in [(0, false, 32), (0, true, 32), (5, false, 5)] {
        let limits = Limits { block_count: 1000, ..small().limits };
        let mut engine = rig::engine(Sizes { limits, command_budget, fill_to_target, ..small() }, false);
        let mut rig = Rig::new();
        for slot in 0..32 {
            let id = rig.open(0, slot);
            rig.admit(id, &[1, 2], 2, Sampling { max_tokens: Some(50), ..Sampling::default() });
        }
        engine.turn(&mut rig).expect("the fake model works");
        let here = rig.gauge(Gauge::RequestsRunning) + rig.gauge(Gauge::RequestsWaiting);
        assert_eq!(here, expected, "budget {command_budget}, fill to target {fill_to_target}");
    }
}
