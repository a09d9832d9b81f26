//! `pinion-bench`: measurements of Pinion and of any OpenAI-compatible server, from outside.
//!
//! Here: the command line. One module per subcommand; [`online`] is the one to read first, because every other
//! measurement of a server goes through its parts: [`trace`] gives arrivals and lengths, [`workload`] makes requests of
//! them, [`replay`] sends them on time, [`figures`] computes what is reported, [`results`] writes it down.
//! It measures and judges nothing of the server's insides; the server's own counters are read from `/metrics` only.

mod ablate;
mod alone;
mod answer;
mod ask;
mod bootstrap;
mod engine;
mod figures;
mod http;
mod inert;
mod ipc;
mod machine;
mod metrics;
mod null_server;
mod offline;
mod online;
mod plot;
mod profile;
mod progress;
mod prompt_args;
mod prompts;
mod random;
mod recording;
mod replay;
mod results;
mod scenario;
mod scheduler;
mod server;
mod simulate;
mod table;
mod tail;
mod target;
mod trace;
mod variants;
mod verdict;
mod workload;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Measures Pinion and any OpenAI-compatible server. docs/BENCHMARKING.md has a command for each table and picture.
#[derive(Parser)]
#[command(name = "pinion-bench", version, max_term_width = 110)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replays a trace, or synthetic arrivals, against a server: open loop, latencies counted from the scheduled
    /// arrival.
    Online(Box<online::OnlineArgs>),
    /// Throughput of one batch: prompts × input length × output length, all at once.
    Offline(Box<offline::OfflineArgs>),
    /// The engine alone, with its model: token ids in, counts out, no HTTP and no ring. One request at a time, at a
    /// rate, or all at once.
    #[command(disable_help_flag = true)]
    Engine(engine::EngineWords),
    /// The pure scheduler under load: µs per plan and commit, or the latencies of a simulated service.
    Scheduler(scheduler::SchedulerArgs),
    /// The ring and ipc-channel: publish, hop, round trip, throughput, CPU per token.
    Ipc(ipc::IpcArgs),
    /// Runs the variants of a scenario file interleaved and gives medians and ratios with their spread; names a winner
    /// only beyond the noise of variants that cannot act.
    Compare(variants::ScenarioArgs),
    /// The same for a list of switches, each against the base setting; says where the base loses.
    Ablate(variants::ScenarioArgs),
    /// Draws SVG and PNG, and one HTML report, from result files.
    Plot(plot::PlotArgs),
    /// Runs a few requests under each profiler and collects what they write. Measures nothing (docs/PROFILING.md).
    Profile(Box<profile::ProfileArgs>),
    /// Runs a recording of the engine again: identical, or with flags changed beside it (docs/PROFILING.md).
    Replay(recording::ReplayArgs),
    /// A server that makes tokens on a fixed schedule and computes nothing: what the client itself costs.
    NullServer(null_server::NullServerArgs),
}

fn main() -> ExitCode {
    let outcome = match CommandLine::parse().command {
        Command::Online(args) => online::run(&args),
        Command::Offline(args) => offline::run(&args),
        Command::Engine(words) => engine::run(&words),
        Command::Scheduler(args) => scheduler::run(&args),
        Command::Ipc(args) => ipc::run(&args),
        Command::Compare(args) => scenario::run(&args, scenario::Kind::Compare),
        Command::Ablate(args) => scenario::run(&args, scenario::Kind::Ablate),
        Command::Plot(args) => plot::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Replay(args) => recording::run(&args),
        Command::NullServer(args) => null_server::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("pinion: error: {message}");
            ExitCode::FAILURE
        }
    }
}
