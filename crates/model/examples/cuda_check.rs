//! What a machine with a GPU is asked first: `cuda_check OBJECT CHORE ...`.
//!
//! `device` opens it, and cuBLASLt beside it; `kernels` holds every kernel against its twin on the device, or those of the
//! sweeps that are named (`sweeps` lists them; `full` asks an emulated device for what a real one does); `parity` holds the
//! engine against the CPU engine in fp32, in a build that has one (feature `torch`). `load` times how weights get to the
//! device. `greedy` generates for benchmarks/gpu_reference.py to judge. `copy` and `steps` measure. All print one JSON object
//! a line. Switches of `steps`: no-graphs, no-fused, plain-prefill, first-algorithm, fused (the fused decode step), bf16, f32;
//! penalised, logprobs and masked, which all rows then are; sampled (the API's defaults: temperature 1 and nothing cut off) and
//! nucleus (top-k and top-p), where rows are greedy otherwise; host-sampler, which then does what the device's would. It also
//! runs on the emulated device (kernels/emulation/build.sh), where times mean nothing.

#[allow(clippy::unwrap_used, dead_code, reason = "the sweep is shared with a test")]
#[path = "../tests/cuda_sweeps/logprobs.rs"]
mod logprobs;
#[allow(clippy::unwrap_used, dead_code, reason = "the sweep is shared with a test")]
#[path = "../tests/cuda_sweeps/sampling.rs"]
mod sampling;
#[allow(dead_code, reason = "the sweeps are shared with a test")]
#[path = "../../ops/tests/cuda/sweeps/mod.rs"]
mod sweeps;

use pinion_model::cuda::{CudaDtype, CudaGpt2, CudaKv, CudaOptions, DecodePath, PrefillAttention, load_cuda};
use pinion_model::{
    KvSize, MaskState, Model, OwnedBatch, Pipeline, Row, RowOutcome, RowShaping, SampleParams, Shaping,
    StepBatch, StepOutput, TokenMask, Unshaped, WarmUp,
};
use pinion_ops::cuda::Device;
use serde_json::json;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

const USAGE: &str = "usage: cuda_check OBJECT device | sweeps | kernels [full] [SWEEP ...] | copy | parity FOLDER | load FOLDER | \
    greedy FOLDER | steps FOLDER [SWITCH ...]";
/// Context of each row in `steps`.
const CONTEXT: u32 = 320;
const BATCHES: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const BLOCK_SIZE: u32 = 16;
/// Bytes that cuBLASLt may use beside its operands.
const PRODUCT_WORKSPACE_BYTES: u64 = 32 << 20;
/// What `greedy` generates for each prompt.
const GREEDY_TOKENS: u32 = 32;
/// Different tokens in the output of a row that is penalised.
const OUTPUT: u32 = 256;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        [object, "device"] => device(object),
        [_, "sweeps"] => {
            SWEEPS.iter().for_each(|(name, _)| println!("{name}"));
            Ok(())
        }
        [object, "kernels", names @ ..] => kernels(object, names),
        [object, "copy"] => copy(object),
        [object, "parity", folder] => parity(object, folder),
        [object, "load", folder] => load_only(object, folder),
        [object, "greedy", folder] => greedy(object, folder),
        [object, "steps", folder, switches @ ..] => steps(object, folder, switches),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cuda_check: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What everything else stands on, so that what is missing is told in one line before anything is measured.
fn device(object: &str) -> Outcome {
    let device = Device::open(Path::new(object), 0)?;
    device.open_products(None, PRODUCT_WORKSPACE_BYTES)?;
    let facts = device.facts();
    println!(
        "{}",
        json!({"device": facts.name, "memory_bytes": facts.memory_bytes, "free_bytes": facts.free_bytes,
            "multiprocessors": facts.multiprocessors, "capability": facts.capability})
    );
    Ok(())
}

type Sweep = fn(&Device, sweeps::Scale);

