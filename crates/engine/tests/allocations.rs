//! The steady state of the loop allocates nothing: not per token, not per step, not per look at an inbox.

mod rig;

use pinion_engine::{Engine, Sizes, Turn};
use pinion_model::{FakeModel, FakeOptions, WindowInfo};
use pinion_protocol::status::Gauge;
use pinion_protocol::{RequestId, Sampling, StopIds, WindowKv};
use pinion_scheduler::{Limits, Policy, StepTime};
use rig::grammars::{constrained, with_grammars};
use rig::{EOS, FRONTENDS, Random, Rig, SLOTS};

const SEQUENCES: u16 = 32;
const WARM_UP_STEPS: u32 = 50;
const STEPS: u32 = 1000;

fn engine_limits() -> Limits {
    Limits {
        max_num_seqs: u32::from(SEQUENCES),
        max_num_batched_tokens: 256,
        max_requests: u32::from(SLOTS) * u32::from(FRONTENDS),
        max_model_len: 2048,
        block_size: 16,
        block_count: 4096,
        stop_ids: StopIds::one(EOS),
    }
}

/// Window blocks for the sequences, few enough that what they leave behind is evicted.
const WINDOW: WindowKv = WindowKv { tokens: 64, blocks: 32 * 6 + 16 };

/// An engine around a model that takes window tables.
fn windowed(overlap: bool) -> Engine {
    let WindowKv { tokens, blocks } = WINDOW;
    let limits = engine_limits();
    let model = FakeModel::new(rig::shape(&limits), FakeOptions::default());
    let model = model.with_window(WindowInfo { tokens, blocks, block_bytes: 8 });
    let policy = Policy { step_time: StepTime::Auto, window: Some(WINDOW), ..Policy::default() };
    let mut pipeline = rig::pipeline(Box::new(model), overlap);
    pipeline.warm_up(&rig::shapes(&limits)).expect("the fake model is always warm");
    Engine::new(pipeline, Sizes { limits, policy, ..rig::small() })
}

/// An engine in which 32 sequences decode, past their prefill. With `penalties` every other one looks at its output.
fn decoding(overlap: bool, penalties: bool) -> (Engine, Rig) {
    // Every step teaches what steps cost.
    let policy = Policy { step_time: StepTime::Auto, ..Policy::default() };
    let sizes = Sizes { limits: engine_limits(), policy, ..rig::small() };
    assert!(sizes.policy.prefix_cache);
    fill(rig::engine(sizes, overlap), penalties)
}

/// The same with this engine.
fn fill(mut engine: Engine, penalties: bool) -> (Engine, Rig) {
    let (mut rig, mut random) = (Rig::new(), Random::new(1));
    for n in 0..SEQUENCES {
        let id = rig.open(n % FRONTENDS, n / FRONTENDS);
        // Every fourth prompt is the same, so that blocks are shared and found to be the same while they grow.
        let prompt = if n % 4 == 0 { (100..120).collect() } else { random.prompt(20) };
        // Every other request has all that a request can ask of its logits.
        let penalty = if penalties { 0.1 } else { 0.0 };
        let shaped = Sampling {
            repetition_penalty: 1.0 + penalty,
            frequency_penalty: penalty,
            presence_penalty: penalty,
            min_tokens: 1900,
            logit_bias: vec![(3, 0.5), (4, -0.5)],
            stop_token_ids: vec![5, 6],
            logprobs: Some(20),
            ..Sampling::default()
        };
        let plain = Sampling { ignore_eos: true, ..Sampling::default() };
        let sampling = Sampling { max_tokens: Some(1900), ..if n % 2 == 0 { shaped } else { plain } };
        rig.admit(id, &prompt, prompt.len(), sampling);
    }
    for _ in 0..WARM_UP_STEPS {
        assert_eq!(engine.turn(&mut rig), Ok(Turn::Worked));
        rig.read();
    }
    (engine, rig)
}

#[test]
fn a_thousand_steps_of_32_sequences_allocate_nothing() {
    // A step for each turn: rows that look at their output are launched ahead like all others.
    for (overlap, penalties) in [(false, true), (true, false), (true, true)] {
        check_steps(decoding(overlap, penalties), overlap, penalties);
    }
    for overlap in [false, true] {
        check_steps(fill(windowed(overlap), false), overlap, false);
    }
}

