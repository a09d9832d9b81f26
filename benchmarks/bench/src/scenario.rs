//! `compare` and `ablate`: a scenario file names a workload, servers or switches, and rounds. In each round every
//! variant runs once, in an order shuffled by the seed, each time in a fresh process, so that what drifts on the
//! machine drifts for all. Cells are several workloads for one process of each variant, which starts once a round. A
//! variant whose flag the server does not know is left out and said so. A server whose version is not known is refused.
//! A variant may be the engine alone, which gets the same requests without a service.

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

/// One workload of a scenario, with its variants and its result.
struct Cell {
    name: String,
    variants: Vec<Variant>,
    folder: Folder,
    result: ResultFile,
}

/// What stands in a scenario's workload for that of a cell.
const CELL_MARK: &str = "{cell}";

/// Name and workload of each cell that the command line asks for.
fn named_cells<'a>(scenario: &Scenario, args: &'a ScenarioArgs) -> Result<Vec<(&'a str, &'a str)>, String> {
    if !args.cell.is_empty() && !scenario.workload.contains(CELL_MARK) {
        return Err(format!("--cell: the scenario's workload has no {CELL_MARK} to put it in"));
    }
    let mut named: Vec<(&str, &str)> = Vec::new();
    for cell in &args.cell {
        let (name, workload) = cell.split_once('=').ok_or_else(|| format!("--cell {cell}: NAME=WORKLOAD"))?;
        if name.is_empty() || slug(name) != name || name.starts_with('.') {
            return Err(format!(
                "--cell {name}: it names a folder; letters, digits, dots, _, + and - may stand in it"
            ));
        }
        if named.iter().any(|(known, _)| *known == name) {
            return Err(format!("--cell {name}: it is there twice"));
        }
        named.push((name, workload));
    }
    Ok(named)
}

/// The variants of each cell; one without a name where the command line names none.
fn cell_variants(
    scenario: &mut Scenario,
    args: &ScenarioArgs,
) -> Result<Vec<(String, Vec<Variant>)>, String> {
    let named = named_cells(scenario, args)?;
    if named.is_empty() {
        return Ok(vec![(String::new(), variants(scenario, args)?)]);
    }
    let mut cells = Vec::new();
    for (name, workload) in named {
        scenario.set.insert("cell".to_owned(), workload.to_owned());
        let variants = variants(scenario, args).map_err(|fault| format!("--cell {name}: {fault}"))?;
        cells.push((name.to_owned(), variants));
    }
    match cells.iter().find(|(_, all)| !same_servers(all, &cells[0].1)) {
        Some((name, _)) => Err(format!(
            "--cell {name}: not the servers of cell {}, or with other commands: a switch that cannot act in one cell may \
             act in the other, and {{cell}} belongs into workloads alone",
            cells[0].0
        )),
        None => Ok(cells),
    }
}

/// Whether one process of each variant can run the cells of both.
fn same_servers(some: &[Variant], others: &[Variant]) -> bool {
    let server = |variant: &Variant| {
        (variant.label.clone(), variant.command.clone(), variant.url.clone(), variant.engine.clone())
    };
    some.iter().map(server).eq(others.iter().map(server))
}

/// Runs a scenario to its end, or from where an earlier call was stopped.
pub(crate) fn run(args: &ScenarioArgs, kind: Kind) -> Result<(), String> {
    let (text, mut scenario) = read(args)?;
    let cells = cell_variants(&mut scenario, args)?;
    if args.dry_run {
        cells.iter().for_each(|(name, variants)| show(name, variants));
        return Ok(());
    }
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from("target/bench").join(&scenario.name));
    let file = if kind == Kind::Ablate { "ablate" } else { "compare" };
    let command: Vec<String> = std::env::args().collect();
    let origin = Origin::here(&command);
    let open = |(name, variants): (String, Vec<Variant>)| {
        let folder = Folder::open(&out.join(&name))?;
        let inert = variants.iter().filter(|variant| variant.inert).map(|variant| variant.label.clone());
        let result = ResultFile {
            kind: file.to_owned(),
            origin: origin.clone(),
            scenario: text.clone(),
            seed: scenario.seed,
            notes: notes(&variants),
            base: variants[0].label.clone(),
            inert: inert.collect(),
            ..ResultFile::default()
        };
        Ok(Cell { name, variants, folder, result })
    };
    let mut cells = cells.into_iter().map(open).collect::<Result<Vec<Cell>, String>>()?;
    let mut random = Random::stream(scenario.seed, 0x0c0);
    for round in 0..scenario.rounds {
        let mut order: Vec<usize> = (0..cells[0].variants.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            if let Some(fault) = turn(&scenario, &mut cells, index, round)? {
                cells.iter_mut().for_each(|cell| cell.variants[index].skipped = Some(fault.clone()));
            }
        }
        // After every round, so that a stopped scenario leaves a result.
        for cell in &mut cells {
            conclude(&scenario, &cell.variants, &mut cell.result);
            cell.folder.write(&format!("{file}.json"), &cell.result)?;
        }
        eprintln!("round {} of {} done", round + 1, scenario.rounds);
    }
    for Cell { name, folder, result, .. } in &cells {
        if !name.is_empty() {
            println!("cell {name}\n");
        }
        println!("{}", ablate::tables(&result.compared, &result.base));
        result.notes.iter().for_each(|note| println!("{note}"));
        println!("written: {}", folder.path(&format!("{file}.json")).display());
    }
    Ok(())
}

