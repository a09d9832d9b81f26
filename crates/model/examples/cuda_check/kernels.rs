//! Every kernel held against its twin on the device, by the sweeps that the tests run on the emulated one.

#[allow(clippy::unwrap_used, dead_code, reason = "the sweep is shared with a test")]
#[path = "../../tests/cuda_sweeps/logprobs.rs"]
mod logprobs;
#[allow(clippy::unwrap_used, dead_code, reason = "the sweep is shared with a test")]
#[path = "../../tests/cuda_sweeps/sampling.rs"]
mod sampling;
#[allow(dead_code, reason = "the sweeps are shared with a test")]
#[path = "../../../cuda/tests/kernels/sweeps/mod.rs"]
mod sweeps;

use crate::{Outcome, PRODUCT_WORKSPACE_BYTES};
use pinion_cuda::Device;
use serde_json::json;
use std::path::Path;
use std::time::Instant;

type Sweep = fn(&Device, sweeps::Scale);

/// By name, simple ones first.
const SWEEPS: [(&str, Sweep); 13] = [
    ("borrowed_stream", sweeps::borrowed_stream),
    ("norms", sweeps::norms),
    ("activations", sweeps::activations),
    ("products", sweeps::products),
    ("rms_norms", sweeps::rms_norms_and_scales),
    ("gates", sweeps::gates_and_rotations),
    ("gathers", sweeps::gathers),
    ("decode_attention", sweeps::decode_attention),
    ("general_attention", sweeps::general_attention),
    ("prefill_attention", sweeps::prefill_attention),
    ("sampler", sampler),
    ("logprobs", |device, scale| logprobs::sweep(device, 5 * scale.cases, vocab_max(scale))),
    ("fused_decode", sweeps::fused_decode),
];

/// Names of the sweeps, a line each.
pub(crate) fn list() {
    SWEEPS.iter().for_each(|(name, _)| println!("{name}"));
}

/// All sweeps, or those with these names. One panics with its seed at the first difference.
pub(crate) fn kernels(object: &str, names: &[&str]) -> Outcome {
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

fn vocab_max(scale: sweeps::Scale) -> usize {
    if scale.context_max < 1000 { 700 } else { 50_257 }
}
