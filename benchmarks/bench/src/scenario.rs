//! `compare` and `ablate`: a scenario file names a workload, servers or switches, and rounds. In each round every
//! variant runs once, in an order shuffled by the seed, each time in a fresh process, so that what drifts on the
//! machine drifts for all. A variant whose flag the server does not know is left out and said so.

use crate::ablate;
use crate::machine::Origin;
use crate::offline::BatchArgs;
use crate::online::{Plan, Point, WorkArgs};
use crate::random::Random;
use crate::replay::Run;
use crate::results::{Folder, ResultFile, RunRecord, fingerprint, slug};
use crate::server::{Server, ServerFacts, StartFault};
use crate::target::Target;
use clap::{Args, Parser, Subcommand};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// What a scenario is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Compare,
    Ablate,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ScenarioArgs {
    /// Scenario file; benchmarks/scenarios has some.
    scenario: PathBuf,
    /// Rounds, instead of the scenario's.
    #[arg(long)]
    rounds: Option<u32>,
    /// Value of a {name} in the scenario's commands, like model=target/models/gpt2-124m. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Only variants whose label contains this, and the base. Can be repeated.
    #[arg(long, allow_hyphen_values = true)]
    only: Vec<String>,
    /// Folder of the result [default: target/bench/NAME]; a run that is in it already is not repeated.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Say what would run, and stop.
    #[arg(long)]
    dry_run: bool,
    /// Further flags of the workload, like `-- --trace FILE`.
    #[arg(last = true)]
    workload: Vec<String>,
}

/// A scenario file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    #[serde(default)]
    seed: u64,
    rounds: u32,
    /// `online ...` or `offline ...` with the flags of these subcommands that do not name a server.
    workload: String,
    /// Command of the base, with {port}.
    server: Option<String>,
    #[serde(default = "ready_timeout_s")]
    ready_timeout_s: u64,
    /// Label of the base [default: base].
    base: Option<String>,
    /// Flags, one variant each, added to the base's command.
    #[serde(default)]
    switches: Vec<String>,
    #[serde(default, rename = "variant")]
    variants: Vec<Entry>,
    /// Figures in the table; all, if empty.
    #[serde(default)]
    metrics: Vec<String>,
    /// Values of the {names}, for --set to replace.
    #[serde(default)]
    set: BTreeMap<String, String>,
}

fn ready_timeout_s() -> u64 {
    180
}

/// A variant with more to say than a switch.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    label: String,
    /// Added to the base's command.
    flags: Option<String>,
    /// A command of its own.
    server: Option<String>,
    /// A running server.
    url: Option<String>,
    /// Value of `model`.
    model: Option<String>,
    /// Added to the workload.
    workload: Option<String>,
}

#[derive(Parser)]
#[command(no_binary_name = true)]
struct WorkloadLine {
    #[command(subcommand)]
    kind: WorkloadKind,
}

#[derive(Subcommand)]
enum WorkloadKind {
    Online(Box<WorkArgs>),
    Offline(Box<BatchArgs>),
}

enum Workload {
    Online(Box<Plan>),
    Offline(Box<BatchArgs>),
}

/// Flags given later replace earlier ones; clap would call that an error.
fn parse_workload(text: &str, further: &[String]) -> Result<Workload, String> {
    let mut words = shlex::split(text).ok_or_else(|| format!("unbalanced quotes in `{text}`"))?;
    words.extend(further.iter().cloned());
    let command = <WorkloadLine as clap::CommandFactory>::command()
        .mut_subcommands(|subcommand| subcommand.args_override_self(true));
    let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
    let line = <WorkloadLine as clap::FromArgMatches>::from_arg_matches(&matches);
    Ok(match line.map_err(|error| error.to_string())?.kind {
        WorkloadKind::Online(args) => {
            let plan = Plan::new(&args)?;
            // Figures are compared by scale, which closed loops do not have.
            if plan.points.len() > 1 && plan.points.iter().any(|point| point.streams > 0) {
                return Err("a comparison takes one number of streams".to_owned());
            }
            Workload::Online(Box::new(plan))
        }
        WorkloadKind::Offline(args) => Workload::Offline(args),
    })
}

impl Workload {
    /// One for a batch, which has no arrivals.
    fn points(&self) -> Vec<Option<Point>> {
        match self {
            Workload::Online(plan) => plan.points.iter().copied().map(Some).collect(),
            Workload::Offline(_) => vec![None],
        }
    }

