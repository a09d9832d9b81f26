//! `profile`: a stage of its own, with the tools that are there.

use pinion_testkit::{Folder, fixture_model, launcher_binary};
use serde_json::{Value, json};
use std::process::{Command, Output};

struct Rig {
    model: Folder,
    out: Folder,
    /// A PATH on which only the shell is.
    bin: Folder,
}

impl Rig {
    fn new() -> Rig {
        let bin = Folder::new();
        std::os::unix::fs::symlink("/bin/sh", bin.path().join("sh")).expect("a folder of our own");
        Rig { model: fixture_model(), out: Folder::new(), bin }
    }

    fn profile(&self, tools: &str) -> Output {
        let (binary, model) = (launcher_binary(), self.model.text());
        let serve = format!("'{}' serve --model '{model}' --port {{port}} --dtype fp32", binary.display());
        let work = ["--poisson", "40", "--input-len", "10", "--output-len", "8", "--warmup", "1"];
        Command::new(env!("CARGO_BIN_EXE_pinion-bench"))
            .args(["profile", "--serve", &serve, "--tokenizer", model, "--profile-requests", "6"])
            .args(work)
            .args(["--tools", tools, "--out", self.out.text()])
            .env("PATH", self.bin.path())
            .output()
            .expect("pinion-bench can be run")
    }

    fn runs(&self) -> Vec<Value> {
        let text =
            std::fs::read_to_string(self.out.path().join("profile_manifest.json")).expect("a manifest");
        let manifest: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(manifest["meta"]["requests"], json!(6));
        manifest["runs"].as_array().expect("runs").clone()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_tools_that_are_there_write_what_the_manifest_says() {
    let rig = Rig::new();
    let output = rig.profile("auto");
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    let says = "neither nsys nor perf is on PATH";
    assert!(text(&output.stderr).lines().any(|line| line.starts_with(says)), "{}", text(&output.stderr));
    let runs = rig.runs();
    let of = |tool: &str| runs.iter().find(|run| run["tool"] == tool).expect(tool);
    assert_eq!(runs.len(), 2);
    for (tool, role, file) in
        [("torch", "engine-0", "torch/native/engine-0/trace.json"), ("trace", "all", "trace/trace.json")]
    {
        let run = of(tool);
        assert_eq!(
            (&run["role"], &run["files"], &run["error"]),
            (&json!(role), &json!([file]), &Value::Null)
        );
        let trace = std::fs::read_to_string(rig.out.path().join(file)).expect(file);
        let trace: Value = serde_json::from_str(&trace).expect("JSON");
        assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 50), "{file}");
        let log = run["service_log"].as_str().expect("a log");
        assert!(rig.out.path().join(log).is_file(), "{log}");
    }
    assert_eq!(rig.out.entries(), ["profile_manifest.json", "torch", "trace"], "no result is written");
}

#[test]
fn a_tool_that_is_missing_is_an_error_of_its_run() {
    let rig = Rig::new();
    let output = rig.profile("perf,trace");
    assert!(!output.status.success());
    let runs = rig.runs();
    let error = |tool: &str| &runs.iter().find(|run| run["tool"] == tool).expect(tool)["error"];
    assert!(error("perf").as_str().is_some_and(|error| error.contains("perf: No such file")), "{runs:?}");
    assert_eq!(error("trace"), &Value::Null);
}
