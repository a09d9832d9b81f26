//! The time budget of steps in the loop: what a stream meets under a long prompt, the same tokens with and without, the
//! gauges, and a replay that plans the same batches from the recorded times.

use crate::rig;
use crate::rig::hashed::{HASHED_VOCABULARY, Hashed, config};
use crate::rig::{Random, Rig, small};
use pinion_engine::tape::{Tape, read, replay};
use pinion_engine::{Engine, Sizes, Turn, taped_turn};
use pinion_model::{Model, ModelInfo, StepBatch, StepError, StepOutput, WarmUp};
use pinion_protocol::status::Gauge;
use pinion_protocol::{RequestId, Sampling, StopIds};
use pinion_scheduler::{Limits, Policy, StepTime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Time of a step, and of each prompt token in it.
const STEP_NS: u64 = 10_000_000;
const PROMPT_NS: u64 = 100_000;

/// A model whose steps take time on the rig's clock alone. It notes the prompt tokens of the steps with decode rows.
struct Timed {
    inner: Box<dyn Model>,
    clock: Arc<AtomicU64>,
    mixed: Arc<Mutex<Vec<u32>>>,
}

impl Model for Timed {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }

    fn step(&mut self, batch: &StepBatch<'_>, out: &mut StepOutput) -> Result<(), StepError> {
        let decodes =
            batch.rows.iter().filter(|row| row.query_len == 1 && row.sample.is_some()).count() as u32;
        let prompt_tokens = batch.tokens.len() as u32 - decodes;
        if decodes > 0 && prompt_tokens > 0 {
            self.mixed.lock().expect("one thread at a time").push(prompt_tokens);
        }
        let took_ns = STEP_NS + PROMPT_NS * u64::from(prompt_tokens);
        self.clock.fetch_add(took_ns, Ordering::Relaxed);
        self.inner.step(batch, out)
    }

    fn logits(&mut self, batch: &StepBatch<'_>, out: &mut Vec<f32>) -> Result<(), StepError> {
        self.inner.logits(batch, out)
    }

    fn warm_up(&mut self, shapes: &WarmUp) -> Result<(), StepError> {
        self.inner.warm_up(shapes)
    }
}

/// An engine and a rig that share a clock, and the prompt tokens of its mixed steps.
fn timed(model: Box<dyn Model>, sizes: Sizes) -> (Engine, Rig, Arc<Mutex<Vec<u32>>>) {
    let (rig, mixed) = (Rig::new(), Arc::default());
    let model = Timed { inner: model, clock: rig.model_ns.clone(), mixed: Arc::clone(&mixed) };
    (Engine::new(rig::pipeline(Box::new(model), false), sizes), rig, mixed)
}

fn large(step_time: StepTime) -> Sizes {
    let limits = Limits {
        max_num_batched_tokens: 512,
        max_model_len: 2048,
        block_size: 16,
        block_count: 1024,
        stop_ids: StopIds::NONE,
        ..small().limits
    };
    Sizes { limits, policy: Policy { step_time, ..Policy::default() }, ..small() }
}

fn settle(engine: &mut Engine, rig: &mut Rig) {
    for _ in 0..100_000 {
        let turn = engine.turn(rig).expect("the model works");
        rig.read();
        if turn == Turn::Idle {
            assert!(engine.is_empty());
            return;
        }
    }
    panic!("still busy");
}

/// Prompt tokens of each step that a stream shares with a prompt of 2000 tokens, and the rig.
fn under_a_long_prompt(step_time: StepTime) -> (Vec<u32>, Rig) {
    let sizes = large(step_time);
    let (mut engine, mut rig, mixed) = timed(rig::fake(&sizes.limits), sizes);
    let mut random = Random::new(1);
    let sampling = |max_tokens| Sampling { max_tokens: Some(max_tokens), ..Sampling::default() };
    for (slot, prompt) in [40, 200, 500, 90, 300].into_iter().enumerate() {
        let id = rig.open(0, slot as u16);
        rig.admit(id, &random.prompt(prompt), prompt as usize, sampling(3));
        settle(&mut engine, &mut rig);
    }
    let stream = rig.open(0, 10);
    rig.admit(stream, &random.prompt(10), 10, sampling(300));
    (0..20).for_each(|_| _ = engine.turn(&mut rig).expect("the model works"));
    let long = rig.open(1, 10);
    rig.admit(long, &random.prompt(2000), 2000, sampling(1));
    settle(&mut engine, &mut rig);
    assert_eq!(rig.ended(stream).0.tokens.len(), 300);
    let mixed = mixed.lock().expect("the model has no panic").clone();
    assert_eq!(mixed.iter().sum::<u32>(), 2000, "the long prompt is computed beside the stream");
    (mixed, rig)
}

