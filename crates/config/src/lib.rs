//! Flags, environment and file become one [`Config`], then a [`Topology`].
//!
//! This crate decides; it starts nothing. It is the only one that reads flags and environment. Every option is
//! described once, in `options`; start there, then `resolve`. What it returns has no "auto" left inside:
//! the roles receive it as it is.

mod config;
mod cpu_plan;
mod cpu_set;
mod exit;
mod fault;
mod machine;
mod topology;

pub use config::{AttentionKind, Backend, Config, Dtype, LinearKind, ModelFacts};
pub use cpu_plan::{CpuPlan, Placement, PlanFault, PlanRequest, plan};
pub use exit::Exit;
pub use fault::{ConfigFault, Faults, Origin};
pub use machine::{Cpu, Machine};
pub use topology::{Edge, Process, Topology};

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// `pinion serve`.
    Serve(Box<Config>),
    /// `pinion --version`: the caller prints its version.
    Version,
    /// `pinion --help`: the text to print.
    Help(String),
    /// `pinion config show`: every value with its origin, to print.
    ShowConfig(String),
}

/// Reads the command line (without the program's name) and the environment.
pub fn parse(
    args: impl IntoIterator<Item = std::ffi::OsString>,
    env: impl IntoIterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
    machine: &Machine,
) -> Result<Command, Faults> {
    let _ = (args.into_iter(), env.into_iter(), machine);
    fault::Collector::default().into_result().map(|()| Command::Version)
}
