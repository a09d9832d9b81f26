//! `pinion-engine probe`: what only the engine can tell, in a process of its own, for `pinion doctor` and the launcher:
//! that libtorch is found, what a model's folder holds, what the CUDA object finds, whether the CUDA engine takes a
//! model, whether libtorch has CUDA. Prints one JSON object.

use crate::cuda_start;
use pinion_config::{CudaModel, Exit, ProbeCommand, cublaslt_near};
use pinion_model::cuda::{CudaProbe, Refusal};
use pinion_model::operators::{OperatorDevice, check_device};
use pinion_text::TextCodec;
use pinion_worker::telemetry;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Looks and prints. That it starts at all shows that its libraries are there.
pub fn probe(command: Result<ProbeCommand, String>) -> ExitCode {
    let command = match command {
        Ok(command) => command,
        Err(usage) => {
            telemetry::say(&format!("pinion-engine: error: {usage}"));
            telemetry::flush();
            return Exit::Usage.into();
        }
    };
    let found = json!({
        "torch": cfg!(feature = "torch"),
        "libtorch": mapped("libtorch_cpu.so"),
        "weights": command.model.as_deref().map(weights),
        "tokenizer": command.model.as_deref().map(tokenizer),
        "cuda": gpu(&command),
    });
    match writeln!(std::io::stdout(), "{found}") {
        Ok(()) => Exit::Ok.into(),
        Err(_) => Exit::System.into(),
    }
}

/// The file of this name that this process has mapped.
fn mapped(name: &str) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].to_owned()));
    paths.into_iter().find(|path| path.ends_with(name))
}

/// The headers of all weight files, as a start reads them.
fn weights(folder: &Path) -> Value {
    match pinion_model::weigh(folder) {
        Ok(weights) => {
            json!({"files": weights.files, "tensors": weights.tensors, "numbers": weights.numbers, "bytes": weights.bytes, "has_head": weights.has_head})
        }
        Err(error) => json!({"error": error.to_string()}),
    }
}

fn tokenizer(folder: &Path) -> Value {
    match TextCodec::load(folder) {
        Ok(codec) => json!({"tokens": codec.vocab_size()}),
        Err(error) => json!({"error": error.to_string()}),
    }
}

/// The GPU as the backend that would use it sees it. `refusal` is the first thing that keeps it from serving.
fn gpu(command: &ProbeCommand) -> Value {
    let mut value = match command.cuda_object.as_deref() {
        Some(object) => cuda(object, command.cuda_model.as_ref()),
        None if command.torch_device.is_some() => json!({}),
        None => return Value::Null,
    };
    if let Some(index) = command.torch_device {
        let refusal = check_device(OperatorDevice::Cuda(index)).err().map(|error| error.to_string());
        value["torch"] = refusal.as_ref().map_or_else(|| json!({}), |reason| json!({"error": reason}));
        value["refusal"] = refusal.into();
    }
    value
}

fn cuda(object: &Path, model: Option<&CudaModel>) -> Value {
    let probe = pinion_model::cuda::probe(object, cublaslt_near(object).as_deref());
    let of_model = model.and_then(cuda_start::refusal);
    let mut value = found(&probe);
    value["model"] = match (model, &of_model) {
        (None, _) => Value::Null,
        (Some(_), None) => json!({}),
        (Some(_), Some(reason)) => json!({"error": reason}),
    };
    value["refusal"] = of_model.or_else(|| of_device(&probe)).into();
    value
}

/// A device may open without the driver's library: the emulated one.
fn of_device(probe: &CudaProbe) -> Option<String> {
    let products = probe.products.as_ref().and_then(|products| products.as_ref().err());
    probe.device.as_ref().err().or(products).map(Refusal::to_string)
}

fn found(probe: &CudaProbe) -> Value {
    let device = |name: &str, capability: u32, memory_bytes: u64| json!({"name": name, "capability": capability, "memory_bytes": memory_bytes});
    json!({
        "driver": match &probe.driver {
            Ok(driver) => json!({
                "cuda_version": driver.cuda_version,
                "devices": driver.devices.iter()
                    .map(|found| device(&found.name, found.capability, found.memory_bytes)).collect::<Vec<_>>(),
            }),
            Err(refusal) => missing(refusal),
        },
        "device": match &probe.device {
            Ok(facts) => {
                let mut value = device(&facts.name, facts.capability, facts.memory_bytes);
                value["free_bytes"] = facts.free_bytes.into();
                value["emulated"] = facts.emulated.into();
                value
            }
            Err(refusal) => missing(refusal),
        },
        "products": match &probe.products {
            None => Value::Null,
            Some(Ok(())) => json!({}),
            Some(Err(refusal)) => missing(refusal),
        },
    })
}

fn missing(refusal: &Refusal) -> Value {
    json!({"error": refusal.reason, "remedy": refusal.remedy})
}