    fn notes(&self) -> Vec<String> {
        match self {
            Workload::Online(plan) => plan.notes(),
            Workload::Offline(batch) => vec![batch.note()],
        }
    }

    fn measure(
        &self,
        point: Option<Point>,
        target: &Target,
        record: RunRecord,
    ) -> Result<(RunRecord, Run), String> {
        // A server that stays keeps its caches: each round has prompts of its own.
        let shift = if record.server.command.is_some() { 0 } else { u64::from(record.round) };
        match (self, point) {
            (Workload::Online(plan), Some(point)) => plan.measure(point, target, record, shift),
            (Workload::Offline(batch), _) => batch.measure(target, record, shift),
            (Workload::Online(_), None) => Err("an online workload has points".to_owned()),
        }
    }
}

/// One of those that take turns.
struct Variant {
    label: String,
    command: Option<String>,
    url: Option<String>,
    model: Option<String>,
    workload: Workload,
    /// Why it is left out.
    skipped: Option<String>,
}

fn replaced(text: &str, set: &BTreeMap<String, String>) -> String {
    set.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

fn variants(scenario: &Scenario, args: &ScenarioArgs) -> Result<Vec<Variant>, String> {
    let set = &scenario.set;
    let base_command = scenario.server.as_ref().map(|command| replaced(command, set));
    let mut entries: Vec<Entry> = Vec::new();
    if base_command.is_some() {
        let label = scenario.base.clone().unwrap_or_else(|| "base".to_owned());
        entries.push(Entry { label, flags: None, server: None, url: None, model: None, workload: None });
    }
    let switch = |flags: &String| Entry {
        label: ablate::label_of(flags),
        flags: Some(flags.clone()),
        server: None,
        url: None,
        model: None,
        workload: None,
    };
    entries.extend(scenario.switches.iter().map(switch));
    let named = scenario.variants.iter().map(|entry| Entry {
        label: entry.label.clone(),
        flags: entry.flags.clone(),
        server: entry.server.clone(),
        url: entry.url.clone(),
        model: entry.model.clone(),
        workload: entry.workload.clone(),
    });
    entries.extend(named);
    let mut found = Vec::new();
    for (index, entry) in entries.into_iter().enumerate() {
        if index > 0 && !args.only.is_empty() && !args.only.iter().any(|part| entry.label.contains(part)) {
            continue;
        }
        let own = entry.server.as_ref().map(|command| replaced(command, set));
        let command = match (&entry.url, own.or_else(|| base_command.clone())) {
            (Some(_), _) => None,
            (None, Some(command)) => {
                let flags = entry.flags.as_ref().map(|flags| replaced(flags, set)).unwrap_or_default();
                Some(format!("{command} {flags}").trim().to_owned())
            }
            (None, None) => return Err(format!("{}: neither a server command nor a url", entry.label)),
        };
        let text = format!("{} {}", scenario.workload, entry.workload.as_deref().unwrap_or_default());
        let workload = parse_workload(&replaced(&text, set), &args.workload)?;
        let (label, url, model) = (entry.label, entry.url, entry.model);
        found.push(Variant { label, command, url, model, workload, skipped: None });
    }
    if found.len() < 2 {
        return Err("a comparison needs two variants".to_owned());
    }
    Ok(found)
}

fn read(args: &ScenarioArgs) -> Result<(String, Scenario), String> {
    let fault = |error: String| format!("{}: {error}", args.scenario.display());
    let text = std::fs::read_to_string(&args.scenario).map_err(|error| fault(error.to_string()))?;
    let mut scenario: Scenario = toml::from_str(&text).map_err(|error| fault(error.to_string()))?;
    for pair in &args.set {
        let (name, value) = pair.split_once('=').ok_or_else(|| format!("--set {pair}: NAME=VALUE"))?;
        scenario.set.insert(name.to_owned(), value.to_owned());
    }
    scenario.rounds = args.rounds.unwrap_or(scenario.rounds);
    Ok((text, scenario))
}

/// Runs a scenario to its end, or from where an earlier call was stopped.
pub(crate) fn run(args: &ScenarioArgs, kind: Kind) -> Result<(), String> {
    let (text, scenario) = read(args)?;
    let mut variants = variants(&scenario, args)?;
    if args.dry_run {
        for variant in &variants {
            println!(
                "{}: {}",
                variant.label,
                variant.command.as_ref().or(variant.url.as_ref()).map_or("", |s| s)
            );
        }
        return Ok(());
    }
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from("target/bench").join(&scenario.name));
    let folder = Folder::open(&out)?;
    let command: Vec<String> = std::env::args().collect();
    let name = if kind == Kind::Ablate { "ablate" } else { "compare" };
    let mut result = ResultFile {
        kind: name.to_owned(),
        origin: Origin::here(&command),
        scenario: text,
        seed: scenario.seed,
        notes: variants[0].workload.notes(),
        ..ResultFile::default()
    };
    let mut random = Random::stream(scenario.seed, 0x0c0);
    for round in 0..scenario.rounds {
        let mut order: Vec<usize> = (0..variants.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            if variants[index].skipped.is_none() {
                let outcome = turn(&scenario, args, &variants[index], round, &folder, &mut result);
                variants[index].skipped = outcome?;
            }
        }
        // After every round, so that a stopped scenario leaves a result.
        conclude(&scenario, &variants, &mut result);
        folder.write(&format!("{name}.json"), &result)?;
        eprintln!("round {} of {} done", round + 1, scenario.rounds);
    }
    println!("{}", ablate::tables(&result.compared, &variants[0].label));
    result.notes.iter().for_each(|note| println!("{note}"));
    println!("written: {}", folder.path(&format!("{name}.json")).display());
    Ok(())
}