/// By name, simple ones first.
const SWEEPS: [(&str, Sweep); 9] = [
    ("norms", sweeps::norms),
    ("activations", sweeps::activations),
    ("products", sweeps::products),
    ("gathers", sweeps::gathers),
    ("decode_attention", sweeps::decode_attention),
    ("prefill_attention", sweeps::prefill_attention),
    ("sampler", sampler),
    ("logprobs", |device, scale| logprobs::sweep(device, 5 * scale.cases, vocab_max(scale))),
    ("fused_decode", sweeps::fused_decode),
];

/// All sweeps, or those with these names. One panics with its seed at the first difference.
fn kernels(object: &str, names: &[&str]) -> Outcome {
    let device = Device::open(Path::new(object), 0)?;
    device.open_products(None, PRODUCT_WORKSPACE_BYTES)?;
    let (is_full, names) = match names {
        ["full", names @ ..] => (true, names),
        _ => (false, names),
    };
    let scale = match device.facts().emulated && !is_full {
        true => sweeps::Scale { cases: 3, context_max: 80 },
        false => sweeps::Scale { cases: 60, context_max: 1000 },
    };
    if let Some(unknown) = names.iter().find(|name| SWEEPS.iter().all(|(known, _)| known != *name)) {
        return Err(format!("there is no sweep {unknown}").into());
    }
    for (name, sweep) in SWEEPS.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        let began = Instant::now();
        sweep(&device, scale);
        println!(
            "{}",
            json!({"sweep": name, "passed": true, "cases": scale.cases, "s": began.elapsed().as_secs_f64()})
        );
    }
    Ok(())
}

fn sampler(device: &Device, scale: sweeps::Scale) {
    sampling::sweep(device, 5 * scale.cases, vocab_max(scale));
    sampling::odd_logits(device);
}

fn vocab_max(scale: sweeps::Scale) -> u64 {
    if scale.context_max < 1000 { 700 } else { 50_257 }
}

/// Copies inside the device; bytes read and written both count.
fn copy(object: &str) -> Outcome {
    let device = Device::open(Path::new(object), 0)?;
    let bytes = if device.facts().emulated { 1 << 20 } else { 2usize << 30 };
    let (from, to) = (device.alloc(bytes)?, device.alloc(bytes)?);
    let stream = device.stream()?;
    stream.fill(from, 1)?;
    let (begin, end) = (device.event(true)?, device.event(true)?);
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        stream.record(&begin)?;
        stream.copy(to, from)?;
        stream.record(&end)?;
        stream.synchronize()?;
        best = best.min(f64::from(begin.elapsed_ms(&end)?));
    }
    let facts = device.facts();
    let rate = 2.0 * bytes as f64 / best / 1e9;
    println!(
        "{}",
        json!({"device": facts.name, "multiprocessors": facts.multiprocessors, "copy_TB_s": rate})
    );
    Ok(())
}

fn options(object: &str, dtype: CudaDtype, max_rows: u32, max_tokens: u32) -> CudaOptions {
    CudaOptions {
        object: object.into(),
        device: 0,
        products: None,
        dtype,
        load_threads: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
        block_size: BLOCK_SIZE,
        kv: CudaKv::Size(KvSize::Blocks(max_rows * CONTEXT.div_ceil(BLOCK_SIZE) * 2 + 64)),
        max_rows,
        max_tokens,
        graphs: true,
        fused: true,
        prefill: PrefillAttention::Auto,
        decode: DecodePath::Graph,
        measured_products: true,
        shaped_on_device: true,
        scored_on_device: true,
        masked_on_device: true,
    }
}

fn ready(folder: &str, options: &CudaOptions) -> Result<CudaGpt2, Box<dyn Error>> {
    let mut model = load_cuda(Path::new(folder), options)?;
    Pipeline::warm_up(&mut model, &WarmUp { max_rows: options.max_rows, max_tokens: options.max_tokens })?;
    Ok(model)
}

/// From the folder to weights on the device, nothing captured.
fn load_only(object: &str, folder: &str) -> Outcome {
    let options = options(object, CudaDtype::F16, 1, 16);
    let began = Instant::now();
    let model = load_cuda(Path::new(folder), &options)?;
    let weight_bytes = Model::info(&model).weight_bytes;
    println!(
        "{}",
        json!({"load_s": began.elapsed().as_secs_f64(), "threads": options.load_threads, "weight_bytes": weight_bytes})
    );
    Ok(())
}

