//! Requests with different sampling parameters side by side: each gets the tokens that it gets alone, whatever else is
//! in the batch, also when it is preempted, computed in chunks or resumed half way.

use crate::rig::hashed::{HASHED_VOCABULARY, Hashed};
use crate::rig::{EOS, Random, Rig, Story};
use pinion_engine::{Engine, Turn};
use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::status::Gauge;
use pinion_protocol::{FaultCode, Sampling, StopIds};

/// One request of every kind.
fn every_kind() -> Vec<Sampling> {
    let base = |seed| Sampling { seed, max_tokens: Some(30), ignore_eos: true, ..Sampling::default() };
    let greedy = |seed| Sampling { temperature: 0.0, ..base(seed) };
    vec![
        base(1),
        Sampling { min_p: 0.3, logprobs: Some(3), ..base(2) },
        Sampling { top_k: Some(8), top_p: 0.8, min_p: 0.1, temperature: 0.6, ..base(3) },
        Sampling { repetition_penalty: 1.7, logprobs: Some(0), ..greedy(4) },
        Sampling { frequency_penalty: 0.9, presence_penalty: -0.4, ..base(5) },
        Sampling { presence_penalty: 2.0, repetition_penalty: 0.8, ..greedy(6) },
        Sampling { logit_bias: vec![(3, 2.5), (4, -100.0), (9, 1.5)], ..base(7) },
        Sampling { min_tokens: 12, ignore_eos: false, stop_token_ids: vec![5, 11, 30], ..base(8) },
        Sampling {
            logit_bias: vec![(1, 1.0)],
            frequency_penalty: 1.5,
            repetition_penalty: 1.2,
            min_p: 0.05,
            top_k: Some(20),
            min_tokens: 3,
            stop_token_ids: vec![2],
            logprobs: Some(20),
            ..base(9)
        },
    ]
}

fn settle(engine: &mut Engine, rig: &mut Rig) {
    for _ in 0..10_000 {
        let turn = engine.turn(rig).expect("the model works");
        rig.read();
        if turn == Turn::Idle {
            return;
        }
    }
    panic!("still busy");
}

/// The tokens that a request with these ids gets when it is alone.
fn alone(ids: &[u32], prompt_tokens: usize, sampling: &Sampling) -> (Vec<u32>, FinishReason) {
    let (story, reason) = story_alone(ids, prompt_tokens, sampling);
    (story.tokens, reason)
}

fn story_alone(ids: &[u32], prompt_tokens: usize, sampling: &Sampling) -> (Story, FinishReason) {
    let (mut engine, mut rig) = (Hashed::engine(false), Rig::new());
    let id = rig.open(0, 0);
    rig.admit(id, ids, prompt_tokens, sampling.clone());
    settle(&mut engine, &mut rig);
    let (story, finished) = rig.ended(id);
    (story, finished.reason)
}

/// As many as asked for, the drawn token's first, and none for requests that do not ask.
fn check_logprobs(story: &Story, sampling: &Sampling) {
    let count = sampling.logprobs.map_or(0, |count| 1 + count as usize);
    for (token, entries) in story.tokens.iter().zip(&story.logprobs) {
        assert_eq!(entries.len(), count, "{sampling:?}");
        assert!(entries.first().is_none_or(|entry| entry.token == *token), "{entries:?}");
        assert!(entries.iter().skip(1).is_sorted_by(|a, b| a.logprob >= b.logprob), "{entries:?}");
    }
}

