//! `online`: a trace replayed against a server, once per time scale or rate.
//!
//! [`Plan`] is everything that can be known before a server is there; [`Plan::measure`] is one measured run. The
//! scenario runner uses both, too.

use crate::alone::Load;
use crate::ask;
use crate::figures::{self, Quantile, Targets};
use crate::http::{exchange, runtime};
use crate::machine::Origin;
use crate::metrics::Scrape;
use crate::prompt_args::PromptArgs;
use crate::prompts::{Form, Source};
use crate::replay::{COMPLETIONS, Pace, Run, Sending, replay};
use crate::results::{Folder, ResultFile, RunRecord, fingerprint, narrow, slug};
use crate::server::{Server, ServerFacts};
use crate::table;
use crate::target::Target;
use crate::trace::{self, Format, Row, Synthetic};
use crate::workload::{Bounds, Fields, Fit, Lengths, Selection, jobs, leave, phase, select};
use clap::Args;
use pinion_config::{AlonePhase, AloneRequest};
use std::path::PathBuf;
use std::time::Duration;

/// Lengths of a warm-up request.
const WARMUP_INPUT: u32 = 128;
const WARMUP_OUTPUT: u32 = 32;
/// Prompts of the warm-up come from a seed of their own, so that they share nothing with the measured ones.
const WARMUP_SEED: u64 = 0x77a2;
/// Where Pinion and vLLM empty their prefix caches.
const RESET_CACHE: &str = "/reset_prefix_cache";

/// Where the server is.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServerArgs {
    /// A running server, like http://127.0.0.1:8000.
    #[arg(long, conflicts_with = "serve")]
    pub url: Option<String>,
    /// Command that starts a server, with {port} where its port stands: a fresh process for every run.
    #[arg(long)]
    pub serve: Option<String>,
    /// Value of `model` [default: the first of /v1/models].
    #[arg(long)]
    pub model: Option<String>,
    /// Sent as a bearer token.
    #[arg(long)]
    pub api_key: Option<String>,
    /// A server started with --serve must answer within this number of seconds.
    #[arg(long, default_value_t = 180)]
    pub ready_timeout_s: u64,
    /// Name of the server in tables and plots.
    #[arg(long, default_value = "server")]
    pub label: String,
}

/// What is sent, and when.
#[derive(Args, Clone, Debug)]
pub(crate) struct WorkArgs {
    /// Trace file.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Schema of the trace file.
    #[arg(long, value_enum, default_value = "auto")]
    trace_format: Format,
    /// Instead of a trace: Poisson arrivals at this rate per second.
    #[arg(long, conflicts_with = "trace")]
    poisson: Option<f64>,
    /// Shape of the synthetic gaps: 1 is Poisson, below 1 comes in bursts (0.25: their deviation is twice the mean).
    #[arg(long, default_value_t = 1.0)]
    gamma_shape: f64,
    /// Input length of synthetic requests, in tokens.
    #[arg(long, default_value_t = 256)]
    input_len: u32,
    /// Output length of synthetic requests, in tokens.
    #[arg(long, default_value_t = 64)]
    output_len: u32,
    /// Synthetic lengths are spread evenly over ± this share.
    #[arg(long, default_value_t = 0.0)]
    length_spread: f64,
    /// Requests per run: the first ones of the trace that fit.
    #[arg(long, default_value_t = 200)]
    requests: usize,
    /// Rows of the trace to pass over first.
    #[arg(long, default_value_t = 0)]
    skip: usize,
    /// Time scales, one run each: arrival = (t − t0) × scale, so less is heavier [default: 0.4,0.8,1.6; synthetic: 1].
    #[arg(long, value_delimiter = ',', conflicts_with = "rate")]
    scales: Vec<f64>,
    /// Mean arrivals per second, one run each, instead of scales.
    #[arg(long, value_delimiter = ',')]
    rate: Vec<f64>,
    /// Closed loop instead: this number of streams, each with one request after the other; one run per number.
    /// Latencies then count from sending.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["scales", "rate"])]
    streams: Vec<usize>,
    /// Most input tokens of a request.
    #[arg(long)]
    max_input: Option<u32>,
    /// Most output tokens of a request (the seed project's runs have 128).
    #[arg(long)]
    max_output: Option<u32>,
    /// Requests that do not fit the context are cut, or left out.
    #[arg(long, value_enum, default_value = "clamp")]
    fit: Fit,
    /// Where the tokens of prompts come from.
    #[arg(long, value_enum, default_value = "blocks")]
    prompts: Source,
    /// Short for --prompts one-text: every prompt a beginning of the same text, as in the seed project's benchmark.
    #[arg(long)]
    seed_prompts: bool,
    /// Requests one after the other before each run.
    #[arg(long, default_value_t = 5)]
    warmup: usize,
    /// Ask for the server's timeline of each request, and report where the slowest ones lose their time (Pinion only).
    #[arg(long)]
    timings: bool,
    /// Clients of this share of the requests go away in the middle of the answer.
    #[arg(long, default_value_t = 0.0)]
    cancel_share: f64,
    /// Targets in ms for goodput, like ttft=200,tpot=50.
    #[arg(long)]
    slo: Option<String>,
    #[command(flatten)]
    prompt: PromptArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct OnlineArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    /// Measure this client instead of a server: its own null server stands at the other end.
    #[arg(long, conflicts_with_all = ["url", "serve"])]
    self_test: bool,
    /// Folder of the result; a run that is in it already is not repeated.
    #[arg(long, default_value = "target/bench/online")]
    out: PathBuf,
}

