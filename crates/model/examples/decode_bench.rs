//! Times decode steps by batch size and one prefill: `decode_bench FOLDER [auto|f32|bf16] [THREADS]
//! [auto|packed|onednn|plain|int8|int4]`.
//!
//! Beside the wall time stands the calling thread's own CPU time, which says more on a busy machine (with one thread).
//! Decode rows have a context of 320 tokens in blocks of their own; the prefill is 256 tokens. Prints medians and
//! minima in milliseconds. Compare figures of one run only: the machine's speed drifts.

use pinion_model::{
    DtypeChoice, KvSize, LinearKind, Model, ModelOptions, OwnedBatch, Quantization, StepOutput, WarmUp, load,
};
use std::path::Path;
use std::time::Instant;

const CONTEXT: u32 = 320;
const PREFILL: u32 = 256;
const MAX_ROWS: u32 = 32;

/// CPU time of this thread so far, milliseconds; 0 where the system does not say.
fn cpu_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(0.0) / 1e6
}

/// Median and minimum.
fn spread(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    format!("median {:7.2} best {:7.2}", times[times.len() / 2], times[0])
}

/// `row_count` rows of `query_len` tokens each at the end of a context of `context` tokens.
fn time_steps(model: &mut dyn Model, row_count: u32, query_len: u32, context: u32, repeats: usize) -> String {
    let info = model.info().clone();
    let row_blocks = context.div_ceil(info.block_size);
    let mut batch = OwnedBatch::default();
    for row in 0..row_count {
        let blocks = row * row_blocks..(row + 1) * row_blocks;
        let blocks: Vec<u32> = blocks.map(|block| block % info.block_count).collect();
        let tokens = row * query_len..(row + 1) * query_len;
        let tokens: Vec<u32> = tokens.map(|index| index * 7919 % info.vocab_size).collect();
        // One token is a decode step, more are a prompt.
        batch.push(row, context - query_len, &tokens, &blocks).prompt_len =
            context - u32::from(query_len == 1);
    }
    let batch = batch.as_step();
    let mut out = StepOutput::with_capacity(row_count as usize);
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        let (start, cpu_start) = (Instant::now(), cpu_ms());
        model.step(&batch, &mut out).expect("the benchmark's batch is well-formed");
        wall.push(start.elapsed().as_secs_f64() * 1e3);
        cpu.push(cpu_ms() - cpu_start);
    }
    format!("wall ms {}   cpu ms {}", spread(wall), spread(cpu))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    let Some(folder) = argument(0) else {
        eprintln!(
            "usage: decode_bench FOLDER [auto|f32|bf16] [THREADS] [auto|packed|onednn|plain|int8|int4]"
        );
        std::process::exit(2);
    };
    let dtype = match argument(1) {
        Some("f32") => DtypeChoice::F32,
        Some("bf16") => DtypeChoice::Bf16,
        _ => DtypeChoice::Auto,
    };
    let threads = argument(2).and_then(|threads| threads.parse().ok()).unwrap_or(1);
    let linear = match argument(3) {
        Some("packed") => LinearKind::Packed,
        Some("onednn") => LinearKind::OneDnn,
        Some("plain") => LinearKind::Plain,
        _ => LinearKind::Auto,
    };
    let quantization = match argument(3) {
        Some("int8") => Quantization::Int8,
        Some("int4") => Quantization::Int4,
        _ => Quantization::None,
    };
    let kv = KvSize::Blocks(MAX_ROWS * CONTEXT.div_ceil(16));
    let options = ModelOptions { dtype, threads, kv, linear, quantization, ..ModelOptions::default() };
    let start = Instant::now();
    let mut model = match load(Path::new(folder), &options) {
        Ok(model) => model,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    let loaded = start.elapsed();
    model
        .warm_up(&WarmUp { max_rows: MAX_ROWS, max_tokens: PREFILL })
        .expect("the warm-up's batches are well-formed");
    println!("load and warm-up took {:.0} ms of this thread's CPU time", cpu_ms());
    println!("load {loaded:.2?}, warm-up {:.2?}, {:?}", start.elapsed() - loaded, model.info());
    for row_count in [1, 4, 8, 16, MAX_ROWS] {
        println!("decode b{row_count:<3} {}", time_steps(&mut *model, row_count, 1, CONTEXT, 40));
    }
    println!("prefill {PREFILL} {}", time_steps(&mut *model, 1, PREFILL, PREFILL, 15));
}
