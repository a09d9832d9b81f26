//! `offline`: throughput of one batch. All requests are there at once, each with its exact length, and each answer
//! comes in one piece, so that only finishing counts. Tokens are counted twice: by the client from the answers, by
//! the scheduler's own counter on `/metrics`; a difference is an error.

use crate::alone::Load;
use crate::bootstrap;
use crate::figures;
use crate::machine::Origin;
use crate::metrics::Scrape;
use crate::online::{ServerArgs, clear_cache};
use crate::prompt_args::PromptArgs;
use crate::prompts::{Form, Prompts, Source};
use crate::random::Random;
use crate::replay::{Pace, Run, Sending, replay};
use crate::results::{Folder, ResultFile, RunRecord, fingerprint, slug};
use crate::server::{Server, ServerFacts, StartFault};
use crate::table::{self, number};
use crate::target::Target;
use crate::trace::Row;
use crate::workload::{Fields, Job, Lengths};
use clap::Args;
use pinion_config::{AlonePhase, AloneRequest};
use std::path::PathBuf;
use std::time::Duration;

/// Added to the prompts' seed for the warm-up batch: the same shape, and nothing for a cache to find.
const WARMUP_SEED: u64 = 0x0ff1;

/// The batch.
#[derive(Args, Clone, Debug)]
pub(crate) struct BatchArgs {
    /// Requests in the batch.
    #[arg(long, default_value_t = 128)]
    num_prompts: usize,
    /// Input length of each, in tokens.
    #[arg(long, default_value_t = 256)]
    input_len: u32,
    /// Output length of each, in tokens.
    #[arg(long, default_value_t = 64)]
    output_len: u32,
    /// Leave out the warm-up batch.
    #[arg(long)]
    no_warmup: bool,
    #[command(flatten)]
    prompt: PromptArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct OfflineArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) batch: BatchArgs,
    /// Flags added to --serve for a second variant, run in turns with the first, like "--in-process". Can be repeated.
    #[arg(long, requires = "serve", allow_hyphen_values = true)]
    against: Vec<String>,
    /// Runs of each variant.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Folder of the result; a run that is in it already is not repeated.
    #[arg(long, default_value = "target/bench/offline")]
    out: PathBuf,
}

impl BatchArgs {
    /// The ids of every prompt.
    fn ids(&self, prompts: &Prompts) -> impl Iterator<Item = Vec<u32>> {
        let row = Row {
            at_s: 0.0,
            input_tokens: self.input_len,
            output_tokens: self.output_len,
            blocks: Vec::new(),
        };
        (0..self.num_prompts).map(move |index| prompts.ids(index, &row, 0, self.input_len))
    }

    fn jobs(&self, fields: &Fields, seed: u64) -> Result<Vec<Job>, String> {
        let prompts = self.prompt.prompts(Source::Random, seed)?;
        let lengths = Lengths { input: self.input_len, output: self.output_len };
        let job = |ids: Vec<u32>| {
            Ok(Job {
                at_ns: 0,
                lengths,
                body: fields.body(prompts.render(&ids)?, self.output_len),
                frames_max: None,
            })
        };
        self.ids(&prompts).map(job).collect()
    }

    /// The same batch for an engine alone.
    pub(crate) fn load(&self, seed_shift: u64) -> Result<Load, String> {
        let phase = |seed| -> Result<AlonePhase, String> {
            let prompts = self.prompt.prompts(Source::Random, seed)?;
            let request = |ids| AloneRequest { at_ns: 0, ids, output_tokens: self.output_len };
            Ok(AlonePhase { streams: None, requests: self.ids(&prompts).map(request).collect() })
        };
        let seed = self.prompt.seed;
        let warm_up = if self.no_warmup { AlonePhase::default() } else { phase(seed ^ WARMUP_SEED)? };
        self.prompt.load(warm_up, phase(seed + seed_shift)?, false)
    }

    /// What a service is sent.
    #[cfg(test)]
    pub(crate) fn bodies(&self, model: &str) -> Result<Vec<bytes::Bytes>, String> {
        let jobs = self.jobs(&self.prompt.fields(model, false)?, self.prompt.seed)?;
        Ok(jobs.into_iter().map(|job| job.body).collect())
    }

    pub(crate) fn note(&self) -> String {
        format!(
            "{} prompts × {} in → {} out, all at once, answers in one piece, ignore_eos, token prompts as {:?}, warm-up: {}",
            self.num_prompts,
            self.input_len,
            self.output_len,
            self.prompt.prompt_form,
            if self.no_warmup { "none" } else { "a full batch of other prompts" }
        )
    }