/// One run of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub scale: f64,
    pub rate_per_s: f64,
    /// Of a closed loop; 0 in an open one.
    pub streams: usize,
}

impl Point {
    /// For file names.
    pub(crate) fn name(&self) -> String {
        if self.streams > 0 {
            format!("streams-{}", self.streams)
        } else {
            format!("scale-{:.3}", self.scale)
        }
    }
}

/// Everything that is known before a server is there.
pub(crate) struct Plan {
    args: WorkArgs,
    selection: Selection,
    targets: Option<Targets>,
    context: u32,
    pub points: Vec<Point>,
}

impl Plan {
    pub(crate) fn new(args: &WorkArgs) -> Result<Plan, String> {
        Plan::of(args.clone())
    }

    /// The same with this number of requests, whatever the flags say.
    pub(crate) fn small(args: &WorkArgs, requests: usize) -> Result<Plan, String> {
        Plan::of(WorkArgs { requests, ..args.clone() })
    }

    pub(crate) fn prompt_form(&self) -> Form {
        self.args.prompt.prompt_form
    }

    fn of(mut args: WorkArgs) -> Result<Plan, String> {
        if args.seed_prompts {
            args.prompts = Source::OneText;
        }
        if !(0.0..=1.0).contains(&args.cancel_share) {
            return Err("--cancel-share is from 0 to 1".to_owned());
        }
        above_0("--requests", args.requests as f64)?;
        above_0("--poisson", args.poisson.unwrap_or(1.0))?;
        above_0("--gamma-shape", args.gamma_shape)?;
        let context = args.prompt.context_tokens()?;
        let bounds = Bounds {
            context,
            input_max: args.max_input.unwrap_or(u32::MAX),
            output_max: args.max_output.unwrap_or(u32::MAX),
            fit: args.fit,
        };
        // Streams need lengths, and no arrivals.
        let rate = args.poisson.or((!args.streams.is_empty()).then_some(1.0));
        let trace = match (&args.trace, rate) {
            (Some(path), _) => trace::read(path, args.trace_format)?,
            (None, Some(rate_per_s)) => Synthetic {
                rate_per_s,
                shape: args.gamma_shape,
                requests: args.requests,
                input_tokens: args.input_len,
                output_tokens: args.output_len,
                length_spread: args.length_spread,
                seed: args.prompt.seed,
            }
            .trace(),
            (None, None) => return Err("say --trace FILE, --poisson RATE or --streams N".to_owned()),
        };
        let selection = select(&trace, args.skip, args.requests, &bounds)?;
        let points = points(&args, selection.natural_rate())?;
        let targets = args.slo.as_deref().map(Targets::parse).transpose()?;
        Ok(Plan { args, selection, targets, context, points })
    }

