//! Steps launched before the results of the ones before are read: the same tokens as without, nothing left behind by
//! a request that stops late, and a model that dies or hangs ends the engine instead of hanging it.

use crate::rig;
use crate::rig::hashed::{HASHED_VOCABULARY, Hashed};
use crate::rig::{Random, Rig, small};
use pinion_engine::{Engine, Turn};
use pinion_model::{Model, ModelInfo, StepBatch, StepError, StepOutput, Threaded, WarmUp};
use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::status::Gauge;
use pinion_protocol::{RequestId, Sampling};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

fn settle(engine: &mut Engine, rig: &mut Rig) -> u32 {
    for turns in 0..100_000 {
        let turn = engine.turn(rig).expect("the model works");
        rig.read();
        if turn == Turn::Idle {
            assert!(engine.is_empty());
            assert_eq!(rig.gauge(Gauge::KvBlocksUsed), 0, "blocks are left behind");
            return turns;
        }
    }
    panic!("still busy");
}

/// Greedy and seeded requests that end by length, by the end-of-sequence token and by stop ids; every `penalties`-th
/// looks at its own output.
fn workload(seed: u64, penalties: u32) -> Vec<(Vec<u32>, Sampling)> {
    let mut random = Random::new(seed);
    (0..40)
        .map(|n| {
            let prompt = (0..1 + random.below(40)).map(|_| random.below(HASHED_VOCABULARY)).collect();
            let sampling = Sampling {
                temperature: if random.below(2) == 0 { 0.0 } else { 0.8 },
                seed: u64::from(n),
                max_tokens: Some(1 + random.below(40)),
                ignore_eos: random.below(4) == 0,
                stop_token_ids: vec![random.below(HASHED_VOCABULARY), random.below(HASHED_VOCABULARY)],
                logit_bias: vec![(random.below(HASHED_VOCABULARY), 1.0)],
                logprobs: (random.below(3) == 0).then_some(2),
                frequency_penalty: if penalties > 0 && n % penalties == 0 { 0.7 } else { 0.0 },
                ..Sampling::default()
            };
            (prompt, sampling)
        })
        .collect()
}

type Answers = HashMap<RequestId, (Vec<u32>, FinishReason)>;

/// The answers to a workload that arrives little by little, and how many turns they took.
fn answers(seed: u64, penalties: u32, overlap: bool) -> (Answers, u32) {
    let (mut engine, mut rig) = (Hashed::engine(overlap), Rig::new());
    let mut ids = Vec::new();
    for (n, (prompt, sampling)) in workload(seed, penalties).into_iter().enumerate() {
        let id = rig.open(n as u16 % 2, n as u16 / 2);
        rig.admit(id, &prompt, prompt.len(), sampling);
        ids.push(id);
        engine.turn(&mut rig).expect("the model works");
    }
    let turns = settle(&mut engine, &mut rig);
    let answer = |id| {
        let (story, finished) = rig.ended(id);
        (id, (story.tokens, finished.reason))
    };
    (ids.into_iter().map(answer).collect(), turns)
}

#[test]
fn overlap_tokens_are_the_same_with_and_without() {
    for seed in 0..8 {
        for penalties in [0, 7, 1] {
            let (with, _) = answers(seed, penalties, true);
            let (without, _) = answers(seed, penalties, false);
            assert_eq!(with, without, "seed {seed}, penalties {penalties}");
            let stopped = with.values().filter(|(_, reason)| *reason == FinishReason::Stop).count();
            assert!(stopped > 5 && stopped < 35, "seed {seed}: {stopped} of 40 stop before their length");
        }
    }
}

/// Counts the rows that a model computes.
struct Counting {
    inner: Box<dyn Model>,
    rows: Arc<AtomicU32>,
}

impl Model for Counting {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        self.rows.fetch_add(batch.rows.len() as u32, Ordering::Relaxed);
        self.inner.step(batch, out)
    }

    fn logits(&mut self, batch: &StepBatch<'_>, out: &mut Vec<f32>) -> Result<(), StepError> {
        self.inner.logits(batch, out)
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        self.inner.warm_up(shapes)
    }
}

/// One request that ends by a stop id costs one row more with overlap; one that ends by its length costs none.
#[test]
fn overlap_a_late_stop_costs_one_row_and_no_token() {
    let sizes = small();
    let prompt = [3, 1, 4];
    let draws =
        |index| pinion_model::fake_token(&prompt, index, rig::VOCABULARY, sizes.limits.stop_ids.first());
    for (stop_at, overlap, rows) in
        [(Some(4), false, 5), (Some(4), true, 6), (None, false, 9), (None, true, 9)]
    {
        let counted = Arc::new(AtomicU32::new(0));
        let model = Counting { inner: rig::fake(&sizes.limits), rows: counted.clone() };
        let mut engine = Engine::new(rig::pipeline(Box::new(model), overlap), sizes);
        let mut rig = Rig::new();
        let id = rig.open(0, 0);
        let stop_token_ids = stop_at.map(draws).into_iter().collect();
        rig.admit(id, &prompt, 3, Sampling { max_tokens: Some(9), stop_token_ids, ..Sampling::default() });
        settle(&mut engine, &mut rig);
        let (story, finished) = rig.ended(id);
        let expected: Vec<u32> = (0..stop_at.map_or(9, |last| last + 1)).map(draws).collect();
        assert_eq!(story.tokens, expected, "stop at {stop_at:?}, overlap {overlap}");
        assert_eq!(finished.reason == FinishReason::Stop, stop_at.is_some());
        assert_eq!(counted.load(Ordering::Relaxed), rows, "stop at {stop_at:?}, overlap {overlap}");
    }
}

/// Does at its third step what a broken model does.
struct Fateful {
    inner: Box<dyn Model>,
    steps: u32,
    fate: fn(),
}

impl Model for Fateful {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        self.steps += 1;
        if self.steps == 3 {
            (self.fate)();
        }
        self.inner.step(batch, out)
    }

    fn logits(&mut self, batch: &StepBatch<'_>, out: &mut Vec<f32>) -> Result<(), StepError> {
        self.inner.logits(batch, out)
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        self.inner.warm_up(shapes)
    }
}

#[test]
fn overlap_a_model_that_dies_or_hangs_ends_the_engine() {
    let fates: [(fn(), u64, &str); 2] = [
        (|| panic!("struck by lightning"), 60, "struck by lightning"),
        (|| std::thread::sleep(Duration::from_secs(3600)), 10, "has not answered"),
    ];
    for (fate, deadline_s, expected) in fates {
        let sizes = small();
        let model: Box<dyn Model> = Box::new(Fateful { inner: rig::fake(&sizes.limits), steps: 0, fate });
        let deadline = Duration::from_secs(deadline_s);
        let pipeline = Threaded::start(|| Ok(model), deadline).expect("a thread for the model");
        let (mut engine, mut rig) = (Engine::new(Box::new(pipeline), sizes), Rig::new());
        let id = rig.open(0, 0);
        rig.admit(id, &[1, 2], 2, Sampling { max_tokens: Some(20), ..Sampling::default() });
        let broken = (0..10).find_map(|_| engine.turn(&mut rig).err()).expect("the model is gone");
        assert!(broken.reason.contains(expected), "{broken:?}");
        rig.read();
        let story = &rig.stories[&id];
        assert_eq!((story.tokens.len(), story.finished.len()), (2, 0), "its successor goes on with it");
        let ends = Instant::now();
        drop(engine);
        assert!(ends.elapsed() < Duration::from_secs(600), "a stuck thread is left behind");
    }
}