fn conclude(scenario: &Scenario, variants: &[Variant], result: &mut ResultFile) {
    let base = &variants[0].label;
    result.base = base.clone();
    result.compared = ablate::compare(&result.runs, base, &scenario.metrics, scenario.seed);
    for variant in variants {
        let note = variant.skipped.as_ref().map(|fault| format!("{} skipped: {fault}", variant.label));
        result.notes.extend(note.filter(|note| !result.notes.contains(note)));
    }
}

/// One variant's part of a round. `Some`: why it is left out from now on.
fn turn(
    scenario: &Scenario,
    args: &ScenarioArgs,
    variant: &Variant,
    round: u32,
    folder: &Folder,
    result: &mut ResultFile,
) -> Result<Option<String>, String> {
    for point in variant.workload.points() {
        let name = point.map_or(String::new(), |point| format!("-{}", point.name()));
        let key = format!("{}{name}-round-{round}", slug(&variant.label));
        let settings = format!(
            "{} {:?} {:?} {:?} {:?} {}",
            scenario.workload,
            args.workload,
            scenario.set,
            variant.command,
            variant.url,
            result.origin.commit
        );
        let fingerprint = fingerprint(&settings);
        if let Some(record) = folder.finished(&key, &fingerprint) {
            eprintln!("{key}: kept from an earlier run");
            result.runs.push(record);
            continue;
        }
        eprintln!("{key}");
        let record =
            RunRecord { key, fingerprint, label: variant.label.clone(), round, ..RunRecord::default() };
        match one_run(scenario, variant, point, record, folder) {
            Ok(record) => result.runs.push(record),
            Err(StartFault::UnknownFlag(fault)) => return Ok(Some(fault)),
            Err(StartFault::Failed(fault)) => return Err(format!("{}: {fault}", variant.label)),
        }
    }
    Ok(None)
}