    /// What a reader of the result should know about the workload.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mean = |of: fn(&(Row, Lengths)) -> u32| {
            let sum: u64 = self.selection.rows.iter().map(|row| u64::from(of(row))).sum();
            sum as f64 / self.selection.rows.len() as f64
        };
        vec![format!(
            "{} requests, {} cut to fit, {} left out; mean input {:.0}, mean output {:.0} tokens; {:.2} arrivals/s at scale 1; \
             prompts: {:?}, sent as {:?}",
            self.selection.rows.len(),
            self.selection.clamped,
            self.selection.dropped,
            mean(|(_, lengths)| lengths.input),
            mean(|(_, lengths)| lengths.output),
            self.selection.natural_rate(),
            self.args.prompts,
            self.args.prompt.prompt_form,
        )]
    }

    /// One measured run. `seed_shift` is added to the prompts' seed, so that a cache that could not be cleared finds
    /// nothing.
    pub(crate) fn measure(
        &self,
        point: Point,
        target: &Target,
        mut record: RunRecord,
        seed_shift: u64,
    ) -> Result<(RunRecord, Run), String> {
        let mut before = Scrape::default();
        let run = self.send(point, target, &record.server.model, seed_shift, || {
            before = Scrape::settled(target);
            Ok(())
        })?;
        let after = Scrape::settled(target);
        record.prompt_form = self.args.prompt.prompt_form.name().to_owned();
        record.exact_lengths = !self.args.prompt.stop_at_eos;
        record.scale = point.scale;
        record.streams = point.streams;
        record.offered_per_s = point.rate_per_s;
        record.complete(figures::of(&run, self.targets, true), &run, &before, &after);
        Ok((record, run))
    }

    /// Warms the server up, calls `begin`, and sends what belongs to one point.
    pub(crate) fn send(
        &self,
        point: Point,
        target: &Target,
        model: &str,
        seed_shift: u64,
        begin: impl FnOnce() -> Result<(), String>,
    ) -> Result<Run, String> {
        let args = &self.args.prompt;
        let mut fields = args.fields(model, true)?;
        if self.args.timings {
            fields.extra.insert("timings".to_owned(), true.into());
        }
        let prompts = args.prompts(self.args.prompts, args.seed + seed_shift)?;
        let mut jobs = jobs(&self.selection, point.scale, &prompts, &fields)?;
        leave(&mut jobs, self.args.cancel_share, args.seed);
        self.warm_up(target, &fields)?;
        begin()?;
        let pace = if point.streams > 0 { Pace::Closed(point.streams) } else { Pace::Open };
        replay(&jobs, target, Sending { pace, streaming: true, limit: args.timeout() })
    }

    /// The same requests for an engine alone.
    pub(crate) fn load(&self, point: Point, seed_shift: u64) -> Result<Load, String> {
        let args = &self.args.prompt;
        if self.args.cancel_share > 0.0 {
            return Err("--cancel-share: an engine alone has no clients that leave".to_owned());
        }
        let (row, lengths) = self.warm_up_row();
        let prompts = args.prompts(Source::Random, args.seed ^ WARMUP_SEED)?;
        let request = |index| AloneRequest {
            at_ns: 0,
            ids: prompts.ids(index, &row, 0, lengths.input),
            output_tokens: lengths.output,
        };
        let warm_up = AlonePhase { streams: Some(1), requests: (0..self.args.warmup).map(request).collect() };
        let prompts = args.prompts(self.args.prompts, args.seed + seed_shift)?;
        let streams = (point.streams > 0).then_some(point.streams as u32);
        let measured = phase(&self.selection, point.scale, &prompts, streams);
        args.load(warm_up, measured, true)
    }

    /// A request of the warm-up.
    fn warm_up_row(&self) -> (Row, Lengths) {
        let output = WARMUP_OUTPUT.min(self.context / 2).max(1);
        let input = WARMUP_INPUT.min(self.context - output).max(1);
        let row = Row { at_s: 0.0, input_tokens: input, output_tokens: output, blocks: Vec::new() };
        (row, Lengths { input, output })
    }

    fn warm_up(&self, target: &Target, fields: &Fields) -> Result<(), String> {
        let args = &self.args.prompt;
        let prompts = args.prompts(Source::Random, args.seed ^ WARMUP_SEED)?;
        let (row, lengths) = self.warm_up_row();
        let runtime = runtime()?;
        for index in 0..self.args.warmup {
            let ids = prompts.ids(index, &row, 0, lengths.input);
            let body = fields.body(prompts.render(&ids)?, lengths.output);
            let reply = runtime.block_on(exchange(target, COMPLETIONS, body, args.timeout(), None));
            if let Some(error) = crate::answer::read(&reply, true).error {
                let text = String::from_utf8_lossy(&reply.body[..reply.body.len().min(300)]).into_owned();
                return Err(format!("the warm-up failed: {error} {text}"));
            }
        }
        Ok(())
    }
}

/// Errors: what the flag of this name must be.
fn above_0(name: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(format!("{name} is above 0")) }
}

fn points(args: &WorkArgs, natural: f64) -> Result<Vec<Point>, String> {
    let default: &[f64] = if args.trace.is_some() { &[0.4, 0.8, 1.6] } else { &[1.0] };
    let chosen = args.scales.len() + args.rate.len() + args.streams.len() > 0;
    let scales = if chosen { &args.scales[..] } else { default };
    let by_scale = scales.iter().map(|&scale| Point { scale, rate_per_s: natural / scale, streams: 0 });
    let by_rate = args.rate.iter().map(|&rate| Point { scale: natural / rate, rate_per_s: rate, streams: 0 });
    let closed = args.streams.iter().map(|&streams| Point { scale: 0.0, rate_per_s: 0.0, streams });
    for (name, values) in [("--scales", &args.scales), ("--rate", &args.rate)] {
        values.iter().try_for_each(|value| above_0(name, *value))?;
    }
    if args.streams.contains(&0) {
        return Err("--streams is above 0".to_owned());
    }
    if !args.rate.is_empty() && natural.is_infinite() {
        return Err("--rate: requests that come all at once have no rate to be changed".to_owned());
    }
    Ok(by_scale.chain(by_rate).chain(closed).collect())
}