#[test]
fn a_request_gets_the_same_tokens_alone_and_among_others() {
    let mut preemptions = 0;
    for (seed, overlap) in (0..12).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut random = Random::new(seed);
        let prompts: Vec<Vec<u32>> = (0..every_kind().len())
            .map(|_| (0..1 + random.below(40)).map(|_| random.below(HASHED_VOCABULARY)).collect())
            .collect();
        let (mut engine, mut rig) = (Hashed::engine(overlap), Rig::new());
        let mut admitted = Vec::new();
        for (slot, (sampling, prompt)) in every_kind().into_iter().zip(&prompts).enumerate() {
            let id = rig.open(slot as u16 % 2, slot as u16 / 2);
            let (mut story, reason) = story_alone(prompt, prompt.len(), &sampling);
            check_logprobs(&story, &sampling);
            // Some come with a part of their output already made.
            let resumed = random.below(3) as usize * (story.tokens.len() / 3);
            let ids = [&prompt[..], &story.tokens[..resumed]].concat();
            rig.admit(id, &ids, prompt.len(), sampling.clone());
            story.tokens.drain(..resumed);
            story.logprobs.drain(..resumed);
            admitted.push((id, sampling, story, reason));
            for _ in 0..random.below(4) {
                engine.turn(&mut rig).expect("the model works");
            }
        }
        settle(&mut engine, &mut rig);
        for (id, sampling, alone, reason) in admitted {
            let (story, finished) = rig.ended(id);
            assert_eq!((story.tokens, finished.reason), (alone.tokens, reason), "seed {seed}: {sampling:?}");
            assert_eq!(story.logprobs, alone.logprobs, "seed {seed}: {sampling:?}");
        }
        preemptions += rig.gauge(Gauge::Preemptions);
    }
    assert!(preemptions > 0, "the pool is too large for this test to be any good");
}

/// Each parameter shows: the tokens differ from those without it, in the way that it says.
#[test]
fn each_parameter_does_what_it_says() {
    let prompt = [1, 2, 3];
    let greedy = Sampling { temperature: 0.0, max_tokens: Some(40), ignore_eos: true, ..Sampling::default() };
    let tokens_of = |sampling: &Sampling| alone(&prompt, 3, sampling).0;
    let distinct = |tokens: &[u32]| tokens.iter().collect::<std::collections::HashSet<_>>().len();
    let plain = tokens_of(&greedy);
    // Logits lie within 4 of each other: 2 for each repetition outweighs that at the third at the latest.
    let frequent = tokens_of(&Sampling { frequency_penalty: 2.0, ..greedy.clone() });
    let most = (0..HASHED_VOCABULARY).map(|id| frequent.iter().filter(|&&t| t == id).count()).max();
    assert!(most <= Some(3) && distinct(&frequent) > distinct(&plain), "{frequent:?} beside {plain:?}");
    let repeated = tokens_of(&Sampling { repetition_penalty: 100.0, ..greedy.clone() });
    assert_eq!(distinct(&repeated), 40, "{repeated:?}");
    assert!(!repeated.iter().any(|token| prompt.contains(token)), "the prompt counts as said: {repeated:?}");
    let biased = tokens_of(&Sampling { logit_bias: vec![(17, 100.0)], ..greedy.clone() });
    assert_eq!(biased, vec![17; 40]);
    // Both are out of reach of the others; their logits lie within 4, which two repetitions outweigh.
    let both = vec![(17, 100.0), (18, 100.0)];
    let shared = tokens_of(&Sampling { logit_bias: both, frequency_penalty: 2.0, ..greedy.clone() });
    let count = |id| shared.iter().filter(|&&token| token == id).count();
    assert!(count(17) + count(18) == 40 && count(17).abs_diff(count(18)) <= 3, "{shared:?}");

    let stop = Sampling { stop_token_ids: vec![plain[5], 63], ..greedy.clone() };
    let at = plain.iter().position(|&token| token == plain[5]).expect("it is there");
    assert_eq!(alone(&prompt, 3, &stop), (plain[..=at].to_vec(), FinishReason::Stop));
    let patient = Sampling { min_tokens: 20, ..stop };
    let (tokens, reason) = alone(&prompt, 3, &patient);
    assert!(!tokens[..20].contains(&plain[5]) && tokens.len() > 20, "{tokens:?}");
    assert_eq!(reason == FinishReason::Stop, tokens.last() == Some(&plain[5]) || tokens.last() == Some(&63));

    // The end-of-sequence token waits too, and ends the text right after.
    let ending = Sampling { logit_bias: vec![(EOS, 100.0)], ignore_eos: false, ..greedy.clone() };
    assert_eq!(alone(&prompt, 3, &ending), (vec![EOS], FinishReason::Stop));
    let (tokens, reason) = alone(&prompt, 3, &Sampling { min_tokens: 4, ..ending.clone() });
    assert_eq!((tokens.len(), tokens[4], reason), (5, EOS, FinishReason::Stop));
    assert!(!tokens[..4].contains(&EOS), "{tokens:?}");
    let ignoring = Sampling { min_tokens: 4, ignore_eos: true, ..ending };
    assert_eq!(tokens_of(&ignoring), vec![EOS; 40], "what ends nothing need not wait");
}

