//! What each way to hold weights costs in a step:
//! `packed_steps FOLDER [ROUNDS] [FORMS] [THREADS] [fp32|bf16]`.
//!
//! Loads the folder once for each form (`packed,onednn,plain,int8,int4` unless told) with activations in fp32 or as
//! told, first with one thread, then with all (or with THREADS alone). Where all forms are ours the threads are a team,
//! not pinned; beside libtorch's products they are libgomp's, which has to serve those. A round times steps of
//! each form at 1, 4, 8, 16 and 32 decoding rows of 64 tokens and at a prompt of 256, in an order that turns, and
//! beside them a read of 256 MiB and a product of 1024 x 1024 x 1024 in that type on libtorch: what the machine gives
//! in that round. The floor of a step is the larger of its weights' bytes over the one and its products' operations
//! over the other. Ratios are of the steps of one round, so that what disturbs the machine disturbs both. With one
//! thread times are the thread's own CPU time where the system tells it.

use pinion_architecture::Architecture;
use pinion_model::{
    DtypeChoice, KvSize, LinearKind, Model, ModelOptions, OwnedBatch, Quantization, StepOutput, TeamPlan,
    WarmUp, load,
};
use pinion_ops::packed::PackedWeights;
use pinion_ops::quantized::{Source, SourceType};
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};

const CONTEXT: u32 = 64;
const PROMPT: u32 = 256;
const ROWS_MAX: u32 = 32;
/// Rows and tokens of each.
const SHAPES: [(u32, u32); 6] = [(1, 1), (4, 1), (8, 1), (16, 1), (ROWS_MAX, 1), (1, PROMPT)];
/// Steps that are timed as one: a thread's CPU time may advance by 4 ms only.
const STEPS: [u32; SHAPES.len()] = [16, 8, 4, 2, 2, 1];
const READ_BYTES: usize = 256 << 20;
const PRODUCT_DIM: i64 = 1024;
/// What a thread reads before it takes the next part.
const READ_PART: usize = 4 << 20;
/// Reads and products of a round, of which the fastest counts.
const TRIES: usize = 3;
/// How long the team's threads look for work between two regions of a step.
const SPIN: Duration = Duration::from_micros(200);
/// After a product of libtorch, whose threads look for the next one for a while.
const PAUSE: Duration = Duration::from_millis(20);

struct Form {
    name: &'static str,
    model: Box<dyn Model>,
    bytes_of_layers: f64,
    bytes_of_head: f64,
    /// Milliseconds of each shape and round.
    times: [Vec<f64>; SHAPES.len()],
}

/// Weights of the products.
struct Parameters {
    layers: f64,
    head: f64,
}

fn parameters(folder: &Path) -> Result<Parameters, Box<dyn Error>> {
    let keys = pinion_architecture::parse(&std::fs::read(folder.join("config.json"))?)?;
    let model: Architecture = pinion_architecture::read(&keys).map_err(|reasons| reasons.join("; "))?;
    let attention = 2.0 * f64::from(model.query_width()) + 2.0 * f64::from(model.kv_width());
    let mlp = f64::from(model.mlp.inner) * if model.mlp.gated { 3.0 } else { 2.0 };
    let layers = model.layers.len() as f64 * f64::from(model.hidden) * (attention + mlp);
    Ok(Parameters { layers, head: f64::from(model.hidden) * f64::from(model.vocab) })
}

/// How models are computed.
#[derive(Clone, Copy)]
struct Computed {
    threads: u32,
    /// By a team, not libgomp.
    team: bool,
    dtype: DtypeChoice,
}

impl Computed {
    fn kind(self) -> Kind {
        if self.dtype == DtypeChoice::Bf16 { Kind::BFloat16 } else { Kind::Float }
    }
}

fn form(
    name: &'static str,
    folder: &Path,
    computed: Computed,
    count: &Parameters,
) -> Result<Form, Box<dyn Error>> {
    let (linear, quantization) = match name {
        "packed" => (LinearKind::Packed, Quantization::None),
        "onednn" => (LinearKind::OneDnn, Quantization::None),
        "plain" => (LinearKind::Plain, Quantization::None),
        "int8" => (LinearKind::Auto, Quantization::Int8),
        _ => (LinearKind::Auto, Quantization::Int4),
    };
    let blocks = (ROWS_MAX * CONTEXT.div_ceil(16)).max(PROMPT.div_ceil(16));
    let options = ModelOptions {
        dtype: computed.dtype,
        threads: computed.threads,
        team: computed.team.then(|| TeamPlan { spin: SPIN, cpus: Vec::new() }),
        kv: KvSize::Blocks(blocks),
        linear,
        quantization,
        ..ModelOptions::default()
    };
    let start = Instant::now();
    let mut model = load(folder, &options)?;
    let loaded = start.elapsed();
    model.warm_up(&WarmUp { max_rows: ROWS_MAX, max_tokens: PROMPT })?;
    let (each, each_of_head) = match (quantization, model.info().packed) {
        // A scale of fp32 for each group of 128.
        (Quantization::Int4, _) => (0.53, 1.0),
        (Quantization::Int8, _) => (1.0, 1.0),
        (Quantization::None | Quantization::Checkpoint, Some("bf16" | "f16")) => (2.0, 2.0),
        (Quantization::None | Quantization::Checkpoint, _) if computed.kind() == Kind::BFloat16 => (2.0, 2.0),
        (Quantization::None | Quantization::Checkpoint, _) => (4.0, 4.0),
    };
    println!("{name}: loaded in {loaded:.2?}, {} MiB of weights", model.info().weight_bytes >> 20);
    let (bytes_of_layers, bytes_of_head) = (count.layers * each, count.head * each_of_head);
    Ok(Form { name, model, bytes_of_layers, bytes_of_head, times: Default::default() })
}

