//! `engine`: the engine alone with its model, without HTTP and rings ([`crate::alone`]), in up to three modes over the
//! same prompts: one request at a time, arrivals at a rate, all at once. The flags that are not its own are those of
//! `pinion serve`, as far as they act on an engine.

use crate::alone::{Alone, Load};
use crate::bootstrap;
use crate::figures::{Quantile, Spread};
use crate::machine::Origin;
use crate::prompts::{Form, Prompts, Source};
use crate::results::{Folder, ResultFile, RunRecord, fingerprint};
use crate::table::{self, number};
use crate::trace::{Row, Synthetic};
use clap::{Args, CommandFactory, Parser, ValueEnum};
use pinion_config::{AlonePhase, AloneRequest};
use std::path::PathBuf;
use std::process::Stdio;

/// Added to the prompts' seed for the warm-up: the same shape, and nothing for a cache to find.
const WARMUP_SEED: u64 = 0x0ff1;

/// All words; they are divided into flags of our own and those of `pinion serve`, in any order.
#[derive(Args, Clone, Debug)]
pub(crate) struct EngineWords {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS AND MODEL")]
    words: Vec<String>,
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// One request at a time.
    Naive,
    /// Poisson arrivals at --rate.
    Online,
    /// All at once.
    Offline,
}

/// The engine alone, with its model: token ids in, counts out; no HTTP, no ring, no other process.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "pinion bench engine",
    max_term_width = 110,
    override_usage = "pinion bench engine [OPTIONS] DIR [flags of `pinion serve`]",
    after_help = "All other flags are those of `pinion serve` that act on an engine: --backend, --dtype, --linear, \
                  --engine-threads, --max-num-seqs and the like (`pinion --help=engine`). One that acts on the service \
                  around it is refused."
)]
struct EngineLine {
    /// Which of them run, in turns: naive is one request at a time, online arrivals at --rate, offline all at once.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "offline")]
    modes: Vec<Mode>,
    /// Requests of each run.
    #[arg(long, default_value_t = 128)]
    requests: usize,
    /// Input length of each, in tokens.
    #[arg(long, default_value_t = 256)]
    input_len: u32,
    /// Output length of each, in tokens.
    #[arg(long, default_value_t = 64)]
    output_len: u32,
    /// Mean arrivals per second of the mode online (Poisson).
    #[arg(long)]
    rate: Option<f64>,
    /// Runs of each mode, each in a fresh process.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Leave out the warm-up, which is as many other requests, all at once.
    #[arg(long)]
    no_warmup: bool,
    /// Seed of prompts and arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder of the result; a run that is in it already is not repeated.
    #[arg(long, default_value = "target/bench/engine")]
    out: PathBuf,
    /// Also write the result to this JSON file.
    #[arg(long)]
    json: Option<PathBuf>,
}

impl EngineLine {
    fn check(&self) -> Result<(), String> {
        for (name, count) in [
            ("--requests", self.requests),
            ("--input-len", self.input_len as usize),
            ("--output-len", self.output_len as usize),
            ("--rounds", self.rounds as usize),
        ] {
            if count == 0 {
                return Err(format!("{name} is above 0"));
            }
        }
        if self.modes.iter().enumerate().any(|(index, mode)| self.modes[..index].contains(mode)) {
            return Err("--modes names a mode twice; --rounds repeats them".to_owned());
        }
        match self.rate {
            None if self.modes.contains(&Mode::Online) => {
                Err("--rate: the mode online takes the arrivals per second".to_owned())
            }
            Some(rate) if !(rate.is_finite() && rate > 0.0) => Err("--rate is above 0".to_owned()),
            Some(_) if !self.modes.contains(&Mode::Online) => {
                Err("--rate is for the mode online; say --modes online".to_owned())
            }
            None | Some(_) => Ok(()),
        }
    }

