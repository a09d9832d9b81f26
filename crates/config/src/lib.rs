//! Flags, environment and file become one [`Config`], then a [`Topology`].
//!
//! This crate decides; it starts nothing. It is the only one that reads flags and environment. Every option is
//! described once, in `options`; start there. Then the way of a value is `command_line` → `sources` →
//! `resolve` → [`Config`], and from there [`Topology::new`]. What comes out has no "auto" left inside: the roles
//! receive it as it is.

mod chat_template;
mod choices;
mod command_line;
mod commands;
mod completions;
mod computing;
mod config;
mod control_groups;
mod conversion;
mod cpu_plan;
mod cpu_set;
mod cuda;
pub mod docs;
mod doctor_command;
mod engine_alone;
mod exit;
mod fairness;
mod fake;
mod fault;
mod foreign;
mod generation;
mod help;
mod hub;
mod json_file;
mod kv_events;
mod kv_size;
mod lifecycle;
mod log;
mod machine;
mod man;
mod model_facts;
mod model_folder;
mod observe;
mod options;
mod otlp;
mod pooling;
mod probe_command;
mod replay_command;
mod resolve;
mod root_path;
mod scheduling;
mod secret;
mod show;
mod sources;
mod supervisor;
mod table;
mod terminal_command;
mod topology;
mod torch_kernels;
mod trace_command;
mod value;

pub use chat_template::ChatTemplate;
pub use choices::{
    AttentionKind, Backend, Dtype, Ipc, KvDtype, LinearKind, PrefillAttention, Quantization, ReasoningParser,
    ToolCallParser,
};
pub use config::{Config, ResponseStore};
pub use control_groups::control_groups;
pub use cpu_plan::{CpuPlan, Placement, PlanFault, PlanRequest, plan};
pub use cuda::{CudaConfig, cublaslt_near};
pub use doctor_command::{DeviceChoice, DoctorCommand, NamedModel, doctor_command};
pub use engine_alone::{
    AloneOutcome, AlonePhase, AloneReport, AloneRequest, AloneWork, engine_alone_config, is_engine_alone,
};
pub use exit::Exit;
pub use fairness::{FairShare, Fairness};
pub use fake::Fake;
pub use fault::{ConfigFault, Faults, Origin};
pub use generation::SamplingDefaults;
pub use hub::{HubModel, HubToken, PullCommand};
pub use kv_events::KvEvents;
pub use lifecycle::Lifecycle;
pub use log::{LogForm, Terminal, iso_8601, reason_in};
pub use machine::{Cpu, Machine, Memory};
pub use model_facts::{ModelFacts, WindowFacts};
pub use observe::{Observe, Profiler, nvtx_injection};
pub use otlp::OtlpTraces;
pub use pooling::{FAKE_VECTOR_WIDTH, Pooling, PoolingKind, Shorter};
pub use probe_command::{CudaModel, ProbeCommand, probe_command};
pub use replay_command::{ReplayCommand, replay_command};
pub use scheduling::{AdmissionKind, Scheduling, SpeculationKind, StepTimeKind};
pub use secret::{ApiKeys, SECRET_VARIABLES};
pub use supervisor::{SUPERVISOR_VARIABLES, Supervisor};
pub use terminal_command::{
    ChatCommand, ChatTarget, ServerUrl, TerminalCommand, TopCommand, terminal_command,
};
pub use topology::{Edge, Process, Topology};
pub use torch_kernels::TorchKernels;
pub use trace_command::TraceCommand;
pub use value::human_bytes;

use command_line::Request;
use sources::{Environment, Settings};
use std::ffi::OsString;
use std::path::Path;

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// `pinion serve`.
    Serve(Box<Config>),
    /// `pinion pull`: [`pull_command`] reads the same words in the process that does it.
    Pull(PullCommand),
    /// `pinion serve` of a model of the hub: it has to be pulled first, then [`parse_pulled`] goes on.
    PullFirst(PullCommand),
    /// `pinion trace`.
    Trace(TraceCommand),
    /// `pinion doctor`: [`doctor_command`] reads the same words in the process that does it.
    Doctor,
    /// `pinion chat` and `pinion top`: [`terminal_command`] reads the same words in the process that does it.
    Terminal,
    /// `pinion --version`: the caller prints its version.
    Version,
    /// `pinion bench`: the arguments of the benchmark tool, which stands beside the launcher.
    Bench(Vec<String>),
    /// `pinion --help`, `pinion completions` and `pinion man`: the text to print.
    Help(String),
    /// `pinion config show`: every value with its origin, to print.
    ShowConfig(String),
}