/// What would run.
fn show(name: &str, variants: &[Variant]) {
    if !name.is_empty() {
        println!("cell {name}: {}", variants[0].words.join(" "));
    }
    for variant in variants {
        let inert = if variant.inert { " (cannot act)" } else { "" };
        let server = variant.command.as_ref().or(variant.url.as_ref()).cloned().unwrap_or_default();
        let engine = variant.engine.as_ref().map(|flags| format!("the engine alone: {}", flags.join(" ")));
        println!("{}{inert}: {}", variant.label, engine.unwrap_or(server));
    }
    variants.iter().flat_map(|variant| &variant.notes).for_each(|note| println!("{note}"));
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

/// One variant's part of a round: every cell, and every point of it. `Some`: why it is left out from now on.
fn turn(scenario: &Scenario, cells: &mut [Cell], index: usize, round: u32) -> Result<Option<String>, String> {
    if cells[0].variants[index].skipped.is_some() {
        return Ok(None);
    }
    // With cells one process runs all of them, each with prompts that it has not seen; without, each point has a
    // process of its own.
    let is_shared = !cells[0].name.is_empty();
    let (mut server, mut points) = (None, 0);
    for cell in cells {
        let variant = &cell.variants[index];
        for point in variant.workload.points() {
            let mut seed_shift = points;
            points += 1;
            if !is_shared {
                server = None;
                // A server that runs by itself keeps what it has seen.
                if variant.url.is_none() {
                    seed_shift = 0;
                }
            }
            let record = new_record(cell, index, round, point);
            if let Some(record) = cell.folder.finished(&record.key, &record.fingerprint) {
                eprintln!("{}: kept from an earlier run", record.key);
                cell.result.runs.push(record);
                continue;
            }
            eprintln!("{} {}", cell.name, record.key);
            match one_run(scenario, variant, point, record, &cell.folder, &mut server, seed_shift) {
                Ok(record) => cell.result.runs.push(record),
                Err(StartFault::UnknownFlag(fault)) => return Ok(Some(fault)),
                Err(StartFault::Failed(fault)) => return Err(format!("{}: {fault}", variant.label)),
            }
        }
    }
    Ok(None)
}

fn new_record(cell: &Cell, index: usize, round: u32, point: Option<Point>) -> RunRecord {
    let variant = &cell.variants[index];
    let name = point.map_or(String::new(), |point| format!("-{}", point.name()));
    let settings = format!(
        "{:?} {:?} {:?} {:?} {:?} {} {}",
        variant.words,
        variant.command,
        variant.url,
        variant.engine,
        variant.model,
        cell.result.origin.commit,
        cell.name
    );
    RunRecord {
        key: format!("{}{name}-round-{round}", slug(&variant.label)),
        fingerprint: fingerprint(&settings),
        label: variant.label.clone(),
        round,
        ..RunRecord::default()
    }
}

/// Measures once. `server` is started if there is none, and stays.
fn one_run(
    scenario: &Scenario,
    variant: &Variant,
    point: Option<Point>,
    mut record: RunRecord,
    folder: &Folder,
    server: &mut Option<Server>,
    seed_shift: u64,
) -> Result<RunRecord, StartFault> {
    let failed = StartFault::Failed;
    if let Some(flags) = &variant.engine {
        return engine_run(flags, &variant.workload, (point, seed_shift), record, folder).map_err(failed);
    }
    let limit = Duration::from_secs(scenario.ready_timeout_s);
    let is_fresh = server.is_none();
    if let (Some(command), None) = (&variant.command, &server) {
        *server = Some(Server::start(command, &folder.log_path(&record.key), limit, None)?);
    }
    let target = match (&*server, &variant.url) {
        (Some(server), _) => server.target.clone(),
        (None, Some(url)) => Target::parse(url, None).map_err(failed)?,
        (None, None) => return Err(failed("neither a command nor a url".to_owned())),
    };
    let command = server.as_ref().map(|server| server.command.as_str());
    let facts = ServerFacts::ask(&target, command, variant.model.as_deref());
    record.server = facts.and_then(|facts| facts.with_version(variant.version.as_deref())).map_err(failed)?;
    let (state, seed_shift) = match (&*server, is_fresh) {
        (Some(_), true) => ("a fresh server process for this run", seed_shift),
        (Some(_), false) => {
            ("one server process for the cells of a round; each has prompts of its own", seed_shift)
        }
        (None, _) => {
            let shift = (u64::from(record.round) << 16) + seed_shift;
            ("one server for all rounds; each round has prompts of its own", shift)
        }
    };
    record.cache_state = state.to_owned();
    let (record, run) = variant.workload.measure(point, &target, record, seed_shift).map_err(failed)?;
    folder.keep(&record, &run).map_err(failed)?;
    Ok(record)
}

/// The same requests for an engine without a service.
fn engine_run(
    flags: &[String],
    workload: &Workload,
    (point, seed_shift): (Option<Point>, u64),
    mut record: RunRecord,
    folder: &Folder,
) -> Result<RunRecord, String> {
    let alone = Alone::new(flags)?;
    let load = workload.load(point, seed_shift)?;
    if let Some(Point { scale, rate_per_s, streams }) = point {
        (record.scale, record.offered_per_s, record.streams) = (scale, rate_per_s, streams);
    }
    let log = folder.log_path(&record.key);
    let measured = alone.measure(&load, record, log_into(&log)?);
    let (record, run) = measured.map_err(|fault| format!("{fault}; see {}", log.display()))?;
    folder.keep(&record, &run)?;
    Ok(record)
}
