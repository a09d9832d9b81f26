//! Logprobs of prompts through the engine's loop: each token once, in order, ahead of what is generated; the same with
//! and without company, preemption and a detokenizer that lags.

use crate::rig::{EOS, Random, Rig, Story, VOCABULARY, engine, small};
use pinion_engine::{Engine, Turn};
use pinion_model::fake_token;
use pinion_protocol::Sampling;
use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::status::Gauge;

fn settle(engine: &mut Engine, rig: &mut Rig) -> u32 {
    for turns in 0..10_000 {
        let turn = engine.turn(rig).expect("the model works");
        rig.read();
        if turn == Turn::Idle {
            return turns;
        }
    }
    panic!("still busy");
}

fn asking(alternatives: u32, max_tokens: u32) -> Sampling {
    Sampling { prompt_logprobs: Some(alternatives), max_tokens: Some(max_tokens), ..Sampling::default() }
}

/// The story has each token of the prompt, and the fake model's opinion of it.
fn check(story: &Story, prompt: &[u32], alternatives: usize) {
    assert_eq!(story.prompt.len(), prompt.len());
    for (at, (rank, entries)) in story.prompt.iter().enumerate() {
        assert_eq!(entries[0].token, prompt[at], "token {at}");
        if at == 0 {
            assert_eq!((*rank, entries.len()), (None, 1));
            continue;
        }
        let likeliest = fake_token(&prompt[..at], 0, VOCABULARY, Some(EOS));
        assert_eq!(entries.len(), 1 + alternatives);
        assert_eq!(*rank, Some(if likeliest == prompt[at] { 1 } else { 2 }));
        assert!(alternatives == 0 || entries[1].token == likeliest, "token {at}: {entries:?}");
    }
}

#[test]
fn scores_come_once_in_order_and_before_the_tokens() {
    [false, true].into_iter().for_each(check_order);
}

fn check_order(overlap: bool) {
    let (mut engine, mut rig) = (engine(small(), overlap), Rig::new());
    let mut random = Random::new(11);
    // Longer than a record holds, than a step, and as short as can be.
    for (slot, (len, alternatives, max_tokens)) in
        [(100, 20, 5), (33, 0, 0), (1, 3, 0), (1, 3, 2), (32, 1, 1), (128, 2, 0)].into_iter().enumerate()
    {
        let prompt = random.prompt(len);
        let id = rig.open(0, slot as u16);
        rig.admit(id, &prompt, prompt.len(), asking(alternatives, max_tokens));
        settle(&mut engine, &mut rig);
        let (story, finished) = rig.ended(id);
        check(&story, &prompt, alternatives as usize);
        assert_eq!((finished.reason, finished.generated_tokens), (FinishReason::Length, max_tokens));
        assert_eq!(finished.prompt_tokens, len);
        let expected: Vec<u32> =
            (0..u64::from(max_tokens)).map(|at| fake_token(&prompt, at, VOCABULARY, Some(EOS))).collect();
        assert_eq!(story.tokens, expected);
    }
}

#[test]
fn company_preemption_and_a_lagging_detokenizer_change_nothing() {
    let mut preemptions = 0;
    for (seed, overlap) in (1..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (mut engine, mut rig) = (engine(small(), overlap), Rig::new());
        let mut random = Random::new(seed);
        let common = random.prompt(16);
        let mut all = Vec::new();
        for slot in 0..24u16 {
            let mut prompt = common.clone();
            let own_len = 1 + random.below(30);
            prompt.extend(random.prompt(own_len));
            let id = rig.open(slot % 2, slot);
            let sampling = match slot % 3 {
                0 => Sampling { max_tokens: Some(30), ..Sampling::default() },
                1 => asking(2, 25),
                _ => asking(4, 0),
            };
            rig.admit(id, &prompt, prompt.len(), sampling.clone());
            all.push((id, prompt, sampling));
            rig.lag_bytes = if slot % 4 == 0 { 128 << 10 } else { 0 };
            engine.turn(&mut rig).expect("the model works");
            rig.read();
        }
        settle(&mut engine, &mut rig);
        preemptions += rig.gauge(Gauge::Preemptions);
        for (id, prompt, sampling) in &all {
            let (story, finished) = rig.ended(*id);
            assert_eq!(finished.reason, FinishReason::Length, "seed {seed}");
            match sampling.prompt_logprobs {
                Some(alternatives) => {
                    check(&story, prompt, alternatives as usize);
                    assert_eq!(
                        finished.cached_tokens, 0,
                        "seed {seed}: nothing of a scored prompt is taken over"
                    );
                }
                None => assert!(story.prompt.is_empty()),
            }
            let expected: Vec<u32> = (0..u64::from(finished.generated_tokens))
                .map(|at| fake_token(prompt, at, VOCABULARY, Some(EOS)))
                .collect();
            assert_eq!(story.tokens, expected, "seed {seed}");
        }
    }
    assert!(preemptions > 0, "the pool is too large to show anything");
}

#[test]
fn a_detokenizer_that_lags_gets_one_score_for_each_row_and_step() {
    let (mut engine, mut rig) = (engine(small(), false), Rig::new());
    let prompt = Random::new(3).prompt(40);
    let mut turns = Vec::new();
    for (slot, lag_bytes) in [(0, 0), (1, 128 << 10)] {
        rig.lag_bytes = lag_bytes;
        let id = rig.open(0, slot);
        rig.admit(id, &prompt, prompt.len(), asking(1, 0));
        turns.push(settle(&mut engine, &mut rig));
        check(&rig.ended(id).0, &prompt, 1);
    }
    assert!(turns[0] < 5 && turns[1] >= 39, "{turns:?}");
}
