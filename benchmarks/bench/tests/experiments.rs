//! The programs of benchmarks/experiments: hogs that run and end with a server, and a table that is refused without
//! them.

use pinion_testkit::{Folder, fake_model, launcher_binary};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn program(name: &str) -> String {
    root().join("benchmarks/experiments").join(name).display().to_string()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it in the repository's root, with this on its standard input.
fn python(name: &str, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new("python3");
    command.args(["-B", &program(name)]).args(arguments).current_dir(root());
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = piped.expect("python3 can be run");
    // A program that has ended already reads nothing.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_hog_works_until_its_input_ends_and_says_what_it_took() {
    for kind in ["cpu", "cache", "bandwidth"] {
        let output = python("hog.py", &[kind], "go\n");
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let lines: Vec<&str> = out.lines().collect();
        assert!(output.status.success() && lines.len() == 2 && lines[0] == "ready", "{kind}: {out}{err}");
        let told: Value = serde_json::from_str(lines[1]).expect("JSON");
        assert_eq!((&told["hog"], &told["failed"]), (&json!(kind), &json!(0)), "{told}");
        assert!(told["seconds"].as_f64() > Some(0.0), "{told}");
    }
    let never_told = python("hog.py", &["cpu"], "");
    assert_eq!((never_told.status.code(), text(&never_told.stdout).trim()), (Some(0), "ready"));
}

/// What `pinion bench` measures beside hogs, and what the server's log has then.
fn beside(hogs: &str) -> (Output, String) {
    let (model, folder) = (fake_model(512), Folder::new());
    let serve = format!(
        "python3 -B '{}' {hogs} -- '{}' serve --backend fake --fake-step-us 2000 --model '{}' --port {{port}}",
        program("beside.py"),
        launcher_binary().display(),
        model.text()
    );
    let output = Command::new(env!("CARGO_BIN_EXE_pinion-bench"))
        .args(["online", "--serve", &serve, "--vocab", "257", "--context", "512", "--streams", "2"])
        .args(["--requests", "2", "--input-len", "8", "--output-len", "200", "--out", folder.text()])
        .output()
        .expect("pinion-bench can be run");
    let log = folder.entries().contains(&"runs".to_owned()).then(|| {
        let entries = std::fs::read_dir(folder.path().join("runs")).expect("a folder").flatten();
        let mut logs =
            entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(".log"));
        std::fs::read_to_string(logs.next().expect("a log")).expect("text")
    });
    (output, log.unwrap_or_default())
}

#[test]
fn hogs_run_as_long_as_the_requests_beside_them() {
    let (output, log) = beside("--hog cpu --hog 'tenant --port {port} --open 2'");
    assert!(output.status.success(), "{}\n{log}", text(&output.stderr));
    assert!(log.contains("[beside] 2 hogs go"), "{log}");
    let told: Vec<Value> = log
        .lines()
        .filter_map(|line| line.strip_prefix("[beside] hog "))
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(told.len(), 2, "{log}");
    // Two streams of 200 steps of 2 ms.
    assert!(told.iter().all(|hog| hog["seconds"].as_f64() > Some(0.4)), "{log}");
    assert!(told[0]["done"].as_u64() > Some(0) && told[1]["failed"] == 0, "{log}");
}

#[test]
fn a_hog_that_cannot_run_is_no_measurement() {
    let (output, log) = beside("--hog 'files --file /dev/null'");
    assert!(!output.status.success());
    assert!(log.contains("the hog files --file /dev/null did not become ready"), "{log}");
}

/// A result of one round, of which the second variant ran beside a hog.
fn result(log: &str, scenario: &str) -> Output {
    let run = |label: &str, command: &str| {
        json!({
            "key": label, "label": label, "round": 0, "server": {"command": command},
            "figures": {"wall_s": 2.0, "client": {"cpu_share_of_one_core": 0.1}}
        })
    };
    let row = |label: &str, inert: bool, better: Option<&str>| {
        json!({
            "label": label, "metric": "itl_p99_ms", "median": 12.34, "ratio": 1.5, "low": 1.25, "high": 1.75,
            "band": {"low": 0.9, "high": 1.11, "variants": 3}, "hidden": false, "inert": inert,
            "better": better, "reason": Value::Null
        })
    };
    let folder = Folder::new();
    let result = json!({
        "base": "pinned", "scenario": scenario,
        "origin": {"commit": "0123456789abcdef", "time_utc": "t", "hardware": {"cpu": "c", "logical_cpus": 2}},
        "runs": [run("alone", "pinion serve"), run("pinned", "benchmarks/experiments/beside.py -- pinion serve")],
        "compared": [
            row("pinned", false, None), row("-pin", false, Some("base")), row("-ui", true, None)
        ]
    });
    folder.write("ablate.json", result.to_string());
    std::fs::create_dir(folder.path().join("runs")).expect("a folder");
    folder.write("runs/alone.server.log", "memory locked");
    folder.write("runs/pinned.server.log", log);
    python("table.py", &[folder.text()], "")
}

fn hog(seconds: f64, cpu_seconds: f64, done: u32) -> String {
    let told = json!({
        "hog": "cpu", "seconds": seconds, "cpu_seconds": cpu_seconds, "done": done, "unit": "turns", "failed": 0
    });
    format!("serving\n[beside] hog {told}\n")
}

#[test]
fn a_table_has_ratios_verdicts_and_the_noise() {
    let output = result(&hog(2.5, 1.2, 9), "");
    let table = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for line in [
        "| | ITL p99, ms |",
        "| pinned | 12.3 |",
        "| -pin | ×1.500 (1.250–1.750), pinned wins |",
        "| -ui | ×1.500 (1.250–1.750), cannot act |",
        "| noise | ×0.900–1.110 |",
    ] {
        assert!(table.lines().any(|found| found == line), "{line} is missing in {table}");
    }
}

#[test]
fn a_result_without_its_hogs_is_refused() {
    let memory = |hits: u32| format!("{}[beside] memory {{\"limit_hits\": {hits}}}\n", hog(2.5, 1.2, 9));
    for (log, scenario, reason) in [
        ("serving\n".to_owned(), "", "no hog told of itself"),
        (hog(1.5, 1.2, 9), "", "the hog cpu ran for 1.5 s, the requests for 2.0 s"),
        (hog(2.5, 0.1, 9), "", "the hog cpu had its CPU for 0.1 s of 2.5 s"),
        (hog(2.5, 1.2, 0), "", "the hog cpu did 0 turns"),
        (format!("{}[beside] error: hogs died: cpu\n", hog(2.5, 1.2, 9)), "", "hogs died"),
        (memory(0), "", "the memory limit was never reached"),
        (memory(5), "--memory-mib 9", "memory was not locked in a run of pinned"),
    ] {
        let output = result(&log, scenario);
        let fault = text(&output.stderr);
        assert!(!output.status.success() && fault.contains(reason), "{reason}: {fault}");
        assert_eq!(text(&output.stdout), "");
    }
}
