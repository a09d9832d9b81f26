//! Help and docs/CONFIGURATION.md.

use crate::tree::run_on;
use pinion_config::{Command, Machine, docs};

fn help(topic: &str) -> String {
    match run_on(&Machine::uniform(2, 1), &[&format!("--help={topic}")], &[]) {
        Ok(Command::Help(text)) => text,
        other => panic!("{topic}: {other:?}"),
    }
}

/// Every option's flag as the docs write it.
fn flags(page: &str) -> Vec<String> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `--"));
    let names = cells.filter_map(|cell| cell.split(['`', ' ']).next());
    names.map(|name| name.replace("[no-]", "")).collect()
}

#[test]
fn the_page_in_the_repository_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIGURATION.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == docs::markdown(),
        "docs/CONFIGURATION.md is stale; write it anew with `cargo xtask docs`"
    );
}

#[test]
fn every_option_is_in_the_docs_in_the_help_and_settable_from_the_environment() {
    let page = docs::markdown();
    let (flags, all) = (flags(&page), help("all"));
    assert!(flags.len() > 40, "{flags:?}");
    for flag in &flags {
        let spelled = [format!("--{flag} "), format!("--[no-]{flag} ")];
        assert!(spelled.iter().any(|s| all.contains(s.as_str())), "{flag} is missing from --help=all");
        let one = help(flag);
        let variable = format!("PINION_{}", flag.to_uppercase().replace('-', "_"));
        assert!(one.contains(&variable) && one.contains("Default: "), "{one}");
        // an empty value is the option's own fault, not an unknown name
        let faults = run_on(&Machine::uniform(2, 1), &["config", "show"], &[(&variable, "")]).unwrap_err();
        assert!(faults.to_string().contains(&format!("{variable}: is empty")), "{faults}");
    }
}

#[test]
fn help_is_short_first_and_finds_words() {
    let Ok(Command::Help(short)) = run_on(&Machine::uniform(2, 1), &["--help"], &[]) else {
        panic!("no help")
    };
    assert!(short.lines().count() < 45 && short.contains("--model DIR"), "{short}");
    assert!(!short.contains("--fake-step-us"));
    assert!(short.lines().chain(help("all").lines()).all(|line| line.chars().count() <= 100));
    assert!(help("processes").contains("--cpus-engine CPUS"));
    assert!(help("--no-pin").starts_with("--[no-]pin\n"));
    assert!(help("vocabulary-xyz").contains("Nothing is called"));
    assert!(help("reader").contains("--stream-buffer-bytes-max"));
    for code in 0..=7 {
        assert!(help("all").contains(&format!("\n  {code}  ")), "exit code {code}");
    }
}
