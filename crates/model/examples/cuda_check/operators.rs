//! libtorch's operators beside the CUDA engine on one device, alone and with the object's kernels between them: greedy
//! tokens, and the time of a step. On the emulated device the operators' tensors are on the CPU.

use crate::agree::{generate, prompts_of};
use crate::steps::Steady;
use crate::{BLOCK_SIZE, CONTEXT, Outcome, options, ready};
use pinion_cuda::Device;
use pinion_model::cuda::{CudaDtype, CudaKv, CudaOptions};
use pinion_model::operators::{
    OperatorDevice, OperatorDtype, OperatorKernels, OperatorKv, OperatorOptions, OperatorPrefill,
    check_device, load_operators,
};
use pinion_model::{Model, StepOutput};
use serde_json::json;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

/// What computes, as the lines name it.
const NATIVE: &str = "native";
const ALONE: &str = "torch";
const WITH_KERNELS: &str = "torch with kernels";

/// In fp32 all three give the same tokens, or this fails.
pub(crate) fn operators(object: &str, folder: &str, dtype: &str) -> Outcome {
    // libtorch opens the device first: the object would have all of libtorch's kernels loaded at once.
    let cuda = check_device(OperatorDevice::Cuda(0));
    let is_emulated = Device::open(Path::new(object), 0)?.facts().emulated;
    if !is_emulated {
        cuda?;
    }
    let (native_dtype, own_dtype) = match dtype {
        "f32" => (CudaDtype::F32, OperatorDtype::F32),
        "bf16" => (CudaDtype::Bf16, OperatorDtype::Bf16),
        "f16" => (CudaDtype::F16, OperatorDtype::F16),
        other => return Err(format!("{other} is none of f32, bf16, f16").into()),
    };
    let (max_rows, max_tokens) = if is_emulated { (4, 32) } else { (32, 2048) };
    let native = CudaOptions {
        measured_products: !is_emulated,
        ..options(object, native_dtype, max_rows, max_tokens)
    };
    let CudaKv::Size(kv) = native.kv else { return Err("the cache has a size of its own".into()) };
    let own = OperatorOptions {
        device: if is_emulated { OperatorDevice::Cpu } else { OperatorDevice::Cuda(0) },
        dtype: own_dtype,
        threads: native.load_threads,
        block_size: BLOCK_SIZE,
        kv: OperatorKv::Size(kv),
        max_model_len: None,
        max_rows,
        max_tokens,
        prefill: OperatorPrefill::Auto,
        kernels: None,
    };
    let kernels = OperatorKernels {
        object: object.into(),
        may_do_without: false,
        shaped_on_device: true,
        scored_on_device: true,
        masked_on_device: true,
    };
    let mut expected = Vec::new();
    for by in [NATIVE, ALONE, WITH_KERNELS] {
        // One at a time is on the device.
        let mut model: Box<dyn Model> = match by {
            NATIVE => Box::new(ready(folder, &native)?),
            _ => {
                let kernels = (by == WITH_KERNELS).then(|| kernels.clone());
                load_operators(Path::new(folder), &OperatorOptions { kernels, ..own.clone() }, &mut |_| {})?
            }
        };
        let (prompts, count) = prompts_of(model.info().vocab_size, is_emulated);
        let tokens = generate(&mut *model, &prompts, count)?;
        let total: usize = tokens.iter().map(Vec::len).sum();
        if by == NATIVE {
            expected.clone_from(&tokens);
        }
        let equal: usize = tokens.iter().zip(&expected).map(|(have, want)| equal_at_first(have, want)).sum();
        println!("{}", json!({"operators": by, "dtype": dtype, "tokens": total, "equal_at_first": equal}));
        if dtype == "f32" && equal < total {
            let message =
                format!("{by}: {equal} of {total} greedy tokens are those of the native backend in fp32");
            return Err(message.into());
        }
        steps(&mut *model, by, dtype, is_emulated)?;
    }
    Ok(())
}

/// How many tokens there are before the first that differs.
fn equal_at_first(have: &[u32], want: &[u32]) -> usize {
    have.iter().zip(want).take_while(|(have, want)| have == want).count()
}

/// Times steps one by one, each with its tokens on the host.
fn steps(model: &mut dyn Model, by: &str, dtype: &str, is_emulated: bool) -> Outcome {
    let (vocab, context) = (model.info().vocab_size, CONTEXT.min(model.info().max_context));
    let (shapes, repeats): (&[(u32, u32)], usize) =
        if is_emulated { (&[(1, 1)], 1) } else { (&[(1, 1), (8, 1), (32, 1), (1, 256), (8, 256)], 20) };
    for &(rows, query) in shapes {
        let steady = Steady::new(rows, query, context.max(query), vocab, 0);
        let mut out = StepOutput::default();
        let mut step = |model: &mut dyn Model| -> Result<f64, Box<dyn Error>> {
            let began = Instant::now();
            model.step(&steady.batch(), &mut out)?;
            Ok(began.elapsed().as_secs_f64() * 1e3)
        };
        // The first ones load kernels and take memory.
        for _ in 0..repeats.min(3) {
            step(model)?;
        }
        let mut times = (0..repeats).map(|_| step(model)).collect::<Result<Vec<f64>, _>>()?;
        times.sort_by(f64::total_cmp);
        println!(
            "{}",
            json!({"by": by, "dtype": dtype, "rows": rows, "query": query, "context": context,
                "step_ms": times[repeats / 2], "least_ms": times[0], "most_ms": times[repeats - 1]})
        );
    }
    Ok(())
}
