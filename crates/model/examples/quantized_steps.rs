//! Decode steps with and without quantised weights, in turns: `quantized_steps FOLDER [THREADS] [ROUNDS] [ROWS]`.
//!
//! Loads the folder three times (`none` on oneDNN, `int8`, `int4`) in the CPU's own dtype. A round times one step of
//! each, in an order that turns; the ratios are of the steps of one round, so that what disturbs the machine disturbs
//! both. With one thread the time is the thread's own CPU time where the system tells it.

use pinion_model::{
    KvSize, LinearKind, Model, ModelOptions, OwnedBatch, Quantization, StepOutput, WarmUp, load,
};
use std::path::Path;
use std::time::Instant;

const CONTEXT: u32 = 64;
const FORMS: [(&str, Quantization); 3] =
    [("none", Quantization::None), ("int8", Quantization::Int8), ("int4", Quantization::Int4)];

/// Milliseconds so far: of this thread's CPU time, or since `start` with several threads.
fn now_ms(start: Instant, threads: u32) -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).filter(|_| threads == 1);
    nanos.map_or_else(|| start.elapsed().as_secs_f64() * 1e3, |nanos| nanos / 1e6)
}

/// `rows` rows that decode at the end of a short context.
fn batch(model: &dyn Model, rows: u32) -> OwnedBatch {
    let row_blocks = CONTEXT.div_ceil(model.info().block_size);
    let mut batch = OwnedBatch::default();
    for row in 0..rows {
        let blocks: Vec<u32> = (row * row_blocks..(row + 1) * row_blocks).collect();
        batch.push(row, CONTEXT - 1, &[row * 7919 % model.info().vocab_size], &blocks).prompt_len =
            CONTEXT - 1;
    }
    batch
}

/// Median and the quartiles around it.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    format!("{:.2} ({:.2} to {:.2})", at(0.5), at(0.25), at(0.75))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |index: usize, preset: u32| arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(preset);
    let Some(folder) = arguments.first() else {
        eprintln!("usage: quantized_steps FOLDER [THREADS] [ROUNDS] [ROWS]");
        std::process::exit(2);
    };
    let (threads, rounds, rows) = (number(1, 1), number(2, 20), number(3, 1));
    let mut models: Vec<Box<dyn Model>> = Vec::new();
    for (name, quantization) in FORMS {
        let kv = KvSize::Blocks(rows * CONTEXT.div_ceil(16));
        let linear = LinearKind::OneDnn;
        let options = ModelOptions { threads, kv, linear, quantization, ..ModelOptions::default() };
        let start = Instant::now();
        let mut model = match load(Path::new(folder), &options) {
            Ok(model) => model,
            Err(error) => {
                eprintln!("{error}");
                std::process::exit(1);
            }
        };
        let loaded = start.elapsed();
        model.warm_up(&WarmUp { max_rows: rows, max_tokens: rows }).expect("the batches are well-formed");
        let info = model.info();
        println!(
            "{name}: loaded in {loaded:.2?}, {} {}, {} MiB of weights",
            info.family,
            info.dtype,
            info.weight_bytes >> 20
        );
        models.push(model);
    }
    let batches: Vec<OwnedBatch> = models.iter().map(|model| batch(&**model, rows)).collect();
    let (start, mut out) = (Instant::now(), StepOutput::default());
    let mut times = vec![Vec::new(); FORMS.len()];
    for round in 0..rounds as usize {
        for turn in 0..FORMS.len() {
            let at = (round + turn) % FORMS.len();
            let began = now_ms(start, threads);
            models[at].step(&batches[at].as_step(), &mut out).expect("the batch is well-formed");
            times[at].push(now_ms(start, threads) - began);
        }
    }
    for ((name, _), own) in FORMS.iter().zip(&times) {
        let ratios = times[0].iter().zip(own).map(|(none, own)| none / own).collect();
        println!(
            "{name}: {rows} row(s), {} ms a step, {} times as fast as none",
            spread(own.clone()),
            spread(ratios)
        );
    }
}