fn check_steps((mut engine, mut rig): (Engine, Rig), overlap: bool, penalties: bool) {
    let (before, mut allocations) = (rig.gauge(Gauge::GeneratedTokens), 0);
    for _ in 0..STEPS {
        let counted = allocation_counter::measure(|| {
            assert_eq!(engine.turn(&mut rig), Ok(Turn::Worked));
        });
        allocations += counted.count_total;
        rig.read();
    }
    let tokens = rig.gauge(Gauge::GeneratedTokens) - before;
    assert_eq!(tokens, u64::from(STEPS) * u64::from(SEQUENCES), "every sequence gets a token in every step");
    println!(
        "overlap {overlap}, penalties {penalties}: {allocations} allocations for {tokens} tokens in {STEPS} steps"
    );
    assert_eq!(allocations, 0);
}

/// Three sequences go round in circles, so that steps have drafts that are accepted and drafts that are not.
#[test]
fn steps_with_drafts_allocate_nothing() {
    let policy = Policy { speculation: true, ..Policy::default() };
    let sizes = Sizes { limits: engine_limits(), policy, ..rig::small() };
    let mut engine = Engine::new(rig::pipeline(rig::fake_repeating(&sizes.limits), false), sizes);
    let mut rig = Rig::new();
    for n in 0..3 {
        let id = rig.open(0, n);
        let sampling = Sampling { max_tokens: Some(1900), ..Sampling::default() };
        rig.admit(id, &[3, 4, u32::from(n)], 3, sampling);
    }
    let mut allocations = 0;
    for step in 0..WARM_UP_STEPS + 500 {
        let counted = allocation_counter::measure(|| {
            assert_eq!(engine.turn(&mut rig), Ok(Turn::Worked));
        });
        allocations += if step < WARM_UP_STEPS { 0 } else { counted.count_total };
        rig.read();
    }
    let [drafts, accepted] = [Gauge::Drafts, Gauge::AcceptedDrafts].map(|gauge| rig.gauge(gauge));
    assert!(accepted > 500 && drafts > accepted + 50, "{accepted} of {drafts} drafts were accepted");
    assert_eq!(allocations, 0);
}

/// Rows that follow a grammar cost the loop nothing either: their masks are computed by another thread into memory that
/// is swapped. A late one would be looked for again in the next step, so the tokens are counted and not foreseen.
#[test]
fn rows_with_a_grammar_allocate_nothing_in_the_loop() {
    const CONSTRAINED: u16 = 8;
    const TURNS: u32 = 300;
    for overlap in [false, true] {
        let (engine, mut rig) = decoding(overlap, false);
        let limits = engine_limits();
        let mut engine = with_grammars(engine, &limits);
        // In place of as many that were there.
        for n in 0..CONSTRAINED {
            let id = RequestId { generation: 1, frontend: n % FRONTENDS, slot: n / FRONTENDS };
            assert!(rig.cancel(id));
            let id = rig.open(n % FRONTENDS, SLOTS - 1 - n / FRONTENDS);
            let sampling =
                Sampling { max_tokens: Some(1900), ignore_eos: true, ..constrained("([a-z]{3,9} )*") };
            rig.admit(id, &[3, 4, u32::from(n)], 3, sampling);
        }
        let mut turns = 0;
        // The last grammar may be compiled in the last of these turns; its request starts in the next.
        let all_run = |rig: &Rig| rig.gauge(Gauge::RequestsRunning) == u64::from(SEQUENCES);
        while engine.compiles() || turns < WARM_UP_STEPS || !all_run(&rig) && turns < 10 * WARM_UP_STEPS {
            assert!(engine.turn(&mut rig).is_ok());
            rig.read();
            turns += 1;
        }
        assert_eq!(rig.gauge(Gauge::RequestsRunning), u64::from(SEQUENCES));
        let (before, mut allocations) = (rig.gauge(Gauge::GeneratedTokens), 0);
        for _ in 0..TURNS {
            allocations += allocation_counter::measure(|| {
                assert_eq!(engine.turn(&mut rig), Ok(Turn::Worked));
            })
            .count_total;
            rig.read();
        }
        let tokens = rig.gauge(Gauge::GeneratedTokens) - before;
        let plain = u64::from(TURNS) * u64::from(SEQUENCES - CONSTRAINED);
        println!(
            "overlap {overlap}: {allocations} allocations for {tokens} tokens, {plain} of them without a grammar"
        );
        assert!(tokens > plain / 2 + 100, "{tokens}");
        assert_eq!(allocations, 0);
    }
}

/// The counter counts: admitting a request does allocate.
#[test]
fn admission_is_seen_by_the_counter() {
    let (mut engine, mut rig) = decoding(false, true);
    let id = rig.open(0, SLOTS - 1);
    rig.admit(id, &[1, 2, 3], 3, Sampling::default());
    let counted = allocation_counter::measure(|| {
        engine.turn(&mut rig).expect("the fake model does not fail");
    });
    assert!(counted.count_total > 0);
}