/// [`parse`] of this process's own arguments and environment on this computer.
pub fn from_process() -> Result<Command, Faults> {
    parse(std::env::args_os().skip(1), std::env::vars_os(), &Machine::detect())
}

/// Reads the command line (without the program's name) and the environment. Errors: everything that is wrong,
/// at once.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
    machine: &Machine,
) -> Result<Command, Faults> {
    parse_pulled(args, env, machine, None)
}

/// The same once the model of the hub that the command line names lies in the folder `pulled`.
pub fn parse_pulled(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
    machine: &Machine,
    pulled: Option<&Path>,
) -> Result<Command, Faults> {
    let mut faults = fault::Collector::default();
    let environment = Environment::new(env);
    let (request, typed) = command_line::split(args, &mut faults);
    match request {
        Request::Version => return Ok(Command::Version),
        Request::Bench(arguments) => return Ok(Command::Bench(arguments)),
        Request::Doctor { .. } => return Ok(Command::Doctor),
        Request::Terminal => return Ok(Command::Terminal),
        Request::Trace(words) => {
            let key = environment.text("PINION_API_KEY").map(str::to_owned);
            let command = trace_command::read(&words, key, &mut faults);
            faults.into_result()?;
            return Ok(Command::Trace(command));
        }
        Request::Help(topic) => return Ok(Command::Help(help::text(topic.as_deref()))),
        Request::Print(text) => return Ok(Command::Help(text)),
        Request::Unknown => return Err(Faults(faults.0)),
        Request::Serve | Request::ShowConfig | Request::Pull => {}
    }
    let mut settings = sources::settle(typed, &environment, &mut faults);
    if request == Request::Pull {
        return pull(&settings, &environment, faults).map(Command::Pull);
    }
    if request == Request::ShowConfig && !settings.is_set("model") {
        faults.into_result()?;
        return Ok(Command::ShowConfig(show::text(&settings, None)));
    }
    if let Some(model) = hub::named(&settings) {
        let Some(folder) = pulled else {
            // What can be wrong without the model is told before it is downloaded.
            resolve::check_all_but_model(&settings, machine, &mut faults);
            let command = hub::pull(model, &settings, &environment, &mut faults);
            faults.into_result()?;
            return Ok(match request {
                Request::ShowConfig => Command::ShowConfig(show::text(&settings, None)),
                _ => Command::PullFirst(command),
            });
        };
        settings.use_pulled(&model.repository, folder);
    }
    let config = resolve::resolve(&settings, machine, &mut faults);
    faults.into_result()?;
    let config = config.expect("a config without a fault is complete");
    Ok(match request {
        Request::ShowConfig => Command::ShowConfig(show::text(&settings, Some(&config))),
        _ => Command::Serve(Box::new(config)),
    })
}

/// What this process, started with the words of `pinion pull` or `pinion serve`, is to pull.
pub fn pull_command() -> Result<PullCommand, Faults> {
    let mut faults = fault::Collector::default();
    let environment = Environment::new(std::env::vars_os());
    let (_, typed) = command_line::split(std::env::args_os().skip(1), &mut faults);
    let settings = sources::settle(typed, &environment, &mut faults);
    pull(&settings, &environment, faults)
}

fn pull(
    settings: &Settings,
    environment: &Environment,
    mut faults: fault::Collector,
) -> Result<PullCommand, Faults> {
    let text = settings.text("model").unwrap_or_default();
    let Some(model) = HubModel::parse(text) else {
        let reason = "a model of the hub is named by ORG/NAME or ORG/NAME@REV, as in Qwen/Qwen3-0.6B";
        let reason = if text.is_empty() { reason.to_owned() } else { format!("`{text}`: {reason}") };
        faults.add(&fault::Origin::CommandLine, reason);
        return Err(Faults(faults.0));
    };
    let command = hub::pull(model, settings, environment, &mut faults);
    faults.into_result()?;
    Ok(command)
}
