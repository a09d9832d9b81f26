//! `pinion doctor` as an operator runs it: every check of a good world, and one fault at a time.

use pinion_testkit::{Ended, Folder, PATIENCE, StubDriver, fixture_model, run_to_end};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;

/// Runs it with `--json`, holds the exit code against what it says, and gives the checks.
fn checks(words: &[&str], variables: &[(&str, &str)]) -> Vec<Value> {
    let ended = doctor(&[words, &["--json"]].concat(), variables);
    let object: Value = serde_json::from_str(&ended.stdout).expect("one JSON object");
    assert_eq!(object["version"], env!("CARGO_PKG_VERSION"));
    let checks = object["checks"].as_array().expect("a list").clone();
    let fails = checks.iter().any(|check| check["status"] == "failure");
    assert_eq!((object["ok"] == true, ended.code), (!fails, Some(i32::from(fails))), "{object:#}");
    for check in &checks {
        let is_ok = check["status"] == "ok";
        assert_eq!(check["remedy"].is_null(), is_ok, "what is not ok has a remedy: {check}");
    }
    checks
}

fn doctor(words: &[&str], variables: &[(&str, &str)]) -> Ended {
    let ended = run_to_end(&[&["doctor"], words].concat(), variables, PATIENCE);
    assert!(ended.left.is_empty() && ended.files.is_empty(), "{ended:?}");
    ended
}

fn find<'a>(checks: &'a [Value], id: &str) -> &'a Value {
    checks.iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("no {id} in {checks:#?}"))
}

#[track_caller]
fn fails(checks: &[Value], id: &str, found: &str, remedy: &str) {
    let failed: Vec<&Value> = checks.iter().filter(|check| check["status"] == "failure").collect();
    assert_eq!(failed.len(), 1, "one failure: {failed:#?}");
    let check = find(checks, id);
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    assert!(text("found").contains(found) && text("remedy").contains(remedy), "{check:#}");
}

fn has_driver() -> bool {
    Path::new("/dev/nvidiactl").exists() || Path::new("/proc/driver/nvidia/version").exists()
}

#[test]
fn a_good_world_has_no_failure_and_every_check_has_one_id() {
    let model = fixture_model();
    let checks = checks(&[model.text(), "--port", "0", "--dtype", "fp32"], &[]);
    let ids: BTreeSet<&str> = checks.iter().filter_map(|check| check["id"].as_str()).collect();
    assert_eq!(ids.len(), checks.len(), "{checks:#?}");
    for id in [
        "cpu.features",
        "cpu.cores",
        "cpu.quota",
        "memory",
        "memory.huge-pages",
        "memory.shared",
        "limits.memlock",
        "limits.nofile",
        "limits.processes",
        "kernel.start",
        "programs",
        "libtorch",
        "cuda.driver",
        "port",
        "options",
        "model.folder",
        "model.weights",
        "model.tokenizer",
        "model.memory",
        "disk.cache",
        "sandbox.landlock",
        "sandbox.seccomp",
    ] {
        assert!(ids.contains(id), "{id} in {ids:?}");
    }
    for id in
        ["libtorch", "memory.shared", "kernel.start", "model.weights", "model.tokenizer", "model.memory"]
    {
        assert_eq!(find(&checks, id)["status"], "ok", "{checks:#?}");
    }
    assert!(find(&checks, "libtorch")["found"].as_str().unwrap().contains("libtorch_cpu.so"));
    assert!(find(&checks, "model.folder")["found"].as_str().unwrap().contains("Fp32"));
}

