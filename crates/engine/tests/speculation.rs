//! Drafts change how many tokens a step gives and nothing else: tokens, logprobs and ends are those of plain decoding,
//! for everything that a request can ask of its draws, with overlap and without, also where blocks are short.

use crate::rig;
use crate::rig::grammars::{constrained, with_grammars};
use crate::rig::hashed::{HASHED_VOCABULARY, Hashed};
use crate::rig::{Random, Rig, pipeline, shapes, small};
use pinion_engine::{Engine, Sizes, Turn};
use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::names::Counter;
use pinion_protocol::scores::LogprobEntry;
use pinion_protocol::status::Gauge;
use pinion_protocol::{RequestId, Sampling};
use pinion_scheduler::Policy;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A next token depends on the last one and on whether its position is even.
const PERIOD: u32 = 2;

fn sizes(speculation: bool, prefix_cache: bool) -> Sizes {
    Sizes { policy: Policy { speculation, prefix_cache, ..Policy::default() }, ..small() }
}

fn engine(sizes: Sizes, overlap: bool) -> Engine {
    let mut pipeline = pipeline(Hashed::with_period(&sizes, PERIOD), overlap);
    pipeline.warm_up(&shapes(&sizes.limits)).expect("the model is always warm");
    Engine::new(pipeline, sizes)
}

fn settle(engine: &mut Engine, rig: &mut Rig) {
    for _ in 0..100_000 {
        let turn = engine.turn(rig).expect("the model works");
        rig.read();
        if turn == Turn::Idle && engine.is_empty() {
            assert_eq!(rig.gauge(Gauge::KvBlocksUsed), 0, "blocks are left behind");
            return;
        }
    }
    panic!("still busy");
}

/// Greedy and seeded requests with all that a request can ask of its logits.
fn workload(seed: u64) -> Vec<(Vec<u32>, Sampling)> {
    let mut random = Random::new(seed);
    (0..30)
        .map(|n| {
            let prompt = (0..1 + random.below(30)).map(|_| random.below(HASHED_VOCABULARY)).collect();
            let every = |count: u32| n % count == 0;
            let max_tokens = 1 + random.below(80);
            let sampling = Sampling {
                temperature: if every(3) { 0.3 } else { 0.0 },
                seed: u64::from(n),
                max_tokens: Some(max_tokens),
                min_tokens: if every(4) { max_tokens.min(12) } else { 0 },
                ignore_eos: every(2),
                stop_token_ids: vec![random.below(HASHED_VOCABULARY)],
                logit_bias: vec![(random.below(HASHED_VOCABULARY), 1.0)],
                logprobs: every(3).then_some(2),
                prompt_logprobs: every(7).then_some(1),
                frequency_penalty: if every(5) { 0.02 } else { 0.0 },
                repetition_penalty: if every(6) { 1.01 } else { 1.0 },
                ..Sampling::default()
            };
            (prompt, sampling)
        })
        .collect()
}

type Answers = HashMap<RequestId, (Vec<u32>, Vec<Vec<LogprobEntry>>, FinishReason)>;

/// The answers to a workload that arrives little by little; drafts, those that were accepted, and steps.
fn answers(seed: u64, sizes: Sizes, overlap: bool) -> (Answers, [u64; 3]) {
    let (mut engine, mut rig) = (engine(sizes, overlap), Rig::new());
    let mut ids = Vec::new();
    for (n, (prompt, sampling)) in workload(seed).into_iter().enumerate() {
        let id = rig.open(n as u16 % 2, n as u16 / 2);
        rig.admit(id, &prompt, prompt.len(), sampling);
        ids.push(id);
        for _ in 0..8 {
            engine.turn(&mut rig).expect("the model works");
            rig.read();
        }
    }
    settle(&mut engine, &mut rig);
    let totals = [Gauge::Drafts, Gauge::AcceptedDrafts, Gauge::Steps].map(|gauge| rig.gauge(gauge));
    let of_slots = [Counter::Drafts, Counter::AcceptedDrafts]
        .map(|counter| ids.iter().map(|id| rig.counted(*id, counter)).sum::<u64>());
    assert_eq!(of_slots, totals[..2], "each draft is counted for its request");
    let answer = |id| {
        let (story, finished) = rig.ended(id);
        (id, (story.tokens, story.logprobs, finished.reason))
    };
    (ids.into_iter().map(answer).collect(), totals)
}

#[test]
fn answers_are_the_same_with_and_without_drafts() {
    let mut drafts = [0, 0];
    for seed in 0..6 {
        let (plain, [none, _, plain_steps]) = answers(seed, sizes(false, true), false);
        assert_eq!(none, 0);
        for (overlap, prefix_cache, blocks) in
            [(false, true, 60), (false, false, 60), (true, true, 60), (true, false, 33), (false, true, 33)]
        {
            let mut sizes = sizes(true, prefix_cache);
            sizes.limits.block_count = blocks;
            let (found, [proposed, accepted, steps]) = answers(seed, sizes, overlap);
            assert_eq!(found, plain, "seed {seed}, overlap {overlap}, cache {prefix_cache}, {blocks} blocks");
            assert!(
                overlap || blocks < 60 || steps < plain_steps,
                "seed {seed}: {steps} of {plain_steps} steps"
            );
            drafts = [drafts[0] + proposed, drafts[1] + accepted];
        }
    }
    assert!(
        drafts[1] > 1000 && drafts[0] - drafts[1] > 200,
        "of {} drafts {} were right",
        drafts[0],
        drafts[1]
    );
}

