//! The model: found, readable, whole, and small enough.

use crate::check::Check;
use crate::engine::{Probe, run};
use pinion_config::{
    Backend, Config, DoctorCommand, Faults, Machine, Memory, NamedModel, Origin, Quantization, human_bytes,
    reason_in,
};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The folder in the cache of a model of the hub, if that is what was named; or what `pinion-pull` says.
pub(crate) fn pulled(command: &DoctorCommand, pull: &Path) -> Option<Result<PathBuf, String>> {
    let Some(NamedModel::Hub(model)) = &command.model else { return None };
    let mut words: Vec<OsString> = vec!["pull".into(), model.to_string().into(), "--hub-offline".into()];
    if let Some(cache) = &command.cache {
        words.extend(["--hub-cache".into(), cache.into()]);
    }
    Some(run(pull, &words).map(|said| PathBuf::from(said.trim_end_matches('\n'))))
}

/// What `pinion serve` would make of the same words.
pub(crate) enum Resolved {
    /// No model was named; the rest was checked.
    NoModel(Result<(), Faults>),
    /// A model of the hub that is not in the cache, with what was said; the rest was checked.
    NotHere(String, Result<(), Faults>),
    /// Everything.
    Whole(Result<Box<Config>, Faults>),
}

impl Resolved {
    pub(crate) fn config(&self) -> Option<&Config> {
        match self {
            Resolved::Whole(Ok(config)) => Some(config),
            _ => None,
        }
    }
}

pub(crate) fn resolved(
    command: &DoctorCommand,
    machine: &Machine,
    pulled: Option<&Result<PathBuf, String>>,
) -> Resolved {
    match (&command.model, pulled) {
        (None, _) => Resolved::NoModel(command.config_without_model(machine)),
        (_, Some(Err(reason))) => Resolved::NotHere(reason.clone(), command.config_without_model(machine)),
        (_, Some(Ok(folder))) => Resolved::Whole(command.config(machine, Some(folder)).map(Box::new)),
        (_, None) => Resolved::Whole(command.config(machine, None).map(Box::new)),
    }
}

/// The lines about the options, the folder and what is in it.
pub(crate) fn checks(
    command: &DoctorCommand,
    resolved: &Resolved,
    probe: &Probe,
    memory: Memory,
) -> Vec<Check> {
    match resolved {
        Resolved::NoModel(rest) => {
            let found = "no model was named: nothing of it was checked";
            vec![
                options(rest.as_ref().err()),
                Check::note("model.folder", found, "Name one: `pinion doctor DIR`."),
            ]
        }
        Resolved::NotHere(reason, rest) => {
            let name = match &command.model {
                Some(NamedModel::Hub(model)) => model.to_string(),
                _ => String::new(),
            };
            let remedy =
                format!("`pinion pull {name}` downloads it; `pinion serve {name}` would do so first.");
            let found = format!("{name} is not whole in the cache: {}", reason_in(reason));
            vec![options(rest.as_ref().err()), Check::note("model.folder", found, &remedy)]
        }
        Resolved::Whole(Err(faults)) => {
            let mut checks = vec![options(Some(faults))];
            checks.extend(folder_faults(faults));
            checks
        }
        Resolved::Whole(Ok(config)) => {
            let mut checks = vec![options(None), folder(config)];
            if let Ok(found) = &probe.base {
                checks.extend(contents(config, found));
                checks.push(fits(config, found, probe, memory));
            }
            checks
        }
    }
}

/// The faults of everything but the model's folder.
fn options(faults: Option<&Faults>) -> Check {
    let id = "options";
    let others: Vec<String> = faults
        .iter()
        .flat_map(|faults| &faults.0)
        .filter(|fault| !matches!(fault.origin, Origin::Model(_)))
        .map(|fault| format!("{}: {}", fault.origin, fault.reason))
        .collect();
    if others.is_empty() {
        return Check::ok(id, "flags, environment and config file agree");
    }
    let remedy = "Change the option that is named; `pinion --help=OPTION` has its form and its limits.";
    Check::failure(id, others.join("; "), remedy)
}

fn folder_faults(faults: &Faults) -> Option<Check> {
    let of_model: Vec<String> = faults
        .0
        .iter()
        .filter_map(|fault| match &fault.origin {
            Origin::Model(path) => Some(format!("{path}: {}", fault.reason)),
            _ => None,
        })
        .collect();
    let found = of_model.join("; ");
    (!found.is_empty()).then(|| Check::failure("model.folder", &found, remedy_of(&found)))
}