#[test]
fn a_bad_folder_ends_with_1_and_a_line_that_says_what_to_do() {
    let ended = doctor(&["/no/such/folder", "--port", "0"], &[]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let line = ended.stdout.lines().find(|line| line.contains("model.folder")).expect("a line about it");
    assert!(
        line.starts_with("check=model.folder status=failure found=\"/no/such/folder: no such folder"),
        "{line}"
    );
    assert!(line.contains("remedy=\"Name a folder with config.json"), "{line}");

    let ended = doctor(&["--no-such-flag"], &[]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
    let help = doctor(&["--help"], &[]);
    assert!(
        help.code == Some(0) && help.stdout.contains("pinion doctor [DIR|FILE.gguf|ORG/NAME]"),
        "{help:?}"
    );
}

#[test]
fn what_is_wrong_in_a_folder_is_named_by_file() {
    let model = fixture_model();
    let weights = model.path().join("model.safetensors");
    let words = [model.text(), "--port", "0"];
    let whole = std::fs::read(&weights).unwrap();
    model.write("model.safetensors", &whole[..whole.len() - 8]);
    fails(&checks(&words, &[]), "model.weights", "model.safetensors: not a whole safetensors file", "again");

    let index = r#"{"weight_map": {"wte.weight": "model-00001-of-00001.safetensors"}}"#;
    std::fs::remove_file(&weights).unwrap();
    model.write("model.safetensors.index.json", index);
    fails(&checks(&words, &[]), "model.weights", "model-00001-of-00001.safetensors", "pinion pull");

    model.write("model.safetensors", &whole);
    model.write("tokenizer.json", r#"{"model": {"type": "unknown"}}"#);
    fails(&checks(&words, &[]), "model.tokenizer", "not a usable tokenizer", "tokenizer.json");

    model.write("config.json", r#"{"model_type": "strange"}"#);
    fails(&checks(&words, &[]), "model.folder", "\"strange\" is not supported", "docs/MODELS.md");
}

#[test]
fn a_taken_port_a_bad_option_and_a_model_that_is_not_here() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    fails(&checks(&["--port", &port], &[]), "port", "cannot be listened on", "--port");
    let words = ["--port", "0", "--max-num-seqs", "64", "--max-num-batched-tokens", "8"];
    fails(&checks(&words, &[]), "options", "max-num-batched-tokens", "pinion --help");

    let cache = Folder::new();
    let words = ["org/name", "--port", "0", "--hub-cache", cache.text()];
    let found = checks(&words, &[]);
    let check = find(&found, "model.folder");
    assert!(
        check["status"] == "note" && check["remedy"].as_str().unwrap().contains("pinion pull org/name"),
        "{check}"
    );
}

#[test]
fn a_gpu_that_is_asked_for_and_not_there_is_a_failure() {
    if has_driver() {
        eprintln!("skipped: this machine has an NVIDIA driver");
        return;
    }
    let folder = Folder::new();
    let object = folder.path().join("libpinion_cuda.so");
    let words = ["--port", "0", "--device", "cuda", "--cuda-object", object.to_str().unwrap()];
    let none = StubDriver::absent(&folder.path().join("no-driver"));
    let absent = checks(&words, &[("LD_LIBRARY_PATH", &none)]);
    for (id, says, remedy) in [
        ("cuda.driver", "no NVIDIA driver is here (", "Install NVIDIA driver 580"),
        ("cuda.object", "there is no ", "deploy/cuda.sh"),
        ("cuda.device", "no device was opened", "first"),
    ] {
        let check = find(&absent, id);
        assert_eq!(check["status"], "failure", "{check}");
        let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
        assert!(text("found").contains(says) && text("remedy").contains(remedy), "{check}");
    }

    folder.write("libpinion_cuda.so", "no object");
    let wrong = checks(&words, &[("LD_LIBRARY_PATH", &none)]);
    let check = find(&wrong, "cuda.object");
    assert!(
        check["status"] == "failure" && check["found"].as_str().unwrap().contains("cannot be used"),
        "{check}"
    );

    let place = folder.path().join("driver");
    for (stub, says) in [
        (
            StubDriver { init: 100, ..StubDriver::GOOD },
            "the NVIDIA driver fails: cuInit answers 100, the stub refuses",
        ),
        (StubDriver { version: 12_080, ..StubDriver::GOOD }, "runs CUDA 12.8, and the object needs CUDA 13"),
        (StubDriver { devices: 0, ..StubDriver::GOOD }, "has no device"),
    ] {
        let found = checks(&words, &[("LD_LIBRARY_PATH", &stub.build(&place))]);
        let check = find(&found, "cuda.driver");
        assert!(check["status"] == "failure" && check["found"].as_str().unwrap().ends_with(says), "{check}");
    }

    let on_cpu = checks(&["--port", "0"], &[]);
    assert_eq!(find(&on_cpu, "cuda.driver")["status"], "ok");
}