/// A model that ends its texts in three ways: each ends, each waits for `min_tokens`, and a request that ignores the
/// end ignores all of them. With overlap and without.
#[test]
fn every_end_of_the_model_ends_and_waits() {
    const ENDS: [u32; 3] = [EOS, 20, 41];
    for overlap in [false, true] {
        let run = |sampling: Sampling| {
            let ends = StopIds::of(ENDS).expect("few ids");
            let (mut engine, mut rig) = (Hashed::engine_ending_with(ends, overlap), Rig::new());
            let id = rig.open(0, 0);
            rig.admit(id, &[1, 2, 3], 3, sampling);
            settle(&mut engine, &mut rig);
            let (story, finished) = rig.ended(id);
            (story.tokens.clone(), finished.reason)
        };
        for end in ENDS {
            let base = Sampling {
                temperature: 0.0,
                max_tokens: Some(9),
                logit_bias: vec![(end, 100.0)],
                ..Sampling::default()
            };
            assert_eq!(run(base.clone()), (vec![end], FinishReason::Stop));
            let (tokens, reason) = run(Sampling { min_tokens: 4, ..base.clone() });
            assert_eq!((tokens.len(), tokens[4], reason), (5, end, FinishReason::Stop), "{tokens:?}");
            assert!(!tokens[..4].iter().any(|token| ENDS.contains(token)), "{tokens:?}");
            let ignored = run(Sampling { ignore_eos: true, ..base });
            assert_eq!(ignored, (vec![end; 9], FinishReason::Length));
        }
    }
}

#[test]
fn ids_outside_the_vocabulary_are_refused_by_name_and_harm_no_other_request() {
    let (mut engine, mut rig) = (Hashed::engine(false), Rig::new());
    let fine = rig.open(0, 0);
    rig.admit(fine, &[1, 2], 2, Sampling::default());
    let cases = [
        (
            "logit_bias",
            Sampling { logit_bias: vec![(3, 1.0), (HASHED_VOCABULARY, 1.0)], ..Sampling::default() },
        ),
        ("logit_bias", Sampling { logit_bias: vec![(u32::MAX, 1.0)], ..Sampling::default() }),
        ("stop_token_ids", Sampling { stop_token_ids: vec![HASHED_VOCABULARY], ..Sampling::default() }),
    ];
    for (slot, (field, sampling)) in cases.into_iter().enumerate() {
        let id = rig.open(0, slot as u16 + 1);
        rig.admit(id, &[1, 2], 2, sampling);
        settle(&mut engine, &mut rig);
        let fault = &rig.stories[&id].rejected[0].fault;
        assert_eq!((fault.code, fault.param.as_deref()), (FaultCode::InvalidValue, Some(field)));
    }
    assert_eq!(rig.ended(fine).0.tokens, alone(&[1, 2], 2, &Sampling::default()).0);
}

/// A row that is not asked to sample is not shaped either, and a model's outcome stays per row.
#[test]
fn outcomes_stay_in_their_rows() {
    let (mut engine, mut rig) = (Hashed::engine(false), Rig::new());
    let long: Vec<u32> = (0..60).collect();
    let (shaped, plain) = (rig.open(0, 0), rig.open(0, 1));
    let sampling = Sampling { logit_bias: vec![(9, 100.0)], max_tokens: Some(3), ..Sampling::default() };
    rig.admit(shaped, &long, 60, sampling);
    rig.admit(plain, &[4], 1, Sampling { max_tokens: Some(9), ..Sampling::default() });
    settle(&mut engine, &mut rig);
    assert_eq!(rig.ended(shaped).0.tokens, [9, 9, 9]);
    let expected = alone(&[4], 1, &Sampling { max_tokens: Some(9), ..Sampling::default() }).0;
    assert_eq!(rig.ended(plain).0.tokens, expected);
}
