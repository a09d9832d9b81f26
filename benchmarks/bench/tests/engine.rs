//! The engine alone, as a program: what it counts, what it refuses, and beside the service that it is the engine of.

mod program;

use pinion_testkit::{Folder, demo_model, fake_model, launcher_binary};
use program::{bench, check_success, text};
use serde_json::Value;
use std::path::Path;

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a result")).expect("JSON")
}

#[test]
fn counts_of_the_fake_model_are_exact_in_every_mode() {
    let (model, folder) = (fake_model(512), Folder::new());
    let (out, file) = (folder.path().join("out"), folder.path().join("result.json"));
    let (out_text, file_text) = (out.display().to_string(), file.display().to_string());
    let own = ["--modes", "naive,online,offline", "--rate", "300", "--requests", "12", "--rounds", "2"];
    let sizes = ["--input-len", "20", "--output-len", "5", "--out", &out_text, "--json", &file_text];
    let engine = [model.text(), "--backend", "fake", "--max-num-seqs", "4", "--no-overlap"];
    let more_rounds = ["--modes", "naive", "--rounds", "3", "--json", &format!("{file_text}.more")];
    // In any order.
    let line = [&["engine"][..], &engine, &own, &sizes].concat();
    let output = bench(&line);
    check_success(&output);
    let result = json(&out.join("engine.json"));
    assert_eq!(result, json(&file));
    assert_eq!(
        (&result["kind"], &result["origin"]["hardware"]["logical_cpus"].is_u64()),
        (&"engine".into(), &true)
    );
    let runs = result["runs"].as_array().expect("runs");
    let labels: Vec<&str> = runs.iter().filter_map(|run| run["label"].as_str()).collect();
    assert_eq!(labels, ["naive", "online", "offline", "naive", "online", "offline"]);
    for run in runs {
        let figures = &run["figures"];
        assert_eq!((&figures["requests"], &figures["completed"]), (&12.into(), &12.into()), "{run}");
        assert_eq!((&figures["output_tokens"], &figures["input_tokens"]), (&60.into(), &240.into()), "{run}");
        assert_eq!(run["server_output_tokens"], 60, "{run}");
        assert_eq!(
            (&figures["ttft_ms"]["count"], &figures["itl_ms"]["count"]),
            (&12.into(), &48.into()),
            "{run}"
        );
        assert!(run["server"]["version"]["version"].is_string() && run["fingerprint"].is_string(), "{run}");
        let (steps, rows) = (run["engine"]["steps"].as_u64(), run["engine"]["rows_per_step"].as_f64());
        match run["label"].as_str() {
            // A step for each token, one row in each.
            Some("naive") => assert_eq!((steps, rows), (Some(60), Some(1.0)), "{run}"),
            Some("offline") => assert!(steps < Some(40) && rows > Some(2.0) && rows <= Some(4.0), "{run}"),
            _ => assert!(steps <= Some(60) && rows <= Some(4.0), "{run}"),
        }
    }
    let table = text(&output.stdout);
    assert!(table.contains("| mode ") && table.contains("| latency "), "{table}");
    // What is there is not measured again.
    let again = bench(&line);
    check_success(&again);
    assert_eq!(text(&again.stderr).matches("kept from an earlier run").count(), 6);
    // Nor when one mode gets more rounds, or the file has another name.
    let same = ["--requests", "12", "--input-len", "20", "--output-len", "5", "--out", &out_text];
    let more = bench(&[&["engine"][..], &engine, &same, &more_rounds].concat());
    check_success(&more);
    assert_eq!(text(&more.stderr).matches("kept from an earlier run").count(), 2);
    assert_eq!(json(&out.join("engine.json"))["runs"].as_array().map(Vec::len), Some(3));
}