/// `rows` rows of `query` tokens each at the end of a context of `context`, block tables of their own.
struct Steady {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    rows: Vec<Row>,
    blocks: Vec<u32>,
}

impl Steady {
    fn new(row_count: u32, query_len: u32, context_len: u32, vocab: u32, seed: u32) -> Steady {
        let row_blocks = context_len.div_ceil(BLOCK_SIZE);
        let row = |index: u32| Row {
            slot: index,
            query_start: index * query_len,
            query_len,
            context_len,
            prompt_len: context_len,
            blocks_start: index * row_blocks,
            blocks_len: row_blocks,
            sample: Some(SampleParams::GREEDY),
            scored: None,
        };
        Steady {
            tokens: (0..row_count * query_len).map(|index| (index + seed) * 7919 % vocab).collect(),
            positions: (0..row_count).flat_map(|_| context_len - query_len..context_len).collect(),
            rows: (0..row_count).map(row).collect(),
            blocks: (0..row_count * row_blocks).collect(),
        }
    }

    fn batch(&self) -> StepBatch<'_> {
        StepBatch {
            tokens: &self.tokens,
            positions: &self.positions,
            rows: &self.rows,
            blocks: &self.blocks,
            copies: &[],
            shaping: &Unshaped,
        }
    }
}

/// Logits of a prompt, then of decode steps over the same cache, in each dtype.
#[cfg(feature = "torch")]
fn parity(object: &str, folder: &str) -> Outcome {
    use pinion_model::{DtypeChoice, ModelOptions, load};
    let cpu = ModelOptions { dtype: DtypeChoice::F32, block_size: BLOCK_SIZE, ..ModelOptions::default() };
    let mut cpu = load(Path::new(folder), &cpu)?;
    let vocab = cpu.info().vocab_size;
    let is_emulated = Device::open(Path::new(object), 0)?.facts().emulated;
    let shapes = match is_emulated {
        true => [(1, 20, 20), (2, 9, 9), (2, 1, 10), (1, 1, 21)],
        false => [(1, 40, 40), (2, 70, 70), (2, 1, 71), (1, 1, 41)],
    };
    let prompts = shapes.map(|(rows, query, context)| Steady::new(rows, query, context, vocab, query));
    let mut want = vec![Vec::new(); prompts.len()];
    for (prompt, want) in prompts.iter().zip(&mut want) {
        cpu.logits(&prompt.batch(), want)?;
    }
    let dtypes = [(CudaDtype::F32, 1e-4), (CudaDtype::F16, 0.01), (CudaDtype::Bf16, 0.05)];
    for ((dtype, tolerance), decode) in
        dtypes.into_iter().flat_map(|dtype| [(dtype, DecodePath::Graph), (dtype, DecodePath::Fused)])
    {
        // What measuring algorithms finds is no subject here, and costs an emulated device a minute.
        let max_tokens = if is_emulated { 32 } else { 256 };
        let options =
            CudaOptions { decode, measured_products: !is_emulated, ..options(object, dtype, 4, max_tokens) };
        let mut model = ready(folder, &options)?;
        for (index, (prompt, want)) in prompts.iter().zip(&want).enumerate() {
            let mut have = Vec::new();
            model.logits(&prompt.batch(), &mut have)?;
            let largest = want.iter().fold(0f32, |max, value| max.max(value.abs()));
            let error = have.iter().zip(want).fold(0f32, |max, (a, b)| max.max((a - b).abs())) / largest;
            println!(
                "{}",
                json!({"parity": dtype.name(), "decode": format!("{decode:?}"), "step": index, "relative_error": error,
                    "tolerance": tolerance})
            );
            if error.is_nan() || error > tolerance {
                return Err(
                    format!("{} {decode:?} step {index}: relative error {error:e}", dtype.name()).into()
                );
            }
        }
    }
    Ok(())
}

#[cfg(not(feature = "torch"))]
fn parity(_: &str, _: &str) -> Outcome {
    Err("this build has no CPU engine to compare with".into())
}

