//! The engine alone, measured: `pinion-engine bench`, which stands beside this tool and has the libtorch that this tool
//! has not, gets requests as token ids and gives back when each token left the loop. No HTTP, no ring, no other
//! process. What comes back is a run like any other.

use crate::answer::Outcome;
use crate::figures;
use crate::metrics::Scrape;
use crate::replay::{ClientCost, Measured, Run};
use crate::results::RunRecord;
use crate::server::ServerFacts;
use crate::workload::Lengths;
use pinion_config::{
    AloneOutcome, AlonePhase, AloneReport, AloneWork, Config, Topology, engine_alone_config,
};
use pinion_os::process::dies_with_parent;
use pinion_protocol::Role;
use pinion_protocol::limits::SLOTS_MAX;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is sent to the engine.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub warm_up: AlonePhase,
    pub measured: AlonePhase,
    pub temperature: f64,
    pub top_p: Option<f64>,
    pub top_k: Option<u32>,
    /// Each answer has exactly the length asked for.
    pub ignore_eos: bool,
    /// Report the times of single tokens, as of streams; otherwise as of answers in one piece.
    pub streamed: bool,
}

/// What only the engine alone tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct EngineFacts {
    /// Its one line about the model and itself.
    pub summary: String,
    pub load_s: f64,
    pub steps: u64,
    pub rows_per_step: f64,
    /// Of prompts, and one for each row that decodes.
    pub computed_tokens: u64,
    pub preemptions: u64,
}

/// An engine that can be started.
pub(crate) struct Alone {
    pub config: Config,
    /// As they were given.
    flags: Vec<String>,
}

impl Alone {
    /// From flags of `pinion serve`. Errors: each flag that is wrong, on a line of its own.
    pub(crate) fn new(flags: &[String]) -> Result<Alone, String> {
        let config = engine_alone_config(flags).map_err(|faults| faults.to_string())?;
        Ok(Alone { config, flags: flags.to_vec() })
    }

    /// What does not fit the model's context.
    fn check(&self, load: &Load) -> Result<(), String> {
        let context = self.config.max_model_len as usize;
        for request in load.measured.requests.iter().chain(&load.warm_up.requests) {
            let (input, output) = (request.ids.len(), request.output_tokens as usize);
            if input + output > context {
                return Err(format!(
                    "{input} input tokens and {output} output tokens are more than the {context} of --max-model-len"
                ));
            }
        }
        let count = load.measured.requests.len();
        if count > SLOTS_MAX as usize {
            return Err(format!("{count} requests are more than an engine takes, {SLOTS_MAX}"));
        }
        Ok(())
    }

    /// One measured run in a fresh process, which says on `log` what it says.
    pub(crate) fn measure(
        &self,
        load: &Load,
        mut record: RunRecord,
        log: Stdio,
    ) -> Result<(RunRecord, Run), String> {
        self.check(load)?;
        let mut config = self.config.clone();
        // All may be there at once: in a service the queue is as long as its operator says.
        let most = load.measured.requests.len().max(load.warm_up.requests.len()) as u32;
        config.max_inflight = config.max_inflight.max(most);
        let work = AloneWork {
            config,
            temperature: load.temperature as f32,
            top_p: load.top_p.unwrap_or(1.0) as f32,
            top_k: load.top_k,
            ignore_eos: load.ignore_eos,
            warm_up: load.warm_up.clone(),
            measured: load.measured.clone(),
        };
        let report = start(&work, log)?;
        let run = run_of(&load.measured, &report)?;
        record.prompt_form = "ids".to_owned();
        record.exact_lengths = load.ignore_eos;
        record.cache_state = "a fresh engine process for this run".to_owned();
        record.server = ServerFacts {
            command: Some(format!("pinion-engine bench ({})", self.flags.join(" "))),
            url: String::new(),
            model: self.config.served_model_name.clone(),
            version: Some(serde_json::json!({ "version": report.version })),
        };
        let (none, figures) = (Scrape::default(), figures::of(&run, None, load.streamed));
        check_lengths(load, &run)?;
        record.complete(figures, &run, &none, &none);
        let generated = report.requests.iter().map(|request| u64::from(request.generated_tokens));
        record.server_output_tokens = Some(generated.sum());
        record.engine = Some(EngineFacts {
            summary: report.summary,
            load_s: report.load_s,
            steps: report.steps,
            rows_per_step: report.rows as f64 / report.steps.max(1) as f64,
            computed_tokens: report.computed_tokens,
            preemptions: report.preemptions,
        });
        Ok((record, run))
    }
}

fn engine() -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name("pinion-engine")
}

/// With the environment that the launcher gives an engine.
fn start(work: &AloneWork, log: Stdio) -> Result<AloneReport, String> {
    let program = engine();
    let topology = Topology::new(&work.config);
    let process = topology.processes.into_iter().find(|process| process.peer.role == Role::Engine);
    let mut command = Command::new(&program);
    command.arg("bench").envs(process.map(|process| process.thread_variables()).unwrap_or_default());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    dies_with_parent(&mut command);
    let fault = |error: std::io::Error| format!("{}: {error}", program.display());
    let mut child = command.spawn().map_err(fault)?;
    let text = serde_json::to_string(work).expect("numbers and text always serialise");
    let mut input = child.stdin.take().expect("it is piped");
    // An engine that ends before it has read all says why on its log.
    let written = input.write_all(text.as_bytes());
    drop((input, text));
    let output = child.wait_with_output().map_err(fault)?;
    if !output.status.success() {
        return Err(format!("pinion-engine bench ended with {}", output.status));
    }
    written.map_err(fault)?;
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).map_err(|error| format!("the report of pinion-engine bench: {error}"))
}