/// Alone, a text that goes round in circles takes a step for eight of its tokens.
#[test]
fn a_text_in_circles_is_proposed_whole() {
    for (seats, tokens) in [(8, 24), (1, 24), (1, 3)] {
        let mut sizes = sizes(true, true);
        (sizes.limits.max_num_seqs, sizes.limits.max_num_batched_tokens) = (seats, tokens);
        let (mut engine, mut rig) = (engine(sizes, false), Rig::new());
        let id = rig.open(0, 0);
        let sampling =
            Sampling { temperature: 0.0, max_tokens: Some(120), ignore_eos: true, ..Sampling::default() };
        rig.admit(id, &[3, 1], 2, sampling);
        settle(&mut engine, &mut rig);
        let (story, _) = rig.ended(id);
        assert_eq!(story.tokens.len(), 120);
        let [steps, most] = [Counter::Steps, Counter::BatchRowsMax].map(|counter| rig.counted(id, counter));
        let expected = if tokens == 3 { (40..80, 3) } else { (15..60, 8) };
        assert!(expected.0.contains(&steps) && most == expected.1, "{steps} steps of up to {most} rows");
    }
}

/// The prompt and all generated tokens but the last are computed once, whatever was refused beside them.
#[test]
fn refused_drafts_are_no_tokens_of_a_step() {
    let mut refused = 0;
    for seed in 0..8 {
        let (mut engine, mut rig) = (engine(sizes(true, true), false), Rig::new());
        let id = rig.open(0, 0);
        let max_tokens = Some(120);
        let sampling =
            Sampling { temperature: 0.1, seed, max_tokens, ignore_eos: true, ..Sampling::default() };
        rig.admit(id, &[3, 1], 2, sampling);
        settle(&mut engine, &mut rig);
        assert_eq!((rig.ended(id).0.tokens.len(), rig.gauge(Gauge::StepTokens)), (120, 2 + 119));
        refused += rig.gauge(Gauge::Drafts) - rig.gauge(Gauge::AcceptedDrafts);
    }
    assert!(refused > 0, "no draft was refused");
}

/// What follows a grammar proposes nothing; what runs beside it does.
#[test]
fn a_request_with_a_grammar_proposes_nothing() {
    let run = |speculation: bool| {
        let sizes = sizes(speculation, true);
        let engine = Engine::new(pipeline(rig::fake_repeating(&sizes.limits), false), sizes);
        let (mut engine, mut rig) = (with_grammars(engine, &sizes.limits), Rig::new());
        let ids = [rig.open(0, 0), rig.open(1, 0)];
        let endless = Sampling { ignore_eos: true, ..constrained("(ab)*") };
        rig.admit(ids[0], &[5, 6, 7], 3, endless);
        let plain = Sampling { max_tokens: Some(80), ..Sampling::default() };
        rig.admit(ids[1], &[8, 9], 2, plain);
        let began = Instant::now();
        loop {
            engine.turn(&mut rig).expect("the model works");
            rig.read();
            if engine.is_empty() {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(600), "the grammar is not compiled");
        }
        let drafts = ids.map(|id| rig.counted(id, Counter::Drafts));
        assert_eq!((drafts[0], drafts[1] > 0), (0, speculation));
        ids.map(|id| rig.ended(id).0.tokens)
    };
    let tokens = run(true);
    assert_eq!(tokens, run(false));
    assert!(tokens[0].len() > 4, "the grammar repeats itself: {:?}", tokens[0]);
}

/// A stop id, the end of sequence and a length that come in the middle of accepted drafts end the text there.
#[test]
fn ends_cut_accepted_drafts() {
    let prompt = [3, 1];
    let run = |speculation: bool, sampling: &Sampling| {
        let (mut engine, mut rig) = (engine(sizes(speculation, true), false), Rig::new());
        let id = rig.open(0, 0);
        rig.admit(id, &prompt, 2, sampling.clone());
        settle(&mut engine, &mut rig);
        let (story, finished) = rig.ended(id);
        (story.tokens, story.eos, finished.reason, finished.generated_tokens)
    };
    let free = Sampling { temperature: 0.0, max_tokens: Some(100), ignore_eos: true, ..Sampling::default() };
    let whole = run(false, &free).0;
    let mut ended = 0;
    for length in 40..56 {
        let by_length = Sampling { max_tokens: Some(length), ..free.clone() };
        // Among tokens that come again and again, one that waits for its place by `min_tokens`.
        let stop_token_ids = vec![whole[length as usize]];
        let by_stop = Sampling { stop_token_ids, min_tokens: length, ignore_eos: false, ..free.clone() };
        for sampling in [by_length, by_stop] {
            let with = run(true, &sampling);
            assert_eq!(with, run(false, &sampling), "{sampling:?}");
            ended += u32::from(with.2 == FinishReason::Stop);
        }
    }
    assert!(ended > 8, "{ended} of 16 end by their stop id");
}