/// Empties the server's prefix cache; the answer says what became of it, and whether prompts must differ.
pub(crate) fn clear_cache(target: &Target) -> (String, bool) {
    match ask::post(target, RESET_CACHE) {
        Ok((200..=299, _)) => (format!("one server, cache cleared by POST {RESET_CACHE}"), false),
        _ => (format!("one server without {RESET_CACHE}; each run has prompts of its own"), true),
    }
}

fn self_test_command() -> Result<String, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(format!("'{}' null-server --port {{port}}", own.display()))
}

pub(crate) fn run(args: &OnlineArgs) -> Result<(), String> {
    let mut server = args.server.clone();
    if args.self_test {
        server.serve = Some(self_test_command()?);
        server.label = "null server".to_owned();
    }
    check_answers(&server)?;
    let plan = Plan::new(&args.work)?;
    let folder = Folder::open(&args.out)?;
    let command: Vec<String> = std::env::args().collect();
    let origin = Origin::here(&command);
    let settings = format!("{:?} {server:?} {}", args.work, origin.commit);
    let mut result = ResultFile {
        kind: "online".to_owned(),
        scenario: command[1..].join(" "),
        seed: args.work.prompt.seed,
        notes: plan.notes(),
        origin,
        ..ResultFile::default()
    };
    eprintln!("{}", result.notes[0]);
    for (index, &point) in plan.points.iter().enumerate() {
        let key = format!("{}-{}", slug(&server.label), point.name());
        let fingerprint = fingerprint(&settings);
        if let Some(record) = folder.finished(&key, &fingerprint) {
            eprintln!("{key}: kept from an earlier run");
            result.runs.push(record);
            continue;
        }
        if point.streams > 0 {
            eprintln!("{key}");
        } else {
            eprintln!("{key}: {:.2} arrivals/s", point.rate_per_s);
        }
        let record = RunRecord { key, fingerprint, label: server.label.clone(), ..RunRecord::default() };
        let (record, run) = one_run(&plan, point, &server, record, &folder, index as u64)?;
        folder.keep(&record, &run)?;
        result.runs.push(record);
    }
    let path = folder.write("online.json", &result)?;
    println!("{}", narrow(&result.runs));
    for run in result.runs.iter().filter(|run| run.figures.wire_lag_ms.count > 0) {
        let (lag, cpu) = (&run.figures.wire_lag_ms, run.figures.client.cpu_us_per_token_event);
        let (p50, p99, max) = (Quantile::P50.cell(lag), Quantile::P99.cell(lag), table::number(lag.max));
        println!(
            "scale {}: from the server's write to the client's stamp {p50} / {p99} / {max} ms (p50/p99/max); {cpu:.1} µs of client CPU per token",
            run.scale
        );
    }
    for run in &result.runs {
        if let Some(tail) = &run.figures.tail {
            println!("{}\n{}", run.key, tail.text());
        }
    }
    result.lacks().iter().for_each(|note| println!("{note}"));
    println!("written: {}", path.display());
    Ok(())
}

/// Before anything is read or printed: a server that is there already must answer.
fn check_answers(server: &ServerArgs) -> Result<(), String> {
    match (&server.serve, &server.url) {
        (None, Some(url)) => {
            let target = Target::parse(url, server.api_key.as_deref())?;
            ServerFacts::ask(&target, None, server.model.as_deref()).map(drop)
        }
        (Some(_), _) | (None, None) => Ok(()),
    }
}

fn one_run(
    plan: &Plan,
    point: Point,
    server: &ServerArgs,
    mut record: RunRecord,
    folder: &Folder,
    index: u64,
) -> Result<(RunRecord, Run), String> {
    let key = server.api_key.as_deref();
    if let Some(command) = &server.serve {
        let limit = Duration::from_secs(server.ready_timeout_s);
        let started = Server::start(command, &folder.log_path(&record.key), limit, key);
        let started = started.map_err(|fault| fault.to_string())?;
        record.server = ServerFacts::ask(&started.target, Some(&started.command), server.model.as_deref())?;
        record.cache_state = "a fresh server process for this run".to_owned();
        return plan.measure(point, &started.target, record, 0);
    }
    let url = server.url.as_deref().ok_or("say --url URL or --serve COMMAND")?;
    let target = Target::parse(url, key)?;
    record.server = ServerFacts::ask(&target, None, server.model.as_deref())?;
    let (state, shift) = clear_cache(&target);
    record.cache_state = state;
    plan.measure(point, &target, record, if shift { index } else { 0 })
}