fn one_run(
    scenario: &Scenario,
    variant: &Variant,
    point: Option<Point>,
    mut record: RunRecord,
    folder: &Folder,
) -> Result<RunRecord, StartFault> {
    let failed = StartFault::Failed;
    let limit = Duration::from_secs(scenario.ready_timeout_s);
    let started = match &variant.command {
        Some(command) => Some(Server::start(command, &folder.log_path(&record.key), limit, None)?),
        None => None,
    };
    let target = match (&started, &variant.url) {
        (Some(server), _) => server.target.clone(),
        (None, Some(url)) => Target::parse(url, None).map_err(failed)?,
        (None, None) => return Err(failed("neither a command nor a url".to_owned())),
    };
    let command = started.as_ref().map(|server| server.command.as_str());
    record.server = ServerFacts::ask(&target, command, variant.model.as_deref()).map_err(failed)?;
    record.cache_state = match started {
        Some(_) => "a fresh server process for this run".to_owned(),
        None => "one server for all rounds; each round has prompts of its own".to_owned(),
    };
    let (record, run) = variant.workload.measure(point, &target, record).map_err(failed)?;
    drop(started);
    folder.keep(&record, &run).map_err(failed)?;
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &[&str]) -> ScenarioArgs {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: ScenarioArgs,
        }
        Line::parse_from([&["x", "s.toml"], line].concat()).args
    }

    const TEXT: &str = "name = \"t\"\nrounds = 2\nworkload = \"online --poisson 4 --requests 5 --vocab 100 --context 64 \
                        --input-len 8 --output-len 4\"\nserver = \"{bin} serve --port {port}\"\n\
                        switches = [\"--no-prefix-cache\", \"--linear plain\"]\n[set]\nbin = \"pinion\"\n\
                        [[variant]]\nlabel = \"peer\"\nurl = \"http://127.0.0.1:1\"\nworkload = \"--rate 2,8\"\n";

    #[test]
    fn a_scenario_becomes_commands() {
        let mut scenario: Scenario = toml::from_str(TEXT).expect("a scenario");
        scenario.set.insert("bin".to_owned(), "other/pinion".to_owned());
        let found = variants(&scenario, &args(&["--", "--requests", "7"])).expect("variants");
        let commands: Vec<_> = found.iter().map(|v| (v.label.as_str(), v.command.as_deref())).collect();
        let base = "other/pinion serve --port {port}";
        let expected = [
            ("base", Some(base.to_owned())),
            ("-prefix-cache", Some(format!("{base} --no-prefix-cache"))),
            ("+linear plain", Some(format!("{base} --linear plain"))),
            ("peer", None),
        ];
        assert_eq!(commands, expected.each_ref().map(|(label, command)| (*label, command.as_deref())));
        assert_eq!(found[0].workload.points().len(), 1);
        assert_eq!(found[3].workload.points().len(), 2);
        assert!(found[0].workload.notes()[0].starts_with("7 requests"), "the command line wins");
        let only = variants(&scenario, &args(&["--only", "-prefix"])).expect("two");
        assert_eq!(only.len(), 2);
        assert!(variants(&scenario, &args(&["--only", "nothing"])).is_err());
    }

    #[test]
    fn the_ablation_set_has_every_switch() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file of the repository");
        let (page, text) = (read("docs/CONFIGURATION.md"), read("benchmarks/scenarios/switches.toml"));
        let scenario: Scenario = toml::from_str(&text).expect("a scenario");
        let switches = page.lines().filter_map(|line| line.strip_prefix("| `--[no-]")?.split('`').next());
        let mut count = 0;
        for name in switches {
            let is_it = |flags: &String| *flags == format!("--no-{name}") || *flags == format!("--{name}");
            assert!(scenario.switches.iter().any(is_it), "switches.toml lacks --[no-]{name}");
            count += 1;
        }
        assert!(count > 5, "docs/CONFIGURATION.md lists switches in another form");
    }

    /// A misspelt flag would be reported as skipped in every run, and measure nothing.
    #[test]
    fn scenarios_name_only_options_that_exist() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = std::fs::read_to_string(root.join("docs/CONFIGURATION.md")).expect("the options");
        let known = |name: &str| {
            page.contains(&format!("| `--{name}")) || page.contains(&format!("| `--[no-]{name}`"))
        };
        let is_option = |name: &str| known(name) || name.strip_prefix("no-").is_some_and(known);
        for entry in std::fs::read_dir(root.join("benchmarks/scenarios")).expect("the scenarios").flatten() {
            let text = std::fs::read_to_string(entry.path()).expect("text");
            let scenario: Scenario = toml::from_str(&text).expect("a scenario");
            for flags in &scenario.switches {
                for flag in flags.split_whitespace().filter_map(|word| word.strip_prefix("--")) {
                    assert!(is_option(flag), "{:?} names --{flag}, which is no option", entry.path());
                }
            }
        }
        assert!(!is_option("fused-ops") && is_option("no-pin") && is_option("ipc"), "the check sees nothing");
    }

    #[test]
    fn every_committed_scenario_is_read() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).expect("the scenarios").flatten() {
            let text = std::fs::read_to_string(entry.path()).expect("text");
            let scenario: Scenario =
                toml::from_str(&text).unwrap_or_else(|e| panic!("{:?}: {e}", entry.path()));
            for metric in &scenario.metrics {
                assert!(ablate::METRICS.iter().any(|known| known.name == metric), "{metric}");
            }
            count += 1;
        }
        assert!(count > 0);
    }
}
