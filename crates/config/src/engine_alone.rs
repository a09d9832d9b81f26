//! The engine without a service, as `pinion bench engine` runs it: its config from flags of `pinion serve`, and what
//! goes over the standard input and output of `pinion-engine bench`.

use crate::config::Config;
use crate::fault::{Collector, ConfigFault, Faults, Origin};
use crate::machine::Machine;
use crate::table::{Group, Opt};
use crate::{Command, command_line, parse};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// What of the model's and the processes' groups acts on an engine alone; of the engine's group everything does. The
/// numbers of light roles are there because the CPU plan follows from them.
const ACTING: &[&str] = &[
    "model",
    "backend",
    "dtype",
    "device",
    "cuda-object",
    "pooling",
    "max-model-len",
    "frontends",
    "tokenizers",
    "detokenizers",
    "pin",
    "jitter-control",
    "cpus-frontend",
    "cpus-tokenizer",
    "cpus-engine",
    "cpus-detokenizer",
    "spin-us",
    "step-spin",
    "config",
];

/// One request, as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AloneRequest {
    /// When it comes, in ns from the phase's start. A closed loop takes no notice.
    pub at_ns: u64,
    /// The prompt's ids.
    pub ids: Vec<u32>,
    /// Tokens to generate, at most.
    pub output_tokens: u32,
}

/// Requests that belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlonePhase {
    /// In a closed loop: the number of requests that are there at any time. Without it each comes at its time.
    pub streams: Option<u32>,
    /// The requests, in the order of their times.
    pub requests: Vec<AloneRequest>,
}

/// What `pinion-engine bench` reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AloneWork {
    /// As the service's engine would have it.
    pub config: Config,
    /// 0 is greedy.
    pub temperature: f32,
    /// 1 keeps everything.
    pub top_p: f32,
    /// `None` keeps everything.
    pub top_k: Option<u32>,
    /// Each answer has exactly the length asked for.
    pub ignore_eos: bool,
    /// Runs first and is not reported.
    pub warm_up: AlonePhase,
    /// What is reported.
    pub measured: AlonePhase,
}

/// What came of one request. Times are ns from the phase's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AloneOutcome {
    /// The engine took it in.
    pub taken_ns: u64,
    /// Each token left the engine.
    pub token_ns: Vec<u64>,
    /// Its last token and its end had left the engine.
    pub end_ns: u64,
    /// By the engine's own count.
    pub generated_tokens: u32,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: u32,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// What `pinion-engine bench` prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AloneReport {
    /// Of the engine's program.
    pub version: String,
    /// One line about the model and the engine.
    pub summary: String,
    /// From the start of loading until it could serve.
    pub load_s: f64,
    /// Steps of the measured phase.
    pub steps: u64,
    /// Rows of all these steps.
    pub rows: u64,
    /// Tokens computed in all these steps: of prompts, and one for each row that decodes.
    pub computed_tokens: u64,
    /// Requests that gave up their memory and were computed again.
    pub preemptions: u64,
    /// In the order of the work.
    pub requests: Vec<AloneOutcome>,
}

/// Whether this process was started to run the engine alone.
pub fn is_engine_alone() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == "bench")
}

/// The config of an engine alone on this computer, from flags of `pinion serve`. Errors: everything that is wrong; also
/// each flag that acts on the service around an engine only.
pub fn engine_alone_config(flags: &[String]) -> Result<Config, Faults> {
    read(flags, std::env::vars_os(), &Machine::detect())
}

fn read(
    flags: &[String],
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    machine: &Machine,
) -> Result<Config, Faults> {
    let words = || std::iter::once("serve").chain(flags.iter().map(String::as_str)).map(OsString::from);
    // Faults of the flags themselves come again from the parser.
    let (_, typed) = command_line::split(words(), &mut Collector::default());
    let idle = typed.iter().filter(|(option, ..)| !acts(option)).map(|(_, _, flag)| ConfigFault {
        origin: Origin::Flag(flag.clone()),
        reason: "acts on the service around the engine, and there is none here; leave it out".to_owned(),
    });
    let mut faults: Vec<ConfigFault> = idle.collect();
    let config = match parse(words(), environment, machine) {
        Ok(Command::Serve(config)) => Some(config),
        Ok(_) => {
            let reason =
                "the folder of a model is wanted; `pinion pull ORG/NAME` prints that of a pulled one";
            faults
                .push(ConfigFault { origin: Origin::Flag("--model".to_owned()), reason: reason.to_owned() });
            None
        }
        Err(Faults(more)) => {
            faults.extend(more);
            None
        }
    };
    if config.as_ref().is_some_and(|config| config.pooling.is_some()) {
        let reason = "the model pools and generates no token; --pooling none has it generate";
        faults.push(ConfigFault { origin: Origin::Flag("--pooling".to_owned()), reason: reason.to_owned() });
    }
    match config {
        Some(config) if faults.is_empty() => Ok(*config),
        Some(_) | None => Err(Faults(faults)),
    }
}

fn acts(option: &Opt) -> bool {
    option.group == Group::Engine || ACTING.contains(&option.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::find;
    use crate::{Backend, Dtype};

    fn demo(flags: &str) -> Result<Config, Faults> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/demo-model");
        let words: Vec<String> =
            [folder].into_iter().chain(flags.split_whitespace()).map(str::to_owned).collect();
        read(&words, [], &Machine::detect())
    }

    #[test]
    fn flags_of_the_service_become_the_engine_s_config() {
        let config =
            demo("--backend fake --max-num-seqs 7 --engine-threads 1 --dtype fp32").expect("a config");
        assert_eq!((config.backend, config.max_num_seqs, config.dtype), (Backend::Fake, 7, Dtype::Fp32));
        assert!(ACTING.iter().all(|name| find(name).is_some()), "a name of no option");
    }

    #[test]
    fn what_acts_on_other_roles_is_refused_by_its_name() {
        for (flags, named) in [
            ("--port 80", "--port: acts on the service"),
            ("--backend fake --no-fast-sse", "--no-fast-sse: acts on the service"),
            ("--ipc channel", "--ipc: acts on the service"),
            ("--max-num-seqs 0", "--max-num-seqs: "),
            ("--bogus 3", "--bogus: no such flag"),
            ("--backend fake --pooling last", "--pooling: the model pools"),
        ] {
            let faults = demo(flags).expect_err(flags).to_string();
            assert!(faults.lines().any(|line| line.starts_with(named)), "{flags}: {faults}");
        }
        let home = (OsString::from("HOME"), OsString::from("/nowhere"));
        let faults =
            read(&["ORG/NAME".to_owned()], [home], &Machine::detect()).expect_err("a model of the hub");
        assert!(faults.to_string().starts_with("--model: the folder"), "{faults}");
        assert!(read(&[], [], &Machine::detect()).expect_err("none").to_string().contains("--model"));
    }
}
