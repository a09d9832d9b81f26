//! A run with clients that leave, recorded and replayed: the documented commands, in seconds instead of minutes.

mod program;

use pinion_testkit::{Folder, Server, demo_model, fake_model};
use program::{bench, check_success, text};
use serde_json::{Value, json};
use std::path::Path;

const OUTPUT: u64 = 32;

/// `what` of the client, while `flags` make the service.
fn check(model: &Path, asked: u64, flags: &[&str], what: &[&str]) {
    let folder = Folder::new();
    let file = folder.path().join("run.pinionrc").display().to_string();
    let server = Server::start(model, &[flags, &["--record", &file]].concat());
    let url = format!("http://{}", server.address());
    let out = folder.path().join("online");
    let (requests, output_len, out_text) = (asked.to_string(), OUTPUT.to_string(), out.display().to_string());
    let fixed =
        ["online", "--url", &url, "--poisson", "60", "--requests", &requests, "--output-len", &output_len];
    let leaving = ["--cancel-share", "0.3", "--temperature", "0.9", "--warmup", "1", "--out", &out_text];
    check_success(&bench(&[&fixed[..], &leaving, what].concat()));
    let result = std::fs::read_to_string(out.join("online.json")).expect("a result");
    let result: Value = serde_json::from_str(&result).expect("JSON");
    let figures = &result["runs"][0]["figures"];
    let (left, completed) = (figures["left"].as_u64(), figures["completed"].as_u64());
    let (left, completed) = (left.expect("a number"), completed.expect("a number"));
    assert!((2..=asked / 2).contains(&left) && left + completed == asked, "{figures}");
    assert_eq!(figures["errors"], json!({}));
    server.wait_idle();
    server.stop();

    let replayed = bench(&["replay", &file]);
    check_success(&replayed);
    assert!(text(&replayed.stderr).contains("\nidentical: "), "{}", text(&replayed.stderr));
    let report: Value = serde_json::from_str(&text(&replayed.stdout)).expect("a report");
    let tokens = report["tokens"][0].as_u64().expect("a number");
    assert!(
        completed * OUTPUT < tokens && tokens < (asked + 1) * OUTPUT,
        "no request was cancelled: {report}"
    );

    let changed = bench(&["replay", "--rounds", "1", &file, "--max-num-seqs", "2"]);
    check_success(&changed);
    let table = text(&changed.stdout);
    let line = |label: &str| table.lines().find(|line| line.contains(label)).expect(label).to_owned();
    assert!(line("as recorded").contains("identical"), "{table}");
    assert!(line("--max-num-seqs 2").contains("other"), "{table}");
}

#[test]
fn a_run_of_the_fake_model_with_clients_that_leave_replays() {
    let model = fake_model(512);
    let flags = ["--backend", "fake", "--fake-step-us", "2000"];
    check(model.path(), 40, &flags, &["--vocab", "257", "--context", "512", "--input-len", "50"]);
}

#[test]
fn a_run_of_the_demo_model_with_clients_that_leave_replays() {
    let Some(folder) = demo_model() else {
        println!("skipped: deploy/demo-model has no weights");
        return;
    };
    let tokenizer = folder.display().to_string();
    check(&folder, 12, &["--dtype", "fp32"], &["--tokenizer", &tokenizer, "--input-len", "30"]);
}
