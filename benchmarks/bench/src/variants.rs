//! A scenario file, and the variants that take turns in it.

use crate::ablate;
use crate::alone::Load;
use crate::inert::{self, Effect};
use crate::offline::BatchArgs;
use crate::online::{Plan, Point, WorkArgs};
use crate::prompts::Form;
use crate::replay::Run;
use crate::results::{RunRecord, slug};
use crate::target::Target;
use crate::verdict::ROUNDS_MIN;
use clap::{Args, Parser, Subcommand};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub(crate) struct ScenarioArgs {
    /// Scenario file; benchmarks/scenarios has some.
    pub scenario: PathBuf,
    /// Rounds, instead of the scenario's; with fewer than 5 there is no verdict.
    #[arg(long)]
    pub rounds: Option<u32>,
    /// Value of a {name} in the scenario's commands, like model=target/models/gpt2-124m. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Only variants whose label contains this, the base, and those that cannot act, which give the noise. Can be
    /// repeated.
    #[arg(long, allow_hyphen_values = true)]
    pub only: Vec<String>,
    /// Folder of the result [default: target/bench/NAME]; a run that is in it already is not repeated.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// A workload that takes the place of {cell}, like prefill="online --streams 1 --output-len 1". Can be repeated:
    /// each variant starts once a round and runs all cells in this order; the result of a cell is in OUT/NAME.
    #[arg(long, value_name = "NAME=WORKLOAD")]
    pub cell: Vec<String>,
    /// Say what would run, and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Further flags of the workload, like `-- --trace FILE`.
    #[arg(last = true)]
    pub workload: Vec<String>,
}

/// A scenario file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub name: String,
    #[serde(default)]
    pub seed: u64,
    /// Every variant runs once in each; at least [`ROUNDS_MIN`] for a verdict.
    #[serde(default = "rounds_default")]
    pub rounds: u32,
    /// `online ...` or `offline ...` with the flags of these subcommands that do not name a server.
    pub workload: String,
    /// Command of the base, with {port}.
    server: Option<String>,
    #[serde(default = "ready_timeout_s")]
    pub ready_timeout_s: u64,
    /// Label of the base [default: base].
    base: Option<String>,
    /// Command that prints the base's version, for a server that does not say it over HTTP.
    version: Option<String>,
    /// Flags, one variant each, added to the base's command.
    #[serde(default)]
    switches: Vec<String>,
    /// The same for flags that cannot act on this workload. What they seem to do is the noise of each figure.
    #[serde(default)]
    inert: Vec<String>,
    #[serde(default, rename = "variant")]
    variants: Vec<Entry>,
    /// Figures in the table; all, if empty.
    #[serde(default)]
    pub metrics: Vec<String>,
    /// Values of the {names}, for --set to replace.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
}

fn ready_timeout_s() -> u64 {
    180
}

fn rounds_default() -> u32 {
    ROUNDS_MIN as u32
}

/// A variant with more to say than a switch.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    label: String,
    /// Added to the base's command.
    flags: Option<String>,
    /// A command of its own.
    server: Option<String>,
    /// A running server.
    url: Option<String>,
    /// No server: the engine alone, with these flags of `pinion serve`.
    engine: Option<String>,
    /// Value of `model`.
    model: Option<String>,
    /// Added to the workload.
    workload: Option<String>,
    /// Command that prints its version, for a server that does not say it over HTTP.
    version: Option<String>,
    /// It cannot act on this workload, like the base once more.
    #[serde(default)]
    inert: bool,
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

pub(crate) enum Workload {
    Online(Box<Plan>),
    Offline(Box<BatchArgs>),
}

fn words(text: &str) -> Result<Vec<String>, String> {
    shlex::split(text).ok_or_else(|| format!("unbalanced quotes in `{text}`"))
}

/// Flags given later replace earlier ones; clap would call that an error.
fn parse_workload(words: &[String]) -> Result<Workload, String> {
    let command = <WorkloadLine as clap::CommandFactory>::command()
        .mut_subcommands(|subcommand| subcommand.args_override_self(true));
    let matches = command.try_get_matches_from(words.iter()).map_err(|error| error.to_string())?;
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
    pub(crate) fn points(&self) -> Vec<Option<Point>> {
        match self {
            Workload::Online(plan) => plan.points.iter().copied().map(Some).collect(),
            Workload::Offline(_) => vec![None],
        }
    }

    /// What [`Workload::measure`] sends, for an engine alone.
    pub(crate) fn load(&self, point: Option<Point>, seed_shift: u64) -> Result<Load, String> {
        match (self, point) {
            (Workload::Online(plan), Some(point)) => plan.load(point, seed_shift),
            (Workload::Offline(batch), _) => batch.load(seed_shift),
            (Workload::Online(_), None) => Err("an online workload has points".to_owned()),
        }
    }

    fn prompt_form(&self) -> Form {
        match self {
            Workload::Online(plan) => plan.prompt_form(),
            Workload::Offline(batch) => batch.prompt_form(),
        }
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        match self {
            Workload::Online(plan) => plan.notes(),
            Workload::Offline(batch) => vec![batch.note()],
        }
    }

    pub(crate) fn measure(
        &self,
        point: Option<Point>,
        target: &Target,
        record: RunRecord,
        seed_shift: u64,
    ) -> Result<(RunRecord, Run), String> {
        match (self, point) {
            (Workload::Online(plan), Some(point)) => plan.measure(point, target, record, seed_shift),
            (Workload::Offline(batch), _) => batch.measure(target, record, seed_shift),
            (Workload::Online(_), None) => Err("an online workload has points".to_owned()),
        }
    }
}