    pub(crate) fn prompt_form(&self) -> Form {
        self.prompt.prompt_form
    }

    pub(crate) fn seed(&self) -> u64 {
        self.prompt.seed
    }

    /// One measured batch. `seed_shift` is added to the prompts' seed, so that a cache that could not be cleared finds
    /// nothing.
    pub(crate) fn measure(
        &self,
        target: &Target,
        mut record: RunRecord,
        seed_shift: u64,
    ) -> Result<(RunRecord, Run), String> {
        record.prompt_form = self.prompt.prompt_form.name().to_owned();
        record.exact_lengths = !self.prompt.stop_at_eos;
        let fields = self.prompt.fields(&record.server.model, false)?;
        let batch = self.jobs(&fields, self.prompt.seed + seed_shift)?;
        let sending = Sending { pace: Pace::Open, streaming: false, limit: self.prompt.timeout() };
        if !self.no_warmup {
            let warmup = self.jobs(&fields, self.prompt.seed ^ WARMUP_SEED)?;
            let run = replay(&warmup, target, sending)?;
            all_answered(&run).map_err(|error| format!("the warm-up failed: {error}"))?;
        }
        let before = Scrape::settled(target);
        let run = replay(&batch, target, sending)?;
        all_answered(&run)?;
        let after = Scrape::settled(target);
        let figures = figures::of(&run, None, false);
        let counted = figures.output_tokens;
        record.complete(figures, &run, &before, &after);
        if record.server_output_tokens.is_some_and(|tokens| tokens != counted) {
            let message = format!(
                "the answers have {counted} tokens, the server counts {:?}",
                record.server_output_tokens
            );
            return Err(message);
        }
        Ok((record, run))
    }
}

/// A batch with a failed request is no measurement of a whole batch.
fn all_answered(run: &Run) -> Result<(), String> {
    let errors = run.requests.iter().filter_map(|request| request.outcome.error.as_ref());
    match errors.clone().next() {
        None => Ok(()),
        Some(first) => {
            Err(format!("{} of {} requests failed, one with: {first}", errors.count(), run.requests.len()))
        }
    }
}

/// One kind of server among those that take turns.
struct Variant {
    label: String,
    /// Flags after the command.
    flags: String,
    skipped: bool,
}

pub(crate) fn run(args: &OfflineArgs) -> Result<(), String> {
    let folder = Folder::open(&args.out)?;
    let command: Vec<String> = std::env::args().collect();
    let mut result = ResultFile {
        kind: "offline".to_owned(),
        origin: Origin::here(&command),
        scenario: command[1..].join(" "),
        seed: args.batch.seed(),
        notes: vec![args.batch.note()],
        ..ResultFile::default()
    };
    let base = Variant { label: args.server.label.clone(), flags: String::new(), skipped: false };
    let others = args.against.iter().map(|flags| Variant {
        label: format!("+{}", flags.trim_start_matches('-')),
        flags: flags.clone(),
        skipped: false,
    });
    let mut variants: Vec<Variant> = std::iter::once(base).chain(others).collect();
    let mut random = Random::stream(args.batch.seed(), 0x0ff);
    for round in 0..args.rounds {
        let mut order: Vec<usize> = (0..variants.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            if variants[index].skipped {
                continue;
            }
            match one_run(args, &variants[index], round, &folder, &result.origin.commit) {
                Ok(record) => result.runs.push(record),
                Err(StartFault::UnknownFlag(fault)) => {
                    variants[index].skipped = true;
                    result.notes.push(format!("{} skipped: {fault}", variants[index].label));
                }
                Err(StartFault::Failed(fault)) => return Err(fault),
            }
        }
    }
    let path = folder.write("offline.json", &result)?;
    println!("{}", summary(&result.runs, &args.server.label));
    result.notes.iter().chain(&result.lacks()).for_each(|note| println!("{note}"));
    println!("written: {}", path.display());
    Ok(())
}

