//! The scenarios of the repository.

use super::*;
use crate::verdict::INERT_MIN;
use std::path::Path;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Each with its path.
fn scenarios() -> Vec<(PathBuf, Scenario)> {
    let folders = ["benchmarks/scenarios", "benchmarks/experiments"];
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(root().join(folder)).expect("a folder"));
    let paths = entries.flatten().map(|entry| entry.path());
    let files = paths.filter(|path| path.extension().is_some_and(|ending| ending == "toml"));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("text");
        let scenario = toml::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        (path, scenario)
    };
    files.map(read).collect()
}

#[test]
fn the_ablation_set_has_every_switch() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("a file of the repository");
    let (page, text) = (read("docs/CONFIGURATION.md"), read("benchmarks/scenarios/switches.toml"));
    let scenario: Scenario = toml::from_str(&text).expect("a scenario");
    let switches = page.lines().filter_map(|line| line.strip_prefix("| `--[no-]")?.split('`').next());
    let mut count = 0;
    for name in switches {
        let is_it = |flags: &String| *flags == format!("--no-{name}") || *flags == format!("--{name}");
        let mut all = scenario.switches.iter().chain(&scenario.inert);
        assert!(all.any(is_it), "switches.toml lacks --[no-]{name}");
        count += 1;
    }
    assert!(count > 5, "docs/CONFIGURATION.md lists switches in another form");
}

/// A misspelt flag would be reported as skipped in every run, and measure nothing.
#[test]
fn scenarios_name_only_options_that_exist() {
    let page = std::fs::read_to_string(root().join("docs/CONFIGURATION.md")).expect("the options");
    let known =
        |name: &str| page.contains(&format!("| `--{name}")) || page.contains(&format!("| `--[no-]{name}`"));
    let is_option = |name: &str| known(name) || name.strip_prefix("no-").is_some_and(known);
    for (path, scenario) in scenarios() {
        let of_variants = scenario.variants.iter().filter_map(|variant| variant.flags.as_ref());
        for flags in scenario.switches.iter().chain(&scenario.inert).chain(of_variants) {
            for flag in flags.split_whitespace().filter_map(|word| word.strip_prefix("--")) {
                assert!(is_option(flag), "{path:?} names --{flag}, which is no option");
            }
        }
    }
    assert!(!is_option("fused-ops") && is_option("no-pin") && is_option("ipc"), "the check sees nothing");
}

/// Each can give verdicts, and asks for no percentile that its number of requests does not carry.
#[test]
fn every_committed_scenario_can_tell_a_difference_from_noise() {
    let mut count = 0;
    for (place, scenario) in scenarios() {
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
    assert!(count > 10, "{count}");
}

/// With what the files themselves say: what an operator adds is looked at again.
#[test]
fn what_committed_scenarios_call_inert_cannot_act() {
    let mut count = 0;
    for (path, mut scenario) in scenarios() {
        scenario.set.insert("model".to_owned(), root().join("deploy/demo-model").display().to_string());
        let command = scenario.server.as_ref().map(|command| replaced(command, &scenario.set));
        let workload = words(&replaced(&scenario.workload, &scenario.set)).expect("words");
        for entry in entries(&scenario, command.as_deref()).iter().filter(|entry| entry.inert) {
            let acting = entry.acting(command.as_deref(), &workload);
            assert_eq!(acting, Ok(None), "{path:?}: {}", entry.label);
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}

/// A comparison of servers is one of equal numbers of threads.
#[test]
fn where_a_peer_is_told_its_threads_pinion_is_too() {
    let mut count = 0;
    for (path, scenario) in scenarios() {
        if !scenario.set.contains_key("threads") {
            continue;
        }
        let own = scenario.server.as_deref().unwrap_or_default();
        assert!(own.contains("--engine-threads {threads} "), "{path:?}: {own}");
        for variant in &scenario.variants {
            let server = variant.server.as_deref().unwrap_or_default();
            assert!(server.contains("{threads}"), "{path:?}: {}", variant.label);
            count += 1;
        }
    }
    assert!(count > 2, "{count}");
}