/// Greedy tokens of four prompts of different lengths, alone and all at once, in each dtype. Token i of the prompt of
/// length n is (i + n) * 7919 modulo the vocabulary.
fn greedy(object: &str, folder: &str) -> Outcome {
    let is_emulated = Device::open(Path::new(object), 0)?.facts().emulated;
    let lens: &[u32] = if is_emulated { &[3, 10] } else { &[1, 40, 100, 300] };
    let count = if is_emulated { 4 } else { GREEDY_TOKENS };
    for dtype in [CudaDtype::F32, CudaDtype::F16, CudaDtype::Bf16] {
        let max_tokens = if is_emulated { 32 } else { 512 };
        let options =
            CudaOptions { measured_products: !is_emulated, ..options(object, dtype, 4, max_tokens) };
        let mut model = ready(folder, &options)?;
        let vocab = Model::info(&model).vocab_size;
        let prompts: Vec<Vec<u32>> =
            lens.iter().map(|&len| (0..len).map(|i| (i + len) * 7919 % vocab).collect()).collect();
        let together = generate(&mut model, &prompts, count)?;
        for (prompt, together) in prompts.iter().zip(&together) {
            let alone = generate(&mut model, std::slice::from_ref(prompt), count)?;
            println!(
                "{}",
                json!({"dtype": dtype.name(), "prompt": prompt, "alone": alone[0], "together": together})
            );
        }
    }
    Ok(())
}

/// `count` greedy tokens after each prompt, all of them in one batch.
fn generate(model: &mut CudaGpt2, prompts: &[Vec<u32>], count: u32) -> Result<Vec<Vec<u32>>, Box<dyn Error>> {
    let mut sequences = prompts.to_vec();
    let mut out = StepOutput::default();
    let row_blocks = CONTEXT.div_ceil(BLOCK_SIZE) * 2;
    for index in 0..count {
        let mut batch = OwnedBatch::default();
        for (lane, sequence) in sequences.iter().enumerate() {
            let first = if index == 0 { 0 } else { sequence.len() - 1 };
            let blocks: Vec<u32> = (lane as u32 * row_blocks..(lane as u32 + 1) * row_blocks).collect();
            let row = batch.push(lane as u32, first as u32, &sequence[first..], &blocks);
            row.prompt_len = prompts[lane].len() as u32;
            row.sample = Some(SampleParams { position: u64::from(index), ..SampleParams::GREEDY });
        }
        Model::step(model, &batch.as_step(), &mut out)?;
        for (sequence, outcome) in sequences.iter_mut().zip(&out.rows) {
            let RowOutcome::Token(token) = outcome else { return Err(format!("{outcome:?}").into()) };
            sequence.push(*token);
        }
    }
    Ok(sequences.iter().zip(prompts).map(|(ids, prompt)| ids[prompt.len()..].to_vec()).collect())
}

/// What every row of `steps` does to its logits.
#[derive(Debug)]
struct Asked {
    output: Vec<u32>,
    is_penalised: bool,
    mask: Option<Arc<dyn TokenMask>>,
}

impl RowShaping for Asked {
    fn shaping(&self, _row: usize) -> Option<Shaping<'_>> {
        (self.is_penalised || self.mask.is_some()).then_some(Shaping {
            output: &self.output,
            repetition_penalty: if self.is_penalised { 1.2 } else { 1.0 },
            mask: self.mask.as_ref(),
            ..Shaping::OFF
        })
    }
}

/// Allows every token of a vocabulary.
#[derive(Debug)]
struct All(u32);

impl TokenMask for All {
    fn read(&self, _index: u64, bits: &mut Vec<u32>) -> MaskState {
        bits.clear();
        bits.resize(self.0.div_ceil(u32::BITS) as usize, u32::MAX);
        MaskState::Ready
    }
}

