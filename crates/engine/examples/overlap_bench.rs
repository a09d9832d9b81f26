//! What overlap costs and gains: the loop with and without it, in turns in one process, over real rings in heap memory.
//!
//! `cargo run --release -p pinion-engine --example overlap_bench -- fake|MODEL_FOLDER [ROWS] [THREADS]`
//!
//! For each step time (fake) or for the model in the folder: time per step with all rows decoding, and the time from a
//! newcomer's arrival, at any moment of a step, to its first token while the others decode.

#[allow(clippy::duplicate_mod)]
#[path = "../tests/rig/mod.rs"]
mod rig;

use pinion_engine::{Engine, Sizes};
use pinion_model::{
    FakeModel, FakeOptions, FakeShape, Inline, KvSize, LoadError, Model, ModelOptions, Pipeline,
    STEP_DEADLINE, Threaded, load,
};
use pinion_protocol::{RequestId, Sampling};
use pinion_scheduler::Limits;
use rig::{Random, Rig};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const STEPS: u32 = 150;
const NEWCOMERS: usize = 20;
const CONTEXT: u32 = 1024;

#[derive(Clone)]
enum Device {
    Fake { step_us: u32 },
    Torch { folder: PathBuf, threads: u32 },
}

impl Device {
    fn load(&self) -> Result<Box<dyn Model>, LoadError> {
        match self {
            Device::Fake { step_us } => {
                let shape = FakeShape {
                    vocab_size: 1000,
                    max_context: CONTEXT,
                    eos: None,
                    block_size: 16,
                    block_count: 64 * CONTEXT / 16,
                };
                let timing = FakeOptions { step_us: f64::from(*step_us), ..FakeOptions::default() };
                Ok(Box::new(FakeModel::new(shape, timing)))
            }
            Device::Torch { folder, threads } => {
                let kv = KvSize::Blocks(2048);
                load(folder, &ModelOptions { threads: *threads, kv, ..ModelOptions::default() })
            }
        }
    }
}

/// An engine in which all but one of the rows decode, and how long its context may get.
fn decoding(device: &Device, rows: u16, overlap: bool) -> (Engine, Rig, u32) {
    let owned = device.clone();
    let mut pipeline: Box<dyn Pipeline> = if overlap {
        Box::new(Threaded::start(move || owned.load(), STEP_DEADLINE).expect("a model"))
    } else {
        Box::new(Inline::new(owned.load().expect("a model")))
    };
    let info = pipeline.info().clone();
    let limits = Limits {
        max_num_seqs: u32::from(rows),
        max_num_batched_tokens: 256,
        max_requests: 256,
        max_model_len: info.max_context.min(CONTEXT),
        block_size: info.block_size,
        block_count: info.block_count,
        stop_ids: pinion_protocol::StopIds::NONE,
    };
    pipeline.warm_up(&rig::shapes(&limits)).expect("the model works");
    let sizes = Sizes { limits, command_budget: 64, ..rig::small() };
    let (mut engine, mut rig) = (Engine::new(pipeline, sizes), Rig::new());
    for n in 0..rows - 1 {
        let id = rig.open(n % 2, n / 2);
        ask(&mut rig, id, limits.max_model_len - 40);
    }
    for _ in 0..2 * rows + 20 {
        turn(&mut engine, &mut rig);
    }
    (engine, rig, limits.max_model_len)
}

fn ask(rig: &mut Rig, id: RequestId, max_tokens: u32) {
    let prompt = Random::new(u64::from(id.slot) << 32 | u64::from(id.generation)).prompt(24);
    let prompt: Vec<u32> = prompt.iter().map(|token| token % 200).collect();
    let sampling = Sampling { max_tokens: Some(max_tokens), temperature: 0.0, ..Sampling::default() };
    rig.admit(id, &prompt, prompt.len(), sampling);
}

fn turn(engine: &mut Engine, rig: &mut Rig) {
    engine.turn(rig).expect("the model works");
    rig.read();
}

/// µs per step, and µs from arrival to first token of each newcomer.
fn measure(device: &Device, rows: u16, overlap: bool, random: &mut Random) -> (f64, Vec<f64>) {
    let (mut engine, mut rig, _) = decoding(device, rows, overlap);
    let began = Instant::now();
    for _ in 0..STEPS {
        turn(&mut engine, &mut rig);
    }
    let step = began.elapsed() / STEPS;
    let mut waits = Vec::new();
    for _ in 0..NEWCOMERS {
        let share = f64::from(random.below(1000)) / 1000.0;
        let arrived = Instant::now() + step.mul_f64(1.0 + share);
        while Instant::now() < arrived {
            turn(&mut engine, &mut rig);
        }
        let id = rig.open(0, rig::SLOTS - 1);
        ask(&mut rig, id, 1);
        while rig.stories.get(&id).is_none_or(|story| story.tokens.is_empty()) {
            turn(&mut engine, &mut rig);
        }
        waits.push(micros(arrived.elapsed()));
        while rig.stories[&id].finished.is_empty() {
            turn(&mut engine, &mut rig);
        }
        rig.close(id);
    }
    (micros(step), waits)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_else(|| "fake".into());
    let rows = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(16);
    let threads = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let devices = match what.as_str() {
        "fake" => [0, 100, 300, 1000, 5000].map(|step_us| Device::Fake { step_us }).to_vec(),
        folder => vec![Device::Torch { folder: folder.into(), threads }],
    };
    println!("{rows} rows; medians of {ROUNDS} rounds, in µs (spread of the rounds' step times in brackets)");
    let mut random = Random::new(1);
    for device in devices {
        let label = match &device {
            Device::Fake { step_us } => format!("fake, {step_us} µs"),
            Device::Torch { folder, threads } => format!("{}, {threads} thread(s)", folder.display()),
        };
        let mut steps = [Vec::new(), Vec::new()];
        let mut waits = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for overlap in [false, true] {
                let (step, newcomers) = measure(&device, rows, overlap, &mut random);
                steps[usize::from(overlap)].push(step);
                waits[usize::from(overlap)].extend(newcomers);
            }
        }
        for overlap in [false, true] {
            let (steps, waits) = (&mut steps[usize::from(overlap)], &mut waits[usize::from(overlap)]);
            let (step, wait) = (median(steps), median(waits));
            let (least, most) = (steps[0], steps[steps.len() - 1]);
            println!(
                "{label}: overlap {overlap:5}: step {step:8.1} [{least:.1}..{most:.1}], first token {wait:8.1}"
            );
        }
    }
}
