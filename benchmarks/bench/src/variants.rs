//! A scenario file, and the variants that take turns in it.

use crate::ablate;
use crate::offline::BatchArgs;
use crate::online::{Plan, Point, WorkArgs};
use crate::prompts::Form;
use crate::replay::Run;
use crate::results::RunRecord;
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
    /// Flags that cannot act unless the base's command has the words before them.
    #[serde(default)]
    inert_unless: BTreeMap<String, Vec<String>>,
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
    pub(crate) fn points(&self) -> Vec<Option<Point>> {
        match self {
            Workload::Online(plan) => plan.points.iter().copied().map(Some).collect(),
            Workload::Offline(_) => vec![None],
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
pub(crate) struct Variant {
    pub label: String,
    pub command: Option<String>,
    pub url: Option<String>,
    pub model: Option<String>,
    /// Command that prints the version, where the server does not say it.
    pub version: Option<String>,
    pub workload: Workload,
    pub inert: bool,
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
    for (words, flags) in &scenario.inert_unless {
        let acts = base_command.is_some_and(|command| command.contains(words.as_str()));
        entries.extend(flags.iter().map(switch(!acts)));
    }
    entries
}

pub(crate) fn variants(scenario: &Scenario, args: &ScenarioArgs) -> Result<Vec<Variant>, String> {
    let set = &scenario.set;
    let base_command = scenario.server.as_ref().map(|command| replaced(command, set));
    let mut found: Vec<Variant> = Vec::new();
    for (index, entry) in entries(scenario, base_command.as_deref()).into_iter().enumerate() {
        let named = args.only.is_empty() || args.only.iter().any(|part| entry.label.contains(part));
        if index > 0 && !named && !entry.inert {
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
        let Entry { label, url, model, inert, version, .. } = entry;
        let version = version.map(|command| replaced(&command, set));
        found.push(Variant { label, command, url, model, version, workload, inert, skipped: None });
    }
    let labels: Vec<&str> = found.iter().map(|variant| variant.label.as_str()).collect();
    if let Some(label) =
        labels.iter().enumerate().find_map(|(at, label)| labels[..at].contains(label).then_some(label))
    {
        return Err(format!("two variants have the label {label}"));
    }
    if found.iter().skip(1).all(|variant| variant.inert) {
        return Err("a comparison needs two variants that can differ".to_owned());
    }
    one_form(&found)?;
    Ok(found)
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
mod tests {
    use super::*;
    use crate::verdict::INERT_MIN;

    fn args(line: &[&str]) -> ScenarioArgs {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: ScenarioArgs,
        }
        Line::parse_from([&["x", "s.toml"], line].concat()).args
    }

    const TEXT: &str = "name = \"t\"\nworkload = \"online --poisson 4 --requests 5 --vocab 100 --context 64 \
                        --input-len 8 --output-len 4\"\nserver = \"{bin} serve --device {device} --port {port}\"\n\
                        switches = [\"--no-prefix-cache\", \"--linear plain\"]\ninert = [\"--no-ui\"]\n\
                        [[variant]]\nlabel = \"peer\"\nurl = \"http://127.0.0.1:1\"\nworkload = \"--rate 2,8\"\n\
                        [[variant]]\nlabel = \"again\"\ninert = true\n\
                        [inert_unless]\n\"--device cuda\" = [\"--no-cuda-graphs\"]\n\
                        [set]\nbin = \"pinion\"\ndevice = \"cpu\"\n";

    fn scenario(text: &str) -> Scenario {
        toml::from_str(text).expect("a scenario")
    }

    #[test]
    fn a_scenario_becomes_commands() {
        let mut scenario = scenario(TEXT);
        scenario.set.insert("bin".to_owned(), "other/pinion".to_owned());
        let found = variants(&scenario, &args(&["--", "--requests", "7"])).expect("variants");
        let commands: Vec<_> = found.iter().map(|v| (v.label.as_str(), v.command.as_deref())).collect();
        let base = "other/pinion serve --device cpu --port {port}";
        let expected = [
            ("base", Some(base.to_owned())),
            ("-prefix-cache", Some(format!("{base} --no-prefix-cache"))),
            ("+linear plain", Some(format!("{base} --linear plain"))),
            ("peer", None),
            ("again", Some(base.to_owned())),
            ("-ui", Some(format!("{base} --no-ui"))),
            ("-cuda-graphs", Some(format!("{base} --no-cuda-graphs"))),
        ];
        assert_eq!(commands, expected.each_ref().map(|(label, command)| (*label, command.as_deref())));
        assert_eq!(found[0].workload.points().len(), 1);
        assert_eq!(found[3].workload.points().len(), 2);
        assert!(found[0].workload.notes()[0].starts_with("7 requests"), "the command line wins");
    }

    #[test]
    fn what_cannot_act_is_marked_and_stays_with_only() {
        let inert = |scenario: &Scenario, line: &[&str]| -> Vec<(String, bool)> {
            let found = variants(scenario, &args(line)).expect("variants");
            found.into_iter().map(|variant| (variant.label, variant.inert)).collect()
        };
        let mut scenario = scenario(TEXT);
        let own = |rows: &[(&str, bool)]| rows.iter().map(|(l, i)| ((*l).to_owned(), *i)).collect::<Vec<_>>();
        let kept = own(&[
            ("base", false),
            ("-prefix-cache", false),
            ("again", true),
            ("-ui", true),
            ("-cuda-graphs", true),
        ]);
        assert_eq!(inert(&scenario, &["--only", "-prefix"]), kept);
        // On a GPU that one acts.
        scenario.set.insert("device".to_owned(), "cuda".to_owned());
        assert_eq!(inert(&scenario, &["--only", "-prefix"]), kept[..4]);
        assert!(inert(&scenario, &[]).contains(&("-cuda-graphs".to_owned(), false)));
        assert!(variants(&scenario, &args(&["--only", "nothing"])).is_err());
        scenario.inert.push("--no-prefix-cache".to_owned());
        let fault = variants(&scenario, &args(&[])).err().expect("one label stands for two");
        assert!(fault.contains("-prefix-cache"), "{fault}");
    }

    #[test]
    fn prompts_in_two_forms_are_refused() {
        let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/demo-model");
        let as_text = format!("--prompt-form text --tokenizer {}", model.display());
        let text = TEXT.replace("--rate 2,8", &as_text);
        let fault = variants(&scenario(&text), &args(&[])).err().expect("refused");
        assert!(fault.starts_with("base is sent prompts as ids, peer as text"), "{fault}");
        // The same for all is fine.
        assert!(
            variants(
                &scenario(&TEXT.replace("--input-len 8", &format!("--input-len 8 {as_text}"))),
                &args(&[])
            )
            .is_ok()
        );
    }

    #[test]
    fn a_scenario_has_five_rounds_unless_it_says_otherwise() {
        assert_eq!(scenario(TEXT).rounds, 5);
        assert_eq!(scenario(&TEXT.replacen("workload =", "rounds = 3\nworkload =", 1)).rounds, 3);
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
            let all = scenario.inert_unless.values().flatten();
            let mut all = all.chain(&scenario.switches).chain(&scenario.inert);
            assert!(all.any(is_it), "switches.toml lacks --[no-]{name}");
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
            let all = scenario.inert_unless.values().flatten();
            for flags in all.chain(&scenario.switches).chain(&scenario.inert) {
                for flag in flags.split_whitespace().filter_map(|word| word.strip_prefix("--")) {
                    assert!(is_option(flag), "{:?} names --{flag}, which is no option", entry.path());
                }
            }
        }
        assert!(!is_option("fused-ops") && is_option("no-pin") && is_option("ipc"), "the check sees nothing");
    }

    /// Each can give verdicts, and asks for no percentile that its number of requests does not carry.
    #[test]
    fn every_committed_scenario_can_tell_a_difference_from_noise() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).expect("the scenarios").flatten() {
            let text = std::fs::read_to_string(entry.path()).expect("text");
            let scenario: Scenario =
                toml::from_str(&text).unwrap_or_else(|e| panic!("{:?}: {e}", entry.path()));
            let place = entry.path();
            let marked = scenario.variants.iter().filter(|variant| variant.inert).count();
            assert!(scenario.inert.len() + marked >= INERT_MIN, "{place:?}: nothing shows the noise");
            assert!(scenario.rounds as usize >= ROUNDS_MIN, "{place:?}: {} rounds", scenario.rounds);
            assert!(!scenario.metrics.is_empty(), "{place:?} names no figure");
            let mut words = scenario.workload.split_whitespace();
            let requests = words.find(|word| *word == "--requests").and_then(|_| words.next());
            // A workload that the command line completes says it there.
            let requests: u64 = requests.map_or(u64::MAX, |count| count.parse().expect("a number"));
            for name in &scenario.metrics {
                let known = ablate::METRICS.iter().find(|known| known.name == name).expect("a figure");
                if let ablate::Source::Percentile(quantile, _, "requests") = known.source {
                    assert!(requests >= quantile.samples_min(), "{place:?}: {name} of {requests} requests");
                }
            }
            count += 1;
        }
        assert!(count > 0);
    }
}