/// `rows` rows of `tokens` tokens: decoding at the end of a short context, or a prompt.
fn batch(model: &dyn Model, (rows, tokens): (u32, u32)) -> OwnedBatch {
    let context = tokens.max(CONTEXT);
    let row_blocks = context.div_ceil(model.info().block_size);
    let mut batch = OwnedBatch::default();
    for row in 0..rows {
        let blocks: Vec<u32> = (row * row_blocks..(row + 1) * row_blocks).collect();
        let ids: Vec<u32> =
            (0..tokens).map(|at| (row * 7919 + at * 104_729) % model.info().vocab_size).collect();
        batch.push(row, context - tokens, &ids, &blocks).prompt_len = context - u32::from(tokens == 1);
    }
    batch
}

/// What the machine gives.
struct Machine {
    memory: PackedWeights,
    left: Tensor,
    right: Tensor,
    computed: Computed,
    start: Instant,
    gigabytes: Vec<f64>,
    gigaflops: Vec<f64>,
}

impl Machine {
    fn new(computed: Computed) -> Result<Self, Box<dyn Error>> {
        let (outputs, inputs) = (READ_BYTES / 2048, 1024);
        let mut memory = PackedWeights::new(SourceType::Bf16, outputs, inputs)?;
        let bytes = vec![1u8; READ_BYTES];
        let source =
            Source { bytes: &bytes, source_type: SourceType::Bf16, rows: outputs, is_transposed: false };
        memory.pack(0, source, 1).map_err(|fault| fault.to_string())?;
        let random = || Tensor::rand([PRODUCT_DIM, PRODUCT_DIM], (Kind::Float, Device::Cpu));
        let operand = || random().to_kind(computed.kind());
        let (left, right) = (operand(), operand());
        let start = Instant::now();
        let (gigabytes, gigaflops) = (Vec::new(), Vec::new());
        Ok(Self { memory, left, right, computed, start, gigabytes, gigaflops })
    }

    /// Milliseconds so far: of this thread's CPU time, or of the clock with several threads.
    fn now_ms(&self) -> f64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let nanos = text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok());
        let nanos = nanos.filter(|_| self.computed.threads == 1);
        nanos.map_or_else(|| self.start.elapsed().as_secs_f64() * 1e3, |nanos| nanos / 1e6)
    }

    /// The fastest of a few reads and products: what disturbs them is no part of a floor.
    fn measure(&mut self) {
        let product_ms = self.fastest(|machine| drop(black_box(machine.left.matmul(&machine.right))));
        std::thread::sleep(PAUSE);
        let read_ms = self.fastest(Self::read);
        self.gigabytes.push(self.memory.packed().len() as f64 / read_ms / 1e6);
        self.gigaflops.push(2.0 * (PRODUCT_DIM as f64).powi(3) / product_ms / 1e6);
    }

    fn fastest(&self, work: impl Fn(&Self)) -> f64 {
        // A team leaves libtorch one thread.
        let threads = tch::get_num_threads();
        tch::set_num_threads(self.computed.threads as i32);
        let mut best = f64::INFINITY;
        for _ in 0..TRIES {
            let began = self.now_ms();
            work(self);
            best = best.min(self.now_ms() - began);
        }
        tch::set_num_threads(threads);
        best
    }

    /// Reads the memory on the threads that the kernels have.
    fn read(&self) {
        let mut threads = vec![0u64; self.computed.threads as usize];
        let mut parts: Vec<&[u8]> = self.memory.packed().chunks(READ_PART).collect();
        pinion_ops::team::deal(&mut threads, &mut parts, |sum, part| *sum ^= touch(part));
        black_box(threads);
    }
}