#[test]
fn a_streams_longest_gap_under_a_long_prompt_is_bounded() {
    let (free, rig) = under_a_long_prompt(StepTime::Unbounded);
    assert_eq!(free, [511, 511, 511, 467]);
    assert_eq!((rig.gauge(Gauge::PredictedSteps), rig.gauge(Gauge::PromptTokensDeferred)), (0, 0));

    // 150 prompt tokens take what 25 ms leave beside the 10 of the step.
    let (bound, rig) = under_a_long_prompt(StepTime::Target { ns: 25_000_000 });
    assert!(bound.iter().all(|&tokens| tokens <= 155), "{bound:?}");
    assert!(bound[..bound.len() - 1].iter().all(|&tokens| tokens >= 140), "{bound:?}");
    assert!(rig.gauge(Gauge::PromptTokensDeferred) > 2000);
    let steps = rig.gauge(Gauge::PredictedSteps);
    let error_ns = rig.gauge(Gauge::PredictionErrorNs);
    assert!(steps > 250 && error_ns < steps * STEP_NS / 50, "{error_ns} ns over {steps} steps");
    let (predicted, took) = (rig.gauge(Gauge::PredictedStepsNs), rig.gauge(Gauge::PredictedStepsTookNs));
    assert!(predicted.abs_diff(took) <= error_ns, "{predicted} and {took} differ by more than {error_ns}");

    let (auto, _) = under_a_long_prompt(StepTime::Auto);
    assert!(auto.iter().all(|&tokens| tokens <= 105), "{auto:?}");

    let (floor, _) = under_a_long_prompt(StepTime::Target { ns: 1 });
    assert!(floor[..62].iter().all(|&tokens| tokens == 32), "{floor:?}");
}

/// Greedy and seeded requests that come little by little. Each turn is on the tape, if there is one.
fn serve(engine: &mut Engine, rig: &mut Rig, seed: u64, mut tape: Option<&mut Tape>) -> Vec<RequestId> {
    let mut turn = |engine: &mut Engine, rig: &mut Rig| {
        let turn = match &mut tape {
            Some(tape) => taped_turn(rig, engine, tape),
            None => engine.turn(rig),
        };
        rig.read();
        turn.expect("the model works")
    };
    let (mut random, mut ids) = (Random::new(seed), Vec::new());
    for n in 0..40_u32 {
        let id = rig.open((n % 2) as u16, (n / 2) as u16);
        let prompt: Vec<u32> = (0..1 + random.below(80)).map(|_| random.below(HASHED_VOCABULARY)).collect();
        let sampling = Sampling {
            temperature: if n % 2 == 0 { 0.0 } else { 0.8 },
            seed: u64::from(n),
            max_tokens: Some(1 + random.below(40)),
            logprobs: (n % 3 == 0).then_some(2),
            ..Sampling::default()
        };
        rig.admit(id, &prompt, prompt.len(), sampling);
        ids.push(id);
        (0..random.below(4)).for_each(|_| _ = turn(engine, rig));
    }
    while !(turn(engine, rig) == Turn::Idle && engine.is_empty()) {}
    ids
}

fn sizes(step_time: StepTime) -> Sizes {
    let limits = Limits { max_num_batched_tokens: 64, ..small().limits };
    Sizes { limits, policy: Policy { step_time, ..Policy::default() }, ..small() }
}

const TIMES: [StepTime; 3] =
    [StepTime::Auto, StepTime::Target { ns: 1 }, StepTime::Target { ns: STEP_NS + 40 * PROMPT_NS }];

#[test]
fn tokens_and_logprobs_are_the_same_with_and_without_a_budget() {
    for seed in 0..4 {
        let answers = |step_time| {
            let (mut engine, mut rig, mixed) = timed(Hashed::model(&sizes(step_time)), sizes(step_time));
            let ids = serve(&mut engine, &mut rig, seed, None);
            let stories = ids.iter().map(|&id| {
                let (story, finished) = rig.ended(id);
                (story.tokens, story.logprobs, finished.reason)
            });
            let steps = mixed.lock().expect("the model has no panic").clone();
            (stories.collect::<Vec<_>>(), steps)
        };
        let (without, free) = answers(StepTime::Unbounded);
        for time in TIMES {
            let (with, bound) = answers(time);
            assert_eq!(with, without, "seed {seed}, {time:?}");
            assert_ne!(bound, free, "seed {seed}, {time:?}: the budget changes nothing");
        }
    }
}

struct File(std::path::PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A replay's model takes no time; the recorded clock has what the recorded one took.
#[test]
fn a_replay_plans_the_recorded_batches() {
    for (n, time) in TIMES.into_iter().enumerate() {
        let file = File(std::env::temp_dir().join(format!("pinion-{}-budget-{n}", std::process::id())));
        let (mut engine, mut rig, _) = timed(Hashed::model(&sizes(time)), sizes(time));
        let mut tape = Tape::create(&file.0, &config(), 2).expect("a file of our own");
        serve(&mut engine, &mut rig, 7, Some(&mut tape));
        tape.finish();
        assert!(rig.gauge(Gauge::PromptTokensDeferred) > 0, "{time:?}: the budget changes nothing");
        let recording = read(&file.0).expect("a recording");
        let again = |step_time| {
            let pipeline = rig::pipeline(Hashed::model(&sizes(step_time)), false);
            replay(&recording, Engine::new(pipeline, sizes(step_time))).expect("the model works")
        };
        let report = again(time);
        assert!(report.identical && report.complete && report.tokens[0] > 100, "{time:?}: {report:?}");
        let report = again(StepTime::Unbounded);
        assert!(!report.identical && report.requests_that_differ == 0, "{time:?}: {report:?}");
    }
}
