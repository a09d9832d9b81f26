//! Texts that follow a grammar, among texts that follow none: with the fake model, under every disturbance.

use crate::rig;
use crate::rig::grammars::{constrained, with_grammars, with_late_grammars, words};
use crate::rig::{EOS, Random, Rig, VOCABULARY, small};
use pinion_engine::{Engine, Sizes, Turn};
use pinion_model::{Model, ModelInfo, RowOutcome, StepBatch, StepError, StepOutput, WarmUp, fake_token};
use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::names::Counter;
use pinion_protocol::{FaultCode, RequestId, Sampling};
use pinion_scheduler::Limits;
use regex::Regex;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a test waits for the threads; a machine under load may take its time.
const PATIENCE: Duration = Duration::from_secs(60);

fn engine(sizes: Sizes, overlap: bool) -> Engine {
    with_grammars(rig::engine(sizes, overlap), &sizes.limits)
}

/// Turns until nothing is left.
fn run(engine: &mut Engine, rig: &mut Rig) {
    let began = Instant::now();
    while engine.turn(rig) == Ok(Turn::Worked) || !engine.is_empty() {
        rig.read();
        assert!(began.elapsed() < PATIENCE, "still busy");
        if engine.compiles() {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    rig.read();
}

fn text(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| words().bytes[*token as usize].clone()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The tokens of one request by itself, and how it ended.
fn alone(prompt: &[u32], sampling: &Sampling) -> (Vec<u32>, FinishReason) {
    let (mut engine, mut rig) = (engine(small(), false), Rig::new());
    let id = rig.open(0, 0);
    rig.admit(id, prompt, prompt.len(), sampling.clone());
    run(&mut engine, &mut rig);
    let (story, finished) = rig.ended(id);
    (story.tokens, finished.reason)
}

const EXPRESSIONS: [&str; 7] = [
    "(ab|ba){2,5}",
    "[0-9]{3}-[0-9]{2}",
    "(yes|no)",
    "[a-z]{1,12}",
    "é?abc?",
    "x{20}",
    "\\{\"[a-c]+\":(true|12)\\}",
];

#[test]
fn texts_follow_their_grammars_and_their_neighbours_notice_nothing() {
    mixed(true);
    mixed(false);
}

fn mixed(overlap: bool) {
    // A pool so small that requests are preempted all the time.
    let limits = Limits { block_count: 20, ..small().limits };
    let (mut engine, mut rig, mut random) =
        (engine(Sizes { limits, ..small() }, overlap), Rig::new(), Random::new(3));
    let mut requests = Vec::new();
    for n in 0..40u16 {
        let id = rig.open(n % 2, n / 2);
        let prompt = random.prompt(1 + u32::from(n % 13));
        let expression = EXPRESSIONS.get(usize::from(n) % 10).copied();
        let sampling = match expression {
            Some(expression) => constrained(expression),
            None => Sampling { max_tokens: Some(24), ignore_eos: true, ..Sampling::default() },
        };
        rig.admit(id, &prompt, prompt.len(), sampling.clone());
        requests.push((id, prompt, expression, sampling));
    }
    run(&mut engine, &mut rig);
    let mut preempted = false;
    for (id, prompt, expression, sampling) in requests {
        let (story, finished) = rig.ended(id);
        preempted |= rig.counted(id, Counter::Preemptions) > 0;
        let Some(expression) = expression else {
            let expected: Vec<u32> =
                (0..24).map(|index| fake_token(&prompt, index, VOCABULARY, Some(EOS))).collect();
            assert_eq!(story.tokens, expected, "{id}: a neighbour without a grammar");
            continue;
        };
        assert_eq!(
            (&story.tokens, finished.reason),
            (&alone(&prompt, &sampling).0, FinishReason::Stop),
            "{expression}"
        );
        let whole = Regex::new(&format!("^(?:{expression})$")).expect("an expression");
        assert!(whole.is_match(&text(&story.tokens)), "{expression}: {:?}", text(&story.tokens));
    }
    assert!(preempted, "no request was preempted: the test tests less than it says");
}

/// The first allowed token from the hash on: what the fake promises, held against the expression itself.
#[test]
fn the_fake_takes_the_first_allowed_token_from_its_own_on() {
    for seed in 0..20 {
        let prompt = Random::new(seed).prompt(4);
        let (tokens, _) = alone(&prompt, &constrained("[a-z]{3}"));
        for (index, token) in tokens.iter().enumerate() {
            let wanted = fake_token(&prompt, index as u64, VOCABULARY, Some(EOS));
            let fits = |token: u32| {
                let text = text(&[tokens[..index].to_vec(), vec![token]].concat());
                !text.is_empty()
                    && text.len() <= 3
                    && text.len() > index
                    && text.bytes().all(|b| b.is_ascii_lowercase())
            };
            let shows = |token: u32| !words().bytes[token as usize].is_empty();
            let first = (wanted..VOCABULARY).chain(0..wanted).find(|token| shows(*token) && fits(*token));
            assert_eq!(Some(*token), first, "seed {seed}, token {index}");
        }
    }
}

#[test]
fn a_resumed_text_goes_on_as_it_would_have() {
    for (seed, expression) in EXPRESSIONS.iter().enumerate() {
        let prompt = Random::new(seed as u64).prompt(5);
        let sampling = constrained(expression);
        let (whole, reason) = alone(&prompt, &sampling);
        for cut in 0..=whole.len() {
            let (mut engine, mut rig) = (engine(small(), true), Rig::new());
            let id = rig.open(0, 0);
            rig.admit(id, &[&prompt, &whole[..cut]].concat(), prompt.len(), sampling.clone());
            run(&mut engine, &mut rig);
            let (story, finished) = rig.ended(id);
            assert_eq!(
                (&story.tokens[..], finished.reason),
                (&whole[cut..], reason),
                "{expression} at {cut}"
            );
        }
    }
}

#[test]
fn a_grammar_decides_the_end() {
    let prompt = Random::new(1).prompt(5);
    let base = || constrained("(ab){3}");
    let cases = [
        ("complete", base(), FinishReason::Stop, 6),
        ("max_tokens", Sampling { max_tokens: Some(2), ..base() }, FinishReason::Length, 0),
        ("ignore_eos", Sampling { ignore_eos: true, ..base() }, FinishReason::Stop, 6),
        ("min_tokens", Sampling { min_tokens: 20, ..base() }, FinishReason::Stop, 6),
        (
            "a ban",
            Sampling { logit_bias: vec![(97, -100.0), (300, -100.0)], ..base() },
            FinishReason::Stop,
            6,
        ),
        (
            "a banned stop id",
            Sampling { stop_token_ids: vec![97, 300], min_tokens: 20, ..base() },
            FinishReason::Stop,
            6,
        ),
        (
            "ignore_eos with an open end",
            Sampling { ignore_eos: true, max_tokens: Some(9), ..constrained("(ab)*") },
            FinishReason::Length,
            0,
        ),
    ];
    for (name, sampling, reason, bytes) in cases {
        let (tokens, ended) = alone(&prompt, &sampling);
        assert_eq!(ended, reason, "{name}: {tokens:?}");
        let text = text(&tokens);
        assert!(bytes == 0 || text.len() == bytes, "{name}: {text}");
        assert!("ab".repeat(20).starts_with(&text), "{name}: {text}");
        assert!(!tokens.contains(&EOS), "{name}: {tokens:?}");
    }
    // Where the text may end, the end of sequence is a token like others: some seed draws it.
    let eos = (0..50).any(|seed| {
        let (tokens, reason) = alone(&Random::new(seed).prompt(3), &constrained("a*"));
        reason == FinishReason::Stop && tokens.last() == Some(&EOS)
    });
    assert!(eos, "the end was never drawn");
}

#[test]
fn what_cannot_be_compiled_is_refused_and_others_go_on() {
    let (mut engine, mut rig) = (engine(small(), true), Rig::new());
    let (bad, unfit, good) = (rig.open(0, 0), rig.open(0, 1), rig.open(1, 2));
    rig.admit(bad, &[1, 2], 2, constrained("(a"));
    // The resumed token may not stand there.
    rig.admit(unfit, &[1, 2, 98], 2, constrained("a+"));
    rig.admit(good, &[1, 2], 2, constrained("(ab){3}"));
    run(&mut engine, &mut rig);
    for id in [bad, unfit] {
        let [reject] = &rig.stories[&id].rejected[..] else { panic!("{id} was not refused") };
        assert_eq!(
            (reject.fault.code, reject.fault.param.as_deref()),
            (FaultCode::InvalidValue, Some("guided_regex"))
        );
    }
    assert_eq!(text(&rig.ended(good).0.tokens), "ababab");

    let (mut none, id) = (rig::engine(small(), true), rig.open(0, 3));
    rig.admit(id, &[1, 2], 2, constrained("a+"));
    run(&mut none, &mut rig);
    assert_eq!(rig.stories[&id].rejected[0].fault.code, FaultCode::Internal);
}

#[test]
fn who_leaves_while_the_grammar_is_compiled_or_followed_leaves_nothing() {
    let (mut engine, mut rig) = (engine(small(), true), Rig::new());
    let ids: Vec<RequestId> = (0..6).map(|slot| rig.open(0, slot)).collect();
    for id in &ids {
        rig.admit(*id, &[1, 2, 3], 3, Sampling { max_tokens: Some(100), ..constrained("[a-z]{110}") });
    }
    // Two are gone before the first turn, two after some; one of each without a word.
    assert!(rig.cancel(ids[0]));
    rig.close(ids[1]);
    for _ in 0..3 {
        assert!(engine.turn(&mut rig).is_ok());
    }
    assert!(rig.cancel(ids[2]));
    rig.close(ids[3]);
    engine.discard_where(|id| id == ids[4]);
    run(&mut engine, &mut rig);
    assert_eq!(rig.ended(ids[2]).1.reason, FinishReason::Cancelled);
    assert!(rig.stories.get(&ids[4]).is_none_or(|story| story.finished.is_empty()));
    assert!(matches!(rig.ended(ids[5]).1.reason, FinishReason::Stop | FinishReason::Length));
    assert!(engine.is_empty());
}

/// A detokenizer died while most requests waited for their grammars, and all came again: what had been ordered for
/// their first lives filled the queue, and those that found no room were refused.
#[test]
fn who_comes_again_while_the_grammars_of_the_first_lives_are_under_way_is_not_refused() {
    let (go, gate) = mpsc::channel();
    let limits = small().limits;
    let (mut engine, mut rig) = (with_late_grammars(rig::engine(small(), true), &limits, gate), Rig::new());
    let mut lives: Vec<RequestId> = Vec::new();
    for life in 0..3 {
        lives.iter().for_each(|id| rig.close(*id));
        lives = (0..limits.max_requests as u16 - 10).map(|n| rig.open(n % 2, n / 2)).collect();
        for id in &lives {
            rig.admit(*id, &[1, 2, 3 + life], 3, constrained("(ab){3}"));
        }
        while engine.turn(&mut rig) == Ok(Turn::Worked) {}
    }
    go.send(()).expect("the thread waits");
    run(&mut engine, &mut rig);
    for id in lives {
        assert_eq!(text(&rig.ended(id).0.tokens), "ababab", "{id}");
    }
}

/// Finds the mask of every row late, two times out of three.
struct Belated {
    inner: Box<dyn Model>,
    rows: u64,
}

impl Model for Belated {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        self.inner.step(batch, out)?;
        for (index, outcome) in out.rows.iter_mut().enumerate() {
            let masked = batch.shaping.shaping(index).is_some_and(|shaping| shaping.mask.is_some());
            if masked && *outcome != RowOutcome::None {
                self.rows += 1;
                if !self.rows.is_multiple_of(3) {
                    *outcome = RowOutcome::Late;
                }
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

/// A row whose mask is late comes again until it is there, with the same text in the end; the others have their token
/// in every step. One request by itself, so that each of its rows is late twice.
#[test]
fn a_late_mask_delays_its_own_text_and_no_other() {
    for overlap in [false, true] {
        let limits = small().limits;
        let model = Box::new(Belated { inner: rig::fake(&limits), rows: 0 });
        let engine = Engine::new(rig::pipeline(model, overlap), small());
        let (mut engine, mut rig) = (with_grammars(engine, &limits), Rig::new());
        let (late, prompt) = (rig.open(0, 0), [5, 9, 2]);
        rig.admit(late, &prompt, 3, constrained("(ab){4}"));
        while engine.compiles() || rig.gauge(pinion_protocol::status::Gauge::RequestsRunning) == 0 {
            assert!(engine.turn(&mut rig).is_ok());
            std::thread::yield_now();
        }
        let plain = Sampling { max_tokens: Some(24), ignore_eos: true, ..Sampling::default() };
        let others: Vec<RequestId> = (1..4).map(|slot| rig.open(0, slot)).collect();
        others.iter().for_each(|id| rig.admit(*id, &[u32::from(id.slot), 30, 4], 3, plain.clone()));
        run(&mut engine, &mut rig);

        let (story, finished) = rig.ended(late);
        let expected = alone(&prompt, &constrained("(ab){4}"));
        assert_eq!((&story.tokens, finished.reason), (&expected.0, FinishReason::Stop), "overlap {overlap}");
        assert_eq!(text(&story.tokens), "abababab");
        // Each draw is the third one, that of the end among them.
        let draws = rig.counted(late, Counter::Steps);
        assert_eq!(draws, 3 * (story.tokens.len() as u64 + 1), "overlap {overlap}");
        for id in others {
            let (story, _) = rig.ended(id);
            let expected: Vec<u32> = (0..24)
                .map(|index| fake_token(&[u32::from(id.slot), 30, 4], index, VOCABULARY, Some(EOS)))
                .collect();
            assert_eq!(story.tokens, expected, "overlap {overlap}");
            assert_eq!(rig.counted(id, Counter::Steps), 24, "a token in each step, overlap {overlap}");
        }
    }
}