/// What helps against the first of what is wrong.
fn remedy_of(found: &str) -> &'static str {
    let remedies = [
        (
            "no such folder",
            "Name a folder with config.json, tokenizer.json and safetensors, a GGUF file, or ORG/NAME of the hub.",
        ),
        ("no such file", "Look at the path, or download the file."),
        ("is a file", "Name the folder that the file is in."),
        ("split.count", "Make one file of all parts: llama-gguf-split --merge FIRST-PART OUT."),
        (
            "pytorch_model.bin",
            "Convert the weights to safetensors, or take a revision of the model that has them.",
        ),
        ("is not read; ", "Do what it says: the folder has this in another form."),
        ("quantization_config.", "Take the unquantised model, or one in a form that docs/MODELS.md names."),
        ("has quantization, ", "Take the unquantised model, or one in a form that docs/MODELS.md names."),
        ("is not supported", "Choose a model of a family in docs/MODELS.md."),
        ("is missing", "Complete the folder: `pinion pull ORG/NAME` downloads every file that is needed."),
    ];
    let known = remedies.iter().find(|(says, _)| found.contains(says));
    known.map_or("Mend the file that is named, or download the model again.", |(_, remedy)| remedy)
}

fn folder(config: &Config) -> Check {
    let found = format!(
        "{} is served as {}: context {} of {}, {} layers, {:?}",
        config.model_dir.display(),
        config.served_model_name,
        config.max_model_len,
        config.model.max_context,
        config.model.layers,
        config.dtype,
    );
    Check::ok("model.folder", found)
}

/// Weights and tokenizer, as the engine opened them.
fn contents(config: &Config, found: &serde_json::Value) -> Vec<Check> {
    let mut checks = Vec::new();
    if config.backend != Backend::Fake && !found["weights"].is_null() {
        let weights = &found["weights"];
        checks.push(match weights["error"].as_str() {
            Some(reason) => Check::failure(
                "model.weights",
                reason,
                "Download the file that is named again; `pinion pull ORG/NAME` checks each one's length and hash.",
            ),
            None => {
                let bytes = human_bytes(weights["bytes"].as_u64().unwrap_or(0));
                let (tensors, files) = (&weights["tensors"], &weights["files"]);
                Check::ok("model.weights", format!("whole: tensors: {tensors}, files: {files}, {bytes}"))
            }
        });
    }
    let tokenizer = &found["tokenizer"];
    checks.push(match tokenizer["error"].as_str() {
        Some(reason) => Check::failure(
            "model.tokenizer",
            reason,
            "Take tokenizer.json from the model's own repository, or make it with transformers' save_pretrained.",
        ),
        None => Check::ok("model.tokenizer", format!("tokens: {}", tokenizer["tokens"])),
    });
    checks
}

/// Bytes of weights of `numbers` numbers in memory, about: embeddings stay as they are, the rest becomes integers with
/// a scale for each few of them. A head that the files do not have is made of the embeddings and stands beside them; a
/// model that pools has none.
fn weight_bytes(config: &Config, numbers: u64, stored_bytes: u64, has_head: bool) -> u64 {
    let whole = config.dtype.bytes();
    let embeddings = (u64::from(config.model.vocab_size) * u64::from(config.model.hidden)).min(numbers);
    let head = match config.quantization {
        _ if has_head || config.pooling.is_some() => 0,
        Quantization::None | Quantization::Checkpoint => embeddings * whole,
        Quantization::Int8 | Quantization::Int4 => embeddings * 9 / 8,
    };
    let stored = match config.quantization {
        // Weights of 16 bits may stay as they are where the activations are wider. Those of a quantised checkpoint that
        // have to be unpacked take more than this.
        // Fewer than 16 bits a number in a GGUF file are blocks, most of which are unpacked.
        Quantization::None | Quantization::Checkpoint
            if stored_bytes < 2 * numbers && config.model_dir.is_file() =>
        {
            numbers * whole
        }
        Quantization::None | Quantization::Checkpoint => (numbers * whole).min(stored_bytes),
        Quantization::Int8 => embeddings * whole + (numbers - embeddings) * 9 / 8,
        Quantization::Int4 => embeddings * whole + (numbers - embeddings) * 5 / 8,
    };
    stored + head
}