fn one_run(
    args: &OfflineArgs,
    variant: &Variant,
    round: u32,
    folder: &Folder,
    commit: &str,
) -> Result<RunRecord, StartFault> {
    let key = format!("{}-round-{round}", slug(&variant.label));
    let settings = format!("{:?} {:?} {} {round} {commit}", args.batch, args.server, variant.flags);
    let fingerprint = fingerprint(&settings);
    if let Some(record) = folder.finished(&key, &fingerprint) {
        eprintln!("{key}: kept from an earlier run");
        return Ok(record);
    }
    let mut record =
        RunRecord { key, fingerprint, label: variant.label.clone(), round, ..RunRecord::default() };
    let api_key = args.server.api_key.as_deref();
    let (target, shift, _server);
    if let Some(command) = &args.server.serve {
        let limit = Duration::from_secs(args.server.ready_timeout_s);
        let command = format!("{command} {}", variant.flags);
        let started = Server::start(command.trim(), &folder.log_path(&record.key), limit, api_key)?;
        target = started.target.clone();
        record.cache_state = "a fresh server process for this run".to_owned();
        shift = 0;
        _server = Some(started);
    } else {
        let url = args.server.url.as_deref().ok_or("say --url URL or --serve COMMAND");
        target = Target::parse(url.map_err(|e| StartFault::Failed(e.to_owned()))?, api_key)
            .map_err(StartFault::Failed)?;
        let (state, differ) = clear_cache(&target);
        record.cache_state = state;
        shift = if differ { u64::from(round) } else { 0 };
        _server = None;
    }
    let command = _server.as_ref().map(|server: &Server| server.command.as_str());
    let model = args.server.model.as_deref();
    record.server = ServerFacts::ask(&target, command, model).map_err(StartFault::Failed)?;
    let (record, run) = args.batch.measure(&target, record, shift).map_err(StartFault::Failed)?;
    folder.keep(&record, &run).map_err(StartFault::Failed)?;
    eprintln!("{}: {:.0} output tok/s", record.key, record.figures.output_tokens_per_s);
    Ok(record)
}

/// Median of each variant, and the ratio to the base of the same round.
fn summary(runs: &[RunRecord], base: &str) -> String {
    let mut labels: Vec<&str> = Vec::new();
    for run in runs {
        if !labels.contains(&run.label.as_str()) {
            labels.push(&run.label);
        }
    }
    labels.sort_by_key(|label| *label != base);
    let of = |label: &str| runs.iter().filter(|run| run.label == label).collect::<Vec<_>>();
    let median = |label: &str, figure: fn(&RunRecord) -> f64| {
        number(bootstrap::median(&of(label).into_iter().map(figure).collect::<Vec<f64>>()))
    };
    let range = |values: &[f64], digits: usize| {
        let (low, high) = bootstrap::range(values);
        format!("{low:.digits$}–{high:.digits$}")
    };
    let compared = labels.iter().map(|label| {
        let output: Vec<f64> = of(label).iter().map(|run| run.figures.output_tokens_per_s).collect();
        let pairs: Vec<f64> = of(label)
            .into_iter()
            .filter_map(|run| {
                let twin = runs.iter().find(|twin| twin.label == base && twin.round == run.round)?;
                Some(run.figures.output_tokens_per_s / twin.figures.output_tokens_per_s)
            })
            .collect();
        vec![
            (*label).to_owned(),
            output.len().to_string(),
            number(bootstrap::median(&output)),
            range(&output, 0),
            format!("{:.3} ({})", bootstrap::median(&pairs), range(&pairs, 3)),
        ]
    });
    let header = ["variant", "runs", "output tok/s", "min–max", "ratio to base (min–max)"];
    let compared = table::render(&header, &compared.collect::<Vec<_>>());
    let others = labels.iter().map(|label| {
        vec![
            (*label).to_owned(),
            median(label, |run| run.figures.requests_per_s),
            median(label, |run| run.figures.total_tokens_per_s),
            median(label, |run| run.figures.e2e_ms.p50 / 1e3),
        ]
    });
    let header = ["variant", "req/s", "total tok/s", "E2E p50 s"];
    format!("{compared}\n{}", table::render(&header, &others.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_fit_100_columns() {
        let run = |label: &str, round: u32, output: f64| {
            let mut run = RunRecord { label: label.to_owned(), round, ..RunRecord::default() };
            (run.figures.output_tokens_per_s, run.figures.total_tokens_per_s) = (output, 999_999.0);
            (run.figures.requests_per_s, run.figures.e2e_ms.p50) = (99_999.0, 99_999_000.0);
            run
        };
        let (base, long) = ("pinion-release-cpu", "+max-num-batched-tokens 8192");
        let runs = [(base, 0, 1e5), (long, 0, 9e4), (base, 1, 2e5), (long, 1, 2e5)];
        let text = summary(&runs.map(|(label, round, output)| run(label, round, output)), base);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(text.contains("100000–200000") && text.contains("0.950 (0.900–1.000)"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains(long)).count(), 2, "{text}");
    }
}