/// Latencies count from the time at which a request was due; in a closed loop that is when it was taken.
fn run_of(phase: &AlonePhase, report: &AloneReport) -> Result<Run, String> {
    if report.requests.len() != phase.requests.len() {
        let (found, asked) = (report.requests.len(), phase.requests.len());
        return Err(format!("the engine reports {found} of {asked} requests"));
    }
    let mut requests = Vec::with_capacity(phase.requests.len());
    for (asked, outcome) in phase.requests.iter().zip(&report.requests) {
        let AloneOutcome { taken_ns, token_ns, end_ns, generated_tokens, cached_tokens, error } = outcome;
        if token_ns.len() != *generated_tokens as usize {
            return Err(format!(
                "{} tokens left the engine, which counts {generated_tokens}",
                token_ns.len()
            ));
        }
        requests.push(Measured {
            scheduled_ns: if phase.streams.is_some() { *taken_ns } else { asked.at_ns },
            sent_ns: *taken_ns,
            lengths: Lengths { input: asked.ids.len() as u32, output: asked.output_tokens },
            outcome: Outcome {
                event_ns: token_ns.clone(),
                end_ns: *end_ns,
                output_tokens: *generated_tokens,
                counted_by_server: true,
                prompt_tokens: Some(asked.ids.len() as u32),
                cached_tokens: Some(*cached_tokens),
                error: error.clone(),
                ..Outcome::default()
            },
        });
    }
    let begin = requests.iter().map(|request| request.scheduled_ns).min().unwrap_or(0);
    let end = requests.iter().map(|request| request.outcome.end_ns).max().unwrap_or(0);
    let wall_s = end.saturating_sub(begin) as f64 / 1e9;
    Ok(Run { requests, wall_s, client: ClientCost::default() })
}

/// A run with a failed or a shorter answer is no measurement of the work that was asked for.
fn check_lengths(load: &Load, run: &Run) -> Result<(), String> {
    let failed = run.requests.iter().filter(|request| request.outcome.error.is_some()).count();
    if let Some(error) = run.requests.iter().find_map(|request| request.outcome.error.as_ref()) {
        return Err(format!("{failed} of {} requests failed, one with: {error}", run.requests.len()));
    }
    let short = run.requests.iter().find(|r| load.ignore_eos && r.outcome.output_tokens != r.lengths.output);
    match short {
        None => Ok(()),
        Some(request) => Err(format!(
            "an answer has {} tokens, {} were asked for",
            request.outcome.output_tokens, request.lengths.output
        )),
    }
}

/// A file for what an engine says.
pub(crate) fn log_into(path: &Path) -> Result<Stdio, String> {
    let file = std::fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Stdio::from(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_config::AloneRequest;

    fn phase(streams: Option<u32>) -> AlonePhase {
        let request = |at_ns| AloneRequest { at_ns, ids: vec![1, 2, 3], output_tokens: 2 };
        AlonePhase { streams, requests: vec![request(1_000_000), request(2_000_000)] }
    }

    fn report() -> AloneReport {
        let outcome = |taken_ms: u64| AloneOutcome {
            taken_ns: taken_ms * 1_000_000,
            token_ns: [2, 5].map(|ms| (taken_ms + ms) * 1_000_000).to_vec(),
            end_ns: (taken_ms + 5) * 1_000_000,
            generated_tokens: 2,
            ..AloneOutcome::default()
        };
        AloneReport { requests: vec![outcome(3), outcome(4)], ..AloneReport::default() }
    }

    #[test]
    fn latencies_count_from_the_schedule_or_in_a_loop_from_the_taking() {
        for (streams, ttft_ms, wall_s) in [(None, 4.0, 0.008), (Some(1), 2.0, 0.006)] {
            let run = run_of(&phase(streams), &report()).expect("a run");
            let figures = figures::of(&run, None, true);
            assert_eq!((figures.completed, figures.input_tokens, figures.output_tokens), (2, 6, 4));
            assert!((figures.ttft_ms.mean - ttft_ms).abs() < 1e-9, "{figures:?}");
            assert!((figures.tpot_ms.mean - 3.0).abs() < 1e-9, "{figures:?}");
            assert!((figures.wall_s - wall_s).abs() < 1e-9, "{figures:?}");
        }
    }

    #[test]
    fn a_report_that_does_not_add_up_is_no_run() {
        let broken = |change: fn(&mut AloneReport)| {
            let mut report = report();
            change(&mut report);
            let load = Load {
                warm_up: AlonePhase::default(),
                measured: phase(None),
                temperature: 0.0,
                top_p: None,
                top_k: None,
                ignore_eos: true,
                streamed: true,
            };
            let run = run_of(&load.measured, &report)?;
            check_lengths(&load, &run)
        };
        assert_eq!(broken(|_| ()), Ok(()));
        type Damage = fn(&mut AloneReport);
        let cases: [(Damage, &str); 4] = [
            (|report| report.requests.truncate(1), "the engine reports 1 of 2 requests"),
            (|report| report.requests[1].generated_tokens = 3, "2 tokens left the engine, which counts 3"),
            (
                |report| {
                    report.requests[0].token_ns.pop();
                    report.requests[0].generated_tokens = 1;
                },
                "an answer has 1 tokens, 2 were asked for",
            ),
            (
                |report| report.requests[1].error = Some("no".to_owned()),
                "1 of 2 requests failed, one with: no",
            ),
        ];
        for (change, words) in cases {
            assert_eq!(broken(change).expect_err(words), words);
        }
    }
}