/// Times steps as the engine's loop sees them: two in flight, wall clock over many.
fn steps(object: &str, folder: &str, switches: &[&str]) -> Outcome {
    let has = |name: &str| switches.contains(&name);
    let dtype = match switches {
        _ if switches.contains(&"bf16") => CudaDtype::Bf16,
        _ if switches.contains(&"f32") => CudaDtype::F32,
        _ => CudaDtype::F16,
    };
    let is_emulated = Device::open(Path::new(object), 0)?.facts().emulated;
    let (batches, repeats) = if is_emulated { (&BATCHES[..2], 2) } else { (&BATCHES[..], 200) };
    let max_rows = batches[batches.len() - 1];
    let prefill =
        if switches.contains(&"plain-prefill") { PrefillAttention::Plain } else { PrefillAttention::Auto };
    let options = CudaOptions {
        graphs: !switches.contains(&"no-graphs"),
        fused: !switches.contains(&"no-fused"),
        prefill,
        decode: if switches.contains(&"fused") { DecodePath::Fused } else { DecodePath::Graph },
        measured_products: !switches.contains(&"first-algorithm"),
        shaped_on_device: !has("host-sampler"),
        scored_on_device: !has("host-sampler"),
        masked_on_device: !has("host-sampler"),
        ..options(object, dtype, max_rows, if is_emulated { 32 } else { 2048 })
    };
    let began = Instant::now();
    let mut model = ready(folder, &options)?;
    let info = Model::info(&model).clone();
    println!(
        "{}",
        json!({"load_and_capture_s": began.elapsed().as_secs_f64(), "weight_bytes": info.weight_bytes})
    );
    let context = CONTEXT.min(info.max_context);
    let all = Arc::new(All(info.vocab_size)) as Arc<dyn TokenMask>;
    let asked = Asked {
        output: (0..OUTPUT.min(info.vocab_size)).collect(),
        is_penalised: has("penalised"),
        mask: has("masked").then_some(all),
    };
    let mut shapes: Vec<(u32, u32)> = batches.iter().map(|&rows| (rows, 1)).collect();
    shapes.extend(if is_emulated { vec![(1, 16)] } else { vec![(1, 256), (4, 256), (8, 256)] });
    for (rows, query) in shapes {
        let mut steady = Steady::new(rows, query, context.max(query), info.vocab_size, 0);
        steady.rows.iter_mut().for_each(|row| row.sample = Some(drawing(switches)));
        let ms = time(&mut model, &steady, &asked, if query == 1 { repeats } else { repeats.min(40) })?;
        // Weights once, and keys and values of every row.
        let bytes = info.weight_bytes + u64::from(rows * context.div_ceil(BLOCK_SIZE)) * info.kv_block_bytes;
        println!(
            "{}",
            json!({"rows": rows, "query": query, "context": context, "switches": switches, "dtype": dtype.name(),
                "step_ms": ms, "least_bytes": bytes, "TB_s": bytes as f64 / ms / 1e9})
        );
    }
    Ok(())
}

/// How the rows of `steps` draw.
fn drawing(switches: &[&str]) -> SampleParams {
    let logprobs = switches.contains(&"logprobs").then_some(5);
    match switches {
        _ if switches.contains(&"sampled") => {
            SampleParams { temperature: 1.0, top_k: 0, top_p: 1.0, logprobs, ..SampleParams::GREEDY }
        }
        _ if switches.contains(&"nucleus") => {
            SampleParams { temperature: 0.8, top_k: 50, top_p: 0.95, logprobs, ..SampleParams::GREEDY }
        }
        _ => SampleParams { logprobs, ..SampleParams::GREEDY },
    }
}

fn time(model: &mut CudaGpt2, steady: &Steady, asked: &Asked, repeats: u32) -> Result<f64, Box<dyn Error>> {
    let mut out = StepOutput::default();
    let batch = StepBatch { shaping: asked, ..steady.batch() };
    let mut round = |count: u32| -> Result<f64, Box<dyn Error>> {
        let began = Instant::now();
        model.launch(&batch)?;
        for _ in 1..count {
            model.launch(&batch)?;
            model.retire(&mut out)?;
        }
        model.retire(&mut out)?;
        Ok(began.elapsed().as_secs_f64() * 1e3 / f64::from(count))
    };
    round(repeats.min(10))?;
    let mut rounds = [round(repeats)?, round(repeats)?, round(repeats)?];
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[1])
}