/// Weights and KV cache against the memory of the device.
fn fits(config: &Config, found: &serde_json::Value, probe: &Probe, memory: Memory) -> Check {
    let id = "model.memory";
    let weights = match config.backend {
        Backend::Fake => 0,
        Backend::Native | Backend::Operators => {
            let number = |key: &str| found["weights"][key].as_u64().unwrap_or(0);
            let has_head = found["weights"]["has_head"].as_bool().unwrap_or(true);
            weight_bytes(config, number("numbers"), number("bytes"), has_head)
        }
    };
    let tokens = u64::from(config.kv_blocks) * u64::from(config.block_size);
    let cache = match config.backend {
        Backend::Fake => 0,
        Backend::Native | Backend::Operators => config.kv_cache_bytes(),
    };
    let (room, free) = if config.cuda.is_some() {
        let device = probe.cuda.as_ref().and_then(|cuda| cuda.as_ref().ok()).map(|cuda| &cuda["device"]);
        let bytes = |key: &str| device.and_then(|device| device[key].as_u64());
        (bytes("memory_bytes"), bytes("free_bytes"))
    } else {
        let room = [memory.total_bytes, memory.limit_bytes].into_iter().flatten().min();
        (room, memory.available_bytes)
    };
    judge(id, weights, cache, tokens, room, free)
}

fn judge(
    id: &'static str,
    weights: u64,
    cache: u64,
    tokens: u64,
    room: Option<u64>,
    free: Option<u64>,
) -> Check {
    let needed = weights.saturating_add(cache);
    let mut said = format!(
        "weights about {}, KV cache {} for {tokens} tokens",
        human_bytes(weights),
        human_bytes(cache)
    );
    let Some(room) = room else {
        return Check::note(id, said, "The memory of the device is not known here: compare by hand.");
    };
    said += &format!("; memory {}", human_bytes(room));
    if needed > room {
        let remedy = "Take --quantization int8 or int4, a smaller --kv-cache-bytes with a smaller --max-model-len, a smaller \
             model or more memory.";
        return Check::failure(id, said, remedy);
    }
    match free {
        Some(free) if needed > free => {
            said += &format!(", {} of it free now", human_bytes(free));
            Check::warning(id, said, "End other programs first: the machine would swap or kill a process.")
        }
        _ => Check::ok(id, said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use pinion_config::ConfigFault;

    #[test]
    fn faults_are_told_by_what_they_are_about_with_a_remedy() {
        let fault = |origin, reason: &str| ConfigFault { origin, reason: reason.to_owned() };
        let faults = Faults(vec![
            fault(Origin::Flag("--port".into()), "is empty"),
            fault(Origin::Model("/m/config.json".into()), "is missing"),
            fault(Origin::Model("/m/tokenizer.json".into()), "is missing"),
        ]);
        let check = options(Some(&faults));
        assert_eq!((check.status, check.found.as_str()), (Status::Failure, "--port: is empty"));
        let check = folder_faults(&faults).unwrap();
        assert_eq!(check.found, "/m/config.json: is missing; /m/tokenizer.json: is missing");
        assert!(check.remedy.unwrap().contains("pinion pull"));
        for (reason, says) in [
            ("no such folder; a Hugging Face folder is expected", "config.json"),
            ("is missing; pytorch_model.bin is not read", "Convert"),
            ("model_type \"x\" is not supported; supported: gpt2", "a family in docs/MODELS.md"),
            (
                "quantization_config.quant_method hqq is not supported; supported: awq",
                "Take the unquantised model",
            ),
            ("/m/tokenizer.json: is missing; tekken.json is not read; take", "Do what it says"),
            ("is missing; consolidated.safetensors is not read; it", "Do what it says"),
            ("is not valid JSON", "Mend"),
        ] {
            assert!(remedy_of(reason).contains(says), "{reason}");
        }
        assert_eq!(options(None).status, Status::Ok);
    }

    #[test]
    fn weights_and_cache_fit_do_not_fit_or_want_what_others_have() {
        for (room, free, status) in [
            (Some(100), Some(100), Status::Ok),
            (Some(100), None, Status::Ok),
            (Some(100), Some(79), Status::Warning),
            (Some(79), Some(79), Status::Failure),
            (None, None, Status::Note),
        ] {
            let check = judge("m", 50, 30, 4, room, free);
            assert_eq!((check.status, check.remedy.is_some()), (status, status != Status::Ok), "{check:?}");
        }
    }
}
