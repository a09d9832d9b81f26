//! Completions and the manual page: shells and troff accept them, and every option is in them.

use crate::tree::run_on;
use pinion_config::{Command, Machine, docs};
use std::io::Write;
use std::process::{Command as Process, Stdio};

fn printed(words: &[&str]) -> String {
    match run_on(&Machine::uniform(2, 1), words, &[]) {
        Ok(Command::Help(text)) => text,
        other => panic!("{words:?}: {other:?}"),
    }
}

/// Every flag of docs/CONFIGURATION.md, with its dashes; a switch twice.
fn flags() -> Vec<String> {
    let page = docs::markdown();
    let usages = page.lines().filter_map(|line| line.strip_prefix("| `--"));
    let mut flags = Vec::new();
    for usage in usages {
        let name = usage.split([' ', '`']).next().unwrap_or_default();
        match name.strip_prefix("[no-]") {
            Some(name) => flags.extend([format!("--{name}"), format!("--no-{name}")]),
            None => flags.push(format!("--{name}")),
        }
    }
    assert!(flags.len() > 90, "{flags:?}");
    flags
}

/// Runs a program with this text as its input; its output, or `None` where it is not installed.
fn piped(program: &str, words: &[&str], input: &str) -> Option<(bool, String)> {
    let mut command = Process::new(program);
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let mut stdin = child.stdin.take().expect("it is piped");
    let text = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("it reads all");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Some((output.status.success(), said.into_owned()))
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let script = printed(&["completions", "bash"]);
    assert_eq!(piped("bash", &["-n"], &script).expect("bash is installed"), (true, String::new()));
    let complete = |words: &[&str]| {
        let line: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let call = format!(
            "{script}\nCOMP_WORDS=(pinion {}); COMP_CWORD={}; _pinion; printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            line.join(" "),
            words.len()
        );
        let (ended_well, said) = piped("bash", &[], &call).expect("bash is installed");
        assert!(ended_well, "{said}");
        said.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete(&["se"]), ["serve"]);
    assert_eq!(complete(&["serve", "--dty"]), ["--dtype"]);
    assert_eq!(complete(&["serve", "--dtype", "b"]), ["bf16"]);
    assert_eq!(complete(&["serve", "--dtype", "=", "b"]), ["bf16"]);
    assert_eq!(complete(&["doctor", "--js"]), ["--json"]);
    assert_eq!(complete(&["completions", "z"]), ["zsh"]);
    assert_eq!(complete(&["serve", "--port", "8"]), [""]);
    let offered = complete(&["serve", "--"]);
    for flag in flags() {
        assert!(offered.contains(&flag), "{flag} is not offered");
    }
}

#[test]
fn zsh_and_fish_are_told_of_every_flag() {
    let (zsh, fish) = (printed(&["completions", "zsh"]), printed(&["completions", "fish"]));
    for (shell, script) in [("zsh", &zsh), ("fish", &fish)] {
        match piped(shell, &["-n"], script) {
            Some(outcome) => assert_eq!(outcome, (true, String::new()), "{shell}"),
            None => eprintln!("{shell} is not installed: its script was not read by it"),
        }
    }
    for flag in flags() {
        let specs = [format!("'{flag}["), format!("'{flag}=[")];
        assert!(specs.iter().any(|spec| zsh.contains(spec.as_str())), "{flag} is not in {zsh}");
        assert!(fish.contains(&format!(" -l {} ", flag.trim_start_matches('-'))), "{flag} is not in {fish}");
    }
    assert!(
        zsh.starts_with("#compdef pinion\n")
            && fish.contains("-l dtype -x -a 'auto fp32 bf16 fp16' -d 'Type of")
    );
    let fault = run_on(&Machine::uniform(2, 1), &["completions", "tcsh"], &[]).unwrap_err();
    assert!(fault.to_string().contains("one of bash, zsh, fish"), "{fault}");
}

#[test]
fn the_manual_page_has_every_option_and_troff_takes_it() {
    let page = printed(&["man"]);
    assert!(page.starts_with(".TH PINION 1 "));
    for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "OPTIONS", "EXIT STATUS"] {
        assert_eq!(page.lines().filter(|line| *line == format!(".SH {section}")).count(), 1, "{section}");
    }
    for flag in flags().iter().filter(|flag| !flag.starts_with("--no-")) {
        let name = flag.trim_start_matches('-').replace('-', "\\-");
        let tags = [format!("\n.B \\-\\-{name}"), format!("\n.B \\-\\-[no\\-]{name}")];
        assert!(tags.iter().any(|tag| page.contains(tag.as_str())), "{flag}");
    }
    // Every line is a request that is known, or text that no request begins.
    let requests = [".TH ", ".SH ", ".SS ", ".TP", ".B ", ".nf", ".fi"];
    for line in page.lines().filter(|line| line.starts_with(['.', '\''])) {
        assert!(requests.iter().any(|request| line.starts_with(request)), "{line}");
    }
    match piped("mandoc", &["-T", "lint", "-W", "error"], &page) {
        Some((ended_well, said)) => assert!(ended_well, "{said}"),
        None => eprintln!("mandoc is not installed: it did not check the page"),
    }
    if let Some((ended_well, said)) = piped("man", &["-l", "-"], &page) {
        assert!(!ended_well || said.contains("--max-num-seqs"), "{said}");
    }
}