/// One of those that take turns.
pub(crate) struct Variant {
    pub label: String,
    pub command: Option<String>,
    pub url: Option<String>,
    /// Flags of an engine alone.
    pub engine: Option<Vec<String>>,
    pub model: Option<String>,
    /// Command that prints the version, where the server does not say it.
    pub version: Option<String>,
    pub workload: Workload,
    /// The words that it was read from.
    pub words: Vec<String>,
    /// It cannot act on what is in effect.
    pub inert: bool,
    /// Why it cannot act, or why it acts although the scenario says that it cannot.
    pub notes: Vec<String>,
    /// Why it is left out.
    pub skipped: Option<String>,
}

fn replaced(text: &str, set: &BTreeMap<String, String>) -> String {
    set.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

/// The base's first, if there is one.
fn entries(scenario: &Scenario, base_command: Option<&str>) -> Vec<Entry> {
    let switch = |inert: bool| {
        move |flags: &String| Entry {
            label: ablate::label_of(flags),
            flags: Some(flags.clone()),
            inert,
            ..Entry::default()
        }
    };
    let mut entries = Vec::new();
    if base_command.is_some() {
        let label = scenario.base.clone().unwrap_or_else(|| "base".to_owned());
        entries.push(Entry { label, version: scenario.version.clone(), ..Entry::default() });
    }
    entries.extend(scenario.switches.iter().map(switch(false)));
    entries.extend(scenario.variants.iter().cloned());
    entries.extend(scenario.inert.iter().map(switch(true)));
    entries
}

impl Entry {
    /// Why what is said not to act does so. Errors: it is not known to be without effect, or it is another server.
    fn acting(&self, command: Option<&str>, workload: &[String]) -> Result<Option<String>, String> {
        let own = [&self.server, &self.url, &self.engine, &self.workload];
        let (Some(command), true) = (command, own.iter().all(|own| own.is_none())) else {
            return Err(format!("{}: what cannot act is the base again, or the base with flags", self.label));
        };
        let flags = self.flags.as_deref().unwrap_or_default();
        inert::acts(flags, &Effect { command: &words(command)?, workload })
    }
}

pub(crate) fn variants(scenario: &Scenario, args: &ScenarioArgs) -> Result<Vec<Variant>, String> {
    let set = &scenario.set;
    let base_command = scenario.server.as_ref().map(|command| replaced(command, set));
    let mut found: Vec<Variant> = Vec::new();
    for (index, entry) in entries(scenario, base_command.as_deref()).into_iter().enumerate() {
        let own = entry.server.as_ref().map(|command| replaced(command, set));
        let engine = entry.engine.as_ref().map(|flags| words(&replaced(flags, set))).transpose()?;
        let command = match (&entry.url, own.or_else(|| base_command.clone())) {
            _ if engine.is_some() => None,
            (Some(_), _) => None,
            (None, Some(command)) => {
                let flags = entry.flags.as_ref().map(|flags| replaced(flags, set)).unwrap_or_default();
                Some(format!("{command} {flags}").trim().to_owned())
            }
            (None, None) => return Err(format!("{}: neither a server command nor a url", entry.label)),
        };
        let text = format!("{} {}", scenario.workload, entry.workload.as_deref().unwrap_or_default());
        let mut work = words(&replaced(&text, set))?;
        work.extend(args.workload.iter().cloned());
        let acting = if entry.inert { entry.acting(command.as_deref(), &work)? } else { None };
        let inert = entry.inert && acting.is_none();
        let named = args.only.is_empty() || args.only.iter().any(|part| entry.label.contains(part));
        if index > 0 && !named && !inert {
            continue;
        }
        let notes = match &acting {
            Some(reason) => vec![format!("{} acts on this workload: {reason}", entry.label)],
            None if inert => {
                let whys = inert::why(entry.flags.as_deref().unwrap_or_default());
                whys.iter().map(|why| format!("{} cannot act: {why}", entry.label)).collect()
            }
            None => Vec::new(),
        };
        let workload = parse_workload(&work)?;
        let Entry { label, url, model, version, .. } = entry;
        let version = version.map(|command| replaced(&command, set));
        found.push(Variant {
            label,
            command,
            url,
            engine,
            model,
            version,
            workload,
            words: work,
            inert,
            notes,
            skipped: None,
        });
    }
    one_name_each(&found)?;
    if found.iter().skip(1).all(|variant| variant.inert) {
        return Err("a comparison needs two variants that can differ".to_owned());
    }
    one_form(&found)?;
    Ok(found)
}

/// Files of runs are called by their labels.
fn one_name_each(variants: &[Variant]) -> Result<(), String> {
    for (index, variant) in variants.iter().enumerate() {
        let label = &variant.label;
        match variants[..index].iter().find(|other| slug(&other.label) == slug(label)) {
            None => {}
            Some(other) if other.label == *label => {
                return Err(format!("two variants have the label {label}"));
            }
            Some(other) => return Err(format!("the files of {} and {label} have one name", other.label)),
        }
    }
    Ok(())
}

/// A server that gets ids is spared the work of the tokenizer.
fn one_form(variants: &[Variant]) -> Result<(), String> {
    let (first, others) = variants.split_first().ok_or("a scenario has variants")?;
    let form = first.workload.prompt_form();
    match others.iter().find(|other| other.workload.prompt_form() != form) {
        None => Ok(()),
        Some(other) => Err(format!(
            "{} is sent prompts as {}, {} as {}: say one --prompt-form for both in the scenario's workload",
            first.label,
            form.name(),
            other.label,
            other.workload.prompt_form().name()
        )),
    }
}

/// The file's text, and what it says after the command line's `--set` and `--rounds`.
pub(crate) fn read(args: &ScenarioArgs) -> Result<(String, Scenario), String> {
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

#[cfg(test)]
mod committed;
#[cfg(test)]
mod tests;