    fn rows(&self, mode: Mode) -> Vec<Row> {
        let mut rows = Synthetic {
            rate_per_s: self.rate.unwrap_or(1.0),
            shape: 1.0,
            requests: self.requests,
            input_tokens: self.input_len,
            output_tokens: self.output_len,
            length_spread: 0.0,
            seed: self.seed,
        }
        .trace()
        .rows;
        if mode != Mode::Online {
            rows.iter_mut().for_each(|row| row.at_s = 0.0);
        }
        rows
    }

    fn load(&self, mode: Mode, prompts: [&Prompts; 2]) -> Load {
        let phase = |mode, prompts: &Prompts| {
            let rows = self.rows(mode);
            let request = |(index, row): (usize, &Row)| AloneRequest {
                at_ns: (row.at_s * 1e9).round() as u64,
                ids: prompts.ids(index, row, 0, row.input_tokens),
                output_tokens: row.output_tokens,
            };
            let streams = (mode == Mode::Naive).then_some(1);
            AlonePhase { streams, requests: rows.iter().enumerate().map(request).collect() }
        };
        let [measured, warm_up] = prompts;
        Load {
            warm_up: if self.no_warmup { AlonePhase::default() } else { phase(Mode::Offline, warm_up) },
            measured: phase(mode, measured),
            temperature: 0.0,
            top_p: None,
            top_k: None,
            ignore_eos: true,
            streamed: true,
        }
    }

    /// What the work of a run in this mode follows from: a run of the same work is not made again.
    fn work(&self, mode: Mode) -> String {
        let EngineLine { requests, input_len, output_len, rate, no_warmup, seed, .. } = self;
        let rate = rate.filter(|_| mode == Mode::Online);
        format!("{mode:?} {requests} {input_len} {output_len} {rate:?} {no_warmup} {seed}")
    }

    fn notes(&self) -> Vec<String> {
        let rate = self.rate.map_or(String::new(), |rate| format!(", online at {rate} arrivals/s"));
        vec![format!(
            "the engine alone, no HTTP and no rings: {} requests × {} in → {} out as token ids, greedy, ignore_eos{rate}; \
             warm-up: {}",
            self.requests,
            self.input_len,
            self.output_len,
            if self.no_warmup { "none" } else { "as many other prompts, all at once" }
        )]
    }
}