#[test]
fn what_is_wrong_is_refused_by_its_name() {
    let (model, folder) = (fake_model(512), Folder::new());
    for (line, named) in [
        ("MODEL --backend fake --port 80", "--port: acts on the service"),
        ("MODEL --backend fake --no-fast-sse --ipc channel", "--ipc: acts on the service"),
        ("MODEL --backend fake --dtype int3", "--dtype: "),
        ("MODEL --backend fake --bogus", "--bogus: no such flag"),
        ("MODEL --backend fake --requests 0", "--requests is above 0"),
        ("MODEL --backend fake --modes online", "--rate: "),
        (
            "MODEL --backend fake --input-len 509",
            "509 input tokens and 4 output tokens are more than the 512 of --max-model-len",
        ),
        ("MODEL --backend fake --max-model-len 8", "more than the 8 of --max-model-len"),
        ("--backend fake", "--model: "),
        ("MODEL --backend fake --pooling last", "--pooling: "),
    ] {
        let words = line.split(' ').map(|word| if word == "MODEL" { model.text() } else { word });
        let fixed = ["engine", "--rounds", "1", "--output-len", "4", "--out", folder.text()];
        let output = bench(&fixed.into_iter().chain(words).collect::<Vec<_>>());
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(named), "{line}: {said}");
    }
    let help = bench(&["engine", "--help"]);
    check_success(&help);
    let help = text(&help.stdout);
    assert!(
        ["--modes", "--requests", "--rate", "--max-num-seqs"].iter().all(|flag| help.contains(flag)),
        "{help}"
    );
    assert!(text(&bench(&["--help"]).stdout).contains("\n  engine "));
}

#[test]
fn the_demo_model_runs_alone() {
    let Some(model) = demo_model() else {
        println!("skipped: deploy/demo-model has no weights");
        return;
    };
    let folder = Folder::new();
    let model = model.display().to_string();
    let sizes = [
        "--requests",
        "3",
        "--input-len",
        "10",
        "--output-len",
        "4",
        "--rounds",
        "1",
        "--out",
        folder.text(),
    ];
    check_success(&bench(&[&["engine", &model, "--dtype", "fp32"][..], &sizes].concat()));
    let result = json(&folder.path().join("engine.json"));
    let run = &result["runs"][0];
    assert_eq!(
        (&run["figures"]["completed"], &run["server_output_tokens"]),
        (&3.into(), &12.into()),
        "{run}"
    );
    assert!(run["engine"]["summary"].as_str().is_some_and(|text| text.contains(" f32")), "{run}");
    assert!(run["figures"]["output_tokens_per_s"].as_f64() > Some(0.0), "{run}");
}

/// The scenario of the repository on a smaller batch: everyone gets the same ids, and the same number of tokens comes.
#[test]
fn the_engine_alone_takes_turns_with_the_service() {
    let (model, folder) = (fake_model(512), Folder::new());
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/process-boundary.toml");
    let scenario = scenario.display().to_string();
    let (bin, model) = (launcher_binary().display().to_string(), model.text());
    let set = [format!("bin={bin}"), format!("model={model}"), "flags=--backend fake".to_owned()];
    let set: Vec<&str> = set.iter().flat_map(|value| ["--set", value.as_str()]).collect();
    let fixed = ["compare", &scenario, "--rounds", "1", "--out", folder.text()];
    let work = ["--", "--num-prompts", "6", "--input-len", "10", "--output-len", "4"];
    let output = bench(&[&fixed[..], &set, &work].concat());
    check_success(&output);
    let result = json(&folder.path().join("compare.json"));
    let runs = result["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 7, "the service, one process, the engine alone and four that cannot act");
    for run in runs {
        assert_eq!(
            (&run["figures"]["output_tokens"], &run["server_output_tokens"]),
            (&24.into(), &24.into()),
            "{run}"
        );
        assert_eq!(
            (&run["figures"]["input_tokens"], &run["prompt_form"]),
            (&60.into(), &"ids".into()),
            "{run}"
        );
        assert_eq!(run["engine"].is_null(), run["label"] != "engine alone", "{run}");
    }
    let table = text(&output.stdout);
    assert!(table.contains("| engine alone ") && table.contains("1 of the 5 paired rounds"), "{table}");
    assert!(table.contains("-ui cannot act: the client asks for no page"), "{table}");
}
