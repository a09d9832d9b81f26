//! What integers cost: `text_loss FOLDER TEXT [--from SHARE] [--threads N] [--dtype fp32|bf16]` prints the mean loss,
//! in nats a token, of what follows the first SHARE (0.9) of the text's characters, without integers, with weights of 8
//! and 4 bits, and with K and V of 8 bits beside whole weights and beside weights of 8 bits.
//!
//! The text is cut into consecutive windows of the model's context, at most 512 tokens, and each token but a window's
//! first is predicted once. The standard error beside a difference is that of the mean of the paired differences of
//! tokens.

use pinion_model::{
    DtypeChoice, KvSize, Model, ModelOptions, OwnedBatch, Quantization, Scored, StepOutput, load,
};
use pinion_text::TextCodec;
use std::path::{Path, PathBuf};

const WINDOW_MAX: usize = 512;
const BLOCK_SIZE: u32 = 16;
const USAGE: &str = "usage: text_loss FOLDER TEXT [--from SHARE] [--threads N] [--dtype fp32|bf16]";

/// What is compared with the first: its name, its weights, and whether K and V have 8 bits.
const FORMS: [(&str, Quantization, bool); 5] = [
    ("none", Quantization::None, false),
    ("int8", Quantization::Int8, false),
    ("int4", Quantization::Int4, false),
    ("KV int8", Quantization::None, true),
    ("int8, KV too", Quantization::Int8, true),
];

struct Arguments {
    folder: PathBuf,
    text: PathBuf,
    from: f64,
    threads: u32,
    dtype: DtypeChoice,
}

fn arguments() -> Option<Arguments> {
    let mut words = std::env::args().skip(1);
    let (folder, text) = (words.next()?.into(), words.next()?.into());
    let mut found = Arguments { folder, text, from: 0.9, threads: 1, dtype: DtypeChoice::Auto };
    while let Some(name) = words.next() {
        let value = words.next()?;
        match name.as_str() {
            "--from" => found.from = value.parse().ok().filter(|share| (0.0..1.0).contains(share))?,
            "--threads" => found.threads = value.parse().ok()?,
            "--dtype" => {
                found.dtype = match value.as_str() {
                    "fp32" => DtypeChoice::F32,
                    "bf16" => DtypeChoice::Bf16,
                    _ => return None,
                }
            }
            _ => return None,
        }
    }
    Some(found)
}

/// The ids of the part of the text behind `from`.
fn held_out(arguments: &Arguments) -> Result<Vec<u32>, String> {
    let text = std::fs::read_to_string(&arguments.text)
        .map_err(|error| format!("{}: {error}", arguments.text.display()))?;
    let characters = text.chars().count();
    let start =
        text.char_indices().nth((characters as f64 * arguments.from) as usize).map_or(0, |(at, _)| at);
    let codec = TextCodec::load(&arguments.folder).map_err(|error| error.to_string())?;
    codec.encode(&text[start..], characters).map_err(|error| format!("{error:?}"))
}

/// The loss of each token but the first.
fn losses(model: &mut dyn Model, window: &[u32], out: &mut StepOutput) -> Result<Vec<f64>, String> {
    let blocks: Vec<u32> = (0..(window.len() as u32).div_ceil(BLOCK_SIZE)).collect();
    let mut batch = OwnedBatch::default();
    let row = batch.push(0, 0, window, &blocks);
    row.sample = None;
    row.scored = Some(Scored { first: 0, len: window.len() as u32 - 1, after: 0, alternatives: 0 });
    model.step(&batch.as_step(), out).map_err(|error| error.to_string())?;
    Ok(out.prompt_scores(0).logprobs.iter().map(|entry| -f64::from(entry.logprob)).collect())
}

fn all_losses(folder: &Path, options: &ModelOptions, ids: &[u32]) -> Result<(u64, Vec<f64>), String> {
    let mut model = load(folder, options).map_err(|error| error.to_string())?;
    let length = (model.info().max_context as usize).min(WINDOW_MAX);
    let mut out = StepOutput::default();
    let mut found = Vec::new();
    for window in ids.chunks(length).filter(|window| window.len() > 1) {
        found.extend(losses(&mut *model, window, &mut out)?);
    }
    Ok((model.info().weight_bytes, found))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let ids = held_out(arguments)?;
    let mut whole: Option<Vec<f64>> = None;
    for (name, quantization, int8_kv) in FORMS {
        let options = ModelOptions {
            dtype: arguments.dtype,
            threads: arguments.threads,
            block_size: BLOCK_SIZE,
            kv: KvSize::Blocks(WINDOW_MAX as u32 / BLOCK_SIZE),
            quantization,
            int8_kv,
            ..ModelOptions::default()
        };
        let (bytes, found) = all_losses(&arguments.folder, &options, &ids)?;
        let loss = mean(&found);
        let first = whole.get_or_insert_with(|| found.clone());
        let differences: Vec<f64> = found.iter().zip(first.iter()).map(|(have, none)| have - none).collect();
        let apart = mean(&differences);
        let variance =
            differences.iter().map(|value| (value - apart).powi(2)).sum::<f64>() / differences.len() as f64;
        let error = (variance / differences.len() as f64).sqrt();
        println!(
            "{name:<12}  {:8.2} MiB  {loss:.4} nats a token  {apart:+.4} ± {error:.4}  ({} tokens)",
            bytes as f64 / f64::from(1 << 20),
            found.len()
        );
    }
    Ok(())
}

fn main() {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        std::process::exit(2);
    };
    if let Err(message) = run(&arguments) {
        eprintln!("{message}");
        std::process::exit(1);
    }
}