fn name_of(mode: Mode) -> String {
    mode.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

/// Our own words, and those of `pinion serve`.
fn divide(words: &[String]) -> (Vec<String>, Vec<String>) {
    let command = EngineLine::command();
    let find = |name: &str| command.get_arguments().find(|argument| argument.get_long() == Some(name));
    let (mut own, mut engine) = (Vec::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let flag = word.strip_prefix("--").unwrap_or_default();
        let (name, inline) = flag.split_once('=').map_or((flag, false), |(name, _)| (name, true));
        match find(name) {
            Some(argument) => {
                own.push(word.clone());
                if argument.get_action().takes_values() && !inline {
                    own.extend(words.next().cloned());
                }
            }
            None if ["--help", "-h"].contains(&word.as_str()) => own.push(word.clone()),
            None => engine.push(word.clone()),
        }
    }
    (own, engine)
}

pub(crate) fn run(words: &EngineWords) -> Result<(), String> {
    let (own, flags) = divide(&words.words);
    // Ends the process with the help, or with what is wrong.
    let args = EngineLine::parse_from(std::iter::once("engine".to_owned()).chain(own));
    args.check()?;
    let alone = Alone::new(&flags)?;
    let folder = Folder::open(&args.out)?;
    let command: Vec<String> = std::env::args().collect();
    let mut result = ResultFile {
        kind: "engine".to_owned(),
        origin: Origin::here(&command),
        scenario: command[1..].join(" "),
        seed: args.seed,
        notes: args.notes(),
        ..ResultFile::default()
    };
    let prompts = |seed| Prompts::new(Source::Random, Form::Ids, seed, Some(&alone.config.model_dir), None);
    let (measured, warm_up) = (prompts(args.seed)?, prompts(args.seed ^ WARMUP_SEED)?);
    for round in 0..args.rounds {
        for &mode in &args.modes {
            let settings = format!("{} {:?} {}", args.work(mode), alone.config, result.origin.commit);
            let (label, fingerprint) = (name_of(mode), fingerprint(&settings));
            let key = format!("{label}-round-{round}");
            if let Some(record) = folder.finished(&key, &fingerprint) {
                eprintln!("{key}: kept from an earlier run");
                result.runs.push(record);
                continue;
            }
            eprintln!("{key}");
            let mut record = RunRecord { key, fingerprint, label, round, ..RunRecord::default() };
            record.streams = usize::from(mode == Mode::Naive);
            record.offered_per_s = args.rate.filter(|_| mode == Mode::Online).unwrap_or(0.0);
            let load = args.load(mode, [&measured, &warm_up]);
            let (record, run) = alone.measure(&load, record, Stdio::inherit())?;
            folder.keep(&record, &run)?;
            result.runs.push(record);
        }
    }
    let path = folder.write("engine.json", &result)?;
    if let Some(json) = &args.json {
        std::fs::copy(&path, json).map_err(|error| format!("--json {}: {error}", json.display()))?;
    }
    println!("{}", summary(&result.runs));
    result.notes.iter().for_each(|note| println!("{note}"));
    println!("written: {}", path.display());
    Ok(())
}

/// Medians over the rounds: what was done, then the latencies.
fn summary(runs: &[RunRecord]) -> String {
    let mut labels: Vec<&str> = Vec::new();
    for run in runs {
        if !labels.contains(&run.label.as_str()) {
            labels.push(&run.label);
        }
    }
    let of = |label: &str, figure: &dyn Fn(&RunRecord) -> f64| -> Vec<f64> {
        runs.iter().filter(|run| run.label == label).map(figure).collect()
    };
    let median = |label: &str, figure: &dyn Fn(&RunRecord) -> f64| bootstrap::median(&of(label, figure));
    let engine = |run: &RunRecord| run.engine.clone().unwrap_or_default();
    let done = labels.iter().map(|label| {
        let output = of(label, &|run| run.figures.output_tokens_per_s);
        let (low, high) = bootstrap::range(&output);
        vec![
            (*label).to_owned(),
            output.len().to_string(),
            number(median(label, &|run| run.figures.completed as f64)),
            number(median(label, &|run| engine(run).steps as f64)),
            number(median(label, &|run| engine(run).rows_per_step)),
            number(median(label, &|run| run.figures.requests_per_s)),
            number(bootstrap::median(&output)),
            format!("{low:.0}–{high:.0}"),
            number(median(label, &|run| run.figures.total_tokens_per_s)),
        ]
    });
    let header =
        ["mode", "runs", "requests", "steps", "rows/step", "req/s", "out tok/s", "min–max", "all tok/s"];
    let done = table::render(&header, &done.collect::<Vec<_>>());
    type OfRun = fn(&RunRecord) -> &Spread;
    let spreads: [(&str, OfRun); 3] = [
        ("TTFT", |run| &run.figures.ttft_ms),
        ("TPOT", |run| &run.figures.tpot_ms),
        ("latency", |run| &run.figures.e2e_ms),
    ];
    let latencies = labels.iter().flat_map(|label| {
        spreads.map(|(name, spread)| {
            let has_any = median(label, &|run| spread(run).count as f64) > 0.0;
            let shown = |value: f64| if has_any { number(value) } else { "–".to_owned() };
            vec![
                (*label).to_owned(),
                name.to_owned(),
                shown(median(label, &|run| Quantile::P50.of(spread(run)))),
                shown(median(label, &|run| spread(run).mean)),
                shown(median(label, &|run| spread(run).max)),
            ]
        })
    });
    let latencies = table::render(&["mode", "ms", "p50", "mean", "max"], &latencies.collect::<Vec<_>>());
    format!("{done}\n{latencies}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn line(text: &str) -> Result<EngineLine, String> {
        let (own, _) = divide(&words(text));
        let words = std::iter::once("engine".to_owned()).chain(own);
        let line = EngineLine::try_parse_from(words).map_err(|error| error.to_string())?;
        line.check().map(|()| line)
    }

    #[test]
    fn flags_are_told_apart_in_any_order() {
        for (text, own, engine) in [
            ("", "", ""),
            ("DIR", "", "DIR"),
            ("--requests 4 DIR --dtype fp32", "--requests 4", "DIR --dtype fp32"),
            (
                "--dtype fp32 DIR --rounds=2 --no-warmup --max-num-seqs 8 --json f",
                "--rounds=2 --no-warmup --json f",
                "--dtype fp32 DIR --max-num-seqs 8",
            ),
            ("DIR --help", "--help", "DIR"),
        ] {
            assert_eq!(divide(&words(text)), (words(own), words(engine)), "{text}");
        }
    }

    /// One of ours would hide it.
    #[test]
    fn no_flag_that_acts_on_an_engine_is_taken_by_ours() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = std::fs::read_to_string(root.join("docs/CONFIGURATION.md")).expect("the options");
        let both: Vec<String> = EngineLine::command()
            .get_arguments()
            .filter_map(|argument| argument.get_long().map(str::to_owned))
            .filter(|name| page.contains(&format!("| `--{name} ")) || page.contains(&format!("| `--{name}`")))
            .collect();
        // The service's seed is for requests that name none: here each has its own.
        assert_eq!(both, ["seed"]);
    }

    #[test]
    fn bad_options_are_refused_by_name() {
        for (text, named) in [
            ("--requests 0", "--requests is above 0"),
            ("--input-len 0", "--input-len is above 0"),
            ("--output-len 0", "--output-len is above 0"),
            ("--rounds 0", "--rounds is above 0"),
            ("--modes online", "--rate: the mode online"),
            ("--modes online --rate 0", "--rate is above 0"),
            ("--rate 3", "--rate is for the mode online"),
            ("--modes quick", "--modes"),
            ("--modes naive,offline,naive", "--modes names a mode twice"),
            ("--requests many", "--requests"),
        ] {
            let fault = line(text).expect_err(text);
            assert!(fault.contains(named), "{text}: {fault}");
        }
        assert!(line("--modes naive,online,offline --rate 2.5").is_ok());
    }

    #[test]
    fn modes_differ_in_times_and_never_in_prompts() {
        let args =
            line("--modes online --rate 100 --requests 50 --input-len 7 --output-len 3").expect("flags");
        let prompts = |seed| Prompts::new(Source::Random, Form::Ids, seed, None, Some(100)).expect("prompts");
        let (own, other) = (prompts(1), prompts(2));
        let load = |mode| args.load(mode, [&own, &other]);
        let [naive, online, offline] = [Mode::Naive, Mode::Online, Mode::Offline].map(load);
        let ids = |load: &Load| load.measured.requests.iter().map(|r| r.ids.clone()).collect::<Vec<_>>();
        assert!(ids(&naive) == ids(&online) && ids(&online) == ids(&offline));
        assert_eq!([&naive, &online, &offline].map(|load| load.measured.streams), [Some(1), None, None]);
        assert!(offline.measured.requests.iter().all(|request| request.at_ns == 0));
        let last = online.measured.requests[49].at_ns as f64 / 1e9;
        assert!((0.25..1.0).contains(&last), "50 arrivals at 100 per second: {last}");
        assert_eq!(online.warm_up, offline.warm_up);
        assert!(ids(&naive)[0] != online.warm_up.requests[0].ids, "a cache would find them");
    }

    #[test]
    fn the_tables_fit_100_columns() {
        let mut run = RunRecord { label: "offline".to_owned(), ..RunRecord::default() };
        let figures = &mut run.figures;
        (figures.output_tokens_per_s, figures.total_tokens_per_s) = (123_456.0, 123_456.0);
        (figures.requests_per_s, figures.completed) = (12_345.0, 32_768);
        (figures.ttft_ms.count, figures.ttft_ms.p50, figures.ttft_ms.mean) = (1, 123_456.0, 123_456.0);
        let text = summary(&[run]);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(text.contains("| offline |    TPOT |      – |"), "{text}");
    }
}