/// A word of each cache line, from four places in turn: one stream at a time leaves a core waiting.
fn touch(bytes: &[u8]) -> u64 {
    let quarters: Vec<_> = bytes.chunks_exact(bytes.len() / 4).map(|part| part.chunks_exact(64)).collect();
    let [mut a, mut b, mut c, mut d] = <[_; 4]>::try_from(quarters).expect("four quarters");
    let word =
        |line: Option<&[u8]>| line.map(|line| u64::from_ne_bytes(line[..8].try_into().expect("eight bytes")));
    let mut sum = 0u64;
    while let (Some(a), Some(b), Some(c), Some(d)) =
        (word(a.next()), word(b.next()), word(c.next()), word(d.next()))
    {
        sum = sum.wrapping_add(a ^ b).wrapping_add(c ^ d);
    }
    sum
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}

/// Median and the quartiles around it.
fn spread(values: &[f64]) -> String {
    format!("{:.2} ({:.2} to {:.2})", quantile(values, 0.5), quantile(values, 0.25), quantile(values, 0.75))
}

fn ratios(others: &[f64], own: &[f64]) -> Vec<f64> {
    others.iter().zip(own).map(|(other, own)| other / own).collect()
}

fn report(forms: &[Form], machine: &Machine, count: &Parameters) {
    let Computed { threads, .. } = machine.computed;
    let by = if machine.computed.team { "a team" } else { "libgomp" };
    println!("{threads} thread(s) of {by}: {} GB/s read", spread(&machine.gigabytes));
    println!(
        "{threads} thread(s) of libgomp: {} GFLOP/s, {:?}",
        spread(&machine.gigaflops),
        machine.computed.kind()
    );
    for (shape, (rows, tokens)) in SHAPES.into_iter().enumerate() {
        // One token of a prompt meets the head.
        let products = 2.0 * f64::from(rows) * (f64::from(tokens) * count.layers + count.head);
        for form in forms {
            let bytes = form.bytes_of_layers + form.bytes_of_head;
            let floors = machine.gigabytes.iter().zip(&machine.gigaflops).map(|(gigabytes, gigaflops)| {
                let is_float = !form.name.starts_with("int");
                let arithmetic = if is_float { products / gigaflops / 1e6 } else { 0.0 };
                (bytes / gigabytes / 1e6).max(arithmetic)
            });
            let floors: Vec<f64> = floors.collect();
            let times = &form.times[shape];
            println!(
                "{rows:2} row(s) of {tokens:3}: {:6} {} ms, floor {:.2}, {} times the floor; {} times as fast as {}",
                form.name,
                spread(times),
                quantile(&floors, 0.5),
                spread(&ratios(times, &floors)),
                spread(&ratios(&forms[0].times[shape], times)),
                forms[0].name,
            );
        }
    }
}

fn run(
    folder: &Path,
    rounds: usize,
    names: &[&'static str],
    computed: Computed,
) -> Result<(), Box<dyn Error>> {
    let count = parameters(folder)?;
    let mut forms =
        names.iter().map(|&name| form(name, folder, computed, &count)).collect::<Result<Vec<_>, _>>()?;
    let mut machine = Machine::new(computed)?;
    let mut out = StepOutput::default();
    for round in 0..rounds {
        machine.measure();
        for (shape, &each) in SHAPES.iter().enumerate() {
            for turn in 0..forms.len() {
                let at = (round + turn) % forms.len();
                let form = &mut forms[at];
                let batch = batch(&*form.model, each);
                let began = machine.now_ms();
                for _ in 0..STEPS[shape] {
                    form.model.step(&batch.as_step(), &mut out)?;
                }
                form.times[shape].push((machine.now_ms() - began) / f64::from(STEPS[shape]));
            }
        }
    }
    report(&forms, &machine, &count);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    const NAMES: [&str; 5] = ["packed", "onednn", "plain", "int8", "int4"];
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    let Some(folder) = argument(0) else {
        return Err(
            "usage: packed_steps FOLDER [ROUNDS] [packed,onednn,plain,int8,int4] [THREADS] [fp32|bf16]"
                .into(),
        );
    };
    let dtype = match argument(4) {
        None | Some("fp32") => DtypeChoice::F32,
        Some("bf16") => DtypeChoice::Bf16,
        Some(other) => return Err(format!("the type is fp32 or bf16, not {other}").into()),
    };
    let rounds = argument(1).map_or(Ok(7), str::parse)?;
    let is_wanted = |name: &&str| argument(2).is_none_or(|some| some.split(',').any(|one| one == *name));
    let names: Vec<&'static str> = NAMES.into_iter().filter(is_wanted).collect();
    let all = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let mut counts = argument(3).map_or(Ok(vec![1, all]), |one| one.parse().map(|one| vec![one]))?;
    counts.dedup();
    let ours = !names.iter().any(|name| matches!(*name, "onednn" | "plain"));
    for threads in counts {
        let computed = Computed { threads, team: ours && threads > 1, dtype };
        run(Path::new(folder), rounds, &names, computed)?;
    }
    Ok(())
}
