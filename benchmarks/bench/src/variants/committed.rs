//! The scenarios of the repository.

use super::*;
use crate::verdict::INERT_MIN;

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
        let mut all = scenario.switches.iter().chain(&scenario.inert);
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
    let known =
        |name: &str| page.contains(&format!("| `--{name}")) || page.contains(&format!("| `--[no-]{name}`"));
    let is_option = |name: &str| known(name) || name.strip_prefix("no-").is_some_and(known);
    for entry in std::fs::read_dir(root.join("benchmarks/scenarios")).expect("the scenarios").flatten() {
        let text = std::fs::read_to_string(entry.path()).expect("text");
        let scenario: Scenario = toml::from_str(&text).expect("a scenario");
        for flags in scenario.switches.iter().chain(&scenario.inert) {
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
        let scenario: Scenario = toml::from_str(&text).unwrap_or_else(|e| panic!("{:?}: {e}", entry.path()));
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

/// With what the files themselves say: what an operator adds is looked at again.
#[test]
fn what_committed_scenarios_call_inert_cannot_act() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut count = 0;
    for file in std::fs::read_dir(root.join("benchmarks/scenarios")).expect("the scenarios").flatten() {
        let text = std::fs::read_to_string(file.path()).expect("text");
        let mut scenario: Scenario = toml::from_str(&text).expect("a scenario");
        scenario.set.insert("model".to_owned(), root.join("deploy/demo-model").display().to_string());
        let command = scenario.server.as_ref().map(|command| replaced(command, &scenario.set));
        let workload = words(&replaced(&scenario.workload, &scenario.set)).expect("words");
        for entry in entries(&scenario, command.as_deref()).iter().filter(|entry| entry.inert) {
            let acting = entry.acting(command.as_deref(), &workload);
            assert_eq!(acting, Ok(None), "{:?}: {}", file.path(), entry.label);
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}

/// A comparison of servers is one of equal numbers of threads.
#[test]
fn where_a_peer_is_told_its_threads_pinion_is_too() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut count = 0;
    for file in std::fs::read_dir(root.join("benchmarks/scenarios")).expect("the scenarios").flatten() {
        let text = std::fs::read_to_string(file.path()).expect("text");
        let scenario: Scenario = toml::from_str(&text).expect("a scenario");
        if !scenario.set.contains_key("threads") {
            continue;
        }
        let own = scenario.server.as_deref().unwrap_or_default();
        assert!(own.contains("--engine-threads {threads} "), "{:?}: {own}", file.path());
        for variant in &scenario.variants {
            let server = variant.server.as_deref().unwrap_or_default();
            assert!(server.contains("{threads}"), "{:?}: {}", file.path(), variant.label);
            count += 1;
        }
    }
    assert!(count > 2, "{count}");
}
