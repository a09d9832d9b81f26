//! `compare` and `ablate`: a scenario file names a workload, servers or switches, and rounds. In each round every
//! variant runs once, in an order shuffled by the seed, each time in a fresh process, so that what drifts on the
//! machine drifts for all. A variant whose flag the server does not know is left out and said so. A server whose
//! version is not known is refused. A variant may be the engine alone, which gets the same requests without a service.

use crate::ablate;
use crate::alone::{Alone, log_into};
use crate::machine::Origin;
use crate::online::Point;
use crate::random::Random;
use crate::results::{Folder, ResultFile, RunRecord, fingerprint, slug};
use crate::server::{Server, ServerFacts, StartFault};
use crate::target::Target;
use crate::variants::{Scenario, ScenarioArgs, Variant, Workload, read, variants};
use std::path::PathBuf;
use std::time::Duration;

/// What a scenario is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Compare,
    Ablate,
}

/// Runs a scenario to its end, or from where an earlier call was stopped.
pub(crate) fn run(args: &ScenarioArgs, kind: Kind) -> Result<(), String> {
    let (text, scenario) = read(args)?;
    let mut variants = variants(&scenario, args)?;
    if args.dry_run {
        for variant in &variants {
            let inert = if variant.inert { " (cannot act)" } else { "" };
            let server = variant.command.as_ref().or(variant.url.as_ref()).cloned().unwrap_or_default();
            let engine =
                variant.engine.as_ref().map(|flags| format!("the engine alone: {}", flags.join(" ")));
            println!("{}{inert}: {}", variant.label, engine.unwrap_or(server));
        }
        variants.iter().flat_map(|variant| &variant.notes).for_each(|note| println!("{note}"));
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
        notes: notes(&variants),
        base: variants[0].label.clone(),
        inert: variants.iter().filter(|variant| variant.inert).map(|variant| variant.label.clone()).collect(),
        ..ResultFile::default()
    };
    let mut random = Random::stream(scenario.seed, 0x0c0);
    for round in 0..scenario.rounds {
        let mut order: Vec<usize> = (0..variants.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            if variants[index].skipped.is_none() {
                let outcome = turn(&scenario, &variants[index], round, &folder, &mut result);
                variants[index].skipped = outcome?;
            }
        }
        // After every round, so that a stopped scenario leaves a result.
        conclude(&scenario, &variants, &mut result);
        folder.write(&format!("{name}.json"), &result)?;
        eprintln!("round {} of {} done", round + 1, scenario.rounds);
    }
    println!("{}", ablate::tables(&result.compared, &result.base));
    result.notes.iter().for_each(|note| println!("{note}"));
    println!("written: {}", folder.path(&format!("{name}.json")).display());
    Ok(())
}

/// About the workload, and about what cannot act on it.
fn notes(variants: &[Variant]) -> Vec<String> {
    let own = variants.iter().flat_map(|variant| variant.notes.iter().cloned());
    variants[0].workload.notes().into_iter().chain(own).collect()
}

fn conclude(scenario: &Scenario, variants: &[Variant], result: &mut ResultFile) {
    result.compare(&scenario.metrics);
    for variant in variants {
        let note = variant.skipped.as_ref().map(|fault| format!("{} skipped: {fault}", variant.label));
        result.notes.extend(note.filter(|note| !result.notes.contains(note)));
    }
}

/// One variant's part of a round. `Some`: why it is left out from now on.
fn turn(
    scenario: &Scenario,
    variant: &Variant,
    round: u32,
    folder: &Folder,
    result: &mut ResultFile,
) -> Result<Option<String>, String> {
    for point in variant.workload.points() {
        let name = point.map_or(String::new(), |point| format!("-{}", point.name()));
        let key = format!("{}{name}-round-{round}", slug(&variant.label));
        let settings = format!(
            "{:?} {:?} {:?} {:?} {:?} {}",
            variant.words, variant.command, variant.url, variant.engine, variant.model, result.origin.commit
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
    if let Some(flags) = &variant.engine {
        return engine_run(flags, &variant.workload, point, record, folder).map_err(failed);
    }
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
    let facts = ServerFacts::ask(&target, command, variant.model.as_deref());
    record.server = facts.and_then(|facts| facts.with_version(variant.version.as_deref())).map_err(failed)?;
    record.cache_state = match started {
        Some(_) => "a fresh server process for this run".to_owned(),
        None => "one server for all rounds; each round has prompts of its own".to_owned(),
    };
    let (record, run) = variant.workload.measure(point, &target, record).map_err(failed)?;
    drop(started);
    folder.keep(&record, &run).map_err(failed)?;
    Ok(record)
}

/// The same requests for an engine without a service.
fn engine_run(
    flags: &[String],
    workload: &Workload,
    point: Option<Point>,
    mut record: RunRecord,
    folder: &Folder,
) -> Result<RunRecord, String> {
    let alone = Alone::new(flags)?;
    let load = workload.load(point)?;
    if let Some(Point { scale, rate_per_s, streams }) = point {
        (record.scale, record.offered_per_s, record.streams) = (scale, rate_per_s, streams);
    }
    let log = folder.log_path(&record.key);
    let measured = alone.measure(&load, record, log_into(&log)?);
    let (record, run) = measured.map_err(|fault| format!("{fault}; see {}", log.display()))?;
    folder.keep(&record, &run)?;
    Ok(record)
}
