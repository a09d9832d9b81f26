//! What a machine with a GPU is asked first: `cuda_check OBJECT CHORE ...`.
//!
//! `device` opens it, and cuBLASLt beside it; `kernels` holds every kernel against its twin on the device, or those of
//! the sweeps that are named (`sweeps` lists them; `full` asks an emulated device for what a real one does); `parity`
//! holds the engine against the CPU engine in fp32, in a build that has one (feature `torch`), and `launches` every
//! way of launching a step's kernels against one by one. `operators` holds libtorch's operators (`--backend torch`),
//! alone and with the object's kernels, against the engine, and times their steps (feature `torch`, too). `load` times
//! how weights get to the device. `greedy` generates for benchmarks/gpu_reference.py to judge. `copy` and `steps`
//! measure; `rates` times each kernel of a step by itself, `phases` looks into the fused step. All print one JSON
//! object a line. Switches of `steps`: no-graphs, no-fused-norms, no-fused-products, plain-prefill, first-algorithm,
//! fused (the fused decode step), dependent (launches), mixed-graphs, bf16, f32; penalised, logprobs and masked, which
//! all rows then are; sampled (the API's defaults: temperature 1 and nothing cut off) and nucleus (top-k and top-p),
//! where rows are greedy otherwise; host-sampler, which then does what the device's would. It also runs on the
//! emulated device (kernels/emulation/build.sh), where times mean nothing.

mod agree;
mod filled;
mod kernels;
mod launches;
#[cfg(feature = "torch")]
mod operators;
mod phases;
mod rates;
mod steps;

use pinion_cuda::Device;
use pinion_model::cuda::{
    CudaDecoder, CudaDtype, CudaKv, CudaOptions, DecodePath, PrefillAttention, load_cuda,
};
use pinion_model::{KvSize, Pipeline, WarmUp};
use serde_json::json;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cuda_check OBJECT device | sweeps | kernels [full] [SWEEP ...] | copy | rates | phases | \
    parity FOLDER | operators FOLDER DTYPE | launches FOLDER | load FOLDER | greedy FOLDER | steps FOLDER [SWITCH ...]";
/// Context of each row in `steps`.
const CONTEXT: u32 = 320;
const BATCHES: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const BLOCK_SIZE: u32 = 16;
/// Bytes that cuBLASLt may use beside its operands.
const PRODUCT_WORKSPACE_BYTES: u64 = 32 << 20;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        [object, "device"] => device(object),
        [_, "sweeps"] => {
            kernels::list();
            Ok(())
        }
        [object, "kernels", names @ ..] => kernels::kernels(object, names),
        [object, "copy"] => rates::copy(object),
        [object, "rates"] => rates::rates(object),
        [object, "phases"] => phases::phases(object),
        [object, "parity", folder] => agree::parity(object, folder),
        #[cfg(feature = "torch")]
        [object, "operators", folder, dtype] => operators::operators(object, folder, dtype),
        #[cfg(not(feature = "torch"))]
        [_, "operators", ..] => Err("this build has no libtorch".into()),
        [object, "load", folder] => steps::load_only(object, folder),
        [object, "launches", folder] => launches::launches(object, folder),
        [object, "greedy", folder] => agree::greedy(object, folder),
        [object, "steps", folder, switches @ ..] => steps::steps(object, folder, switches),
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

fn options(object: &str, dtype: CudaDtype, max_rows: u32, max_tokens: u32) -> CudaOptions {
    CudaOptions {
        object: object.into(),
        device: 0,
        products: None,
        dtype,
        load_threads: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
        block_size: BLOCK_SIZE,
        kv: CudaKv::Size(KvSize::Blocks(max_rows * CONTEXT.div_ceil(BLOCK_SIZE) * 2 + 64)),
        max_model_len: None,
        max_rows,
        max_tokens,
        graphs: true,
        mixed_graphs: false,
        dependent_launch: false,
        fused_norms: true,
        fused_products: true,
        prefill: PrefillAttention::Auto,
        decode: DecodePath::Graph,
        measured_products: true,
        shaped_on_device: true,
        scored_on_device: true,
        masked_on_device: true,
        spin: std::time::Duration::from_millis(20),
        step_deadline: pinion_model::STEP_DEADLINE,
    }
}

fn ready(folder: &str, options: &CudaOptions) -> Result<CudaDecoder, Box<dyn Error>> {
    let mut model = load_cuda(Path::new(folder), options)?;
    Pipeline::warm_up(&mut model, &WarmUp { max_rows: options.max_rows, max_tokens: options.max_tokens })?;
    Ok(model)
}
